"""HDF5 files of rows, as the vendor's scripts and ``wafer data preprocess`` write them.

"sample": dataset ``data`` int32 [N, F, S], or ``data_0``, ``data_1``, ... for features of different
lengths; ``data_params.json`` beside the files names the features, and without it F says which
they are. "corpus": ``data`` [N] is one list of tokens. Whatever is wrong names its file and row.
"""

import bisect
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import h5py
import numpy as np

from wafer.data.batching.sources import FEATURES, VSL_FEATURES
from wafer.errors import DataError

__all__ = [
    "IGNORED",
    "PARAMS",
    "CorpusSource",
    "Group",
    "Hdf5Source",
    "StoredRows",
    "describe_rows",
    "find_files",
    "folder_params",
    "is_corpus",
    "open_rows",
    "row_problem",
]

PARAMS = "data_params.json"
_BY_COUNT = {3: FEATURES, 5: VSL_FEATURES, 2: FEATURES[:2]}
_IDS = ("input_ids", "labels", "decoder_input_ids")
IGNORED = -100  # label of a position without loss, in Hugging Face's convention


class Group(NamedTuple):
    """One HDF5 dataset of a sample file.

    name: of the dataset
    features: of its rows
    length: S
    """

    name: str
    features: tuple[str, ...]
    length: int


def folder_params(folder: str | pathlib.Path) -> dict[str, Any]:
    """The folder's ``data_params.json``; empty when there is none."""
    path = pathlib.Path(folder) / PARAMS
    if not path.is_file():
        return {}
    try:
        params = json.loads(path.read_text())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return params if isinstance(params, dict) else {}


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


def _columns(file: h5py.File, params: dict[str, Any]) -> tuple[tuple[Group, ...], int]:
    """The datasets of an open file and its number of rows."""
    names = sorted(name for name in map(str, file) if name == "data" or name.startswith("data_"))
    if "labels" in file and names:
        names.append("labels")  # BERT rows with static masks
    if not names:
        raise DataError("holds no dataset 'data'")
    out, counts = [], set()
    for name in names:
        data: Any = file[name]
        if data.ndim != 3:
            raise DataError(f"dataset {name!r} has shape {data.shape}; expected [N, F, S]")
        counts.add(data.shape[0])
        out.append(Group(name, _features(name, data.shape, params), data.shape[2]))
    if len(counts) > 1:
        raise DataError(f"its datasets {', '.join(names)} have {sorted(counts)} rows")
    return tuple(out), counts.pop()


def _features(name: str, shape: tuple[int, ...], params: dict[str, Any]) -> tuple[str, ...]:
    names = params.get("features" if name == "data" else f"{name}_features")
    if name == "labels":
        names = ("labels", "masked_lm_positions", "masked_lm_mask")[: shape[1]]
    features = tuple(names) if names else _BY_COUNT.get(shape[1])
    if features is None or len(features) != shape[1]:
        named = f"{len(features)} features ({', '.join(features)})" if features else ""
        raise DataError(
            f"dataset {name!r} has shape {shape}; "
            + (
                f"{PARAMS} names {named}"
                if named
                else "expected [N, 3, S] (input_ids, mask, labels) or [N, 5, S] (plus "
                f"attention_span, position_ids), or a {PARAMS} that names the features"
            )
        )
    return features


def open_rows(path: pathlib.Path) -> h5py.File:
    """Open a file to read.

    Raises:
        DataError: it is not a whole HDF5 file.
    """
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(
            f"{path}: not a readable HDF5 file ({error}); it may be truncated, write it again"
        ) from error


def describe_rows(path: pathlib.Path, params: dict[str, Any]) -> tuple[tuple[Group, ...], int]:
    """The datasets of a file and its number of rows.

    Raises:
        DataError: it does not hold rows.
    """
    with open_rows(path) as file:
        try:
            return _columns(file, params)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None


class StoredRows:
    """Examples of several files, opened lazily; handles do not travel to other processes.

    Args:
        paths: the files, in the order of reading.
        counts: examples of each file.
    """

    def __init__(self, paths: Sequence[pathlib.Path], counts: Sequence[int]) -> None:
        self.paths = paths
        self._ends = np.cumsum(counts).tolist()
        self._handles: dict[int, dict[str, Any]] = {}

    def __len__(self) -> int:
        """Examples in all files."""
        return self._ends[-1]

    def place(self, index: int) -> tuple[pathlib.Path, int, dict[str, Any]]:
        """File of an example, its row there, and the file's datasets.

        They are kept open: a cached dataset reads 10 times faster.
        """
        file = bisect.bisect_right(self._ends, index)
        if file not in self._handles:
            handle = open_rows(self.paths[file])
            self._handles[file] = {name: handle[name] for name in map(str, handle)}
        return self.paths[file], index - (self._ends[file - 1] if file else 0), self._handles[file]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open handles behind."""
        return self.__dict__ | {"_handles": {}}


class Hdf5Source(StoredRows):
    """Rows of the "sample" format as examples: feature name -> int32 [S].

    Args:
        folders: directories that hold ``*.h5`` files.
        vocab_size: ids must be below; None does not look.

    Raises:
        DataError: no files, an unreadable file, or rows of a different shape; names the file.
    """

    def __init__(
        self, folders: Sequence[str | pathlib.Path], vocab_size: int | None = None
    ) -> None:
        self.params = folder_params(folders[0])
        self._vocab_size = vocab_size
        self.groups: tuple[Group, ...] = ()
        paths, counts = find_files(folders), []
        for path in paths:
            groups, count = describe_rows(path, self.params)
            if self.groups and groups != self.groups:
                raise DataError(
                    f"{path}: rows of {_shown(groups)}, but {paths[0]} has "
                    f"{_shown(self.groups)}; one data_dir must hold one row format"
                )
            self.groups = groups
            counts.append(count)
        super().__init__(paths, counts)

    @property
    def row_shape(self) -> tuple[int, int]:
        """(F, S) of the first dataset."""
        return len(self.groups[0].features), self.groups[0].length

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features."""
        return tuple(name for columns in self.groups for name in columns.features)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One row, as a dict of its features.

        Raises:
            DataError: it cannot be read, or holds what no row can; names file and row.
        """
        path, row, datasets = self.place(index)
        out: dict[str, np.ndarray] = {}
        try:
            for columns in self.groups:
                values = np.asarray(datasets[columns.name][row], np.int32)
                out.update(zip(columns.features, values, strict=True))
        except OSError as error:
            raise DataError(f"{path}: row {row} cannot be read ({error})") from error
        problem = row_problem(out, self._vocab_size)
        if problem:
            raise DataError(f"{path}: row {row}: {problem}")
        return out


def _shown(columns: Sequence[Group]) -> str:
    return ", ".join(f"({len(c.features)}, {c.length})" for c in columns)


def row_problem(row: dict[str, np.ndarray], vocab_size: int | None) -> str:
    """Say what is wrong with a row; '' when nothing is."""
    for name in _IDS:
        if name not in row:
            continue
        low = IGNORED if name == "labels" else 0
        ids = row[name]
        if ids.size and (ids.min() < low or (vocab_size is not None and ids.max() >= vocab_size)):
            limit = "" if vocab_size is None else f" and below the vocabulary of {vocab_size}"
            bad = (ids < low) | (False if vocab_size is None else ids >= vocab_size)
            at = int(np.flatnonzero(bad)[0])
            return f"{name}[{at}] is {ids[at]}; expected ids of at least 0{limit}"
    return _span_problem(row)


def _span_problem(row: dict[str, np.ndarray]) -> str:
    """VSL rows count spans down and positions up inside each document."""
    if "attention_span" not in row:
        return ""
    span, position = row["attention_span"], row["position_ids"]
    size = len(span)
    end = np.arange(size) + span
    if span.min() < 0 or position.min() < 0 or end.max() >= size:
        return "attention_span or position_ids point outside the row"
    inside = span[:-1] > 0
    bad = inside & ((span[1:] != span[:-1] - 1) | (position[1:] != position[:-1] + 1))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        return f"attention_span and position_ids disagree at position {at}"
    return ""


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
        for path in paths:
            with open_rows(path) as file:
                data: Any = file.get("data")
                if data is None or data.ndim != 1:
                    raise DataError(f"{path}: not a corpus; expected a dataset 'data' [N]")
                counts.append(max(len(data) - 1, 0) // length)
        if not any(counts):
            raise DataError(f"{folders[0]}: no file holds {length + 1} tokens")
        super().__init__(paths, counts)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One window as (input_ids, attention_mask, labels)."""
        path, row, datasets = self.place(index)
        start = row * self._length
        try:
            window = datasets["data"][start : start + self._length + 1]
        except OSError as error:
            raise DataError(f"{path}: tokens from {start} cannot be read ({error})") from error
        tokens = window.astype(np.int32)
        values = (tokens[:-1], np.ones(self._length, np.int32), tokens[1:])
        row_of: dict[str, np.ndarray] = dict(zip(FEATURES, values, strict=True))
        problem = row_problem(row_of, self._vocab_size)
        if problem:
            raise DataError(f"{path}: tokens from {start}: {problem}")
        return row_of


def is_corpus(folder: str | pathlib.Path) -> bool:
    """Whether the folder's first file is in the corpus format."""
    with open_rows(find_files([folder])[0]) as file:
        data: Any = file.get("data")
        return data is not None and data.ndim == 1
