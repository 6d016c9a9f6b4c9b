"""The bytes of a weight store: aligned blocks in one file, and two commit records at its head.

Nothing here knows of steps or layers, and errors are the system's (``OSError``).
"""

import errno
import json
import os
import pathlib
import struct
import zlib
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

_ALIGN = 64  # XLA on CPU reads memory in place from this alignment
_PAGE = 4096
_HEADER = 1 << 16  # two of them at the head of the file
FIRST_BLOCK = 2 * _HEADER
_HEAD = struct.Struct("<8sQII")  # magic, sequence number, length and CRC-32 of the JSON behind it
_MAGIC = b"MEMORYX1"
_CHUNK = 1 << 30  # Linux moves at most 2 GiB per call


class BlockLeaf(NamedTuple):
    """An array in a block: where it begins, what it is."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def view(self, block: np.ndarray) -> np.ndarray:
        """Return it as a view of its block's bytes."""
        own = block[self.offset : self.offset + self.nbytes]
        return own.view(self.dtype).reshape(self.shape)


def lay_out(leaves: Mapping[str, PyTree]) -> tuple[dict[str, BlockLeaf], int]:
    """Place arrays in a block; returns (name -> leaf, bytes of the block)."""
    table, size = {}, 0
    for name, leaf in leaves.items():
        table[name] = BlockLeaf(size, tuple(leaf.shape), np.dtype(leaf.dtype))
        size = _up(size + table[name].nbytes, _ALIGN)
    return table, _up(size, _PAGE)


def _up(n: int, to: int) -> int:
    return -(-n // to) * to


def _bytes(array: object) -> memoryview:
    """The memory of an array in C order, whatever its dtype and rank."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class BlockFile:
    """An open file.

    Args:
        path: of the file.
        flags: of ``os.open``, besides reading and writing.
    """

    def __init__(self, path: pathlib.Path, flags: int = 0) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
        self._sequence = 0

    def allocate(self, offset: int, size: int) -> None:
        """Take the disk space of a block."""
        if size:
            os.posix_fallocate(self._fd, offset, size)

    def read(self, offset: int, size: int) -> np.ndarray:
        """Read a block into fresh memory that XLA can use in place; [bytes read] uint8."""
        buffer = np.empty(size + _ALIGN, np.uint8)
        start = -buffer.ctypes.data % _ALIGN
        block, count = buffer[start : start + size], 0
        while count < size:
            got = os.preadv(self._fd, [block.data[count : count + _CHUNK]], offset + count)
            if not got:
                break
            count += got
        return block[:count]

    def map(self, offset: int, leaf: BlockLeaf) -> np.ndarray:
        """Map an array of the block at ``offset``, which takes no memory of its own."""
        if not leaf.nbytes:
            return np.empty(leaf.shape, leaf.dtype)
        return np.memmap(self.path, leaf.dtype, "r", offset + leaf.offset, leaf.shape)

    def write(self, array: object, offset: int) -> None:
        """Write an array's bytes."""
        data, count = _bytes(array), 0
        while count < len(data):
            count += os.pwrite(self._fd, data[count : count + _CHUNK], offset + count)

    def sync(self) -> None:
        """Wait until everything written so far is on the disk, the file's length included."""
        os.fdatasync(self._fd)

    def last_commit(self) -> dict[str, Any] | None:
        """Read the newest commit record that is whole; None where none is."""
        records = [record for record in map(self._commit, range(2)) if record is not None]
        if not records:
            return None
        self._sequence, record = max(records, key=lambda numbered: numbered[0])
        return record

    def _commit(self, index: int) -> tuple[int, dict[str, Any]] | None:
        raw = os.pread(self._fd, _HEADER, index * _HEADER)
        if len(raw) < _HEAD.size:
            return None
        magic, sequence, length, crc = _HEAD.unpack_from(raw)
        body = raw[_HEAD.size : _HEAD.size + length]
        if magic != _MAGIC or len(body) != length or zlib.crc32(body) != crc:
            return None
        return sequence, json.loads(body)

    def commit(self, record: Mapping[str, object]) -> None:
        """Write a commit record over the older of the two."""
        body = json.dumps(record).encode()
        if len(body) > _HEADER - _HEAD.size:
            raise OSError(errno.EFBIG, f"{len(body)} bytes of commit record are too many")
        self._sequence += 1
        head = _HEAD.pack(_MAGIC, self._sequence, len(body), zlib.crc32(body))
        self.write(np.frombuffer(head + body, np.uint8), (self._sequence % 2) * _HEADER)

    def close(self) -> None:
        """Close the file; it stays on disk."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def spill(file: IO[bytes], array: object) -> np.ndarray:
    """Append an array to a temporary file; returns a read-only map, which outlives the file."""
    array = np.asarray(array)
    if not array.nbytes:
        return array
    offset = _up(file.seek(0, os.SEEK_END), _PAGE)
    file.seek(offset)
    file.write(_bytes(array))
    file.flush()
    return np.memmap(file, array.dtype, "r", offset=offset, shape=array.shape)
