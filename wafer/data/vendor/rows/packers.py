"""Packers of the vendor's row rules; see ``wafer.data.preprocess.packing``."""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess.packing import Packer, State, StreamPacker
from wafer.data.vendor.rows.pieces import cut, ended


class Ready(Packer):
    """What the workers made is what a row is made of."""

    def add(self, sequence: Any) -> list[Any]:
        """See ``Packer``."""
        return [sequence]


class OverlapPacker(StreamPacker):
    """Release 2.3: rows share a token; the rest at the end of the input is dropped."""

    def finish(self) -> list[np.ndarray]:
        """Nothing."""
        self.restore({"tokens": np.empty(0, np.int32)})
        return []


class CutPacker(Packer):
    """Documents [2, n] cut every S + 1 tokens, without overlap (releases from 2.4 on).

    Args:
        length: S.
        shortest: pieces with fewer tokens are left out.
        eos_id: end of a document.
        pack: a rest is held for the next document.
        exact: see ``cut``.
    """

    def __init__(self, length: int, shortest: int, eos_id: int, *, pack: bool, exact: bool) -> None:
        self._width, self._shortest, self._eos = length + 1, max(shortest, 2), eos_id
        self._pack, self._exact = pack, exact
        self._held = np.empty((2, 0), np.int32)

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """Pieces [2, <= S + 1]."""
        if not self._pack:
            return self._kept(cut(sequence, self._width, self._eos, self._exact))
        if not self._exact:
            sequence = ended(sequence, sequence.shape[1] + 1, self._eos)
        stream = np.concatenate([self._held, sequence], axis=1)
        whole = stream.shape[1] // self._width * self._width
        self._held = stream[:, whole:]
        pieces = [stream[:, i : i + self._width] for i in range(0, whole, self._width)]
        if self._exact and pieces:
            pieces[-1] = ended(pieces[-1], self._width, self._eos)
        return self._kept(pieces) if pieces else []

    def _kept(self, pieces: Sequence[np.ndarray]) -> list[np.ndarray]:
        return self.long_enough(pieces, (piece.shape[1] for piece in pieces), self._shortest)

    def finish(self) -> list[np.ndarray]:
        """The rest, if it is long enough."""
        rest, self._held = self._held, np.empty((2, 0), np.int32)
        return self._kept([ended(rest, self._width, self._eos)]) if rest.shape[1] else []

    def state(self) -> State:
        """See ``Packer``."""
        return {"held": self._held}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._held = state["held"]


class BertPacker(Packer):
    """Documents [1, n] with their special tokens, cut every S.

    Args:
        length: S.
        shortest: pieces with fewer tokens are left out.
        first: keep the first piece alone.
    """

    def __init__(self, length: int, shortest: int, *, first: bool) -> None:
        self._length, self._shortest, self._first = length, max(shortest, 1), first

    def add(self, sequence: np.ndarray) -> list[np.ndarray]:
        """Pieces [1, <= S]."""
        count = 1 if self._first else sequence.shape[1]
        starts = range(0, sequence.shape[1], self._length)[:count]
        pieces = [sequence[:, i : i + self._length] for i in starts]
        return self.long_enough(pieces, (piece.shape[1] for piece in pieces), self._shortest)


class Masked(NamedTuple):
    """A row's sequences after tokens were hidden."""

    ids: np.ndarray  #: [n] of all sequences, hidden ones replaced
    lengths: tuple[int, ...]  #: of the sequences
    positions: np.ndarray  #: [k] of the hidden tokens
    labels: np.ndarray  #: [k] their ids


class MaskPacker(Packer):
    """Hides tokens with the vendor's draws, one row after the other.

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
        _, keys, place, *_ = self._numpy.get_state(legacy=True)
        return {"random": np.array(numbers), "numpy": np.array([*keys, place], np.int64)}

    def restore(self, state: State) -> None:
        """See ``Packer``."""
        self._random.setstate((3, tuple(map(int, state["random"])), None))
        *keys, place = state["numpy"].tolist()
        self._numpy.set_state(("MT19937", np.array(keys, np.uint32), place, 0, 0.0))
