"""A program reduced to bit masks: what decides its timing, and nothing else.

Timing of a data-oblivious program does not depend on values. What is left of it is, per PE, which
slot of its operation list it is in, how many elements that slot still has, and which colors the
slot reads and writes; per color, which ports it leaves by. Both plane engines read this form.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.program.codes import Port
from wafer.fabric.program.ops import FabIn, FabOut, Op, steps_of
from wafer.fabric.program.tables import Program
from wafer.spec import WaferSpec

__all__ = ["PlaneMasks", "PlaneShape", "plane_program", "transpose"]

# Ports W, E, S, N, RAMP: port p of the transposed grid is port _SWAPPED[p] of the grid.
_SWAPPED = [3, 2, 1, 0, 4]


class PlaneMasks(NamedTuple):
    """Boolean planes; axes [.., H, W]."""

    ports: np.ndarray  #: [C, 5, H, W] bool, ports W, E, S, N, RAMP each color leaves by
    inject: np.ndarray  #: [C, H, W] bool, PEs whose router takes the color from the CE
    reads: np.ndarray  #: [S, C, H, W] bool, colors that slot s reads
    writes: np.ndarray  #: [S, C, H, W] bool, the color it writes
    exists: np.ndarray  #: [S, H, W] bool, PEs that have a slot s
    counts: np.ndarray  #: [S, H, W] int32, its cycles minus 1


@dataclasses.dataclass(frozen=True)
class PlaneShape:
    """The static side; hashable, so that engines compile once per structure."""

    spec: WaferSpec  #: the machine
    height: int  #: H
    width: int  #: W
    depths: tuple[int, ...]  #: [C] words of each color's input queue
    bits: int  #: counter bits
    ports: tuple[tuple[int, int], ...]  #: (color, port) pairs in use
    reads: tuple[tuple[int, int], ...]  #: (slot, color) pairs in use
    writes: tuple[tuple[int, int], ...]  #: (slot, color) pairs in use
    merges: tuple[int, ...]  #: colors some router takes from several ports
    slots: int  #: S


def _refuse(program: Program) -> None:
    meta = program.meta
    reasons = [
        (meta.switched, "switch positions"),
        (meta.swaps, "color swap"),
        (meta.filters, "filters"),
        (meta.controls, "control wavelets"),
        (meta.threads > 0, "microthreads"),
        (any(kind != "local" for _, kind, _, _ in meta.tasks), "data or control tasks"),
        (any(op.on_done for ops in program.code for op in ops), "task activation"),
        (bool(np.asarray(program.blocked).any()), "blocked tasks"),
        (
            bool((np.asarray(program.active) & (np.asarray(program.entry) >= 0)).sum(0).max() > 1),
            "several active tasks on one PE",
        ),
    ]
    unsupported = [what for bad, what in reasons if bad]
    if unsupported:
        raise FabricError(
            f"the timing plane models static routes and straight code; the program has"
            f" {', '.join(unsupported)}: use fabric.simulate"
        )


def _slots(program: Program) -> list[tuple[int, np.ndarray, Op | None, int]]:
    """(position, PEs, operation or None for a launch wait, cycles) of every slot."""
    entry = np.where(program.active, program.entry, -1).max(axis=0, initial=-1)
    slots = []
    for first in np.unique(entry[entry >= 0]):
        where, position = entry == first, 0
        for op in program.code[first]:
            for part, cycles in ((None, op.launch), (op, steps_of(op, program.meta.spec))):
                if cycles:
                    slots.append((position, where, part, cycles))
                    position += 1
    return slots


def plane_program(program: Program) -> tuple[PlaneShape, PlaneMasks]:
    """Reduce a program to its timing.

    Args:
        program: static routes, one straight-line task per PE (what ``lowering`` writes, except
            scatter, gather and shift).

    Raises:
        FabricError: the program has switches, filters, microthreads or activated tasks.
    """
    _refuse(program)
    meta = program.meta
    colors, grid = len(meta.colors), (meta.height, meta.width)
    slots = _slots(program)
    depth = 1 + max((position for position, *_ in slots), default=0)
    reads = np.zeros((depth, colors, *grid), bool)
    writes, exists = reads.copy(), np.zeros((depth, *grid), bool)
    counts = np.zeros((depth, *grid), np.int32)
    for position, where, op, cycles in slots:
        exists[position] |= where
        counts[position][where] = cycles - 1
        if op is None:
            continue
        for source in op.operands[1:]:
            if isinstance(source, FabIn):
                reads[position, meta.colors.index(source.color)] |= where
        if isinstance(op.dst, FabOut):
            writes[position, meta.colors.index(op.dst.color)] |= where
    tx, rx = np.asarray(program.tx[0]), np.asarray(program.rx[0])
    ports = np.stack([(tx & bit) != 0 for bit in Port], axis=1)
    sources = np.sum([(rx & bit) != 0 for bit in Port], axis=0)
    masks = PlaneMasks(ports, (rx & Port.RAMP) != 0, reads, writes, exists, counts)
    used = lambda planes: tuple((int(a), int(b)) for a, b in np.argwhere(planes.any(axis=(2, 3))))
    shape = PlaneShape(
        spec=meta.spec,
        height=meta.height,
        width=meta.width,
        depths=tuple(int(d) for d in np.asarray(program.depth)),
        bits=max(1, int(counts.max(initial=0)).bit_length()),
        ports=used(ports),
        reads=used(reads),
        writes=used(writes),
        merges=tuple(int(c) for c in np.flatnonzero((sources > 1).any(axis=(1, 2)))),
        slots=depth,
    )
    return shape, masks


def transpose(shape: PlaneShape, masks: PlaneMasks) -> tuple[PlaneShape, PlaneMasks]:
    """Mirror a program at the diagonal: x and y change places."""
    turned = PlaneMasks(*(np.swapaxes(m, -1, -2) for m in masks))
    turned = turned._replace(ports=turned.ports[:, _SWAPPED])
    ports = tuple(sorted((c, _SWAPPED.index(p)) for c, p in shape.ports))
    return (
        dataclasses.replace(shape, height=shape.width, width=shape.height, ports=ports),
        turned,
    )
