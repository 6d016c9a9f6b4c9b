"""``wafer data verify``: read every row of a folder and name the file and row of what is wrong."""

import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import h5py

from wafer.data.rowfiles.described import DAMAGE, Described, describe, open_rows
from wafer.data.rowfiles.files import find_files, folder_params
from wafer.data.rowfiles.rules import RowGroup, checked_row, checked_tokens
from wafer.errors import DataError

_SHOWN = 20
_BLOCK = 256  # rows read at once


class VerifyReport(NamedTuple):
    """What was read and what was found."""

    folder: pathlib.Path  #: what was read
    files: int  #: HDF5 files in it
    rows: int  #: readable rows; tokens of a corpus
    unit: str  #: 'rows' or 'tokens'
    problems: list[str]  #: one line each, naming file and row

    def __str__(self) -> str:
        head = f"{self.folder}: {self.rows:,} {self.unit} in {self.files} file(s)"
        if not self.problems:
            return f"{head}, all in order"
        more = len(self.problems) - _SHOWN
        lines = [f"{head}, {len(self.problems):,} problem(s):", *self.problems[:_SHOWN]]
        return "\n  ".join([*lines, *([f"... and {more:,} more"] if more > 0 else [])])


def verify_folder(folder: str | pathlib.Path, vocab_size: int | None = None) -> VerifyReport:
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
    formats: dict[tuple[RowGroup, ...], pathlib.Path] = {}
    problems: list[str] = []
    corpus, count = False, 0
    for path in paths:
        try:
            described = describe(path, params)
            corpus = described.corpus
            formats.setdefault(described.groups, path)
            if len(formats) > 1 and formats[described.groups] == path:
                problems.append(f"{path}: rows of another shape than those of {paths[0]}")
            verify = _verify_tokens if corpus else _verify_rows
            count += verify(path, described, vocab_size, problems)
        except DataError as error:
            problems.append(str(error))
            continue
        if described.promised not in (None, described.size):
            held = f"{described.size} {'tokens' if corpus else 'rows'}"
            problems.append(
                f"{path}: n_examples is {described.promised}, but the file holds {held}"
            )
    unit = "tokens" if corpus else "rows"
    expected = params.get("n_examples")
    if expected is not None and expected != count and not problems:
        problems.append(f"{folder}: data_params.json tells of {expected} {unit}, found {count}")
    return VerifyReport(folder, len(paths), count, unit, problems)


def _blocks(file: h5py.File, names: list[str], size: int) -> Iterator[tuple[int, list[Any] | None]]:
    """(first row, the datasets' rows) of each block; None where it cannot be read."""
    datasets: list[Any] = [file[name] for name in names]
    for start in range(0, size, _BLOCK):
        try:
            yield start, [data[start : start + _BLOCK] for data in datasets]
        except DAMAGE:
            for row in range(start, min(start + _BLOCK, size)):
                try:
                    yield row, [data[row : row + 1] for data in datasets]
                except DAMAGE:
                    yield row, None


def _verify_rows(
    path: pathlib.Path, described: Described, vocab_size: int | None, problems: list[str]
) -> int:
    readable = 0
    with open_rows(path) as file:
        names = [group.name for group in described.groups]
        for start, blocks in _blocks(file, names, described.size):
            if blocks is None:
                problems.append(f"{path}: row {start} cannot be read; the file is damaged")
                continue
            readable += len(blocks[0])
            for i, stored in enumerate(zip(*blocks, strict=True)):
                try:
                    checked_row(described.groups, stored, vocab_size)
                except DataError as error:
                    problems.append(f"{path}: row {start + i}: {error}")
    return readable


def _verify_tokens(
    path: pathlib.Path, described: Described, vocab_size: int | None, problems: list[str]
) -> int:
    step = 1 << 20
    with open_rows(path) as file:
        data: Any = file["data"]
        for start in range(0, described.size, step):
            try:
                checked_tokens(data[start : start + step], vocab_size)
            except DataError as error:
                problems.append(f"{path}: tokens from {start}: {error}")
            except DAMAGE:
                problems.append(f"{path}: tokens from {start} cannot be read; the file is damaged")
    return described.size
