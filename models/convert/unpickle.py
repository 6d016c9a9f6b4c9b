"""Read ``pytorch_model.bin`` without torch and without running what the file says.

The file is a zip of ``data.pkl`` and raw storages. Every size in it is checked against the file
before memory is taken for it, and every tensor against its storage.
"""

import contextlib
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from wafer.models.convert.pickles import Tensor, read_pickle

_MOST_PICKLE = 16 * 2**20  # bytes of data.pkl; a hundred thousand tensors need less
_MOST_AXES = 32
# What zipfile raises over a damaged archive.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, IndexError, KeyError),
    *(OSError, OverflowError, RuntimeError, UnicodeError, ValueError),
)


@contextlib.contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    """Name the file and the place in it of whatever is wrong."""
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{path}: {what}: {error}") from None


class TorchArchive(Mapping[str, np.ndarray]):
    """The tensors of one .bin file; each is read from disk when asked for.

    Raises:
        ValueError: not a zip archive (saved by torch before 2020), a pickle that names anything but
            tensors, sizes that the file does not have, tensors that reach beyond their storage.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._bytes = path, path.stat().st_size
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path}: not a zip archive, as torch writes since 2020; save it as safetensors"
            )
        with _reading(path, "damaged zip archive"):
            self._zip = zipfile.ZipFile(path)
        names = [n for n in self._zip.namelist() if n.endswith("/data.pkl") or n == "data.pkl"]
        if len(names) != 1:
            raise ValueError(f"{path}: expected one data.pkl inside, found {len(names)}")
        self._root = names[0].removesuffix("data.pkl")
        if f"{self._root}byteorder" in self._zip.namelist():
            order = self._content("byteorder", 16)
            if order != b"little":
                raise ValueError(f"{path}: byteorder is {order!r}; only b'little' can be read")
        program = self._content("data.pkl", _MOST_PICKLE)
        with _reading(path, "data.pkl"):
            content = read_pickle(program)
        if not isinstance(content, dict):
            raise ValueError(f"{path}: expected a dict of tensors, got {type(content).__name__}")
        self._tensors: dict[str, Tensor] = {}
        for name, tensor in content.items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                kind = type(tensor).__name__
                raise ValueError(f"{path}: entry {name!r} is not a tensor but a {kind}")
            with _reading(path, name):
                self._check(tensor)
            self._tensors[name] = tensor

    def _entry(self, name: str) -> zipfile.ZipInfo:
        """An entry whose sizes fit the file.

        Raises:
            ValueError: compressed, which torch never writes, or larger than the file.
        """
        try:
            entry = self._zip.getinfo(self._root + name)
        except KeyError:
            raise ValueError(f"the archive holds no {name}") from None
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ValueError(f"{name} is compressed, which torch never does; save it again")
        if entry.header_offset + entry.file_size > self._bytes:
            raise ValueError(f"{name} has {entry.file_size} bytes, more than the file")
        return entry

    def _content(self, name: str, most: int) -> bytes:
        with _reading(self._path, name):
            entry = self._entry(name)
            if entry.file_size > most:
                raise ValueError(f"{entry.file_size} bytes; at most {most} are expected")
            return self._zip.read(entry)

    def _check(self, tensor: Tensor) -> None:
        """Compare a tensor with its storage, and the storage with the archive.

        Raises:
            ValueError: they do not fit.
        """
        storage, offset, shape, strides = tensor
        stored = self._entry(f"data/{storage.key}").file_size
        if stored != storage.size * storage.dtype.itemsize:
            raise ValueError(
                f"storage {storage.key} should be {storage.size} {storage.dtype} but has "
                f"{stored} bytes"
            )
        if len(shape) != len(strides) or len(shape) > _MOST_AXES:
            raise ValueError(f"{len(shape)} axes with {len(strides)} strides")
        empty = 0 in shape
        reach = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        if (offset if empty else max(reach, math.prod(shape))) > storage.size:
            raise ValueError(
                f"shape {shape} from element {offset} with strides {strides} reaches beyond its "
                f"storage of {storage.size} elements"
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return self._tensors[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        storage, offset, shape, strides = self._tensors[name]
        raw = self._content(f"data/{storage.key}", self._bytes)
        step = storage.dtype.itemsize
        with _reading(self._path, name):
            if 0 in shape:
                return np.zeros(shape, storage.dtype)
            # np.ndarray looks at offset, shape and strides once more.
            return np.ndarray(shape, storage.dtype, raw, offset * step, [s * step for s in strides])
