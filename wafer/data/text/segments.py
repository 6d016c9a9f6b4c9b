"""BED files: segments of sequences, each in a state; errors name the file and the line."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from wafer.data.text.textfiles import numbered_lines
from wafer.errors import DataError

_MOST = 2**15  # states that a file may name where no model says how many


class Segments(NamedTuple):
    """Segments of one sequence in one cell type, in order, none over another."""

    starts: np.ndarray  #: [n] first base
    ends: np.ndarray  #: [n] base behind the last
    states: np.ndarray  #: [n] from 0

    def of_bases(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] states of bases; -1 where no segment lies."""
        bases = np.arange(start, stop, dtype=self.starts.dtype)  # else all starts are converted
        nearest = np.searchsorted(self.starts, bases, side="right") - 1
        inside = (nearest >= 0) & (bases < self.ends[nearest])
        return np.where(inside, self.states[nearest], -1)


def _segment_rows(
    path: pathlib.Path, lengths: Mapping[str, int], count: int
) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """(sequence, (start, end, state, line)) of the file; other sequences are passed over."""
    for number, raw in numbered_lines(path):
        line = raw.decode("utf-8", "replace")
        cells = [cell.decode("utf-8", "replace") for cell in raw.split()]
        if not cells or cells[0] in {"track", "browser"} or cells[0].startswith("#"):
            continue
        entry = f"{path}, line {number}"
        try:
            start, end, state = map(int, cells[1:4])
        except ValueError:
            raise DataError(
                f"{entry}: {line[:40]!r}; expected a sequence, start, end and state (whole numbers)"
            ) from None
        name = cells[0]
        if name not in lengths:
            continue
        if not 0 <= start < end <= lengths[name]:
            raise DataError(
                f"{entry}: {start} to {end} is no part of the {lengths[name]} bases of {name!r}"
            )
        if not 0 <= state < count:
            raise DataError(
                f"{entry}: state {state} is outside the {count} states, which count from 0 "
                "(model.epigenetic_vocab_size)"
            )
        yield name, (start, end, state, number)


def read_segments(
    path: pathlib.Path, lengths: Mapping[str, int], count: int = _MOST
) -> dict[str, Segments]:
    """Read the segments of one cell type from a BED file.

    Args:
        path: the file, gzipped or not; lines of sequences that are not asked for are passed over.
        lengths: name -> bases of the sequences.
        count: E, states must be below.

    Raises:
        DataError: a line that is none, segments over another, a sequence without any; names file
            and line.
    """
    rows: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in lengths}
    for name, row in _segment_rows(path, lengths, count):
        rows[name].append(row)
    segments = {}
    for name, listed in rows.items():
        if not listed:
            raise DataError(f"{path}: no segment of {name!r}, which the FASTA files hold")
        starts, ends, states, lines = np.array(sorted(listed)).T
        over = np.flatnonzero(starts[1:] < ends[:-1])
        if len(over):
            first, second = lines[over[0]], lines[over[0] + 1]
            raise DataError(f"{path}, line {second}: lies over the segment of line {first}")
        columns = (np.ascontiguousarray(x, np.int32) for x in (starts, ends, states))
        segments[name] = Segments(*columns)
    return segments
