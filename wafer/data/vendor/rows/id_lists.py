"""Rows of records that hold token ids already, mode nlg."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np

from wafer.data.vendor.hooks import Turns
from wafer.errors import DataError


def id_rows(turns: Turns, length: int, size: int) -> np.ndarray | None:
    """[3, n] int32 ids, loss mask and labels of a context and a completion; None without labels.

    Args:
        turns: the context and the completion, lists of token ids.
        length: S, at least n.
        size: of the tokenizer's vocabulary.

    Raises:
        DataError: something else than ids, or too many.
    """
    if not turns:
        return None
    context, completion = (_ids(turn, size) for turn in turns[:2])
    ids = np.array([*context, *completion])
    if not completion or len(ids) < 2:
        return None
    if len(ids) - 1 > length:
        raise DataError(
            f"{len(ids) - 1} tokens of context and completion, but max_seq_length is {length}"
        )
    mask = np.arange(len(ids) - 1) >= max(len(context) - 1, 1)
    return np.stack([ids[:-1], mask, ids[1:]]).astype(np.int32)


def first_value(turn: Mapping[str, Any]) -> Any:
    """Return the first region of a turn, as its hook gave it."""
    return next(value for key, value in turn["content"][0].items() if key != "include_tags")


def _ids(turn: Mapping[str, Any], size: int) -> list[int]:
    value = first_value(turn)
    try:
        ids = [-1 if isinstance(token, bool) else operator.index(token) for token in value]
    except TypeError:
        ids = [-1]
    if any(not 0 <= token < size for token in ids):
        raise DataError(
            f"mode nlg: the {turn['type']} is {str(value)[:40]!r}; expected token ids "
            f"below the tokenizer's vocabulary of {size}, as "
            'in {"context": [464, 2068], "completion": [7586, 21831]}. For texts: mode: '
            "finetuning, read_hook: prompt_completion_text_read_hook"
        )
    return ids
