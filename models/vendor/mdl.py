"""Read the vendor's ``.mdl`` checkpoints of every release: flat HDF5, one dataset per tensor.

Only dataset names, shapes and values are read. Structure records (``__spec__``) before layout 0.5
are pickles and never opened, so nothing in the file can run.
"""

import math
import os
import pathlib
from collections.abc import Collection, Iterator
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from wafer.models.errors import CheckpointError, MissingPackageError, optional
from wafer.models.guarded import call_in_subprocess
from wafer.models.vendor.leaves import Leaf, follow, read_leaves
from wafer.models.vendor.order import listed_keys

_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises over it
_MOST_FILLED = 16 << 30  # bytes of a tensor that is stored as one value and a shape


class MdlFile:
    """A vendor checkpoint opened for reading; a context manager and an iterable of names.

    Attributes:
        path: of the file.
        model_keys: of its ``model`` in their own order; [] in a file before layout 0.5.

    Raises:
        CheckpointError: no HDF5 file, a damaged one, or one whose writer did not finish.
        MissingPackageError: it is compressed as HDF5 itself cannot read, and hdf5plugin is missing.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        if not path.exists():
            beside = ", ".join(sorted(p.name for p in path.parent.glob("*.mdl"))) or "no .mdl"
            raise CheckpointError(f"{path}: no such file; {path.parent} has: {beside}")
        try:
            # Attributes of a damaged file crash the HDF5 library: another process reads them.
            flags, tensors = call_in_subprocess(
                "wafer.models.vendor.mdl:attributes", os.path.abspath(path)
            )
            modern = float(flags.get("__version__", 0.1)) >= 0.5
            self.model_keys = listed_keys(flags.get("__spec__"))
            self._leaves = read_leaves(flags, tensors)
            self._file = h5py.File(path, "r")
        except _DAMAGE as error:
            raise CheckpointError(f"{path} is no readable .mdl (HDF5) file: {error}") from None
        try:
            if modern and not flags.get("__SUCCESS__", False):
                raise CheckpointError(
                    f"{path} is incomplete: its writer did not mark it finished (__SUCCESS__)"
                )
            here = {n: leaf for n in self._leaves if (leaf := self._tensor(n, tensors))}
            self._tensors: dict[str, Leaf] = here
            self._require_filters()
        except (CheckpointError, MissingPackageError):
            self.close()
            raise

    def __enter__(self) -> "MdlFile":
        """Return the open file."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        """Iterate over tensor names, '.'-joined, in name order; tied ones under each name."""
        return iter(self._tensors)

    def _follow(self, name: str) -> Leaf:
        try:
            return follow(self._leaves, name)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def _tensor(self, name: str, datasets: Collection[str]) -> Leaf | None:
        """Return what a tensor's entry holds; None for what is no tensor."""
        leaf = self._follow(name)
        if leaf.kind == "elsewhere":
            raise CheckpointError(
                f"{self.path}: tensor {name} is in another file, {leaf.where}; save the checkpoint "
                "with all its tensors inside"
            )
        if leaf.kind == "tensor" and leaf.where not in datasets:
            raise CheckpointError(f"{self.path}: tensor {name} is missing")
        return leaf if leaf.kind in {"tensor", "filled"} else None

    def _require_filters(self) -> None:
        """Load what unpacks the tensors where HDF5 itself does not: the vendor writes LZ4."""
        for name in {leaf.where for leaf in self._tensors.values() if leaf.kind == "tensor"}:
            try:
                settings = h5py.h5d.open(self._file.id, name.encode()).get_create_plist()
                codes = [settings.get_filter(n)[0] for n in range(settings.get_nfilters())]
            except _DAMAGE:
                continue  # `read` names it
            if not all(map(h5py.h5z.filter_avail, codes)):
                optional("hdf5plugin", f"{self.path}, which is compressed,")
                return

    def entries(self, prefix: str) -> list[str]:
        """List all entries whose names begin so, numbers and texts too, in name order."""
        return [name for name in self._leaves if name.startswith(prefix)]

    def scalar(self, name: str) -> Any:
        """Return a number or text of the checkpoint (such as ``global_step``), or None.

        Raises:
            CheckpointError: it is damaged, or a pickled object.
        """
        if name not in self._leaves:
            return None
        leaf = self._follow(name)
        if leaf.kind == "object":
            raise CheckpointError(f"{self.path}: {name} is a pickled object, which is not opened")
        if leaf.kind == "value":
            return leaf.value
        value = self._read(name, leaf)
        if value.size != 1:
            raise CheckpointError(f"{self.path}: {name} has shape {value.shape}; expected a number")
        return value.item()

    def dataset(self, name: str) -> str:
        """Return the name of the dataset that holds a tensor.

        Raises:
            CheckpointError: none does, the tensor is a shape and one value.
        """
        leaf = self._tensors[name]
        if leaf.kind == "filled":
            raise CheckpointError(f"{self.path}: {name} is one value, {leaf.value}, at every place")
        return leaf.where

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it.

        Raises:
            CheckpointError: names the tensor.
        """
        leaf = self._tensors[name]
        if leaf.kind == "filled":
            return leaf.shape
        try:
            dataset: Any = self._file[leaf.where]
            return tuple(dataset.shape)
        except _DAMAGE as error:
            raise CheckpointError(f"{self.path}: tensor {name} is damaged: {error}") from None

    def read(self, name: str) -> np.ndarray:
        """Read one tensor.

        Raises:
            CheckpointError: names the tensor.
        """
        return self._read(name, self._tensors[name])

    def _read(self, name: str, leaf: Leaf) -> np.ndarray:
        try:
            value = self._filled_entry(leaf) if leaf.kind == "filled" else self._stored_entry(leaf)
        except _DAMAGE as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} cannot be read, the file is damaged: {error}"
            ) from None
        return value

    def _stored_entry(self, leaf: Leaf) -> np.ndarray:
        dataset: Any = self._file[leaf.where]
        if dataset.dtype.kind not in "biufc":
            raise ValueError(f"holds {dataset.dtype}; expected numbers")
        _require_stored(dataset)
        value = dataset[()]
        if leaf.bfloat16 and value.dtype.itemsize == 2:
            value = value.view(ml_dtypes.bfloat16)
        return value

    def _filled_entry(self, leaf: Leaf) -> np.ndarray:
        """Build a tensor that is stored as one value and a shape."""
        dataset: Any = None if leaf.dtype else self._file[leaf.where]  # has it before 0.5
        stored = leaf.dtype or dataset.dtype
        dtype = np.dtype(ml_dtypes.bfloat16 if leaf.bfloat16 else stored)
        if dtype.kind not in "biufc" and not leaf.bfloat16:
            raise ValueError(f"holds {dtype}; expected numbers")
        if math.prod(leaf.shape) * dtype.itemsize > _MOST_FILLED:
            raise ValueError(f"shape {leaf.shape} of one value")
        try:
            return np.full(leaf.shape, leaf.value, dtype)
        except MemoryError:
            raise ValueError(f"shape {leaf.shape} of one value is beyond this memory") from None


def _require_stored(dataset: Any) -> None:
    """Refuse a shape whose values the file does not hold: it costs memory, not bytes of a file.

    Raises:
        ValueError: they lie elsewhere or were never written.
    """
    if dataset.is_virtual or dataset.external:
        raise ValueError("its values are in other files")
    if dataset.chunks is None:
        there, all_ = dataset.id.get_storage_size(), dataset.nbytes
    else:
        along = [-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
        there, all_ = dataset.id.get_num_chunks(), math.prod(along)
    if there < all_:
        raise ValueError(f"shape {dataset.shape} was never filled")


def attributes(path: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Attributes of the file, and of each dataset in it, as JSON values; what is no such is left.

    Raises:
        ValueError: they cannot be read.
    """
    try:
        with h5py.File(path, "r") as file:
            tensors = {}
            for name in file:
                if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"{name} is a link to elsewhere")
                dataset = file[name]
                if isinstance(dataset, h5py.Dataset):
                    tensors[str(name)] = _plain(dataset.attrs)
            return _plain(file.attrs), tensors
    except _DAMAGE as error:
        raise ValueError(str(error)) from None


def _plain(attrs: Any) -> dict[str, Any]:
    values = ((name, x.item() if isinstance(x, np.generic) else x) for name, x in attrs.items())
    kept = {  # of an array, as ``dtypes`` is, the text of a list
        str(name): str(x.tolist()) if isinstance(x, np.ndarray) else x
        for name, x in values
        if isinstance(x, str | int | float | np.ndarray)
    }
    if not str(kept.get("__spec__", "[")).startswith("["):  # a pickle
        del kept["__spec__"]
    return kept
