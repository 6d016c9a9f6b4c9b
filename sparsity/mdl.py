"""Read the vendor's ``.mdl`` checkpoints: flat HDF5, one dataset per tensor.

Only dataset names, shapes and values are read. Structure records (``__spec__``, a pickle before
format 0.5) are never opened, so nothing in the file can run.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from models.errors import CheckpointError

__all__ = ["MdlFile"]


class MdlFile:
    """A vendor checkpoint opened for reading; a context manager and an iterable of names.

    Raises:
        CheckpointError: no HDF5 file, or one whose writer did not finish.
    """

    def __init__(self, path: pathlib.Path) -> None:
        import hdf5plugin  # noqa: F401  teaches HDF5 the compression that the vendor uses, LZ4

        self.path = path
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            raise CheckpointError(f"{path} is no readable .mdl (HDF5) file: {error}") from None
        version = str(self._file.attrs.get("__version__", "0.1"))
        if version >= "0.5" and not self._file.attrs.get("__SUCCESS__", False):
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
        for name, dataset in self._file.items():
            flags = dataset.attrs
            absent = flags.get("is_none", False) or flags.get("is_string", False)
            if isinstance(dataset, h5py.Dataset) and not absent:
                yield name

    def scalar(self, name: str) -> Any:
        """Return a number the file stores as an attribute (such as ``global_step``), or None."""
        record = self._file.attrs.get(f"{name}.__metadata__")
        if record is None:
            return None
        return json.loads(record).get(f"{name}.__metadata__", {}).get("scalar_value")

    def read(self, name: str) -> np.ndarray:
        """Read one tensor.

        Raises:
            CheckpointError: names the tensor.
        """
        dataset: Any = self._file[name]
        try:
            value = self._values(dataset)
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} cannot be read, the file is damaged: {error}"
            ) from None
        stored = str(dataset.attrs.get("dtypes", ""))
        if "torch.bfloat16" in stored and value.dtype.itemsize == 2:
            value = value.view(ml_dtypes.bfloat16)
        return value

    def _values(self, dataset: Any) -> np.ndarray:
        if dataset.attrs.get("is_constructible", False):
            return np.full(dataset.shape, dataset.attrs["fill_value"], dataset.dtype)
        return dataset[()]
