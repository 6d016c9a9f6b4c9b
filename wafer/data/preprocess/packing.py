"""Which tokens share a row: a stream cut into rows, sequences side by side, or one per row.

A packer takes sequences in order, gives back what is ready, and can save what it still holds, so
that a killed run goes on with the very rows it would have made.
"""

import abc
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.objectives import next_token

State = dict[str, np.ndarray]
_OPEN_BINS = 64  # rows open at once; first fit fills 98 % of them and more


class Packer(abc.ABC):
    """From sequences to what a row is made of; this one holds nothing between them."""

    discarded: int = 0  #: sequences or rests that were too short or too long

    def long_enough(self, pieces: Sequence[Any], sizes: Iterable[int], least: int) -> list[Any]:
        """Return the pieces of a sequence that have so many tokens; one without any is discarded.

        Args:
            pieces: of one sequence.
            sizes: tokens of each.
            least: tokens that a piece must have.
        """
        kept = [piece for piece, size in zip(pieces, sizes, strict=True) if size >= least]
        self.discarded += not kept
        return kept

    @abc.abstractmethod
    def add(self, sequence: Any) -> list[Any]:
        """Take a sequence; give the rows that are full now."""

    def finish(self) -> list[Any]:
        """Give the rows that are not full; the packer is empty afterwards."""
        return []

    def state(self) -> State:
        """Everything it holds, as arrays."""
        return {}

    def restore(self, state: State) -> None:  # noqa: B027 (nothing is held)
        """Hold what ``state`` gave."""


class StreamPacker(Packer):
    """Documents one after the other, cut every ``length`` tokens.

    Args:
        length: tokens between two cuts.
        shared: tokens that neighbours share: 1 for next-token rows, whose last label is the next
            row's first input.
        shortest: a rest with fewer tokens is left out.
    """

    def __init__(self, length: int, shared: int, shortest: int) -> None:
        self._length, self._whole = length, length + shared
        self._shortest = max(shortest, 2)  # one token has nothing to predict
        self._parts: list[np.ndarray] = []
        self._held = 0

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """Pieces of exactly ``length + shared`` tokens."""
        self._parts.append(sequence)
        self._held += len(sequence)
        if self._held < self._whole:
            return []
        stream = np.concatenate(self._parts)
        count = (len(stream) - self._whole) // self._length + 1
        rest = stream[count * self._length :]
        self._parts, self._held = [rest], len(rest)
        return [stream[i * self._length :][: self._whole] for i in range(count)]

    def finish(self) -> list[np.ndarray]:
        """The rest, if it is long enough."""
        rest = self.state()["tokens"]
        self._parts, self._held = [], 0
        if len(rest) >= self._shortest:
            return [rest]
        self.discarded += len(rest) > self._whole - self._length  # more than the shared token
        return []

    def state(self) -> State:
        """See ``Packer``."""
        return {"tokens": np.concatenate([*self._parts, np.empty(0, np.int32)]).astype(np.int32)}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._parts, self._held = [state["tokens"]], len(state["tokens"])


class SinglePacker(Packer):
    """Every sequence begins a row of its own; ids longer than a row go on in the next one.

    Args:
        length: tokens of a row.
        shared: tokens that the pieces of one sequence share.
        shortest: shorter sequences are left out.
    """

    def __init__(self, length: int, shared: int, shortest: int) -> None:
        self._length, self._shared = length, shared
        self._shortest = max(shortest, 2)  # one token has nothing to predict

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """The pieces, [n] ids; rows [3, n] as they are."""
        if sequence.ndim > 1:
            return [sequence]
        step = range(0, max(len(sequence) - self._shared, 1), self._length)
        pieces = [sequence[i : i + self._length + self._shared] for i in step]
        return self.long_enough(pieces, map(len, pieces), self._shortest)


class BinPacker(Packer):
    """Sequences side by side, by first fit from the newest open row to the oldest.

    Args:
        length: positions of a row.
        fold: cut longer documents into pieces; otherwise they are left out.
        shortest: shorter documents are left out.
    """

    def __init__(self, length: int, fold: bool, shortest: int) -> None:
        self._length, self._fold, self._shortest = length, fold, max(shortest, 2)
        self._bins: list[list[np.ndarray]] = []
        self._free: list[int] = []

    def add(self, sequence: np.ndarray) -> list[list[np.ndarray]]:
        """Rows that are full, or the oldest when too many are open: lists of [3, n]."""
        if sequence.ndim > 1:
            blocks = [sequence]
        elif len(sequence) < self._shortest or (
            len(sequence) - 1 > self._length and not self._fold
        ):
            blocks = []
        else:
            begins = range(0, len(sequence) - 1, self._length)
            # Pieces overlap by one: no label is lost.
            blocks = [next_token(sequence[i : i + self._length + 1]) for i in begins]
        self.discarded += not blocks
        return [row for block in blocks for row in self._place(block)]

    def _place(self, block: np.ndarray) -> list[list[np.ndarray]]:
        size = block.shape[1]
        for index in range(len(self._bins) - 1, -1, -1):
            if self._free[index] >= size:
                break
        else:
            self._bins.append([])
            self._free.append(self._length)
            index = len(self._bins) - 1
        self._bins[index].append(block)
        self._free[index] -= size
        if self._free[index] == 0:
            return [self._close(index)]
        return [self._close(0)] if len(self._bins) > _OPEN_BINS else []

    def _close(self, index: int) -> list[np.ndarray]:
        del self._free[index]
        return self._bins.pop(index)

    def finish(self) -> list[list[np.ndarray]]:
        """All open rows, the oldest first."""
        rows, self._bins, self._free = self._bins, [], []
        return rows

    def state(self) -> State:
        """See ``Packer``."""
        blocks = [block for row in self._bins for block in row]
        return {
            "blocks": np.concatenate([*blocks, np.empty((3, 0), np.int32)], axis=1),
            "lengths": np.array([block.shape[1] for block in blocks], np.int64),
            "rows": np.array([len(row) for row in self._bins], np.int64),
        }

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        ends = np.cumsum(state["lengths"])
        blocks = iter(np.split(state["blocks"], ends[:-1], axis=1) if len(ends) else [])
        self._bins = [[next(blocks) for _ in range(count)] for count in state["rows"]]
        self._free = [self._length - sum(b.shape[1] for b in row) for row in self._bins]
