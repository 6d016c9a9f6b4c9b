"""Read ``pytorch_model.bin`` without torch and without running what the file says.

The file is a zip of ``data.pkl`` and raw storages. A pickle is a program; this one may name only
the three things that a state dict needs, and anything else is refused.
"""

import collections
import io
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["TorchArchive"]

_STORAGES = {
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype(np.float64),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


class _Storage(NamedTuple):
    key: str
    dtype: np.dtype


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> _Tensor:
    del rest  # requires_grad, hooks, metadata
    return _Tensor(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(
            f"refused to load {module}.{name}: a weights file may name tensors only; convert it to "
            "safetensors where you trust it"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, np.dtype):
            raise pickle.UnpicklingError(f"refused persistent object {kind!r}")
        return _Storage(str(key), dtype)


class TorchArchive(Mapping[str, np.ndarray]):
    """The tensors of one .bin file; each is read from disk when asked for.

    Raises:
        ValueError: not a zip archive (saved before torch 1.6), or a pickle that names anything
            but tensors.
    """

    def __init__(self, path: Path) -> None:
        if not zipfile.is_zipfile(path):
            raise ValueError(
                f"{path}: not a zip archive as torch >= 1.6 writes; save it again as safetensors"
            )
        self._zip = zipfile.ZipFile(path)
        names = [n for n in self._zip.namelist() if n.endswith("/data.pkl") or n == "data.pkl"]
        if len(names) != 1:
            raise ValueError(f"{path}: expected one data.pkl inside, found {names}")
        self._root = names[0].removesuffix("data.pkl")
        try:
            content = _Unpickler(io.BytesIO(self._zip.read(names[0]))).load()
        except pickle.UnpicklingError as error:
            raise ValueError(f"{path}: {error}") from None
        if not isinstance(content, dict):
            raise ValueError(f"{path}: expected a dict of tensors, got {type(content).__name__}")
        self._tensors = {k: t for k, t in content.items() if isinstance(t, _Tensor)}
        strange = [k for k, t in content.items() if not isinstance(t, _Tensor)]
        if strange:
            raise ValueError(f"{path}: entries that are not tensors: {strange[:5]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        return self._tensors[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        storage, offset, shape, strides = self._tensors[name]
        raw = self._zip.read(f"{self._root}data/{storage.key}")
        flat = np.frombuffer(raw, storage.dtype)
        reach = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        if min(shape, default=1) > 0 and (min(strides, default=0) < 0 or reach > flat.size):
            raise ValueError(f"{name}: strides reach past the storage of {flat.size} elements")
        step = storage.dtype.itemsize
        return np.lib.stride_tricks.as_strided(
            flat[offset:], shape, [s * step for s in strides], writeable=False
        )
