"""HDF5 files that a full disk leaves closed.

HDF5 cannot close a file after a write has failed, and crashes when the process ends. Here its
writes always succeed: the first error is kept for ``check``, and what follows stays in memory.
"""

import contextlib
import io
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import h5py

_READ_AGAIN = 1 << 20  # bytes; longer writes are data, which HDF5 does not read again


class _DeferredFile(io.RawIOBase):
    """A file object for HDF5 whose writes do not fail.

    Args:
        path: of the file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self._path, self._at = path, 0
        self._number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        self._error: OSError | None = None
        self._kept: list[tuple[int, bytes]] = []  # (offset, bytes) since the error

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            error = self._error
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_CUR:
            offset += self._at
        elif whence == os.SEEK_END:
            offset += os.fstat(self._number).st_size
        self._at = offset
        return offset

    def tell(self) -> int:
        return self._at

    def write(self, content: Any) -> int:
        unwritten = memoryview(content)
        size = len(unwritten)
        try:
            while self._error is None and unwritten:
                count = os.pwrite(self._number, unwritten, self._at)
                unwritten, self._at = unwritten[count:], self._at + count
        except OSError as error:
            self._error = error
        if unwritten and len(unwritten) < _READ_AGAIN:
            self._kept.append((self._at, bytes(unwritten)))
        self._at += len(unwritten)
        return size

    def readinto(self, buffer: Any) -> int:
        view, start = memoryview(buffer).cast("B"), self._at
        count = os.preadv(self._number, [view], start)
        view[count:] = bytes(len(view) - count)
        for offset, content in self._kept:
            first, last = max(offset, start), min(offset + len(content), start + len(view))
            if first < last:
                view[first - start : last - start] = content[first - offset : last - offset]
        self._at += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        size = self._at if size is None else size
        try:
            if self._error is None:
                os.ftruncate(self._number, size)
        except OSError as error:
            self._error = error
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._number)


@contextlib.contextmanager
def create_hdf5(
    path: pathlib.Path, **options: Any
) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Create an HDF5 file.

    Yields:
        The file, and a function that raises the error of an earlier write; it is also raised
        when the block ends.

    Raises:
        OSError: the disk takes no more; the file is closed and not complete.
    """
    with contextlib.closing(_DeferredFile(path)) as disk:
        with h5py.File(disk, "w", **options) as file:
            yield file, disk.check
        disk.check()
