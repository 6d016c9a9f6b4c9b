"""Read the vendor's ``.mdl`` checkpoints: flat HDF5, one dataset per tensor.

Only dataset names, shapes and values are read. Structure records (``__spec__``, a pickle before
format 0.5) are never opened, so nothing in the file can run.
"""

import json
import math
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from models.errors import CheckpointError
from models.guarded import guarded

__all__ = ["MdlFile", "attributes"]


_DAMAGE = (OSError, KeyError, RuntimeError, TypeError, ValueError)  # what h5py raises over it
_MOST_FILLED = 16 << 30  # bytes of a tensor that is stored as one value and a shape


class MdlFile:
    """A vendor checkpoint opened for reading; a context manager and an iterable of names.

    Raises:
        CheckpointError: no HDF5 file, a damaged one, or one whose writer did not finish.
    """

    def __init__(self, path: pathlib.Path) -> None:
        import hdf5plugin  # noqa: F401  teaches HDF5 the compression that the vendor uses, LZ4

        self.path = path
        try:
            # Attributes of a damaged file crash the HDF5 library: another process reads them.
            flags, self._tensors = guarded("sparsity.mdl:attributes", os.path.abspath(path))
            self._file = h5py.File(path, "r")
        except _DAMAGE as error:
            raise CheckpointError(f"{path} is no readable .mdl (HDF5) file: {error}") from None
        self._flags: dict[str, Any] = flags
        if str(flags.get("__version__", "0.1")) >= "0.5" and not flags.get("__SUCCESS__", False):
            self.close()
            raise CheckpointError(
                f"{path} is incomplete: its writer did not mark it finished (__SUCCESS__)"
            )

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
        """Iterate over tensor names, '.'-joined, in name order."""
        for name, flags in self._tensors.items():
            if not flags.get("is_none", False) and not flags.get("is_string", False):
                yield name

    def scalar(self, name: str) -> Any:
        """Return a number the file stores as an attribute (such as ``global_step``), or None.

        Raises:
            CheckpointError: the attribute is damaged.
        """
        record = self._flags.get(f"{name}.__metadata__")
        if record is None:
            return None
        try:
            return json.loads(record)[f"{name}.__metadata__"]["scalar_value"]
        except (*_DAMAGE, RecursionError) as error:
            raise CheckpointError(f"{self.path}: attribute {name} is damaged: {error}") from None

    def read(self, name: str) -> np.ndarray:
        """Read one tensor.

        Raises:
            CheckpointError: names the tensor.
        """
        flags = self._tensors[name]
        try:
            value = self._values(self._file[name], flags)
        except _DAMAGE as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} cannot be read, the file is damaged: {error}"
            ) from None
        if "torch.bfloat16" in str(flags.get("dtypes", "")) and value.dtype.itemsize == 2:
            value = value.view(ml_dtypes.bfloat16)
        return value

    def _values(self, dataset: Any, flags: dict[str, Any]) -> np.ndarray:
        if dataset.dtype.kind not in "biufc":
            raise ValueError(f"holds {dataset.dtype}; expected numbers")
        if flags.get("is_constructible", False):
            if dataset.nbytes > _MOST_FILLED:
                raise ValueError(f"shape {dataset.shape} of one value")
            return np.full(dataset.shape, flags["fill_value"], dataset.dtype)
        _require_stored(dataset)
        return dataset[()]


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
    values = ((name, _item(value)) for name, value in attrs.items() if name != "__spec__")
    return {str(name): value for name, value in values if isinstance(value, str | int | float)}


def _item(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return str(value.tolist())  # ``dtypes``, a list of names
    return value.item() if isinstance(value, np.generic) else value
