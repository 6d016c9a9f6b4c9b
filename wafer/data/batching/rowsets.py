"""Complete rows in memory: the source all fine-tuning formats share."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wafer.errors import DataError

Ids = Sequence[int] | np.ndarray


class RowSource:
    """Examples as dicts of ids, each with its number in ``row`` (from 1).

    Args:
        examples: what ``build`` is given.
        build: example -> features of fixed shapes; called when a row is read.
        where: the files, for the error on an empty set.

    Raises:
        DataError: there is no example.
    """

    def __init__(self, examples: Sequence[Any], build: Any, where: Any) -> None:
        if not examples:
            raise DataError(f"{where}: no examples in it")
        self._examples, self._build = examples, build

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        index = int(index)
        features = self._build(self._examples[index])
        return features | {"row": np.asarray(index + 1, np.int32)}


def fixed(values: Ids, length: int, fill: int = 0) -> np.ndarray:
    """[length] int32: the values, then ``fill``."""
    out = np.full(length, fill, np.int32)
    out[: len(values)] = values[:length]
    return out


def sequence_row(
    ids: Ids, length: int, pad: int = 0, segments: Ids | None = None
) -> dict[str, np.ndarray]:
    """``input_ids``, ``attention_mask`` and, when given, ``token_type_ids`` of one sequence."""
    row = {
        "input_ids": fixed(ids, length, pad),
        "attention_mask": fixed([1] * min(len(ids), length), length),
    }
    if segments is not None:
        row["token_type_ids"] = fixed(segments, length)
    return row


def target_row(
    source: Ids, target: Ids, lengths: tuple[int, int], start: int, pad: int = 0
) -> dict[str, np.ndarray]:
    """Features of an encoder-decoder's row; each input of the decoder is the label before it.

    Args:
        source: [n] ids that the encoder reads.
        target: [m] ids that the decoder writes.
        lengths: of the rows of both.
        start: first input of the decoder.
        pad: id of padding.
    """
    written = sequence_row([start, *target[:-1]], lengths[1], pad)
    return sequence_row(source, lengths[0], pad) | {
        "decoder_input_ids": written["input_ids"],
        "decoder_attention_mask": written["attention_mask"],
        "labels": fixed(target, lengths[1], pad),
    }


def cut_pair(a: Ids, b: Ids, room: int) -> tuple[list[int], list[int]]:
    """Shorten the longer of two texts, a token at a time from its end, until both fit (BERT)."""
    first, second = len(a), len(b)
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return list(a[:first]), list(b[:second])
