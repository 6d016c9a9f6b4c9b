"""What can be known to be wrong with a program before it runs, named by PE and color."""

import numpy as np

from wafer.fabric.errors import FabricError, RouteError
from wafer.fabric.program.codes import Port
from wafer.fabric.program.ops import FabIn, FabOut, Op
from wafer.fabric.program.tables import Program
from wafer.machine.arch import OPPOSITE, STEPS

__all__ = ["check_program", "neighbour"]

_INPUT_QUEUES = 8


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
