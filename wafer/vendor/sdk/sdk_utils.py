"""Helpers of public programs for arrays of 32-bit items and for time stamps."""

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wafer.csl.host.errors import HostError


def memcpy_view(array: np.ndarray, dtype: npt.DTypeLike) -> np.ndarray:
    """A writable view of the lower bits of each 32-bit item.

    Args:
        array: of 32-bit items.
        dtype: of 8, 16 or 32 bits.

    Raises:
        HostError: other widths.
    """
    dtype = np.dtype(dtype)
    if array.dtype.itemsize != 4 or dtype.itemsize not in (1, 2, 4):
        raise HostError(f"a view of {array.dtype} as {dtype}: expected 32-bit items, of 8 to 32")
    return array.view(dtype)[..., :: 4 // dtype.itemsize]


def input_array_to_u32(
    np_arr: np.ndarray, sentinel: int | None = None, fast_dim_sz: int = 1
) -> np.ndarray:
    """[n] uint32 of any array's items, for memcpy.

    Args:
        np_arr: of 16- or 32-bit items.
        sentinel: None: the upper half of what were 16 bits is 0; any number: it is the item's
            index modulo ``fast_dim_sz``.
        fast_dim_sz: length of the fastest axis.

    Raises:
        HostError: items of another width.
    """
    flat = np.ascontiguousarray(np_arr).reshape(-1)
    if flat.dtype.itemsize == 4:
        return flat.view(np.uint32).copy()
    if flat.dtype.itemsize != 2:
        raise HostError(f"an array of {np_arr.dtype}: expected items of 16 or 32 bits")
    words = flat.view(np.uint16).astype(np.uint32)
    if sentinel is not None:
        words |= (np.arange(words.size, dtype=np.uint32) % np.uint32(fast_dim_sz)) << 16
    return words


def make_u48(words: Sequence[int] | np.ndarray) -> int:
    """Three 16-bit words as one number, the lowest first."""
    return sum((int(word) & 0xFFFF) << 16 * k for k, word in enumerate(words[:3]))


def sub_ts(words: Sequence[int] | np.ndarray) -> int:
    """Cycles from one time stamp of three 16-bit words to the one that follows it."""
    return make_u48(words[3:6]) - make_u48(words[:3])


def calculate_cycles(timestamp_buf: np.ndarray) -> int:
    """Cycles between two time stamps, in six items or packed in three items of 32 bits.

    Raises:
        HostError: another number of items.
    """
    items = np.ascontiguousarray(timestamp_buf).reshape(-1)
    if items.size == 3 and items.dtype.itemsize == 4:
        return sub_ts(items.view(np.uint16))
    if items.size != 6:
        raise HostError(f"two time stamps are 3 or 6 items, found {items.size} of {items.dtype}")
    return sub_ts(items.view(f"<u{items.itemsize}"))


def float_to_hex(value: float) -> str:
    """The bits of a float32, as Python writes them."""
    return hex(struct.unpack("<I", struct.pack("<f", value))[0])


def cast_uint32(value: object) -> int:
    """The bits of a number of 16 or 32 bits; of Python's own numbers, those of int32 or float32.

    Raises:
        HostError: another type.
    """
    match value:
        case bool() | int():
            return int(value) & 0xFFFFFFFF
        case float() if not isinstance(value, np.floating):
            value = np.float32(value)
    item = np.asarray(value)
    if item.ndim or item.dtype.itemsize not in (2, 4):
        raise HostError(f"{value!r} has not 16 or 32 bits")
    return int(item.reshape(1).view(f"<u{item.itemsize}")[0])
