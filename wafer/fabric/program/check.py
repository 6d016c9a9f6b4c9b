"""What can be known to be wrong with a program before it runs, named by PE and color."""

import numpy as np

from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.codes import Port
from wafer.fabric.program.ops import FabIn, FabOut, Mem, Op
from wafer.fabric.program.tables import Meta, Program
from wafer.machine.arch import OPPOSITE, STEPS

__all__ = ["MAIN_LEVELS", "THREAD_LEVELS", "check_operation", "check_program", "neighbour"]

_INPUT_QUEUES = 8
# Levels of microthreads (``.priority`` of an asynchronous operation), and of a task's own thread
# (``<tile_config>/main_thread_priority``), as ``operations.priority`` of an image has them.
THREAD_LEVELS = {"low": 0, "medium": 1, "high": 2}
MAIN_LEVELS = {"medium_low": 3, "medium": 4, "medium_high": 5, "high": 6}
_KINDS = ("work", "mov", "add", "sub", "mul", "mac", "max")
_TYPES = ("float32", "float16", "uint32")
_ACTIONS = ("activate", "block", "unblock")


def neighbour(plane: np.ndarray, side: str, outside: int = 0) -> np.ndarray:
    """Each PE's view of its neighbour's value: out[y, x] = plane[y + dy, x + dx].

    Args:
        plane: [..., H, W].
        side: the side on which the neighbour lies.
        outside: value beyond the edge.
    """
    dx, dy = STEPS[side]
    out = np.roll(plane, (-dy, -dx), axis=(-2, -1))
    if dy:
        out[..., -1 if dy > 0 else 0, :] = outside
    if dx:
        out[..., :, -1 if dx > 0 else 0] = outside
    return out


def _first(bad: np.ndarray) -> str:
    y, x = np.argwhere(bad)[0]
    return f"PE ({x}, {y})"


def check_operation(op: Op, meta: Meta) -> None:
    """Raise if an operation names what there is not.

    Args:
        op: the operation.
        meta: of its program.

    Raises:
        FabricError: unknown kind, array, task, thread or priority, or an address outside its array.
        RouteError: a color that is not declared.
    """
    spec, tasks = meta.spec, [name for name, *_ in meta.tasks]
    if op.kind not in _KINDS or op.dtype not in _TYPES or op.n < 1:
        raise FabricError(f"operation {op.kind!r} on {op.dtype}, n={op.n}: unknown or empty")
    if op.thread is not None and not 0 <= op.thread < spec.microthreads:
        raise FabricError(f"{op.kind}: microthread {op.thread}; a PE has {spec.microthreads}")
    if isinstance(op.dst, FabOut) and op.dst.control and op.dtype != "uint32":
        raise FabricError(f"{op.kind} on {op.dtype}: control wavelets are uint32; use mov32")
    _check_levels(op, meta.main)
    for action, task in op.on_done:
        if task not in tasks or action not in _ACTIONS:
            raise FabricError(f"{op.kind}: {action} {task!r}: bound tasks are {tasks}")
    colors = [o.color for o in op.operands if isinstance(o, FabIn | FabOut)]
    for color in [*colors, *(op.position or ())[:1]]:
        if color not in meta.colors:
            raise RouteError(f"{op.kind}: color {color} is not declared")
    for operand in op.operands:
        if isinstance(operand, Mem):
            _check_words(op, operand, {name: words for name, _, words, _ in meta.arrays})


def _check_levels(op: Op, main: str) -> None:
    if op.priority not in THREAD_LEVELS or main not in MAIN_LEVELS:
        raise FabricError(
            f"{op.kind}: priority {op.priority!r} of a microthread is one of {list(THREAD_LEVELS)},"
            f" {main!r} of the task one of {list(MAIN_LEVELS)}"
        )


def _check_words(op: Op, operand: Mem, arrays: dict[str, int]) -> None:
    if operand.array not in arrays:
        raise FabricError(f"{op.kind}: no array {operand.array!r}; declared: {list(arrays)}")
    i, inner = np.arange(op.n), operand.inner or op.n
    used = operand.offset + operand.stride * (i % inner) + operand.outer * (i // inner)
    words = arrays[operand.array]
    if used.min() < 0 or used.max() >= words:
        raise FabricError(
            f"{op.kind} over {operand.array!r}: words {used.min()}..{used.max()} of {words}"
        )


def check_program(program: Program, ops: list[tuple[Op, np.ndarray]]) -> None:
    """Raise for the first route or descriptor that cannot work.

    Args:
        program: as built.
        ops: every operation with the [H, W] region it is bound to.

    Raises:
        RouteError: see :meth:`wafer.fabric.Layout.build`.
        FabricError: a data task on a color that its PE does not receive.
    """
    for index, color in enumerate(program.meta.colors):
        rx, tx = program.rx[:, index], program.tx[:, index]
        every_rx, every_tx = np.bitwise_or.reduce(rx), np.bitwise_or.reduce(tx)
        _check_swap(program, index)
        swapped = np.bitwise_or.reduce(program.rx[:, program.meta.partners[index]])
        for side, opposite in OPPOSITE.items():
            swaps = program.swap[int(side in "NS"), index]
            takes = np.where(swaps, neighbour(swapped, side), neighbour(every_rx, side))
            _check_side(color, side, every_rx, every_tx, takes & Port[opposite])
        empty = (every_rx == 0) & (every_tx != 0)
        if empty.any():
            raise RouteError(f"{_first(empty)}, color {color}: leaves the router but never enters")
    _check_descriptors(program, ops)
    _check_tasks(program)


def _check_swap(program: Program, index: int) -> None:
    meta, partner = program.meta, program.meta.partners[index]
    color, swap = meta.colors[index], program.swap[:, index]
    if swap.any() and not meta.spec.color_swap:
        raise RouteError(f"color {color}: {meta.spec.name} cannot swap colors")
    alone = (swap != program.swap[:, partner]).any(axis=0) if partner != index else swap.any(axis=0)
    if alone.any():
        raise RouteError(
            f"{_first(alone)}, color {color}: it swaps with color {color ^ 1}, which must be"
            " declared and swap along the same axes here"
        )


def _check_side(
    color: int, side: str, every_rx: np.ndarray, every_tx: np.ndarray, takes: np.ndarray
) -> None:
    opposite = OPPOSITE[side]
    inside = neighbour(np.ones_like(every_tx), side)
    for name, mask in (("tx", every_tx), ("rx", every_rx)):
        off = ((mask & Port[side]) != 0) & (inside == 0)
        if off.any():
            raise RouteError(
                f"{_first(off)}, color {color}: {name} {side} points off the grid of"
                f" {every_tx.shape[1]}x{every_tx.shape[0]} PEs"
            )
    lost = ((every_tx & Port[side]) != 0) & (takes == 0)
    if lost.any():
        raise RouteError(
            f"{_first(lost)}, color {color}: sent {side}, but the neighbour there never takes"
            f" the color from its {opposite}; add rx {opposite} to its route"
        )


def _check_descriptors(program: Program, ops: list[tuple[Op, np.ndarray]]) -> None:
    colors = program.meta.colors
    into = np.bitwise_or.reduce(program.rx) & Port.RAMP
    out_of = np.bitwise_or.reduce(program.tx) & Port.RAMP
    for op, mask in ops:
        for operand in op.operands:
            if isinstance(operand, FabOut):
                side, have = "rx RAMP", into[colors.index(operand.color)]
            elif isinstance(operand, FabIn):
                side, have = "tx RAMP", out_of[colors.index(operand.color)]
            else:
                continue
            missing = mask & (have == 0)
            if missing.any():
                raise RouteError(
                    f"{_first(missing)}, color {operand.color}: {op.kind} uses it, but the PE's"
                    f" router has no {side} for it"
                )
    queues = (out_of != 0).sum(axis=0) if len(colors) else np.zeros((1, 1), int)
    if queues.max(initial=0) > _INPUT_QUEUES:
        raise RouteError(
            f"{_first(queues > _INPUT_QUEUES)}: {queues.max()} colors enter the CE; it has"
            f" {_INPUT_QUEUES} input queues"
        )


def _check_tasks(program: Program) -> None:
    out_of = np.bitwise_or.reduce(program.tx) & Port.RAMP
    for index, (name, kind, key, _) in enumerate(program.meta.tasks):
        if kind == "control" and not 0 <= key < 64:
            raise FabricError(f"task {name!r}: control task id {key}; ids are 0..63")
        if kind == "data":
            deaf = (program.entry[index] >= 0) & (out_of[key] == 0)
            if deaf.any():
                raise FabricError(
                    f"{_first(deaf)}, color {program.meta.colors[key]}: data task {name!r} waits"
                    " for a color that never reaches this CE; add tx RAMP"
                )
