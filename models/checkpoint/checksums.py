"""Checksums of stored arrays: fast enough to look at every array whenever it is read."""

import concurrent.futures
import zlib
from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np

_BLOCK = 1024  # words of a block; a CRC of every byte would cost five times as much


class ArrayRecord(NamedTuple):
    """What identifies an array's content."""

    shape: tuple[int, ...]  #: as stored
    dtype: str  #: numpy's name
    checksum: str  #: of the values

    @classmethod
    def of(cls, value: np.ndarray) -> Self:
        """Describe an array."""
        return cls(tuple(value.shape), value.dtype.name, checksum(value))

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} with checksum {self.checksum}"


def checksum(value: np.ndarray) -> str:
    """Return 8 hexadecimal digits that change with any bit of an array's values.

    The bytes, in C order, are cut into blocks of 1024 little-endian words of 8 bytes. The sums
    of the blocks modulo 2^64, again as little-endian words, and after them the bytes that fill no
    block, go through CRC-32 (zlib's).
    """
    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    whole = data.size - data.size % (8 * _BLOCK)
    sums = data[:whole].view("<u8").reshape(-1, _BLOCK).sum(axis=1)
    return f"{zlib.crc32(data[whole:].data, zlib.crc32(sums.data)):08x}"


def checksums(arrays: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the checksum of each array by its name."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(arrays, pool.map(checksum, arrays.values()), strict=True))
