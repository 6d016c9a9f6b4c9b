"""Weight files: read tensors one at a time from single or sharded files."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from wafer.models.checkpoint.layout import is_checkpoint
from wafer.models.checkpoint.reader import open_params
from wafer.models.convert.unpickle import TorchArchive
from wafer.models.files import JsonObject, contained_file, not_a_file, read_json, require_path

_LONGEST_NAME = 255
# In the order in which transformers looks for them.
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def _reading(place: str) -> Iterator[None]:
    """Name the file, and the tensor, of what the library cannot read."""
    try:
        yield
    except (SafetensorError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{place}: cannot be read as safetensors ({error}); the file is damaged or cut short, "
            "or holds a dtype that numpy lacks"
        ) from None


class _Safetensors(Mapping[str, np.ndarray]):
    def __init__(self, path: Path) -> None:
        self._path = path
        with _reading(f"{path}"):
            self._file: Any = safe_open(path, framework="np")
            self._keys = list(self._file.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, name: str) -> np.ndarray:
        with _reading(f"{self._path}: {name}"):
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
            if problem := not_a_file(path):
                raise ValueError(f"{path}: {problem}; expected a file of weights")
            archive = TorchArchive(path) if path.suffix == ".bin" else _Safetensors(path)
            self._where |= dict.fromkeys(archive, archive)

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, name: object) -> bool:  # Mapping's would read the tensor
        return name in self._where

    def __getitem__(self, name: str) -> np.ndarray:
        return self._where[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading its values."""
        return self._where[name].shape(name)


def open_arrays(path: Path) -> Mapping[str, Any]:
    """Open a checkpoint of ours (its parameters), or what ``open_tensors`` opens: name -> array.

    Raises:
        FileNotFoundError: a path that does not exist; names what is near in its folder.
        ValueError: as ``open_tensors``.
    """
    require_path(path)
    return open_params(path)[1] if is_checkpoint(path) else open_tensors(path)


def open_tensors(path: str | Path) -> TensorFiles:
    """Open the weights of a folder, of one file or of an ``.index.json``.

    Of a folder with several, the first of ``_NAMES`` is read; the log names the others.

    Raises:
        FileNotFoundError: nothing there that holds weights; the message lists what was looked for.
        ValueError: a damaged file, or a link out of the folder; names it and the place in it.
    """
    path = Path(path)
    if path.is_dir():
        here = [name for name in _NAMES if (path / name).exists()]
        if not here:
            raise FileNotFoundError(f"{path}: none of {list(_NAMES)} is here")
        if here[1:]:
            _LOG.warning("%s: %s is read, not %s", path, here[0], ", ".join(here[1:]))
        return open_tensors(contained_file(path / here[0]))
    if path.name.endswith(".index.json"):
        where = read_json(path).get("weight_map")
        if not isinstance(where, dict) or not all(isinstance(f, str) for f in where.values()):
            raise ValueError(f"{path}: no weight_map that gives each tensor the name of its file")
        return TensorFiles(_inside(path, name) for name in sorted(set(where.values())))
    if path.suffix not in {".safetensors", ".bin"}:
        raise ValueError(f"{path}: expected .safetensors, .bin or .index.json")
    return TensorFiles([path])


def _inside(index: Path, name: str) -> Path:
    own = Path(name).name == name and name not in {"", ".."}
    if not own or "\0" in name or len(name) > _LONGEST_NAME:
        raise ValueError(f"{index}: names {name[:80]!r}, no file of its own folder")
    return contained_file(index.with_name(name))


def read_config(path: str | Path) -> JsonObject:
    """Read ``config.json`` from a folder, or the given JSON file."""
    path = Path(path)
    path = contained_file(path / "config.json") if path.is_dir() else path
    if not path.exists():
        raise FileNotFoundError(f"{path}: no configuration; a Hugging Face folder has config.json")
    return read_json(path)
