"""What can be known to be wrong with a program before it runs, named by PE and color."""

from collections.abc import Sequence

import numpy as np

from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.codes import Port
from wafer.fabric.program.ops import TYPES, FabIn, FabOut, Mem, Op
from wafer.fabric.program.tables import BoundTask, Program
from wafer.machine.arch import OPPOSITE, STEPS

__all__ = ["MAIN_LEVELS", "THREAD_LEVELS", "check_program"]

_INPUT_QUEUES = 8
# Levels of microthreads (``.priority`` of an asynchronous operation), and of a task's own thread
# (``<tile_config>/main_thread_priority``), as ``operations.priority`` of an image has them.
THREAD_LEVELS = {"low": 0, "medium": 1, "high": 2}
MAIN_LEVELS = {"medium_low": 3, "medium": 4, "medium_high": 5, "high": 6}
_KINDS = ("work", "mov", "add", "sub", "mul", "mac", "max")
_ACTIONS = ("activate", "block", "unblock")


def _neighbor(plane: np.ndarray, side: str) -> np.ndarray:
    """Each PE's view of its neighbor's value: out[y, x] = plane[y + dy, x + dx], or 0."""
    dx, dy = STEPS[side]
    out = np.roll(plane, (-dy, -dx), axis=(0, 1))
    if dy:
        out[-1 if dy > 0 else 0] = 0
    if dx:
        out[:, -1 if dx > 0 else 0] = 0
    return out


def _first(bad: np.ndarray) -> str:
    y, x = np.argwhere(bad)[0]
    return f"PE ({x}, {y})"


def _check_operation(op: Op, program: Program, tasks: list[str], words: dict[str, int]) -> None:
    """Raise if an operation names what there is not."""
    spec = program.spec
    if op.kind not in _KINDS or op.dtype not in TYPES or op.n < 1:
        raise FabricError(f"operation {op.kind!r} on {op.dtype}, n={op.n}: unknown or empty")
    if op.thread is not None and not 0 <= op.thread < spec.microthreads:
        raise FabricError(f"{op.kind}: microthread {op.thread}; a PE has {spec.microthreads}")
    if isinstance(op.dst, FabOut) and op.dst.control and op.dtype != "uint32":
        raise FabricError(f"{op.kind} on {op.dtype}: control wavelets are uint32; use mov32")
    _check_levels(op, program.main)
    for action, task in op.on_done:
        if task not in tasks or action not in _ACTIONS:
            raise FabricError(f"{op.kind}: {action} {task!r}: bound tasks are {tasks}")
    colors = [o.color for o in op.operands if isinstance(o, FabIn | FabOut)]
    for color in [*colors, *(op.position or ())[:1]]:
        if color not in program.colors:
            raise RouteError(f"{op.kind}: color {color} is not declared")
    for operand in op.operands:
        if isinstance(operand, Mem):
            _check_words(op, operand, words)


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


def check_program(program: Program, lists: Sequence[tuple[Sequence[Op], np.ndarray]]) -> None:
    """Raise for the first operation, route or descriptor that cannot work.

    Args:
        program: as built.
        lists: every list of operations with the [H, W] region it is bound to.

    Raises:
        RouteError: see :meth:`wafer.fabric.Layout.build`.
        FabricError: an operation that names what there is not, or a data task on a color that its
            PE does not receive.
    """
    tasks = [task.name for task in program.tasks]
    words = {array.name: array.words for array in program.arrays}
    for ops, _ in lists:
        for op in ops:
            _check_operation(op, program, tasks, words)
    sides = {number: color.sides for number, color in program.colors.items()}
    for number, (rx, tx) in sides.items():
        _check_swap(program, number)
        partner = sides.get(number ^ 1, (rx, tx))[0]
        for side, opposite in OPPOSITE.items():
            swaps = program.colors[number].swaps & (1 if side in "EW" else 2)
            takes = np.where(swaps, _neighbor(partner, side), _neighbor(rx, side))
            _check_side(number, side, rx, tx, takes & Port[opposite])
        empty = (rx == 0) & (tx != 0)
        if empty.any():
            raise RouteError(f"{_first(empty)}, color {number}: leaves the router but never enters")
    into = {number: rx & Port.RAMP != 0 for number, (rx, _) in sides.items()}
    out_of = {number: tx & Port.RAMP != 0 for number, (_, tx) in sides.items()}
    for ops, mask in lists:
        for op in ops:
            _check_descriptors(op, mask, into, out_of)
    queues = sum(out_of.values(), np.zeros((program.height, program.width), int))
    if queues.max() > _INPUT_QUEUES:
        raise RouteError(
            f"{_first(queues > _INPUT_QUEUES)}: {queues.max()} colors enter the CE; it has"
            f" {_INPUT_QUEUES} input queues"
        )
    for task in program.tasks:
        _check_task(task, out_of)


def _check_swap(program: Program, number: int) -> None:
    swaps, partner = program.colors[number].swaps, program.colors.get(number ^ 1)
    if swaps.any() and not program.spec.color_swap:
        raise RouteError(f"color {number}: {program.spec.name} cannot swap colors")
    alone = swaps != (0 if partner is None else partner.swaps)
    if alone.any():
        raise RouteError(
            f"{_first(alone)}, color {number}: it swaps with color {number ^ 1}, which must be"
            " declared and swap along the same axes here"
        )


def _check_side(color: int, side: str, rx: np.ndarray, tx: np.ndarray, takes: np.ndarray) -> None:
    opposite = OPPOSITE[side]
    inside = _neighbor(np.ones_like(tx), side)
    for name, mask in (("tx", tx), ("rx", rx)):
        off = ((mask & Port[side]) != 0) & (inside == 0)
        if off.any():
            raise RouteError(
                f"{_first(off)}, color {color}: {name} {side} points off the grid of"
                f" {tx.shape[1]}x{tx.shape[0]} PEs"
            )
    lost = ((tx & Port[side]) != 0) & (takes == 0)
    if lost.any():
        raise RouteError(
            f"{_first(lost)}, color {color}: sent {side}, but the neighbour there never takes"
            f" the color from its {opposite}; add rx {opposite} to its route"
        )


def _check_descriptors(
    op: Op, mask: np.ndarray, into: dict[int, np.ndarray], out_of: dict[int, np.ndarray]
) -> None:
    for operand in op.operands:
        if not isinstance(operand, FabIn | FabOut):
            continue
        side, have = ("tx", out_of) if isinstance(operand, FabIn) else ("rx", into)
        missing = mask & ~have[operand.color]
        if missing.any():
            raise RouteError(
                f"{_first(missing)}, color {operand.color}: {op.kind} uses it, but the PE's"
                f" router has no {side} RAMP for it"
            )


def _check_task(task: BoundTask, out_of: dict[int, np.ndarray]) -> None:
    if task.kind == "control" and not 0 <= task.key < 64:
        raise FabricError(f"task {task.name!r}: control task id {task.key}; ids are 0..63")
    if task.kind == "data":
        deaf = (task.entry >= 0) & ~out_of[task.key]
        if deaf.any():
            raise FabricError(
                f"{_first(deaf)}, color {task.key}: data task {task.name!r} waits"
                " for a color that never reaches this CE; add tx RAMP"
            )
