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


def text_row(
    marks: tuple[int, int, int], length: int, first: Ids, second: Ids | None = None
) -> dict[str, np.ndarray]:
    """``[CLS] first [SEP]``, or with ``second [SEP]`` as another segment (BERT).

    Texts that do not fit lose tokens from their ends, one at a time, the longer one first.

    Args:
        marks: ids of [CLS], [SEP] and padding.
        length: of the row.
        first: [n] ids of a text.
        second: [m] ids of another one, or None.
    """
    cls, sep, pad = marks
    room = max(length - (2 if second is None else 3), 0)
    first, others = first[:room], () if second is None else second[:room]
    while len(first) + len(others) > room:
        if len(first) > len(others):
            first = first[:-1]
        else:
            others = others[:-1]
    head, tail = [cls, *first, sep], [] if second is None else [*others, sep]
    return sequence_row([*head, *tail], length, pad, [0] * len(head) + [1] * len(tail))
