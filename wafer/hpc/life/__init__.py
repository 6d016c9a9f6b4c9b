"""How does Conway's game of life run with one cell per PE?"""

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host

__all__ = ["cycles", "run"]

# Cycles of the PE that does most, on WSE-2. Sending and hearing are counted by the table of costs
# (wafer/machine/costs.py); the others are read off runs of 1 x 1 to 20 x 20 cells.
_START = 16  # the call, the first cell, the end
_GENERATION = 13  # the rule, the sums and the loop
_SEND, _HEAR = 2, 3  # one word: an operation with a fabric operand; and one with a pointer besides
_FLIGHT = (6, 5.5)  # what is left of it when all else is done: of one neighbour and of two
_PAIR = 1.5  # along the other axis there are two cells: both wait
_LATE = 1.75  # in each of the first generations, as many as cells are beyond three


def cycles(height: int, width: int, generations: int) -> int:
    """The closed form of ``run``'s cycles.

    Along an axis a PE has up to two neighbours. It tells both at once and hears them in turn. On
    a long axis the first generations take longer, until the cells in its middle are behind those
    at its ends. Within 5 % from four generations on.
    """
    axes = [size for size in (height, width) if size > 1]
    pair = len(axes) == 2 and 2 in axes
    exchange, late = _PAIR * pair, 0
    for size in axes:
        neighbours = min(size - 1, 2)
        exchange += _SEND + _HEAR * neighbours + _FLIGHT[neighbours - 1]
        late += 0 if pair else _LATE * min(generations, max(size - 3, 0))
    return round(_START + generations * (_GENERATION + exchange) + late)


def run(cells: np.ndarray, generations: int) -> tuple[np.ndarray, int]:
    """Simulate the program on as many PEs as there are cells.

    Args:
        cells: [height, width] of 0 and 1; beyond the border all are dead.
        generations: 1 to 65,535.

    Returns:
        The cells then, [height, width] uint32, and the cycles of the call.

    Raises:
        WaferError: a cell is neither 0 nor 1.
        HostError: generations that 16 bits do not hold.
    """
    if wrong := np.argwhere((cells != 0) & (cells != 1)).tolist():
        y, x = wrong[0]
        raise WaferError(
            f"cells: {cells[y, x]} at row {y}, column {x}; a cell is 0 (dead) or 1 (alive)"
        )
    height, width = cells.shape
    wafer = host.runtime("life", width=width, height=height)
    host.write(wafer, "cell", cells.astype(np.uint32)[..., None])
    start = wafer.cycles
    wafer.launch("live", generations)
    spent = wafer.cycles - start
    return host.read(wafer, "cell", 1, np.uint32)[..., 0], spent
