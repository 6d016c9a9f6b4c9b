"""Random-access sources: documents of varying length, fixed HDF5 rows, synthetic tokens.

Every item is a dict of 1-D int32 arrays under the Model Zoo's feature names: ``input_ids``,
``attention_mask`` (really the loss mask) and ``labels`` (next tokens, already shifted); rows
packed for VSL add ``attention_span`` and ``position_ids``.
"""

import bisect
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any, Protocol

import h5py
import numpy as np

from wafer.errors import DataError

__all__ = [
    "FEATURES",
    "VSL_FEATURES",
    "DocumentSource",
    "Hdf5Source",
    "Mixture",
    "Source",
    "SyntheticSource",
]

FEATURES = ("input_ids", "attention_mask", "labels")
VSL_FEATURES = (*FEATURES, "attention_span", "position_ids")


class Source(Protocol):
    """What grain reads: a sized, random-access collection of examples."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One example; the same index always gives the same arrays."""
        ...


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several sources to draw from in fixed proportions.

    Attributes:
        parts: the sources.
        weights: share of each, in any unit.
    """

    parts: Sequence[Source]
    weights: Sequence[float]

    def __len__(self) -> int:
        """Examples until the first part has been read once."""
        total = sum(self.weights)
        return int(min(len(p) * total / w for p, w in zip(self.parts, self.weights, strict=True)))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """The example at a position of the parts laid end to end, for statistics."""
        for part in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


class DocumentSource:
    """Token documents as next-token examples: position i predicts token i + 1.

    A document of L tokens gives L positions: the first input is ``bos_id`` (the end-of-text
    mark), the last label is the document's own last token.

    Args:
        documents: token ids, each ending with its end-of-text mark.
        bos_id: the token every sequence begins with.
        max_length: longer documents are cut.
    """

    def __init__(self, documents: Sequence[Sequence[int]], bos_id: int, max_length: int) -> None:
        lengths = np.fromiter((min(len(d), max_length) for d in documents), np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(lengths)])
        self._tokens = np.empty(self._offsets[-1], np.int32)
        for start, length, document in zip(self._offsets, lengths, documents, strict=False):
            self._tokens[start : start + length] = document[:length]
        self._bos_id = bos_id

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One document as (input_ids, attention_mask, labels)."""
        labels = self._tokens[self._offsets[index] : self._offsets[index + 1]]
        inputs = np.concatenate([[self._bos_id], labels[:-1]]).astype(np.int32)
        return dict(zip(FEATURES, (inputs, np.ones_like(labels), labels), strict=True))

    @property
    def lengths(self) -> np.ndarray:
        """[N] tokens of each document."""
        return np.diff(self._offsets)


class SyntheticSource:
    """Random tokens of random length, a function of (seed, index) alone; for smoke tests.

    Args:
        num_examples: examples in one epoch.
        vocab_size: ids are drawn from [1, vocab_size).
        max_length: lengths are drawn from [max(1, max_length // 8), max_length].
        seed: changes every example.
    """

    def __init__(self, num_examples: int, vocab_size: int, max_length: int, seed: int = 0) -> None:
        self._num_examples = num_examples
        self._vocab_size = vocab_size
        self._max_length = max_length
        self._seed = seed

    def __len__(self) -> int:
        """Examples in one epoch."""
        return self._num_examples

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One example; a repeated pattern, so that a model can learn something."""
        rng = np.random.default_rng((self._seed, index))
        length = int(rng.integers(max(1, self._max_length // 8), self._max_length + 1))
        period = rng.integers(1, self._vocab_size, size=4)
        tokens = np.resize(period, length + 1).astype(np.int32)
        return {
            "input_ids": tokens[:-1],
            "attention_mask": np.ones(length, np.int32),
            "labels": tokens[1:],
        }


class Hdf5Source:
    """Rows of the Model Zoo's HDF5 "sample" format: dataset ``data`` int32 [N, F, S].

    F = 3 (input_ids, loss mask, labels) or 5 (VSL: plus attention_span, position_ids). Files
    are read in name order and opened lazily, so the source can travel to another process.

    Args:
        folders: directories that hold ``*.h5`` files.

    Raises:
        DataError: no files, an unreadable file, or rows of a different shape; names the file.
    """

    def __init__(self, folders: Sequence[str | pathlib.Path]) -> None:
        self._paths: list[pathlib.Path] = []
        for folder in folders:
            found = sorted(pathlib.Path(folder).glob("*.h5"))
            if not found:
                raise DataError(f"no .h5 files in {folder}; expected Model Zoo HDF5 rows there")
            self._paths += found
        self._handles: dict[int, tuple[h5py.File, h5py.Dataset]] = {}
        shapes = [self._shape(path) for path in self._paths]
        self.row_shape: tuple[int, int] = shapes[0][1:]
        for path, shape in zip(self._paths, shapes, strict=True):
            if shape[1:] != self.row_shape:
                raise DataError(
                    f"{path}: rows of shape {shape[1:]}, but {self._paths[0]} has "
                    f"{self.row_shape}; one data_dir must hold one row format"
                )
        self._ends = np.cumsum([shape[0] for shape in shapes]).tolist()

    @staticmethod
    def _shape(path: pathlib.Path) -> tuple[int, int, int]:
        try:
            with h5py.File(path, "r") as file:
                data: Any = file["data"]
                shape = data.shape
        except (OSError, KeyError) as error:
            raise DataError(
                f"{path}: not a readable HDF5 file with a dataset 'data' ({error}); "
                "it may be truncated, write it again"
            ) from error
        if len(shape) != 3 or shape[1] not in (3, 5):
            raise DataError(
                f"{path}: dataset 'data' has shape {shape}; expected [N, 3, S] (input_ids, mask, "
                "labels) or [N, 5, S] (plus attention_span, position_ids)"
            )
        return shape

    def __len__(self) -> int:
        """Rows in all files."""
        return self._ends[-1]

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row, as a dict of its features."""
        file = bisect.bisect_right(self._ends, index)
        if file not in self._handles:
            handle = h5py.File(self._paths[file], "r")
            data: Any = handle["data"]
            self._handles[file] = (handle, data)  # a cached dataset reads 10x faster
        row = index - (self._ends[file - 1] if file else 0)
        try:
            features = self._handles[file][1][row].astype(np.int32)
        except OSError as error:
            raise DataError(f"{self._paths[file]}: row {row} cannot be read ({error})") from error
        names = VSL_FEATURES if len(features) == len(VSL_FEATURES) else FEATURES
        return dict(zip(names, features, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        """Drop open handles: HDF5 handles do not survive pickling."""
        return self.__dict__ | {"_handles": {}}
