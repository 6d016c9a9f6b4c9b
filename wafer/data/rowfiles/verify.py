"""``wafer data verify``: read every row of a folder and name the file and row of what is wrong."""

import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py
import numpy as np

from wafer.data.rowfiles.files import (
    Group,
    describe_rows,
    find_files,
    folder_params,
    open_rows,
    row_problem,
)
from wafer.errors import DataError

__all__ = ["Report", "verify_folder"]

_SHOWN = 20
_BLOCK = 256  # rows read at once


class Report(NamedTuple):
    """What was read and what was found.

    folder: what was read
    files: HDF5 files in it
    rows: readable rows; tokens of a corpus
    unit: 'rows' or 'tokens'
    problems: one line each, naming file and row
    """

    folder: pathlib.Path
    files: int
    rows: int
    unit: str
    problems: list[str]

    def __str__(self) -> str:
        """Report in a few lines."""
        head = f"{self.folder}: {self.rows:,} {self.unit} in {self.files} file(s)"
        if not self.problems:
            return f"{head}, all in order"
        more = len(self.problems) - _SHOWN
        lines = [f"{head}, {len(self.problems):,} problem(s):", *self.problems[:_SHOWN]]
        return "\n  ".join([*lines, *([f"... and {more:,} more"] if more > 0 else [])])


def verify_folder(folder: str | pathlib.Path, vocab_size: int | None = None) -> Report:
    """Read a folder of rows.

    Args:
        folder: with HDF5 files.
        vocab_size: ids must be below; None takes ``data_params.json``'s, if it names one.

    Raises:
        DataError: there is no file at all.
    """
    folder = pathlib.Path(folder)
    paths = find_files([folder])
    params = folder_params(folder)
    if vocab_size is None:
        vocab_size = params.get("post-process", {}).get("vocab_size")
    seen: dict[tuple[Group, ...], pathlib.Path] = {}
    problems: list[str] = []
    corpus, count = False, 0
    for path in paths:
        try:
            with open_rows(path) as file:
                data: Any = file.get("data")
                corpus = data is not None and data.ndim == 1
            if corpus:
                count += _verify_tokens(path, vocab_size, problems)
                continue
            groups, rows = describe_rows(path, params)
        except DataError as error:
            problems.append(str(error))
            continue
        seen.setdefault(groups, path)
        if len(seen) > 1 and seen[groups] == path:
            problems.append(f"{path}: rows of another shape than those of {paths[0]}")
        count += _verify_rows(path, groups, vocab_size, problems)
        with open_rows(path) as file:
            promised: Any = file.attrs.get("n_examples", rows)
        if promised != rows:
            problems.append(f"{path}: n_examples is {promised}, but the file holds {rows} rows")
    unit = "tokens" if corpus else "rows"
    expected = params.get("n_examples")
    if expected is not None and expected != count and not problems:
        problems.append(f"{folder}: data_params.json tells of {expected} {unit}, found {count}")
    return Report(folder, len(paths), count, unit, problems)


def _blocks(file: h5py.File, names: list[str], size: int) -> Iterator[tuple[int, list[Any] | None]]:
    """(first row, the datasets' rows) of each block; None where it cannot be read."""
    step = _BLOCK
    for start in range(0, size, step):
        try:
            yield start, [_rows_of(file, name, start, start + step) for name in names]
        except OSError:
            for row in range(start, min(start + step, size)):
                try:
                    yield row, [_rows_of(file, name, row, row + 1) for name in names]
                except OSError:
                    yield row, None


def _rows_of(file: h5py.File, name: str, start: int, stop: int) -> np.ndarray:
    data: Any = file[name]
    return np.asarray(data[start:stop], np.int32)


def _verify_rows(
    path: pathlib.Path, groups: tuple[Group, ...], vocab_size: int | None, problems: list[str]
) -> int:
    names = [group.name for group in groups]
    readable = 0
    with open_rows(path) as file:
        first: Any = file[names[0]]
        for start, blocks in _blocks(file, names, len(first)):
            if blocks is None:
                problems.append(f"{path}: row {start} cannot be read; the file is damaged")
                continue
            readable += len(blocks[0])
            for i in range(len(blocks[0])):
                values = [
                    (feature, block[i, k])
                    for group, block in zip(groups, blocks, strict=True)
                    for k, feature in enumerate(group.features)
                ]
                problem = _problem(dict(values), vocab_size)
                if problem:
                    problems.append(f"{path}: row {start + i}: {problem}")
    return readable


def _problem(row: dict[str, np.ndarray], vocab_size: int | None) -> str:
    for name in ("attention_mask", "decoder_attention_mask"):
        if name in row and ((row[name] != 0) & (row[name] != 1)).any():
            return f"{name} holds values besides 0 and 1"
    return row_problem(row, vocab_size)


def _verify_tokens(path: pathlib.Path, vocab_size: int | None, problems: list[str]) -> int:
    step = 1 << 20
    with open_rows(path) as file:
        data: Any = file["data"]
        for start in range(0, len(data), step):
            try:
                tokens = data[start : start + step].astype(np.int32)
            except OSError:
                problems.append(f"{path}: tokens from {start} cannot be read; the file is damaged")
                continue
            problem = row_problem({"input_ids": tokens}, vocab_size)
            if problem:
                problems.append(f"{path}: tokens from {start}: {problem}")
        return len(data)
