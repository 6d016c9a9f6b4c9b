"""BED files: segments of sequences, each in a state; errors name the file and the line."""

import pathlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from wafer.errors import DataError

__all__ = ["Segments", "read_segments"]


class Segments(NamedTuple):
    """Segments of one sequence in one cell type, in order, none over another.

    starts: [n] first base
    ends: [n] base behind the last
    states: [n] from 0
    """

    starts: np.ndarray
    ends: np.ndarray
    states: np.ndarray

    def of_bases(self, start: int, stop: int) -> np.ndarray:
        """[stop - start] states of bases; -1 where no segment lies."""
        bases = np.arange(start, stop)
        nearest = np.searchsorted(self.starts, bases, side="right") - 1
        inside = (nearest >= 0) & (bases < self.ends[nearest])
        return np.where(inside, self.states[nearest], -1)


def _segment_rows(
    path: pathlib.Path, lengths: Mapping[str, int], count: int | None
) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """(sequence, (start, end, state, line)) of the file; other sequences are passed over."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            cells = line.split()
            if not cells or cells[0] in {"track", "browser"} or cells[0].startswith("#"):
                continue
            where = f"{path}, line {number}"
            try:
                start, end, state = map(int, cells[1:4])
            except ValueError:
                raise DataError(
                    f"{where}: {line.strip()[:40]!r}; expected a sequence, start, end and state "
                    "(whole numbers)"
                ) from None
            name = cells[0]
            if name not in lengths:
                continue
            if not 0 <= start < end <= lengths[name]:
                raise DataError(
                    f"{where}: {start} to {end} is no part of the {lengths[name]} bases of {name!r}"
                )
            if state < 0 or (count is not None and state >= count):
                raise DataError(
                    f"{where}: state {state} is outside the model's {count} states "
                    "(model.epigenetic_vocab_size); they count from 0"
                )
            yield name, (start, end, state, number)


def read_segments(
    path: pathlib.Path, lengths: Mapping[str, int], count: int | None = None
) -> dict[str, Segments]:
    """Read the segments of one cell type from a BED file.

    Args:
        path: the file; lines of sequences that are not asked for are passed over.
        lengths: name -> bases of the sequences.
        count: E, states must be below; None does not look.

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
        segments[name] = Segments(starts, ends, states)
    return segments
