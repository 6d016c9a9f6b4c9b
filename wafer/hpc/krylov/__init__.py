"""Systems of equations on a grid of cells, one column per PE: CG and BiCGStab, cycle by cycle."""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host

__all__ = ["METHODS", "Solution", "cycles", "run"]

METHODS = ("cg", "bicgstab")
_BANKS = (0, 0, 0, 0, 0, 0, 1)  # of the memory, in which coefficients begin: as in column.csl


class _Cost(NamedTuple):
    """Cycles of a method on WSE-2.

    What takes as long as there are cells is counted: operations with one cell per cycle (a product
    of a column with itself takes two), and those that take two cells per cycle. So are the words
    of a sum over all, with the control wavelet behind them and the way back. The rest is read off
    runs of 8 cells: 1 x 1 PEs, rows of 2 to 64, and 2 x 2.
    """

    start: int  #: before the first iteration
    #: start_axis, axis: of the start and of an iteration, per axis of 2, 3, 4 and more PEs
    start_axis: tuple[int, ...]
    start_both: int  #: start_both, both: by how much less that is with neighbours along both axes
    start_single: int
    start_double: int
    base: int  #: what else an iteration takes
    single: int  #: single, double: operations of an iteration with one and with two cells per cycle
    double: int
    applied: int  #: times that it applies the operator
    sums: int  #: over all PEs, each of so many words
    words: int
    axis: tuple[int, ...]
    both: int


_COSTS = {
    "cg": _Cost(49, (18, 27, 30, 30), 11, 3, 1, 299, 11, 2, 1, 2, 1, (76, 109, 115, 114), 17),
    "bicgstab": _Cost(
        84, (20, 31, 32, 32), 12, 5, 2, 632, 24, 5, 2, 3, 2, (134, 201, 204, 212), 25
    ),
}


class Solution(NamedTuple):
    """What a solver left."""

    x: np.ndarray  #: [height, width, cells] float32
    #: [iterations + 1] float32, the residual's square at the start and after each iteration, of the
    #: residual that the method itself goes on with
    squares: np.ndarray
    cycles: int  #: of the call


def cycles(method: str, height: int, width: int, cells: int, iterations: int) -> int:
    """The closed form of ``run``'s cycles: exact up to 3 x 4 PEs, beyond within 2 %.

    Args:
        method: "cg" or "bicgstab".
        height: rows of PEs.
        width: PEs of a row.
        cells: of a column.
        iterations: that are run.
    """
    cost, pairs = _COSTS[_known(method)], (cells + 1) // 2
    axes = [size for size in (height, width) if size > 1]
    travel, crossed = (cost.words + 2) * sum(axes), len(axes) == 2
    start = cost.start + cost.start_single * cells + cost.start_double * pairs
    start += travel - crossed * cost.start_both
    each = cost.base + cost.single * cells + cost.double * pairs
    each += cost.sums * travel - crossed * cost.both
    for size in axes:
        start += cost.start_axis[min(size, 5) - 2]
        each += cost.applied * min(size, 3) * (cells + pairs) + cost.axis[min(size, 5) - 2]
    return start + iterations * each


def run(
    method: str,
    coefficients: np.ndarray,
    right: np.ndarray,
    iterations: int,
    *,
    limit: float = 0.0,
) -> Solution:
    """Simulate a solver of A x = b from x = 0, in single precision.

    Args:
        method: "cg", conjugate gradients, for a symmetric positive definite operator; or
            "bicgstab" (van der Vorst 1992) for any.
        coefficients: [7, height, width, cells]: of a cell itself, and of those to the north, east,
            south and west, below (one cell earlier in the column) and above. Beyond the border
            cells are 0.
        right: [height, width, cells], b.
        iterations: most of them, 1 to 65,534.
        limit: no iteration begins once the square of the residual is at most this.

    Raises:
        WaferError: an unknown method, shapes that do not belong together, values that are not
            finite, a number out of range.
    """
    _check(method, coefficients, right, iterations, limit)
    height, width, cells = right.shape
    wafer = host.runtime(
        "krylov",
        width=width,
        height=height,
        cells=cells,
        iterations=iterations,
        method=METHODS.index(method),
    )
    host.write(wafer, "coefficients", _blocks(coefficients))
    ends = ((0, 0), (0, 0), (3, 1))
    host.write(wafer, "right", np.pad(right.astype(np.float32), ends))
    start = wafer.cycles
    wafer.launch("solve", iterations, limit)
    spent = wafer.cycles - start
    x = host.read(wafer, "solution", cells, np.float32)
    count = int(host.read(wafer, "count", 1, np.uint32)[0, 0, 0])
    squares = host.read(wafer, "squares", iterations + 1, np.float32)
    return Solution(x, squares[0, 0, : count + 1], spent)


def _blocks(coefficients: np.ndarray) -> np.ndarray:
    """[height, width, 7 blocks] float32, each block with its first cell in its bank."""
    _, height, width, cells = coefficients.shape
    blocks = np.zeros((height, width, 7, (cells + 3) // 4 * 4 + 4), np.float32)
    for k, bank in enumerate(_BANKS):
        blocks[:, :, k, bank : bank + cells] = coefficients[k]
    return blocks.reshape(height, width, -1)


def _known(method: str) -> str:
    if method not in METHODS:
        raise WaferError(f"method: {method!r}; expected one of {', '.join(METHODS)}")
    return method


def _check(
    method: str, coefficients: np.ndarray, right: np.ndarray, iterations: int, limit: float
) -> None:
    _known(method)
    if right.ndim != 3 or 0 in right.shape:
        raise WaferError(
            f"right: shape {right.shape}; expected [height, width, cells], each at least 1"
        )
    if coefficients.shape != (7, *right.shape):
        raise WaferError(
            f"coefficients: shape {coefficients.shape}; expected {(7, *right.shape)}: seven points"
            " for each cell of `right`"
        )
    for name, values in (("coefficients", coefficients), ("right", right)):
        if not np.isfinite(values.astype(np.float32)).all():
            raise WaferError(f"{name}: holds values that are not finite in single precision")
    if not 1 <= iterations < 2**16 - 1:
        raise WaferError(f"iterations: {iterations}; expected 1 to 65,534")
    if not limit >= 0:
        raise WaferError(f"limit: {limit}; expected 0 or more, a square of the residual")
