"""Reads a stopped program's memory: its globals, and the records of ``<debug>``."""

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from wafer.csl.host.artifacts import load, load_cores, offsets_of
from wafer.csl.host.errors import HostError
from wafer.csl.host.symbols import find_symbol
from wafer.csl.host.words import dtype_of
from wafer.machine.codes import Type
from wafer.vendor.sdk.sdk_utils import make_u48

# As library/debug.csl numbers what is no plain number.
_BYTES, _TIMESTAMP = 32, 33
_FULL = 0x8000


class debug_util:
    """The memory of a program after ``stop``; columns and rows count on the whole fabric.

    It is read at the first question, so a script may make this before it runs.

    Args:
        bindir: folder that the program was compiled to.
        cmaddr: of a system; there are none here.
    """

    def __init__(self, bindir: str | Path, cmaddr: str | None = None) -> None:
        self._bindir = Path(bindir).absolute()
        self._image = load(bindir)
        self._left, self._top = offsets_of(bindir)

    @functools.cached_property
    def _cores(self) -> dict[tuple[int, int], np.ndarray]:
        return load_cores(self._bindir, self._image)

    def get_symbol(self, col: int, row: int, symbol: str, dtype: npt.DTypeLike) -> np.ndarray:
        """A global of a PE, exported or not, as items of a type.

        Raises:
            HostError: no such PE or variable.
        """
        return self._bytes(col, row, symbol).view(dtype)

    def get_symbol_rect(
        self,
        rectangle: tuple[tuple[int, int], tuple[int, int]],
        symbol: str,
        dtype: npt.DTypeLike,
    ) -> np.ndarray:
        """[columns, rows, items] of a global on a rectangle of PEs.

        Args:
            rectangle: first column and row, then how many.
            symbol: name of the variable.
            dtype: of its items.
        """
        (left, top), (width, height) = rectangle
        return np.stack(
            [
                np.stack([self.get_symbol(x, y, symbol, dtype) for y in range(top, top + height)])
                for x in range(left, left + width)
            ]
        )

    def read_trace(self, col: int, row: int, key: str) -> list[int | float | str]:
        """What a PE recorded through the ``<debug>`` module with that key, in order."""
        return decode_trace(self._bytes(col, row, f"<debug>.{key}").view("<u2"))

    def _bytes(self, col: int, row: int, name: str) -> np.ndarray:
        x, y = col - self._left, row - self._top
        height, width = self._image.tiles.shape
        if not (0 <= x < width and 0 <= y < height):
            raise HostError(
                f"PE ({col}, {row}) of the fabric is outside of the program, which has columns"
                f" {self._left} to {self._left + width - 1} and rows {self._top} to"
                f" {self._top + height - 1}"
            )
        symbol = find_symbol(self._image, x, y, name)
        return self._cores[x, y][symbol.address : symbol.address + symbol.bytes].copy()


def decode_trace(buffer: np.ndarray) -> list[int | float | str]:
    """Records of a buffer of 16-bit words, as library/debug.csl writes them.

    Strings come as str, floats as float, all else as int.
    """
    out = []
    words, offset = buffer[1 : 1 + (int(buffer[0]) & ~_FULL)], 0
    while offset < len(words):
        kind, count = int(words[offset]) & 0xFF, int(words[offset]) >> 8
        out.append(_decoded(kind, words[offset + 1 : offset + 1 + count]))
        offset += 1 + count
    return out


def _decoded(kind: int, words: np.ndarray) -> int | float | str:
    if kind == _TIMESTAMP:
        return make_u48(words)
    data = np.ascontiguousarray(words).astype("<u2").view(np.uint8)
    if kind == _BYTES:
        return bytes(data).rstrip(b"\0").decode("latin-1")
    dtype = dtype_of(Type(kind).name.lower())
    value = data[: dtype.itemsize if dtype else 2].view(dtype or "<u2")[0]
    return float(value) if value.dtype.kind == "f" else int(value)
