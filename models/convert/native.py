"""Our own checkpoints: a folder with ``state`` (Orbax) and ``meta/metadata`` (JSON).

The trainer's checkpoints and those written here are the same thing; only ``params`` is there, as
a run that starts from converted weights needs no more. Arrays go through one at a time.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from models.checkpoint.reader import StoredTree, create_tree

__all__ = ["StoredArray", "read_native", "write_native"]

_ROOT = "params/"


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array on disk; ``numpy.asarray`` reads it, and nothing is kept.

    Attributes:
        shape: of the array.
        dtype: of the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    _tree: StoredTree
    _name: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read."""
        return np.asarray(self._tree.read(self._name), dtype=dtype)


def write_native(
    folder: str | Path,
    settings: Mapping[str, Any],
    names: Iterable[str],
    arrays: Iterable[tuple[str, np.ndarray]],
) -> Path:
    """Write parameters and the ``model`` section they belong to; complete or not there at all.

    Args:
        folder: may exist, but holds no checkpoint yet.
        settings: the ``model`` section.
        names: every parameter path.
        arrays: (parameter path, value) in any order, consumed one at a time.

    Raises:
        FileExistsError: the folder holds a checkpoint already.
    """
    folder = Path(folder).resolve()
    if (folder / "state").exists():
        raise FileExistsError(f"{folder}: holds a checkpoint already; choose another --output-dir")
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    record = {"step": 0, "config": {"model": dict(settings)}}
    (folder / "meta" / "metadata").write_text(json.dumps(record, indent=2))
    partial = folder / f".state.partial-{os.getpid()}"
    try:
        tree = create_tree(partial, [_ROOT + name for name in names])
        for name, value in arrays:
            tree.replace(_ROOT + name, value)
        partial.rename(folder / "state")
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def read_native(folder: str | Path) -> tuple[dict[str, Any], dict[str, StoredArray]]:
    """Open a checkpoint of ours, the trainer's included: (``model`` section, path -> array).

    Raises:
        ValueError: not such a folder, or a damaged one.
    """
    folder = Path(folder).resolve()
    record = folder / "meta" / "metadata"
    if not record.is_file() or not (folder / "state").is_dir():
        raise ValueError(
            f"{folder}: not a checkpoint: expected the folders state and meta, as in "
            "<model_dir>/checkpoints/<step>"
        )
    settings = json.loads(record.read_text())["config"]["model"]
    tree = StoredTree(folder / "state")
    found: dict[str, StoredArray] = {}
    for name in tree:
        if name.startswith(_ROOT):
            stored = tree.open(name)
            shape, dtype = tuple(stored.shape), stored.dtype.numpy_dtype
            found[name.removeprefix(_ROOT)] = StoredArray(shape, dtype, tree, name)
    return settings, found
