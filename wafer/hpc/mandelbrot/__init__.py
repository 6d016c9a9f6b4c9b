"""How does a picture of the Mandelbrot set come from PEs that share nothing?"""

import numpy as np

from wafer.hpc import host
from wafer.machine.costs import UNROLLED

__all__ = ["cycles", "run"]

# Cycles on WSE-2. A step's are its instructions; the others are read off runs of one PE with one or
# two pixels. They do not vary: the rest of the runs follows to the cycle.
_START, _ROW, _PIXEL, _STEP = 13, 4, 16, 14
_LAST_TEST = 5  # of the radius; a pixel that reaches the limit does without
_ROW_CODE, _PIXEL_CODE = 4, 9  # the loops' code, which decides whether they are unrolled


def cycles(steps: np.ndarray, pes: tuple[int, int], limit: int) -> int:
    """The closed form of ``run``'s cycles: those of the PE with most to do.

    Args:
        steps: [rows, columns] of the picture, as ``run`` returns it.
        pes: rows and columns of PEs.
        limit: most steps for a pixel.
    """
    height, width = pes
    blocks = steps.reshape(height, steps.shape[0] // height, width, -1)
    rows, columns = blocks.shape[1], blocks.shape[3]
    work = _STEP * blocks.astype(np.int64) - _LAST_TEST * (blocks == limit)
    row, in_row = _loop(columns, _PIXEL, _PIXEL_CODE)
    whole, _ = _loop(rows, _ROW + row, _ROW_CODE + _PIXEL_CODE + in_row)
    return _START + whole + int(work.sum(axis=(1, 3)).max())


def _loop(rounds: int, each: int, code: int) -> tuple[int, int]:
    """Cycles of a loop, and of them those of a round's test and step: 0 if it is unrolled."""
    extra = 4 if rounds * code > UNROLLED else 0
    return rounds * (each + extra) + extra // 2, extra


def run(
    pes: tuple[int, int],
    block: tuple[int, int],
    corner: complex,
    pixel: float,
    limit: int,
) -> tuple[np.ndarray, int]:
    """Simulate the program.

    Args:
        pes: rows and columns of PEs.
        block: rows and columns of pixels of each.
        corner: the point of the first pixel; imaginary parts grow from row to row.
        pixel: distance of two pixels.
        limit: most steps for a pixel, 1 to 65,535.

    Returns:
        Steps that stay within radius 2, [rows, columns] of the picture, uint32, and the cycles of
        the call.
    """
    (height, width), (rows, columns) = pes, block
    wafer = host.runtime("mandelbrot", width=width, height=height, rows=rows, columns=columns)
    start = wafer.cycles
    wafer.launch("draw", corner.real, corner.imag, pixel, limit)
    spent = wafer.cycles - start
    blocks = host.read(wafer, "counts", rows * columns, np.uint32)
    picture = blocks.reshape(height, width, rows, columns).swapaxes(1, 2)
    return picture.reshape(height * rows, width * columns), spent
