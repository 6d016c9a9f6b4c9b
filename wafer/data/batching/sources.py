"""Random-access sources: documents of varying length, parts and mixtures.

Every item is a dict of 1-D int32 arrays under the Model Zoo's feature names: ``input_ids``,
``attention_mask`` (really the loss mask) and ``labels`` (next tokens, already shifted); rows
packed for VSL add ``attention_span`` and ``position_ids``.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wafer.errors import DataError

FEATURES = ("input_ids", "attention_mask", "labels")
VSL_FEATURES = (*FEATURES, "attention_span", "position_ids")
PAIR_FEATURES = tuple(f"{side}_{name}" for side in ("chosen", "rejected") for name in FEATURES)


class Source(Protocol):
    """What grain reads: a sized, random-access collection of examples."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Several sources to draw from in fixed proportions."""

    parts: Sequence[Source]  #: the sources
    weights: Sequence[float]  #: share of each, in any unit

    def __len__(self) -> int:
        """Examples until the first part has been read once."""
        total = sum(self.weights)
        return int(min(len(p) * total / w for p, w in zip(self.parts, self.weights, strict=True)))

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """An example, the share of each part laid end to end: for statistics over all."""
        total, size = sum(self.weights), len(self)
        for source, weight in zip(self.parts, self.weights, strict=True):
            share = math.ceil(size * weight / total)
            if index < share:
                return source[index]
            index -= share
        raise IndexError(index)


class DocumentSource:
    """Token documents as next-token examples: position i predicts token i + 1.

    A document of L tokens gives L positions: the first input is ``bos_id`` (the end-of-text
    mark), the last label is the document's own last token.

    Args:
        documents: token ids, each ending with its end-of-text mark.
        bos_id: the token every sequence begins with.
        max_length: longer documents are cut.
    """

    def __init__(
        self, documents: Sequence[Sequence[int] | np.ndarray], bos_id: int, max_length: int
    ) -> None:
        lengths = np.fromiter((min(len(d), max_length) for d in documents), np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(lengths)])
        self._tokens = np.empty(self._offsets[-1], np.int32)
        for start, length, document in zip(self._offsets, lengths, documents, strict=False):
            self._tokens[start : start + length] = document[:length]
        self._bos_id = bos_id

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """One document as (input_ids, attention_mask, labels)."""
        labels = self._tokens[self._offsets[index] : self._offsets[index + 1]]
        inputs = np.concatenate([[self._bos_id], labels[:-1]]).astype(np.int32)
        return dict(zip(FEATURES, (inputs, np.ones_like(labels), labels), strict=True))

    @property
    def lengths(self) -> np.ndarray:
        """[N] tokens of each document."""
        return np.diff(self._offsets)


class Subset:
    """Some ranges of a source, read several times over if asked to.

    Args:
        source: the whole.
        ranges: '0.0-0.5' or '0.1-0.3,0.7-1.0', shares of its length (``data_subset``);
            None takes all.
        num_samples: examples of one pass; a shuffle then mixes several epochs together.

    Raises:
        DataError: ranges that are not shares of the whole, or hold no example.
    """

    def __init__(self, source: Source, ranges: str | None, num_samples: int | None = None) -> None:
        self._source = source
        size = len(source)
        bounds = [(0, size)] if ranges is None else [_bounds(r, size) for r in ranges.split(",")]
        if any(later < end for (_, end), (later, _) in itertools.pairwise(bounds)):
            raise DataError(f"data_subset: {ranges!r}; expected ranges in order, without overlap")
        self._index = np.concatenate([np.arange(start, stop) for start, stop in bounds])
        if not len(self._index):
            raise DataError(f"data_subset: {ranges!r} of {size} examples holds none")
        self._size = len(self._index) if num_samples is None else num_samples

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """An example of the ranges, counted through and begun again at the end."""
        return self._source[int(self._index[index % len(self._index)])]


def _bounds(text: str, size: int) -> tuple[int, int]:
    try:
        low, high = (float(part) for part in text.split("-"))
    except ValueError:
        low, high = 1.0, 0.0
    if not 0 <= low < high <= 1:
        raise DataError(f"data_subset: {text!r}; expected shares such as 0.0-0.5")
    return int(low * size), int(high * size)  # a row belongs to one side
