"""Checkpoints on disk, read one tensor at a time.

Orbax stores a tree as zarr arrays (each named by its path, joined by '.') in one OCDBT database,
or as plain folders. TensorStore, which Orbax itself uses, opens the arrays one by one; nothing
else of a checkpoint needs to be in memory.
"""

import concurrent.futures
import functools
import itertools
import logging
import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorstore as ts
from jaxtyping import PyTree

from wafer.models.base import Model
from wafer.models.checkpoint.checksums import checksum
from wafer.models.checkpoint.layout import (
    CONFIG,
    META,
    PARAMS,
    STATE,
    ContentError,
    check_step,
    is_checkpoint,
    model_section,
    read_record,
)
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.moments import owner_of
from wafer.models.checkpoint.pruned import check_moment, check_weight, clear, masks_of, prunable
from wafer.models.checkpoint.tree import fill_template
from wafer.models.counts import abstract_params
from wafer.models.errors import CheckpointError, LinkError, first_lines
from wafer.models.files import JsonObject, read_json, require_contained
from wafer.models.paths import former_names, named_leaves, unflatten
from wafer.models.registry import build
from wafer.models.user.trust import untrusted

PIECE = 4 * 2**20  # bytes of a stored piece; some are compressed and read or written at a time
AT_ONCE = 2
_INDEX = "_METADATA"
_LOG = logging.getLogger(__name__)
_UNLISTED = "%s: NaN in kernels (first: %s) count as pruned weights: the record lists none"


def load_checkpoint(
    path: str | os.PathLike[str], template: PyTree = None, *, lazily: bool = False
) -> tuple[PyTree, JsonObject]:
    """Load one checkpoint, as trained or finalized: (tree of arrays, record).

    Args:
        path: the checkpoint's folder.
        template: the state that a fresh start would write, or ``jax.eval_shape`` of it: the arrays
            come in its structure (nnx's State, equinox modules, tuples, random keys). None gives
            nested dicts.
        lazily: for trees larger than memory: every array is read once, to know that it can be,
            and given as a handle that reads it again when numpy asks.

    Raises:
        CheckpointError: not a checkpoint, damaged, of a newer format, or without an array of the
            template; nothing is half-loaded.
    """
    path = pathlib.Path(path).resolve()
    record, sums = read_record(path)

    def leaf(name: str) -> PyTree:
        value = tree.read(name)
        return tree.leaf(name) if lazily else value

    try:
        tree = StoredTree(path / STATE, sums, record)
        # Two at a time, so that both cores have work; lazily, one is in memory.
        with concurrent.futures.ThreadPoolExecutor(1 if lazily else 2) as pool:
            leaves = dict(zip(tree, pool.map(leaf, tree), strict=True))
    except (ContentError, LinkError):
        raise
    except Exception as error:
        raise CheckpointError(f"{path} cannot be read, it is damaged: {error}") from error
    check_step(path, record, leaves)
    found = unflatten(leaves)
    return (found if template is None else fill_template(template, found, str(path))), record


def open_params(path: str | os.PathLike[str]) -> tuple[JsonObject, dict[str, LazyArray]]:
    """Open a checkpoint's model: (record, parameter path -> array on disk).

    Raises:
        CheckpointError: not a checkpoint, or a damaged one.
    """
    path = pathlib.Path(path).resolve()
    record, sums = read_record(path)
    tree = StoredTree(path / STATE, sums, record)
    prefix = f"{PARAMS}/"
    names = [name for name in tree if name.startswith(prefix)]
    return record, {name.removeprefix(prefix): tree.leaf(name) for name in names}


def load_params(path: str | os.PathLike[str]) -> tuple[dict[str, PyTree], JsonObject]:
    """Load a checkpoint's model: (parameters, 0 where pruned; record).

    Raises:
        CheckpointError: not a checkpoint, or a damaged one.
    """
    record, leaves = open_params(path)
    params = unflatten({name: np.asarray(leaf) for name, leaf in leaves.items()})
    return clear(params, {}, masks_of(params))[0], record


def find_items(path: pathlib.Path) -> list[pathlib.Path]:
    """List the folders of a checkpoint that hold arrays.

    Args:
        path: a step's folder (``model_dir/checkpoints/STEP``) or a folder Orbax saved a tree to.

    Raises:
        CheckpointError: nothing of the kind; says what is there.
    """
    if (path / _INDEX).is_file():
        return [path]
    if path.is_dir():
        items = sorted(p.parent for p in path.glob(f"*/{_INDEX}"))
        if items:
            return items
        folders = [p.parent.parent for p in path.glob(f"**/*/*/{_INDEX}")]
        whole = [p for p in folders if is_checkpoint(p) or not (p / STATE).is_dir()]
        steps = sorted({int(p.name) for p in whole if p.name.isdigit()})
        if steps:
            raise CheckpointError(
                f"{path} holds checkpoints, it is not one; give the folder of a step, for example"
                f" .../{steps[-1]} (found {steps[:8]})"
            )
    raise CheckpointError(
        f"{path} is not a complete Orbax checkpoint: neither it nor a folder in it has {_INDEX}"
    )


class StoredTree:
    """The arrays of one Orbax item.

    Attributes:
        path: the item's folder.
        context: TensorStore's, without a cache.
        kv: the database.
        keys: name of each array in the database -> its keys.
        names: path of each array in the tree -> its name in the database.
        sums: path of each array -> the checksum its values must have; None where nobody knows.
        record: beside the arrays; weights and moments of a model that it names are no NaN but where
            pruned.
    """

    def __init__(
        self,
        path: pathlib.Path,
        sums: Mapping[str, str] | None = None,
        record: Mapping[str, object] | None = None,
    ) -> None:
        require_contained(path)
        self.path = path
        self.sums = sums
        self._pruned = prunable(record or {})
        self._unlisted = itertools.count()  # parameters of NaN that the record does not list
        # No cache, so that memory stays flat; no fsync per piece, as a file copy has none either.
        self.context = ts.Context({"cache_pool": {"total_bytes_limit": 0}, "file_io_sync": False})
        self._index = self._read_index()
        self.kv = self.open_kv(path)
        self.keys = self._list()
        self.names = self._match()
        weights = (name for name in self.names if name.startswith(f"{PARAMS}/"))
        known = record and CONFIG in record
        self._weights = {name.removeprefix(f"{PARAMS}/") for name in weights} if known else set()

    def _read_index(self) -> JsonObject:
        try:
            return read_json(self.path / _INDEX)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / _INDEX} cannot be read: {error}") from None

    @property
    def _ocdbt(self) -> bool:
        return bool(self._index.get("use_ocdbt", (self.path / "manifest.ocdbt").exists()))

    def kv_spec(self, path: pathlib.Path, name: str = "") -> dict[str, str]:
        """Describe a key-value store of this one's kind in another folder."""
        if self._ocdbt:
            return {"driver": "ocdbt", "base": path.as_uri(), "path": name}
        return {"driver": "file", "path": f"{path}/{name}"}

    def open_kv(self, path: pathlib.Path) -> ts.KvStore:
        """Open that store."""
        return ts.KvStore.open(self.kv_spec(path), context=self.context).result()

    def _list(self) -> dict[str, list[str]]:
        """Database name of each array -> its keys."""
        try:
            keys = [key.decode() for key in self.kv.list().result()]
        except ValueError as error:
            raise CheckpointError(f"{self.path}: unreadable index: {error}") from None
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
        try:
            entries = [
                [str(key["key"]) for key in entry["key_metadata"]]
                for entry in self._index.get("tree_metadata", {}).values()
                if entry["value_metadata"].get("value_type") not in ("None", "Dict", "List")
            ]
        except (AttributeError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path / _INDEX} is damaged: {error!r}") from None
        for components in entries:
            stored = ".".join(components)
            if stored not in self.keys:
                raise CheckpointError(f"{self.path}: tensor {'/'.join(components)} is missing")
            names["/".join(components)] = stored
        if self.sums is not None and names.keys() != self.sums.keys():
            odd = ", ".join(sorted(names.keys() ^ self.sums.keys())[:8])
            raise CheckpointError(
                f"{self.path / _INDEX} is damaged: the checkpoint was not written with these "
                f"tensors; they differ in {odd}"
            )
        return names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names))

    def open(self, name: str) -> ts.TensorStore:
        """Open an array without reading it; raises for missing pieces."""
        stored = self.names[name]
        zarr3 = f"{stored}/zarr.json" in self.keys[stored]
        spec = {
            "driver": "zarr3" if zarr3 else "zarr",
            "kvstore": self.kv_spec(self.path, f"{stored}/"),
        }
        try:
            array = ts.open(spec, context=self.context, read=True).result()
        except ValueError as error:
            raise CheckpointError(f"{self.path}: tensor {name}: {error}") from None
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
            raise CheckpointError(
                f"{self.path}: tensor {name} has {have} of its {want} pieces; the checkpoint is"
                " incomplete"
            )

    def read(self, name: str) -> np.ndarray:
        """Read one array into memory.

        Raises:
            CheckpointError: it is damaged; says which.
        """
        value = self._read(name)
        if self.sums is not None and checksum(value) != self.sums[name]:
            raise CheckpointError(
                f"{self.path}: tensor {name} is damaged: it has checksum {checksum(value)}, it was "
                f"written with {self.sums[name]}"
            )
        weight_name = owner_of(name, self._weights)
        if weight_name is not None and name == f"{PARAMS}/{weight_name}":
            check_weight(self.path.parent, weight_name, value, self._pruned)
            if self._pruned is None and np.isnan(value).any() and not next(self._unlisted):
                _LOG.warning(_UNLISTED, self.path.parent, weight_name)
        elif weight_name is not None:
            check_moment(self.path.parent, name, weight_name, value, self._pruned)
        return value

    def _read(self, name: str) -> np.ndarray:
        """Read a few stored pieces at a time.

        TensorStore asked for all at once holds every compressed piece beside the result.
        """
        array = self.open(name)
        if not array.ndim:
            return self.finish(name, array.read())
        row = math.prod(array.shape[1:]) * array.dtype.numpy_dtype.itemsize
        chunk: Any = array.chunk_layout.read_chunk.shape  # a piece on a border is read twice
        stored = chunk[0]
        rows = max(stored, AT_ONCE * PIECE // max(row, 1) // max(stored, 1) * stored)
        if rows >= array.shape[0]:
            return self.finish(name, array.read())
        out = np.empty(array.shape, array.dtype.numpy_dtype)
        for i in range(0, array.shape[0], rows):
            part = slice(i, min(i + rows, array.shape[0]))
            out[part] = self.finish(name, array[part].read())
        return out

    def finish(self, name: str, pending: ts.Future) -> np.ndarray:
        """Wait for a read begun with ``open(name).read()``."""
        try:
            return np.asarray(pending.result())
        except ValueError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} cannot be read, the checkpoint is damaged: {error}"
            ) from None

    def leaf(self, name: str) -> LazyArray:
        """Return an array that is read when numpy asks for it, and then not kept."""
        array = self.open(name)
        read = functools.partial(self.read, name)
        return LazyArray(tuple(array.shape), array.dtype.numpy_dtype, read, name)


def build_stored(record: Mapping[str, object], source: object, params: PyTree = None) -> Model:
    """Build the model of a checkpoint's record.

    Args:
        record: of the checkpoint.
        source: its path, for errors.
        params: the arrays, a tree or name -> array, which must be the model's; None: not compared.

    Raises:
        CheckpointError: it does not say its model, or one that cannot be built or has other
            arrays; lists them.
        ValueError: it names code that the user does not trust.
    """
    with untrusted(source, sections=record.get(CONFIG)):
        try:
            model = build(model_section(record, source))
        except ValueError as error:
            if str(source) in str(error):
                raise
            raise CheckpointError(f"{source}: {error}") from error
        if params is not None:
            _require_arrays(model, params, source)
        return model


def _require_arrays(model: Model, params: PyTree, source: object) -> None:
    template = abstract_params(model)
    needed = {name: np.shape(leaf) for name, leaf in named_leaves(template)}
    former = {old: new for new, old in former_names(template).items()}
    shapes = {former.get(name, name): np.shape(leaf) for name, leaf in named_leaves(params)}
    wrong = [
        f"{name}: {_shape_of(name, shapes)}, the model needs {_shape_of(name, needed)}"
        for name in sorted(needed.keys() | shapes.keys())
        if needed.get(name) != shapes.get(name)
    ]
    if wrong:
        raise CheckpointError(
            f"{source}: its arrays are not those of the model that its record names "
            f"({model.config.name}):\n  {first_lines(wrong)}\nPut back the record, {META}, that "
            "was written with the arrays"
        )


def _shape_of(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    return f"shape {shapes[name]}" if name in shapes else "none"
