"""Sentence pairs for BERT's next-sentence prediction (Devlin et al. 2019, appendix A.2).

A document is a list of sentences. Pairs fill a row: the first text is a random number of whole
sentences; the second is what follows them, or, half of the time, a stretch of another document.
"""

import re
from collections import deque
from typing import NamedTuple

import numpy as np

from wafer.data.preprocess.rows.packing import Packer

_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")
_REMEMBERED = 32  # documents that second texts are taken from


class SentencePair(NamedTuple):
    """What a row is made of."""

    first: np.ndarray  #: [n] token ids
    second: np.ndarray  #: [m] token ids
    is_random: int  #: 1 when the second text does not follow the first


def sentences(text: str) -> list[str]:
    """Split at line breaks and behind full stops, exclamation and question marks.

    >>> sentences("One. Two? Three")
    ['One.', 'Two?', 'Three']
    """
    return [part for part in _BREAK.split(text.strip()) if part]


class SentencePacker(Packer):
    """Documents to pairs. Draws depend on the seed and the number of pairs drawn before alone.

    Args:
        length: tokens of both texts together.
        end: id that ends each sentence of a document; it is in no sentence.
        short: share of pairs that aim at a shorter length.
        shortest: pairs with fewer tokens are left out.
        seed: of the draws.
    """

    def __init__(self, length: int, end: int, short: float, shortest: int, seed: int) -> None:
        self._length, self._end, self._short = length, end, short
        self._shortest, self._seed, self._drawn = shortest, seed, 0
        self._others: deque[np.ndarray] = deque(maxlen=_REMEMBERED)

    def add(self, sequence: np.ndarray) -> list[SentencePair]:
        """Pairs of a document whose sentences end with ``end``."""
        pieces = self._pieces(sequence)
        pairs: list[SentencePair] = []
        begin = 0
        while begin < len(pieces):
            rng = np.random.default_rng((self._seed, self._drawn))
            self._drawn += 1
            pair, used = self._pair(pieces[begin:], rng)
            begin += used
            if pair is None or len(pair.first) + len(pair.second) < self._shortest:
                self.discarded += 1
            else:
                pairs.append(pair)
        self._others.append(sequence)
        return pairs

    def state(self) -> dict[str, np.ndarray]:
        """See ``Packer``."""
        return {
            "others": np.concatenate([*self._others, np.empty(0, np.int32)]).astype(np.int32),
            "lengths": np.array([len(other) for other in self._others], np.int64),
            "drawn": np.array(self._drawn, np.int64),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """See ``Packer``."""
        ends = np.cumsum(state["lengths"])
        self._others = deque(
            np.split(state["others"], ends[:-1]) if len(ends) else [], maxlen=_REMEMBERED
        )
        self._drawn = int(state["drawn"])

    def _pieces(self, sequence: np.ndarray) -> list[np.ndarray]:
        ends = np.flatnonzero(sequence == self._end)
        starts = np.concatenate([[0], ends + 1])
        return [sequence[a:b] for a, b in zip(starts, ends, strict=False) if b > a]

    def _pair(
        self, pieces: list[np.ndarray], rng: np.random.Generator
    ) -> tuple[SentencePair | None, int]:
        """The pair at the head of the sentences that are left, and how many it uses."""
        aim = self._length
        if self._short and rng.random() < self._short:
            aim = int(rng.integers(2, aim + 1))
        sizes = np.cumsum([len(piece) for piece in pieces])
        chunk = pieces[: int(np.searchsorted(sizes, aim)) + 1]
        divisible = len(chunk) > 1
        is_random = bool(self._others) and (not divisible or rng.random() < 0.5)
        if not divisible and not is_random:
            return None, 1  # one sentence, and no other document to follow it
        cut = int(rng.integers(1, len(chunk))) if divisible else 1
        first = np.concatenate(chunk[:cut])
        if is_random:
            second = self._elsewhere(max(aim - len(first), 1), rng)
        else:
            second = np.concatenate(chunk[cut:])
        pair = SentencePair(*_shortened(first, second, aim, rng), int(is_random))
        return pair, cut if is_random else len(chunk)  # what did not follow comes again

    def _elsewhere(self, most: int, rng: np.random.Generator) -> np.ndarray:
        pieces = self._pieces(self._others[int(rng.integers(len(self._others)))])
        return np.concatenate(pieces[int(rng.integers(len(pieces))) :])[:most]


def _shortened(
    first: np.ndarray, second: np.ndarray, most: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the longer text, token by token, at its begin or end, until both fit."""
    sizes, heads = [len(first), len(second)], [0, 0]
    while sum(sizes) > most:
        longer = int(sizes[1] >= sizes[0])
        heads[longer] += int(rng.random() < 0.5)
        sizes[longer] -= 1
    (a, b), (n, m) = heads, sizes
    return first[a : a + n], second[b : b + m]
