"""Weight files: read tensors one at a time from single or sharded files, write shards."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from models.convert.unpickle import TorchArchive

__all__ = ["TensorFiles", "open_tensors", "read_config", "write_shards"]

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


def write_shards(
    tensors: Iterable[tuple[str, np.ndarray]], folder: str | Path, max_bytes: int
) -> list[Path]:
    """Write named tensors as safetensors, an index beside them when there are several files.

    Holds one shard in memory at a time.

    Args:
        tensors: (name, array) in order; consumed lazily.
        folder: created when missing.
        max_bytes: a shard is closed before it grows beyond this.

    Returns:
        The files written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[list[str]] = []
    pending: dict[str, np.ndarray] = {}
    size = total = 0

    def flush() -> None:
        nonlocal pending, size
        save_file(pending, folder / f"part-{len(shards):05d}.tmp", {"format": "pt"})
        shards.append(list(pending))
        pending, size = {}, 0

    for name, array in tensors:
        if pending and size + array.nbytes > max_bytes:
            flush()
        pending[name] = np.ascontiguousarray(array)
        size += array.nbytes
        total += array.nbytes
    flush()
    return _name_shards(folder, shards, total)


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> list[Path]:
    """Give shards their final names, known only when all are written."""
    written = []
    weight_map: dict[str, str] = {}
    for i, names in enumerate(shards):
        single = len(shards) == 1
        stem = "model" if single else f"model-{i + 1:05d}-of-{len(shards):05d}"
        path = folder / f"{stem}.safetensors"
        (folder / f"part-{i:05d}.tmp").replace(path)
        weight_map |= dict.fromkeys(names, path.name)
        written.append(path)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2))
        written.append(path)
    return written
