"""Compressed files and pipes, told by their content."""

import contextlib
import gzip
import io
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from wafer.models.errors import optional

_PACKED = 1 << 13  # bytes that are unpacked at once, to as many as 10,000 times
_GZIP = b"\x1f\x8b"
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16)))


class _ZstdFile(io.RawIOBase):
    """Decompressed bytes of a Zstandard file of any number of frames.

    The package's own stream reader ends quietly where a file is cut short; this one raises.
    """

    def __init__(self, raw: BinaryIO, module: Any) -> None:
        self._raw, self._module = raw, module
        self._frame = module.ZstdDecompressor().decompressobj()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._frame.unused_data or self._raw.read(_PACKED)
            if not packed:
                if not self._frame.eof:
                    raise EOFError("the last Zstandard frame is cut short")
                return 0
            if self._frame.eof:
                self._frame = self._module.ZstdDecompressor().decompressobj()
            try:
                self._ready = memoryview(self._frame.decompress(packed))
            except self._module.ZstdError as error:
                raise EOFError(str(error)) from error
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


def decompressed(raw: Any, name: str) -> Any:
    """Return the unpacked bytes of a buffered stream; gzip and Zstandard are told by their marks.

    Args:
        raw: what to read, with ``peek``.
        name: of the file, for errors; an empty one that is called ``.zst`` is cut short.

    Raises:
        MissingPackageError: Zstandard, without the package.
    """
    head = raw.peek(4)[:4]
    if head.startswith(_GZIP):
        return gzip.GzipFile(fileobj=raw)
    if head.startswith(_ZSTD) or (not head and name.lower().endswith(".zst")):
        module = optional("zstandard", f"reading {name}")
        return io.BufferedReader(_ZstdFile(raw, module), 1 << 20)
    return raw


@contextlib.contextmanager
def unpacked(path: pathlib.Path) -> Iterator[tuple[BinaryIO, Callable[[], int]]]:
    """Open a file or a pipe: its unpacked bytes, and how many of the file were read."""
    with path.open("rb") as raw:
        yield decompressed(raw, path.name), raw.tell if raw.seekable() else lambda: 0
