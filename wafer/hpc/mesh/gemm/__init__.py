"""A matrix product on a square mesh of PEs: C = A B (MeshGEMM of WaferLLM, arXiv:2502.04563)."""

import numpy as np
import numpy.typing as npt

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.mesh import blocks
from wafer.machine.costs import UNROLLED

__all__ = ["block_cycles", "cycles", "run"]

# Cycles on WSE-2, read off runs of 1 x 1 to 6 x 6 PEs. A call; a row of C in a step, and a number
# of A, besides the numbers that they add; a step besides its product and its words; an alignment
# besides the words that leave and come, and the least that one takes.
_START, _ROW, _NUMBER, _STEP, _ALIGN, _LEAST = 58, 20, 7, 125, 55, 66
_ROW_CODE = 11  # of a row's loop, which decides whether it is unrolled


def block_cycles(
    size: int, rows: int, inner: int, columns: int, dtype: npt.DTypeLike = np.float32
) -> int:
    """The closed form by the blocks that a PE has.

    A PE moves a word or adds numbers in a cycle or executes an instruction, so shifts take cycles
    of their own: they hide behind nothing.

    Args:
        size: PEs of a row of the mesh, and rows of them.
        rows: of a block of A.
        inner: columns of it, and rows of a block of B.
        columns: of a block of B, padded to 16 bytes.
        dtype: float32, of which a PE adds one number a cycle; or float16, four.
    """
    half = blocks.precision(dtype) == np.float16
    per_word, lane = (2, 8) if half else (1, 4)
    of_a = blocks.ceil(rows * inner, lane) * lane // per_word
    words = 2 * (of_a + inner * columns // per_word)
    product = 1 + rows * (_ROW + inner * (_NUMBER + columns // (4 if half else 1)))
    if rows * _ROW_CODE > UNROLLED:
        product += 4 * rows + 2
    step = _STEP + product + words
    align = max(_LEAST, _ALIGN + 2 * of_a)
    fill = rows * columns // (4 if half else 2)
    return _START + fill + product + (size - 1) * step + size // 2 * align


def cycles(size: int, shape: tuple[int, int, int], *, dtype: npt.DTypeLike = np.float32) -> int:
    """The closed form of ``run``'s cycles, within 5 %.

    Args:
        size: as in ``run``.
        shape: rows, inner size and columns of the product.
        dtype: as in ``run``.
    """
    rows, inner, columns = _block(size, *shape, blocks.precision(dtype))
    return block_cycles(size, rows, inner, columns, dtype)


def run(
    a: np.ndarray, b: np.ndarray, size: int, *, dtype: npt.DTypeLike = np.float32
) -> tuple[np.ndarray, int]:
    """Simulate the program: as many steps as a row has PEs, in each a product of two blocks.

    A's blocks begin where they are in A, and are aligned by the PEs; those of B begin where the
    first step needs them, as weights that stay can.

    Args:
        a: [rows, inner]; blocks of it are padded with zeros.
        b: [inner, columns].
        size: PEs of a row, and rows of them.
        dtype: float32 or float16, of all numbers and sums.

    Returns:
        C, [rows, columns], and the cycles of the call.

    Raises:
        WaferError: shapes that do not belong together, a number out of range, values that are not
            finite in the precision.
    """
    dtype = blocks.precision(dtype)
    _check(a, b, size)
    rows, inner, columns = _block(size, a.shape[0], b.shape[0], b.shape[1], dtype)
    wafer = host.runtime(
        "mesh/gemm",
        size=size,
        rows=rows,
        inner=inner,
        columns=columns,
        half=int(dtype == np.float16),
    )
    mesh, lane = (size, size), blocks.lane(dtype)
    left = blocks.cut(blocks.finite("a", a, dtype), mesh, (rows, inner))
    right = blocks.cut(blocks.finite("b", b, dtype), mesh, (inner, columns))
    spots = np.arange(size)
    at = line((place(spots, size)[:, None] + place(spots, size)) % size, size)
    right = right[at, spots]
    blocks.write(wafer, "a", left.reshape(size, size, -1))
    blocks.write(wafer, "b", np.pad(right.reshape(*mesh, -1), ((0, 0), (0, 0), (lane // 2, 0))))
    start = wafer.cycles
    wafer.launch("multiply")
    spent = wafer.cycles - start
    parts = blocks.read(wafer, "c", rows * columns, dtype).reshape(size, size, rows, columns)
    return blocks.join(parts, (a.shape[0], b.shape[1])), spent


def place(at: np.ndarray, size: int) -> np.ndarray:
    """Where PEs of a line are in its ring: first the even ones, then the odd ones, backward."""
    return np.where(at % 2 == 0, at // 2, size - (at + 1) // 2)


def line(places: np.ndarray, size: int) -> np.ndarray:
    """The PEs at places of the ring."""
    return np.where(2 * places < size, 2 * places, 2 * (size - places) - 1)


def _block(size: int, rows: int, inner: int, columns: int, dtype: np.dtype) -> tuple[int, int, int]:
    """Rows, inner size and columns of a PE's blocks; a row of B's takes a multiple of 16 bytes."""
    lane = blocks.lane(dtype)
    padded = blocks.ceil(columns, size * lane) * lane
    return blocks.ceil(rows, size), blocks.ceil(inner, size), padded


def _check(a: np.ndarray, b: np.ndarray, size: int) -> None:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1:] != b.shape[:1] or 0 in a.shape + b.shape:
        raise WaferError(
            f"a: shape {a.shape}, b: shape {b.shape}; expected [rows, inner] and"
            " [inner, columns], each at least 1"
        )
    if size < 1:
        raise WaferError(f"size: {size}; expected PEs of a row of the mesh, at least 1")
