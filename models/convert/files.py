"""Weight files: read tensors one at a time from single or sharded files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from models.convert.unpickle import TorchArchive

__all__ = ["TensorFiles", "open_tensors", "read_config"]

_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class _Safetensors(Mapping[str, np.ndarray]):
    def __init__(self, path: Path) -> None:
        self._file: Any = safe_open(path, framework="np")
        self._keys = list(self._file.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._file.get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file.get_slice(name).get_shape())


class TensorFiles(Mapping[str, np.ndarray]):
    """Named tensors over one or several files; a value is read when it is asked for."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._where: dict[str, _Safetensors | TorchArchive] = {}
        for path in files:
            if not path.exists():
                raise FileNotFoundError(f"{path}: named by the index but missing")
            archive = TorchArchive(path) if path.suffix == ".bin" else _Safetensors(path)
            self._where |= dict.fromkeys(archive, archive)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._where[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._where[name].shape(name)


def open_tensors(path: str | Path) -> TensorFiles:
    """Open the weights of a folder, of one file or of an ``.index.json``.

    Raises:
        FileNotFoundError: nothing there that holds weights; the message lists what was looked for.
    """
    path = Path(path)
    if path.is_dir():
        for name in (*_SINGLE, *_INDEX):
            if (path / name).exists():
                return open_tensors(path / name)
        raise FileNotFoundError(f"{path}: none of {[*_SINGLE, *_INDEX]} is here")
    if path.name.endswith(".index.json"):
        names = json.loads(path.read_text())["weight_map"].values()
        return TensorFiles(_inside(path.parent, name) for name in sorted(set(names)))
    if path.suffix not in {".safetensors", ".bin"}:
        raise ValueError(f"{path}: expected .safetensors, .bin or .index.json")
    return TensorFiles([path])


def _inside(folder: Path, name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"{folder}: the index names {name!r}, outside its own folder")
    return folder / name


def read_config(path: str | Path) -> dict[str, Any]:
    """Read ``config.json`` from a folder, or the given JSON file."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"{path}: no configuration; a Hugging Face folder has config.json")
    return json.loads(path.read_text())
