"""The routers of a program as registers of the machine: routes, switches, filters."""

import numpy as np

from wafer.fabric.errors import RouteError
from wafer.fabric.program.codes import TORN, FilterKind
from wafer.fabric.program.tables import Program
from wafer.machine.image import COLORS, COLUMNS

__all__ = ["color_register", "router_registers", "switch_register"]

_NO_POSITION = 5  # of a switch


def color_register(rx: np.ndarray, tx: np.ndarray) -> np.ndarray:
    """Return the color register of masks of ports."""
    return tx.astype(np.int32) | rx.astype(np.int32) << 5


def router_registers(program: Program) -> tuple[np.ndarray, ...]:
    """[H, W, 24] color and switch registers, whether a color is routed, and its filter.

    Args:
        program: as built.

    Raises:
        RouteError: a switch position that changes both sides, or names several ports.
    """
    meta, grid = program.meta, (program.meta.height, program.meta.width)
    shape = (*grid, COLORS)
    color, routed = np.zeros(shape, np.int32), np.zeros(shape, bool)
    switch = np.full(shape, switch_register([], 0), np.int32)
    filters = np.zeros((*shape, len(COLUMNS["filters"])), np.int32)
    for index, number in enumerate(meta.colors):
        rx, tx, start = program.rx[:, index], program.tx[:, index], program.start[index]
        word = color_register(rx[0], tx[0]) | meta.spec.per_hop_commands << 12
        for axis in (0, 1):
            word |= program.swap[axis, index].astype(np.int32) << 10 + axis
        torn = start == TORN
        color[..., number] = word | torn << 14
        routed[..., number] = np.asarray(program.positions[index]) > 0
        for y, x in np.argwhere((program.positions[index] > 1) | program.ring[index]).tolist():
            count = int(program.positions[index, y, x])
            codes = [
                _position((x, y), number, rx[k - 1 : k + 1, y, x], tx[k - 1 : k + 1, y, x])
                for k in range(1, count)
            ]
            current = 0 if torn[y, x] else int(start[y, x])
            ring = bool(program.ring[index, y, x])
            switch[y, x, number] = switch_register(codes, current, ring=ring)
        kind, a, b, begin = (np.asarray(part)[index] for part in program.filters)
        columns = {
            "kind": np.where(kind == FilterKind.RANGE, 3, kind),
            "counts_data": kind == FilterKind.COUNTER,
            "start": begin,
            "most": a,
            "limit1": b,
            "limit2": np.full(grid, -1),
            "low": a,
            "high": b,
        }
        for name, values in columns.items():
            filters[:, :, number, COLUMNS["filters"].index(name)] = np.where(kind, values, 0)
    return color, switch, routed, filters


def _position(pe: tuple[int, int], color: int, rx: np.ndarray, tx: np.ndarray) -> int:
    """Code of a switch position, from the masks before and at it: its side's bit, and the port."""
    place = f"PE {pe}, color {color}"
    changes = rx[0] != rx[1], tx[0] != tx[1]
    if all(changes):
        raise RouteError(
            f"{place}: a switch position changes rx and tx; the switch register has room for one"
            " side: use two positions"
        )
    mask = int(rx[1] if changes[0] else tx[1])
    if mask.bit_count() != 1:
        raise RouteError(f"{place}: a switch position names {mask.bit_count()} ports; it has one")
    return mask.bit_length() - 1 | 8 * changes[0]


def switch_register(codes: list[int], current: int, *, ring: bool = False) -> int:
    """Return the switch register of its positions' codes behind the first."""
    filled = codes + [_NO_POSITION] * (3 - len(codes))
    return current << 13 | ring << 12 | sum(code << 4 * k for k, code in enumerate(filled))
