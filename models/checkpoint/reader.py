"""Orbax checkpoints on disk, one tensor at a time.

Orbax stores a tree as zarr arrays (each named by its path, joined by '.') in one OCDBT database,
or as plain folders. TensorStore, which Orbax itself uses, opens the arrays one by one; nothing
else of a checkpoint needs to be in memory.
"""

import dataclasses
import json
import math
import pathlib
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from models.paths import unflatten

__all__ = ["CheckpointDamagedError", "StoredLeaf", "StoredTree", "create_tree", "find_items"]

_META = "_METADATA"
_DATA = ("d", "manifest.ocdbt")
_PIECE = 4 * 2**20  # bytes of a stored piece; some are compressed and written at a time
_AT_ONCE = 2


class CheckpointDamagedError(ValueError):
    """A checkpoint that is not complete; names the file or tensor."""


def find_items(path: pathlib.Path) -> list[pathlib.Path]:
    """List the folders of a checkpoint that hold arrays.

    Args:
        path: a step's folder (``model_dir/checkpoints/STEP``) or a folder Orbax saved a tree to.

    Raises:
        CheckpointDamagedError: nothing of the kind; says what is there.
    """
    if (path / _META).is_file():
        return [path]
    if path.is_dir():
        items = sorted(p.parent for p in path.glob(f"*/{_META}"))
        if items:
            return items
        steps = sorted(int(p.name) for p in path.glob("**/*") if p.is_dir() and p.name.isdigit())
        if steps:
            raise CheckpointDamagedError(
                f"{path} holds checkpoints, it is not one; give the folder of a step, for example"
                f" .../{steps[-1]} (found {steps[:8]})"
            )
    raise CheckpointDamagedError(
        f"{path} is not a complete Orbax checkpoint: neither it nor a folder in it has {_META}"
    )


class StoredTree:
    """The arrays of one Orbax item.

    Attributes:
        path: the item's folder.
        names: path of each array in the tree -> its name in the database.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        # No cache, so that memory stays flat; no fsync per piece, as a file copy has none either.
        self._context = ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_sync": False})
        self._index = self._read_index()
        self._kv = self._open_kv(path)
        self.keys = self._list()
        self.names = self._match()

    def _read_index(self) -> Mapping[str, Any]:
        try:
            return json.loads((self.path / _META).read_text())
        except (OSError, ValueError) as error:
            raise CheckpointDamagedError(f"{self.path / _META} cannot be read: {error}") from None

    @property
    def _ocdbt(self) -> bool:
        return bool(self._index.get("use_ocdbt", (self.path / "manifest.ocdbt").exists()))

    def _kv_spec(self, path: pathlib.Path, name: str = "") -> dict[str, Any]:
        if self._ocdbt:
            return {"driver": "ocdbt", "base": f"file://{path}", "path": name}
        return {"driver": "file", "path": f"{path}/{name}"}

    def _open_kv(self, path: pathlib.Path) -> Any:
        return ts.KvStore.open(self._kv_spec(path), context=self._context).result()

    def _list(self) -> dict[str, list[str]]:
        """Database name of each array -> its keys."""
        try:
            keys = [key.decode() for key in self._kv.list().result()]
        except ValueError as error:
            raise CheckpointDamagedError(f"{self.path}: unreadable index: {error}") from None
        arrays = {k.rpartition("/")[0]: [] for k in keys if k.endswith(("/.zarray", "/zarr.json"))}
        for key in keys:
            name = key
            while name and name not in arrays:  # zarr3 chunks lie deeper: NAME/c/0/0
                name = name.rpartition("/")[0]
            if name:
                arrays[name].append(key)
        return arrays

    def _match(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for entry in self._index.get("tree_metadata", {}).values():
            if entry["value_metadata"].get("value_type") in ("None", "Dict", "List"):
                continue
            parts = [str(key["key"]) for key in entry["key_metadata"]]
            stored = ".".join(parts)
            if stored not in self.keys:
                raise CheckpointDamagedError(f"{self.path}: tensor {'/'.join(parts)} is missing")
            names["/".join(parts)] = stored
        return names

    def __iter__(self) -> Iterator[str]:
        """Iterate over the arrays' paths in name order."""
        return iter(sorted(self.names))

    def open(self, name: str) -> ts.TensorStore:
        """Open an array without reading it; raises for missing pieces."""
        stored = self.names[name]
        zarr3 = f"{stored}/zarr.json" in self.keys[stored]
        spec = {
            "driver": "zarr3" if zarr3 else "zarr",
            "kvstore": self._kv_spec(self.path, f"{stored}/"),
        }
        try:
            array = ts.open(spec, context=self._context, read=True).result()
        except ValueError as error:
            raise CheckpointDamagedError(f"{self.path}: tensor {name}: {error}") from None
        self._require_chunks(name, array)
        return array

    def _require_chunks(self, name: str, array: ts.TensorStore) -> None:
        """A missing chunk would silently read as the fill value."""
        if not self._index.get("store_array_data_equal_to_fill_value", False):
            return
        chunk: Any = array.chunk_layout.write_chunk.shape or ()  # None for scalars
        want = math.prod(-(-n // c) for n, c in zip(array.shape, chunk, strict=True))
        have = len(self.keys[self.names[name]]) - 1
        if have < want:
            raise CheckpointDamagedError(
                f"{self.path}: tensor {name} has {have} of its {want} pieces; the checkpoint is"
                " incomplete"
            )

    def read(self, name: str) -> np.ndarray:
        """Read one array into memory, a few stored pieces at a time.

        TensorStore asked for all at once holds every compressed piece beside the result.
        """
        array = self.open(name)
        if not array.ndim:
            return self.finish(name, array.read())
        row = math.prod(array.shape[1:]) * array.dtype.numpy_dtype.itemsize
        chunk: Any = array.chunk_layout.read_chunk.shape  # a piece on a border is read twice
        stored = chunk[0]
        rows = max(stored, _AT_ONCE * _PIECE // max(row, 1) // max(stored, 1) * stored)
        if rows >= array.shape[0]:
            return self.finish(name, array.read())
        out = np.empty(array.shape, array.dtype.numpy_dtype)
        for i in range(0, array.shape[0], rows):
            part = slice(i, min(i + rows, array.shape[0]))
            out[part] = self.finish(name, array[part].read())
        return out

    def finish(self, name: str, pending: Any) -> np.ndarray:
        """Wait for a read begun with ``open(name).read()``."""
        try:
            return np.asarray(pending.result())
        except ValueError as error:
            raise CheckpointDamagedError(
                f"{self.path}: tensor {name} cannot be read, the checkpoint is damaged: {error}"
            ) from None

    def leaf(self, name: str) -> "StoredLeaf":
        """Stand for an array that is read when numpy asks for it, and then not kept."""
        array = self.open(name)
        return StoredLeaf(self, name, tuple(array.shape), array.dtype.numpy_dtype)

    def copy_other_files(self, target: pathlib.Path) -> None:
        """Copy everything that is not array data: tree structure, commit marks."""
        target.mkdir(parents=True)
        for source in self.path.iterdir():
            is_data = source.name in _DATA or source.name.startswith("ocdbt.process_")
            if not is_data and source.is_file():
                (target / source.name).write_bytes(source.read_bytes())
            elif source.name == "array_metadatas":
                for piece in source.iterdir():
                    (target / source.name).mkdir(exist_ok=True)
                    (target / source.name / piece.name).write_bytes(piece.read_bytes())

    def writer(self, target: pathlib.Path) -> "StoredWriter":
        """Write arrays of the same shapes and dtypes to another folder."""
        return StoredWriter(self, self._open_kv(target), self._kv, target)

    def target_spec(self, name: str, target: pathlib.Path) -> dict[str, Any]:
        """Describe the array a writer creates: same metadata, other place."""
        spec = self.open(name).spec(retain_context=False).to_json()
        return {
            "driver": spec["driver"],
            "metadata": spec["metadata"],
            "kvstore": self._kv_spec(target, f"{self.names[name]}/"),
            "create": True,
        }

    def is_raw(self, name: str) -> bool:
        """True when an array's pieces are stored byte by byte as they are in memory."""
        spec = self.open(name).spec(retain_context=False).to_json()
        stored = spec["metadata"]
        plain = spec["driver"] == "zarr" and stored.get("compressor") is None
        return plain and not stored.get("filters") and not stored["dtype"].startswith(">")

    def locations(self) -> dict[str, tuple[str, int, int] | None] | None:
        """Find where each key's value lies: (file inside the item, offset, length).

        Returns:
            By key; None for a value inside the index. None for all where the index is not the
            single node that Orbax writes.
        """
        if not self._ocdbt:
            return None
        base = ts.KvStore.open(f"file://{self.path}/", context=self._context).result()
        try:
            version = ts.ocdbt.dump(base).result()["versions"][-1]
            if version["root_height"]:
                return None
            entries = ts.ocdbt.dump(base, version["root"]["location"]).result()["entries"]
        except (ValueError, KeyError, IndexError) as error:
            raise CheckpointDamagedError(f"{self.path}: unreadable index: {error}") from None
        return {entry["key"].decode(): _location(entry) for entry in entries}

    def replace(self, name: str, value: np.ndarray) -> None:
        """Write an array of any shape and dtype in the place of one of this tree."""
        length = len(value) if value.ndim else 0
        rows = min(max(1, _PIECE * length // max(value.nbytes, 1)), max(length, 1))
        chunks = [rows, *value.shape[1:]] if value.ndim else []
        spec = {
            "driver": "zarr",
            "kvstore": self._kv_spec(self.path, f"{self.names[name]}/"),
            "metadata": {"compressor": {"id": "zstd", "level": 1}, "chunks": chunks},
            "create": True,
            "delete_existing": True,
        }
        options = {"dtype": value.dtype, "shape": value.shape, "context": self._context}
        array = ts.open(spec, **options).result()
        if not value.ndim:
            array.write(value).result()
        for i in range(0, length, _AT_ONCE * rows):
            part = slice(i, min(i + _AT_ONCE * rows, length))
            array[part].write(value[part], can_reference_source_data_indefinitely=True).result()

    @property
    def context(self) -> ts.Context:
        """TensorStore context without a cache, so that memory stays flat."""
        return self._context


@dataclasses.dataclass(frozen=True, eq=False)
class StoredLeaf:
    """An array of a ``StoredTree``; ``numpy.asarray`` reads it.

    Attributes:
        tree: where it is stored.
        name: its path there.
        shape: as stored.
        dtype: as stored.
    """

    tree: StoredTree
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read it."""
        value = self.tree.read(self.name)
        return value if dtype is None else value.astype(dtype)


def create_tree(path: pathlib.Path, names: Iterable[str]) -> StoredTree:
    """Write the description of a tree; ``replace`` then writes its arrays one by one.

    Args:
        path: the item's folder; does not exist.
        names: '/'-paths of the arrays.
    """
    checkpointer = ocp.StandardCheckpointer()
    checkpointer.save(path, unflatten({name: np.zeros((), np.int8) for name in names}))
    checkpointer.close()
    return StoredTree(path)


def _location(entry: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """Read OCDBT's 'value:FOLDER:FILE:OFFSET:LENGTH', names percent-encoded."""
    if "indirect_value" not in entry:
        return None
    _, folder, file, offset, length = entry["indirect_value"].split(":")
    return urllib.parse.unquote(folder + file), int(offset), int(length)


class StoredWriter:
    """Writes a ``StoredTree``'s arrays elsewhere, changed or as they are."""

    def __init__(self, tree: StoredTree, out: Any, source: Any, target: pathlib.Path) -> None:
        self._tree, self._out, self._source, self._target = tree, out, source, target

    def write(self, name: str, value: np.ndarray) -> None:
        """Write changed values."""
        spec = self._tree.target_spec(name, self._target)
        array = ts.open(spec, context=self._tree.context).result()
        array.write(value, can_reference_source_data_indefinitely=True).result()

    def rewrite(self, name: str, value: np.ndarray) -> None:
        """Put other values into an array that is there already."""
        spec = self._tree.target_spec(name, self._target) | {"create": False, "open": True}
        ts.open(spec, context=self._tree.context).result().write(value).result()

    def copy(self, name: str) -> None:
        """Copy an array's stored bytes."""
        stored = self._tree.names[name]
        for key in self._tree.keys[stored]:
            self._out.write(key, self._source.read(key).result().value).result()
