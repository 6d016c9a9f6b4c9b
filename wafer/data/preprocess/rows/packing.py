"""Which tokens share a row: a stream cut into rows, sequences side by side, or one per row.

A packer takes sequences in order, gives back what is ready, and can save what it still holds, so
that a killed run goes on with the very rows it would have made.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.objectives import next_token

State = dict[str, np.ndarray]
_OPEN_BINS = 64  # rows open at once; first fit fills 98 % of them and more


class Packer:
    """From sequences to what a row is made of; this one gives back what it takes."""

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

    def add(self, sequence: Any) -> list[Any]:
        """Take a sequence; give the rows that are full now."""
        return [sequence]

    def finish(self) -> list[Any]:
        """Give the rows that are not full; the packer is empty afterwards."""
        return []

    def state(self) -> State:
        """Everything it holds, as arrays."""
        return {}

    def restore(self, state: State) -> None:
        """Hold what ``state`` gave."""


def ended(piece: np.ndarray, width: int, eos_id: int) -> np.ndarray:
    """Return [F, n] ids, weights, and what else there is of a token, with an end mark.

    Args:
        piece: of a document; row 3 has the number of an image, and 0 for the mark.
        width: tokens at most: the mark takes the place of a last one, and its weight.
        eos_id: the mark.
    """
    if not piece.size or piece[0, -1] == eos_id:
        return piece
    mark = piece[:, -1:].copy()
    mark[0], mark[3:] = eos_id, 0
    return np.concatenate([piece[:, : width - 1], mark], axis=1)


class StreamPacker(Packer):
    """Documents [n] or [F, n] one after the other, cut every ``length`` tokens.

    Args:
        length: tokens between two cuts.
        shared: tokens that neighbours share: 1 for next-token rows, whose last label is the next
            row's first input.
        shortest: a rest with fewer tokens is left out.
        every: pieces with fewer tokens than ``shortest`` are left out as well.
        eos_id: put over the last token of the last full piece of a document and behind the rest.
        rest: keep the rest at the end of the input.
    """

    def __init__(
        self,
        length: int,
        shared: int,
        shortest: int,
        *,
        every: bool = False,
        eos_id: int | None = None,
        flush: bool = True,
    ) -> None:
        self._length, self._whole = length, length + shared
        self._shortest = max(shortest, 2)  # one token has nothing to predict
        self._every, self._eos, self._flush = every, eos_id, flush
        self._parts: list[np.ndarray] = []
        self._held = 0

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """Pieces of exactly ``length + shared`` tokens."""
        self._parts.append(sequence)
        self._held += sequence.shape[-1]
        if self._held < self._whole:
            return []
        stream = np.concatenate(self._parts, axis=-1)
        count = (self._held - self._whole) // self._length + 1
        rest = stream[..., count * self._length :]
        self._parts, self._held = [rest], rest.shape[-1]
        starts = range(0, count * self._length, self._length)
        pieces = [stream[..., i : i + self._whole] for i in starts]
        if self._eos is not None:
            pieces[-1] = ended(pieces[-1], self._whole, self._eos)
        if self._every and self._whole < self._shortest:
            return self.long_enough(pieces, (self._whole for _ in pieces), self._shortest)
        return pieces

    def finish(self) -> list[np.ndarray]:
        """The rest, if it is long enough."""
        buffered, self._parts, self._held = self._parts, [], 0
        if not buffered or not self._flush:
            return []
        tail = np.concatenate(buffered, axis=-1)
        if self._eos is not None:
            tail = ended(tail, self._whole, self._eos)
        if tail.shape[-1] >= self._shortest:
            return [tail]
        self.discarded += tail.shape[-1] > self._whole - self._length  # more than what is shared
        return []

    def state(self) -> State:
        """See ``Packer``."""
        return {"tokens": np.concatenate(self._parts, axis=-1)} if self._parts else {}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._parts = list(state.values())
        self._held = sum(part.shape[-1] for part in self._parts)


class SinglePacker(Packer):
    """Every sequence [n] or [F, n] begins a row of its own, and goes on in the next one.

    Args:
        length: tokens of a row.
        shared: tokens that the pieces of one sequence share.
        shortest: shorter pieces are left out.
        first: keep the first piece of a sequence alone.
        eos_id: put behind the last piece, or over its last token where it is full.
    """

    def __init__(
        self,
        length: int,
        shared: int,
        shortest: int,
        *,
        first: bool = False,
        eos_id: int | None = None,
    ) -> None:
        self._length, self._shared, self._shortest = length, shared, shortest
        self._first, self._eos = first, eos_id

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """The pieces of a sequence."""
        starts = range(0, max(sequence.shape[-1] - self._shared, 1), self._length)
        pieces = [sequence[..., i : i + self._length + self._shared] for i in starts]
        if self._first:
            pieces = pieces[:1]
        if self._eos is not None:
            pieces[-1] = ended(pieces[-1], self._length, self._eos)
        return self.long_enough(pieces, (one.shape[-1] for one in pieces), self._shortest)


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
            pieces = SinglePacker(self._length, 1, 2).add(sequence)  # no label is lost
            blocks = [next_token(piece) for piece in pieces]
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


class Masked(NamedTuple):
    """A row's sequences after tokens were hidden."""

    ids: np.ndarray  #: [n] of all sequences, hidden ones replaced
    lengths: tuple[int, ...]  #: of the sequences
    positions: np.ndarray  #: [k] of the hidden tokens
    labels: np.ndarray  #: [k] their ids


class MaskPacker(Packer):
    """Hides tokens one row after the other.

    Args:
        fraction: of the tokens that are no special ones.
        most: hidden tokens of a row.
        seed: of both generators.
        mask_id: takes the place of 80 % of them; a random token of 10 %.
        special: ids that are never hidden.
        allowed: ids that may take the place of another.
    """

    def __init__(
        self,
        fraction: float,
        most: int,
        seed: int,
        mask_id: int,
        *,
        special: frozenset[int],
        allowed: Sequence[int],
    ) -> None:
        self._fraction, self._most, self._mask = fraction, most, mask_id
        self._special, self._allowed = special, np.array(allowed)
        self._random, self._numpy = random.Random(seed), np.random.RandomState(seed)

    def add(self, sequence: Any) -> list[Masked]:
        """One row of a sequence [1, n] or of several."""
        group = sequence if isinstance(sequence, list) else [sequence]
        ids = np.concatenate(group, axis=1)[0]
        lengths = tuple(one.shape[1] for one in group)
        free = [i for i, token in enumerate(ids.tolist()) if token not in self._special]
        count = min(int(self._fraction * len(free)), self._most)
        positions = sorted(self._random.sample(free, k=count)) if count else []
        labels = ids[positions].copy()
        for position in positions:
            draw = self._random.random()
            if draw < 0.8:
                ids[position] = self._mask
            elif draw < 0.9:
                ids[position] = self._numpy.choice(self._allowed)
        return [Masked(ids, lengths, np.array(positions, np.int32), labels)]

    def state(self) -> State:
        """See ``Packer``."""
        numbers = self._random.getstate()[1]
        _, keys, place, *_ = self._numpy.get_state()
        return {"random": np.array(numbers), "numpy": np.array([*keys, place], np.int64)}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._random.setstate((3, tuple(map(int, state["random"])), None))
        *keys, place = state["numpy"].tolist()
        self._numpy.set_state(("MT19937", np.array(keys, np.uint32), place, 0, 0.0))


def next_fit(sequences: Sequence[np.ndarray], length: int) -> list[list[np.ndarray]]:
    """Groups of [F, n]: the longest first, each beside the last one while both fit.

    A sequence of more than ``length`` tokens is alone.

    >>> [[s.shape[1] for s in g] for g in next_fit([np.zeros((2, n)) for n in (3, 5, 4)], 8)]
    [[5], [4, 3]]
    """
    groups: list[list[np.ndarray]] = []
    used = length
    for sequence in sorted(sequences, key=lambda s: -s.shape[1]):
        size = sequence.shape[1]
        if used + size > length:
            groups.append([])
            used = 0
        groups[-1].append(sequence)
        used += size
    return groups


def merge_backward(sequences: Sequence[np.ndarray], length: int) -> list[list[np.ndarray]]:
    """Groups of [F, n]: from the last backward, each joins the nearest earlier group it fits in.

    >>> [[s.shape[1] for s in g] for g in merge_backward([np.zeros((2, n)) for n in (3, 6, 4)], 8)]
    [[3, 4], [6]]
    """
    groups = [[sequence] for sequence in sequences]
    sizes = [sequence.shape[1] for sequence in sequences]
    for i in range(len(groups) - 1, 0, -1):
        fitting = (j for j in range(i - 1, -1, -1) if sizes[i] + sizes[j] <= length)
        j = next(fitting, None)
        if j is not None:
            groups[j] += groups.pop(i)
            sizes[j] += sizes.pop(i)
    return groups
