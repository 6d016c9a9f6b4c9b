"""Matrices cut into blocks, one per PE, with numbers of 32 or of 16 bits."""

import numpy as np
import numpy.typing as npt

import wafer.csl
from wafer.csl.host.region import MemcpyDataType
from wafer.errors import WaferError

_BYTES = 16  # rows that are added to one another begin at multiples of so many: in the same bank
_PRECISIONS = (np.float32, np.float16)


def ceil(numerator: int, denominator: int) -> int:
    """The quotient, rounded up."""
    return -(-numerator // denominator)


def precision(dtype: npt.DTypeLike) -> np.dtype:
    """float32 or float16.

    Raises:
        WaferError: any other type.
    """
    if np.dtype(dtype) not in _PRECISIONS:
        raise WaferError(f"dtype: {np.dtype(dtype)}; expected float32 or float16")
    return np.dtype(dtype)


def lane(dtype: npt.DTypeLike) -> int:
    """Numbers of 16 bytes: what rows of a block are padded to a multiple of."""
    return _BYTES // np.dtype(dtype).itemsize


def finite(name: str, values: np.ndarray, dtype: npt.DTypeLike) -> np.ndarray:
    """The values in a precision.

    Raises:
        WaferError: some are not finite in it.
    """
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
    if not np.isfinite(rounded).all():
        raise WaferError(f"{name}: holds values that are not finite in {np.dtype(dtype)}")
    return rounded


def cut(matrix: np.ndarray, mesh: tuple[int, int], block: tuple[int, int]) -> np.ndarray:
    """[mesh rows, mesh columns, block rows, block columns], padded with zeros at the ends."""
    padded = np.zeros((mesh[0] * block[0], mesh[1] * block[1]), matrix.dtype)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(mesh[0], block[0], mesh[1], block[1]).swapaxes(1, 2)


def join(blocks: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """The matrix of which ``cut`` makes these blocks."""
    rows, columns = blocks.shape[0] * blocks.shape[2], blocks.shape[1] * blocks.shape[3]
    return blocks.swapaxes(1, 2).reshape(rows, columns)[: shape[0], : shape[1]]


def write(at: wafer.csl.Runtime, name: str, values: np.ndarray) -> None:
    """Copy to every PE.

    Args:
        at: the program.
        name: of an exported array.
        values: [height, width, items] of 32 or 16 bits each.
    """
    height, width, items = values.shape
    words, kind = values, MemcpyDataType.MEMCPY_32BIT
    if values.itemsize == 2:
        words, kind = values.view(np.uint16).astype(np.uint32), MemcpyDataType.MEMCPY_16BIT
    at.memcpy_h2d(at.get_id(name), words, 0, 0, width, height, items, data_type=kind)


def read(at: wafer.csl.Runtime, name: str, items: int, dtype: npt.DTypeLike) -> np.ndarray:
    """[height, width, items] of an exported array with elements of 32 or 16 bits."""
    width, height = at.whole.width, at.whole.height
    half = np.dtype(dtype).itemsize == 2
    kind = MemcpyDataType.MEMCPY_16BIT if half else MemcpyDataType.MEMCPY_32BIT
    words = np.zeros((height, width, items), np.uint32)
    at.memcpy_d2h(words, at.get_id(name), 0, 0, width, height, items, data_type=kind)
    return words.astype(np.uint16).view(dtype) if half else words.view(dtype)
