"""Read ``.mdl`` checkpoints of every release: flat HDF5, one dataset per tensor.

Only dataset names, shapes and values are read. Structure records (``__spec__``) before layout 0.5
are pickles and never opened, so nothing in the file can run.
"""

import math
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Self

import h5py
import ml_dtypes
import numpy as np

from wafer.models.errors import CheckpointError, MissingPackageError, optional
from wafer.models.guarded import call_in_subprocess
from wafer.vendor.mdl.entries import Attributes, Entry, follow, listed_keys, read_entries

_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises over it
_TENSORS = ("tensor", "filled")
_MOST_FILLED = 16 << 30  # bytes of a tensor that is stored as one value and a shape


class MdlFile(Mapping[str, np.ndarray]):
    """A checkpoint opened for reading: '.'-joined names, in name order -> tensors, read each time.

    A context manager. Tied tensors are there under each of their names.

    Attributes:
        path: of the file.
        model_keys: of its ``model`` in their own order; [] in a file before layout 0.5.

    Raises:
        CheckpointError: no HDF5 file, a damaged one, one whose writer did not finish, or one whose
            tensors are missing or in other files.
        MissingPackageError: it is compressed as HDF5 itself cannot read, and hdf5plugin is missing.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        if not path.exists():
            beside = ", ".join(sorted(p.name for p in path.parent.glob("*.mdl"))) or "no .mdl"
            raise CheckpointError(f"{path}: no such file; {path.parent} has: {beside}")
        try:
            # Attributes of a damaged file crash the HDF5 library: another process reads them.
            flags, datasets = call_in_subprocess(
                "wafer.vendor.mdl.file:attributes", os.path.abspath(path)
            )
            modern = float(flags.get("__version__", 0.1)) >= 0.5
            self.model_keys = listed_keys(flags.get("__spec__"))
            self._entries = read_entries(flags, datasets)
        except _DAMAGE as error:
            raise CheckpointError(f"{path} is no readable .mdl (HDF5) file: {error}") from None
        if modern and not flags.get("__SUCCESS__", False):
            raise CheckpointError(
                f"{path} is incomplete: its writer did not mark it finished (__SUCCESS__)"
            )
        entries = {name: self._follow(name) for name in self._entries}
        for name, entry in entries.items():
            if entry.kind == "elsewhere":
                raise CheckpointError(
                    f"{path}: tensor {name} is in another file, {entry.where}; save the checkpoint "
                    "with all its tensors inside"
                )
            if entry.kind == "tensor" and entry.where not in datasets:
                raise CheckpointError(f"{path}: tensor {name} is missing")
        self._tensors = {n: entry for n, entry in entries.items() if entry.kind in _TENSORS}
        try:
            self._file = h5py.File(path, "r")
        except _DAMAGE as error:
            raise CheckpointError(f"{path} is no readable .mdl (HDF5) file: {error}") from None
        try:
            self._require_filters()
        except MissingPackageError:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Return the open file."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> np.ndarray:
        """Read one tensor.

        Raises:
            CheckpointError: names the tensor.
        """
        return self._read(name, self._tensors[name])

    def _follow(self, name: str) -> Entry:
        try:
            return follow(self._entries, name)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def _require_filters(self) -> None:
        """Load what unpacks the tensors where HDF5 itself does not: these files have LZ4."""
        for name in {entry.where for entry in self._tensors.values() if entry.kind == "tensor"}:
            try:
                settings = h5py.h5d.open(self._file.id, name.encode()).get_create_plist()
                codes = [settings.get_filter(n)[0] for n in range(settings.get_nfilters())]
            except _DAMAGE:
                continue  # `_read` names it
            if not all(map(h5py.h5z.filter_avail, codes)):
                optional("hdf5plugin", f"{self.path}, which is compressed,")
                return

    def entries(self, prefix: str) -> list[str]:
        """List all entries whose names begin so, numbers and texts too, in name order."""
        return [name for name in self._entries if name.startswith(prefix)]

    def scalar(self, name: str) -> int | float | str | None:
        """Return a number or text of the checkpoint (such as ``global_step``), or None.

        Raises:
            CheckpointError: it is damaged, or a pickled object.
        """
        if name not in self._entries:
            return None
        entry = self._follow(name)
        if entry.kind == "object":
            raise CheckpointError(f"{self.path}: {name} is a pickled object, which is not opened")
        if entry.kind == "value":
            return entry.value
        value = self._read(name, entry)
        if value.size != 1:
            raise CheckpointError(f"{self.path}: {name} has shape {value.shape}; expected a number")
        return value.item()

    def dataset(self, name: str) -> str:
        """Return the name of the dataset that holds a tensor.

        Raises:
            CheckpointError: none does, the tensor is a shape and one value.
        """
        entry = self._tensors[name]
        if entry.kind == "filled":
            raise CheckpointError(
                f"{self.path}: {name} is one value, {entry.value}, at every place"
            )
        return entry.where

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it.

        Raises:
            CheckpointError: names the tensor.
        """
        entry = self._tensors[name]
        if entry.kind == "filled":
            return entry.shape
        try:
            dataset: Any = self._file[entry.where]
            return tuple(dataset.shape)
        except _DAMAGE as error:
            raise CheckpointError(f"{self.path}: tensor {name} is damaged: {error}") from None

    def _read(self, name: str, entry: Entry) -> np.ndarray:
        try:
            return self._filled(entry) if entry.kind == "filled" else self._stored(entry)
        except _DAMAGE as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} cannot be read, the file is damaged: {error}"
            ) from None

    def _stored(self, entry: Entry) -> np.ndarray:
        dataset: Any = self._file[entry.where]
        if dataset.dtype.kind not in "biufc":
            raise ValueError(f"holds {dataset.dtype}; expected numbers")
        _require_stored(dataset)
        value = dataset[()]
        if entry.bfloat16 and value.dtype.itemsize == 2:
            value = value.view(ml_dtypes.bfloat16)
        return value

    def _filled(self, entry: Entry) -> np.ndarray:
        """Build a tensor that is stored as one value and a shape."""
        dataset: Any = None if entry.dtype else self._file[entry.where]  # has it before 0.5
        stored = entry.dtype or dataset.dtype
        dtype = np.dtype(ml_dtypes.bfloat16 if entry.bfloat16 else stored)
        if dtype.kind not in "biufc" and not entry.bfloat16:
            raise ValueError(f"holds {dtype}; expected numbers")
        if math.prod(entry.shape) * dtype.itemsize > _MOST_FILLED:
            raise ValueError(f"shape {entry.shape} of one value")
        try:
            return np.full(entry.shape, entry.value, dtype)
        except MemoryError:
            raise ValueError(f"shape {entry.shape} of one value is beyond this memory") from None


def _require_stored(dataset: h5py.Dataset) -> None:
    """Refuse a shape whose values the file does not hold: it costs memory, not bytes of a file.

    Raises:
        ValueError: they lie elsewhere or were never written.
    """
    if dataset.is_virtual or dataset.external:
        raise ValueError("its values are in other files")
    if dataset.chunks is None:
        stored, all_ = dataset.id.get_storage_size(), dataset.nbytes
    else:
        along = [-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
        stored, all_ = dataset.id.get_num_chunks(), math.prod(along)
    if stored < all_:
        raise ValueError(f"shape {dataset.shape} was never filled")


def attributes(path: str) -> tuple[Attributes, dict[str, Attributes]]:
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


def _plain(attrs: Mapping[str, object]) -> Attributes:
    values = ((name, x.item() if isinstance(x, np.generic) else x) for name, x in attrs.items())
    plain = {  # of an array, as ``dtypes`` is, the text of a list
        str(name): str(x.tolist()) if isinstance(x, np.ndarray) else x
        for name, x in values
        if isinstance(x, str | int | float | np.ndarray)
    }
    if not str(plain.get("__spec__", "[")).startswith("["):  # a pickle
        del plain["__spec__"]
    return plain
