"""A vector times a matrix on a mesh of PEs: y = x W (MeshGEMV of WaferLLM, arXiv:2502.04563)."""

import numpy as np
import numpy.typing as npt

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.mesh import blocks, tree

__all__ = ["cycles", "product_cycles", "run"]

# Cycles on WSE-2: of the call; of a product; of a row of it besides its numbers. Read off runs of
# one PE.
_START, _PRODUCT, _ROW = 11, 17, 7


def product_cycles(rows: int, columns: int, dtype: npt.DTypeLike = np.float32) -> int:
    """Of one PE's block, whose product replaces a vector.

    Args:
        rows: of the block.
        columns: of the block, padded to 16 bytes.
        dtype: float32, of which it adds one number a cycle; or float16, four.
    """
    half = blocks.precision(dtype).itemsize == 2
    fill, row = (columns // 4,) * 2 if half else (columns // 2, columns)
    return _PRODUCT + fill + rows * (_ROW + row)


def cycles(
    mesh: tuple[int, int],
    shape: tuple[int, int],
    *,
    group: int = 0,
    chain: bool = False,
    dtype: npt.DTypeLike = np.float32,
    times: int = 1,
) -> int:
    """The closed form of ``run``'s cycles, within 5 %.

    Args:
        mesh: rows and columns of PEs.
        shape: of the matrix.
        group: as in ``run``.
        chain: as in ``run``.
        dtype: as in ``run``.
        times: as in ``run``.
    """
    rows, columns = _block(mesh, shape, blocks.precision(dtype))
    total = tree.cycles(mesh[0], columns, group=group, chain=chain)
    return _START + times * (product_cycles(rows, columns, dtype) + total)


def run(
    x: np.ndarray,
    matrix: np.ndarray,
    mesh: tuple[int, int],
    *,
    group: int = 0,
    chain: bool = False,
    dtype: npt.DTypeLike = np.float32,
    times: int = 1,
) -> tuple[np.ndarray, int]:
    """Simulate the program: products of blocks, then sums along the columns of the mesh.

    Args:
        x: [rows].
        matrix: [rows, columns]; blocks of it are padded with zeros.
        mesh: rows and columns of PEs.
        group: PEs of a group of the tree of two levels; 0 takes the best for these sizes.
        chain: sums go along one chain from the first PE of a column to the last instead.
        dtype: float32 or float16, of all numbers and sums.
        times: that it is done, one after another; 1 to 65,535.

    Returns:
        y, [columns], and the cycles of the call.

    Raises:
        WaferError: shapes that do not belong together, a number out of range, values that are not
            finite in the precision.
        HostError: times that 16 bits do not hold.
    """
    dtype = blocks.precision(dtype)
    _check(x, matrix, mesh, group)
    height, width = mesh
    rows, columns = _block(mesh, matrix.shape, dtype)
    wafer = host.runtime(
        "mesh/gemv",
        width=width,
        height=height,
        rows=rows,
        columns=columns,
        group=group or tree.best_group(height, columns),
        chain=int(chain),
        half=int(dtype == np.float16),
    )
    parts = blocks.cut(blocks.finite("x", x, dtype)[:, None], (height, 1), (rows, 1))[..., 0]
    blocks.write(wafer, "x", np.repeat(parts, width, axis=1))
    whole = blocks.cut(blocks.finite("matrix", matrix, dtype), mesh, (rows, columns))
    shift = blocks.lane(dtype) // 2
    blocks.write(wafer, "matrix", np.pad(whole.reshape(*mesh, -1), ((0, 0), (0, 0), (shift, 0))))
    start = wafer.cycles
    wafer.launch("multiply", times)
    spent = wafer.cycles - start
    return blocks.read(wafer, "y", columns, dtype)[-1].reshape(-1)[: matrix.shape[1]], spent


def _block(mesh: tuple[int, int], shape: tuple[int, ...], dtype: np.dtype) -> tuple[int, int]:
    """Rows and columns of a PE's block; a row takes a multiple of 16 bytes."""
    lane = blocks.lane(dtype)
    return blocks.ceil(shape[0], mesh[0]), blocks.ceil(shape[1], mesh[1] * lane) * lane


def _check(x: np.ndarray, matrix: np.ndarray, mesh: tuple[int, int], group: int) -> None:
    if x.ndim != 1 or matrix.ndim != 2 or matrix.shape[:1] != x.shape or 0 in matrix.shape:
        raise WaferError(
            f"x: shape {x.shape}, matrix: shape {matrix.shape}; expected [rows] and"
            " [rows, columns], each at least 1"
        )
    if min(mesh) < 1:
        raise WaferError(f"mesh: {mesh}; expected rows and columns of PEs, each at least 1")
    if not 0 <= group <= mesh[0]:
        raise WaferError(
            f"group: {group}; expected 1 to {mesh[0]}, the PEs of a column, or 0 for the best"
        )
