"""HDF5 files of rows, as ``wafer data preprocess`` writes them.

"sample": dataset ``data`` int32 [N, F, S], or ``data_0``, ``data_1``, ... for features of different
lengths; ``data_params.json`` beside the files names the features, and without it F says which
they are. "corpus": ``data`` [N] is one list of tokens. Whatever is wrong names its file and row.
"""

import bisect
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from wafer.data.batching.sources import FEATURES
from wafer.data.rowfiles.described import DAMAGE, PARAMS, describe, open_rows
from wafer.data.rowfiles.rules import ATTACHED, Attachment, RowGroup, checked_row, checked_tokens
from wafer.errors import DataError
from wafer.models.files import read_json


def folder_params(folder: str | pathlib.Path) -> dict[str, Any]:
    """The folder's ``data_params.json``; empty when there is none.

    Raises:
        DataError: it is not JSON, or what we read of it is of another kind.
    """
    path = pathlib.Path(folder) / PARAMS
    if not path.is_file():
        return {}
    try:
        params = read_json(path)
    except ValueError as error:
        raise DataError(str(error)) from None
    for name, value in params.items():
        if name == "features" or name.endswith("_features"):
            if not isinstance(value, list) or not all(isinstance(f, str) for f in value):
                raise DataError(f"{path}: {name} is no list of names")
        elif name == "post-process" and not isinstance(value, dict):
            raise DataError(f"{path}: {name} is no object of names and values")
    for name in ("vocab_size", "mask_id"):
        value = params.get("post-process", {}).get(name)
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise DataError(f"{path}: {name} is {value!r}; expected a number of 31 bits")
    return params


def find_files(folders: Sequence[str | pathlib.Path]) -> list[pathlib.Path]:
    """The HDF5 files of the folders, in the order of their names.

    Raises:
        DataError: a folder without any.
    """
    paths: list[pathlib.Path] = []
    for folder in folders:
        files = sorted(pathlib.Path(folder).glob("*.h5"))
        if not files:
            raise DataError(f"no .h5 files in {folder}; expected Model Zoo HDF5 rows there")
        paths += files
    return paths


def _check_folders(sizes: Mapping[pathlib.Path, int], unit: str) -> None:
    """Compare each folder's files, path -> rows or tokens, with its ``data_params.json``."""
    for folder in dict.fromkeys(path.parent for path in sizes):
        count = sum(n for path, n in sizes.items() if path.parent == folder)
        expected = folder_params(folder).get("n_examples")
        if expected is not None and expected != count:
            raise DataError(
                f"{folder}: {PARAMS} tells of {expected} {unit}, found {count}; a file is missing "
                f"or empty. Restore it, or set n_examples in {PARAMS} to {count}"
            )


class StoredRows:
    """Examples of several files, opened lazily; handles do not travel to other processes.

    Args:
        paths: the files, in the order of reading.
        counts: examples of each file.
        names: the datasets to read.
    """

    def __init__(
        self, paths: Sequence[pathlib.Path], counts: Sequence[int], names: Sequence[str]
    ) -> None:
        self.paths, self._names = paths, names
        self._ends = np.cumsum(counts).tolist()
        self._handles: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def place(self, index: int) -> tuple[pathlib.Path, int, dict[str, Any]]:
        """File of an example, its row there, and the file's datasets.

        They are kept open: a cached dataset reads 10 times faster.
        """
        file = bisect.bisect_right(self._ends, index)
        if file not in self._handles:
            try:
                handle = h5py.File(self.paths[file], "r")
                self._handles[file] = {name: handle[name] for name in self._names}
            except DAMAGE as error:
                raise DataError(f"{self.paths[file]}: cannot be read ({error})") from error
        return self.paths[file], index - (self._ends[file - 1] if file else 0), self._handles[file]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open handles behind."""
        return self.__dict__ | {"_handles": {}}


class Hdf5Source(StoredRows):
    """Rows of the "sample" format as examples: feature name -> int32 [S].

    Args:
        folders: directories that hold ``*.h5`` files.
        vocab_size: ids must be below; None does not look.
        states: epigenetic states must be below; None does not look.

    Raises:
        DataError: no files, an unreadable file, or rows of a different shape; names the file.
    """

    def __init__(
        self,
        folders: Sequence[str | pathlib.Path],
        vocab_size: int | None = None,
        states: int | None = None,
    ) -> None:
        self.params = folder_params(folders[0])
        self._vocab_size, self._states = vocab_size, states
        self.groups: tuple[RowGroup, ...] = ()
        paths, counts = find_files(folders), []
        for path in paths:
            described = describe(path, self.params)
            groups, count = described.groups, described.size
            if described.corpus:
                raise DataError(f"{path}: a list of tokens (a corpus); expected rows [N, F, S]")
            if self.groups and groups != self.groups:
                shapes, first = (
                    ", ".join(str(g.shape) for g in part) for part in (groups, self.groups)
                )
                raise DataError(
                    f"{path}: rows of {shapes}, but {paths[0]} has {first}; one data_dir must hold "
                    "one row format"
                )
            self.groups = groups
            counts.append(count)
        if not any(counts):
            raise DataError(f"{paths[0]}: holds no row, nor does any file beside it")
        _check_folders(dict(zip(paths, counts, strict=True)), "rows")
        self.attachments = _attachments(paths[0])
        names = [dataset.name for dataset in (*self.groups, *self.attachments)]
        super().__init__(paths, counts, names)

    @property
    def row_shape(self) -> tuple[int, int]:
        """(F, S) of the first dataset."""
        return len(self.groups[0].features), self.groups[0].length

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features."""
        return tuple(name for columns in self.groups for name in columns.features)

    def require(self, names: Sequence[str], hint: str = f"{PARAMS} names them") -> None:
        """Check that rows have these features.

        Raises:
            DataError: some are missing; names those that are there, and the hint.
        """
        missing = [name for name in names if name not in self.features]
        if missing:
            raise DataError(
                f"{self.paths[0].parent}: rows have no {', '.join(missing)}; they have "
                f"{', '.join(self.features)} ({hint})"
            )

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row, as a dict of its features.

        Raises:
            DataError: it cannot be read, or holds what no row can; names file and row.
        """
        path, row, datasets = self.place(index)
        try:
            stored = [datasets[group.name][row] for group in self.groups]
            return checked_row(self.groups, stored, self._vocab_size, self._states)
        except DataError as error:
            raise DataError(f"{path}: row {row}: {error}") from None
        except DAMAGE as error:
            raise DataError(f"{path}: row {row} cannot be read ({error})") from error

    def attached(self, index: int) -> list[np.ndarray]:
        """What stands beside a row, one array for each of ``attachments``."""
        _, row, datasets = self.place(index)
        return [datasets[attachment.name][row] for attachment in self.attachments]


def _attachments(path: pathlib.Path) -> tuple[Attachment, ...]:
    with open_rows(path) as file:
        present: list[Any] = [file[name] for name in ATTACHED if name in file]
        kinds = {"O": "str", "b": "bool"}
        return tuple(
            Attachment(data.name.lstrip("/"), data.shape[1:], kinds.get(data.dtype.kind, "i4"))
            for data in present
        )


class CorpusSource(StoredRows):
    """Windows of the "corpus" format: S tokens and the next one, which two windows share.

    Args:
        folders: directories that hold ``*.h5`` files with ``data`` [N].
        length: S.
        vocab_size: ids must be below; None does not look.

    Raises:
        DataError: files that are not a list of tokens, or shorter than a window.
    """

    def __init__(
        self,
        folders: Sequence[str | pathlib.Path],
        length: int,
        vocab_size: int | None = None,
    ) -> None:
        self._length, self._vocab_size = length, vocab_size
        paths, counts = find_files(folders), []
        sizes: dict[pathlib.Path, int] = {}  # a folder may be named twice
        for path in paths:
            described = describe(path, {})
            if not described.corpus:
                raise DataError(f"{path}: not a corpus; expected a dataset 'data' [N]")
            counts.append(max(described.size - 1, 0) // length)
            sizes[path] = described.size
        if not any(counts):
            raise DataError(f"{folders[0]}: no file holds {length + 1} tokens")
        _check_folders(sizes, "tokens")
        super().__init__(paths, counts, ["data"])

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One window as (input_ids, attention_mask, labels)."""
        path, row, datasets = self.place(index)
        start = row * self._length
        try:
            stored = datasets["data"][start : start + self._length + 1]
            tokens = checked_tokens(stored, self._vocab_size)
        except DataError as error:
            raise DataError(f"{path}: tokens from {start}: {error}") from None
        except DAMAGE as error:
            raise DataError(f"{path}: tokens from {start} cannot be read ({error})") from error
        values = (tokens[:-1], np.ones(self._length, np.int32), tokens[1:])
        return dict(zip(FEATURES, values, strict=True))


def is_corpus(folder: str | pathlib.Path) -> bool:
    """Whether the folder's first file is in the corpus format."""
    return describe(find_files([folder])[0], folder_params(folder)).corpus
