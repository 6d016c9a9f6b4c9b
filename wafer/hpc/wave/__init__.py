"""How does a wave spread through columns of cells, one column per PE?"""

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host

__all__ = ["cycles", "run"]

_LIMIT = 0.45  # cells per step: a wave that is faster grows without bounds
_REACH = 4  # cells on either side, as the stencil has 25 points
_BANK = 2  # cells before the PE's array, which move it to another bank of the memory

# Cycles on WSE-2. Those of a cell are counted: ten operations with one cell per cycle, two of them
# with both operands in one bank, and two with two cells per cycle. The others are read off runs of
# 1 x 1 to 1 x 13 PEs.
_START, _STEP, _CELL = 14, 136, 12
_TURN, _LAST_TURN = 23, 2  # to send and to hear along an axis; the last one has nobody behind it
# Waits by the PEs of an axis: once before the first step, and in each step.
_FIRST = {6: 3, 7: 6, 8: 9, 9: 4, 10: 4, 11: 4, 12: 4, 13: 4}
_WAITS = {6: -4, 7: -8, 8: -12, 9: 6, 10: 10, 11: 14, 12: 18, 13: 22}


def cycles(height: int, width: int, cells: int, steps: int) -> int:
    """The closed form of ``run``'s cycles: exact up to 14 x 14 PEs.

    Along an axis PEs take nine turns, or as many as there are PEs. In a turn one PE sends a column
    and four on either side hear it, so from 13 x 13 PEs on a step takes as long on any grid.
    """
    start, exchange = _START, 0
    for size in (height, width):
        if size > 1:
            turns = min(size, 2 * _REACH + 1)
            late = 2 * (size == 8 and cells > 9)  # in each step but the first one
            start += _FIRST.get(min(size, 13), 0) - late
            exchange += late
            exchange += turns * (cells + _TURN) - _LAST_TURN + _WAITS.get(min(size, 13), 0)
    return start + steps * (_STEP + _CELL * cells + 2 * ((cells + 1) // 2) + exchange)


def run(field: np.ndarray, speed: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
    """Simulate the program, from a field at rest: one step earlier it was the same.

    Args:
        field: [height, width, cells] float32, a column of cells per PE; beyond the border it is 0.
        speed: of waves in cells per step, of the same shape, 0 to 0.45.
        steps: 1 to 65,535.

    Returns:
        The field then, [height, width, cells] float32, and the cycles of the call.

    Raises:
        WaferError: shapes that differ, or a speed out of range.
        HostError: steps that 16 bits do not hold.
    """
    _check(field, speed)
    height, width, cells = field.shape
    wafer = host.runtime("wave", width=width, height=height, cells=cells)
    host.write(wafer, "field", _padded(field, _REACH, _REACH))
    host.write(wafer, "speed", _padded(np.square(speed, dtype=np.float32), _BANK, 0))
    start = wafer.cycles
    wafer.launch("march", steps)
    spent = wafer.cycles - start
    after = host.read(wafer, "field", cells + 2 * _REACH, np.float32)
    return after[..., _REACH:-_REACH], spent


def _check(field: np.ndarray, speed: np.ndarray) -> None:
    if field.ndim != 3 or 0 in field.shape:
        raise WaferError(
            f"field: shape {field.shape}; expected [height, width, cells], each at least 1"
        )
    if speed.shape != field.shape:
        raise WaferError(f"speed: shape {speed.shape}; expected the field's, {field.shape}")
    if wrong := np.argwhere(~((speed >= 0) & (speed <= _LIMIT))).tolist():
        y, x, z = wrong[0]
        raise WaferError(
            f"speed: {speed[y, x, z]} at row {y}, column {x}, cell {z}; expected 0 to {_LIMIT}"
            " cells per step, beyond which the field grows without bounds: take shorter steps"
        )


def _padded(values: np.ndarray, before: int, behind: int) -> np.ndarray:
    """[height, width, before + cells + behind] float32."""
    return np.pad(values.astype(np.float32), ((0, 0), (0, 0), (before, behind)))
