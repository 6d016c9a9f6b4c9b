"""What a row must hold: one set of rules for training and for ``wafer data verify``."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from wafer.data.batching.sources import FEATURES
from wafer.errors import DataError

IGNORED = -100  # label of a position without loss, in Hugging Face's convention
ATTACHED = ("img_path", "has_img", "img_data_loc")  # datasets of rows of images
# feature -> least value
_IDS = {"input_ids": 0, "text_input_ids": 0, "labels": IGNORED, "decoder_input_ids": 0}
_MASKS = ("attention_mask", "decoder_attention_mask", "loss_mask")
_FLAGS = ("key_padding_mask", "token_modality_idx")
_SIDES = re.compile("^(chosen|rejected|questions|ctx)_")  # features of several sequences
_PLACES = ("position_ids", "masked_lm_positions")
_INT32 = np.iinfo(np.int32)


class RowGroup(NamedTuple):
    """One HDF5 dataset of a sample file."""

    name: str  #: of the dataset
    features: tuple[str, ...]  #: of its rows
    length: int  #: S
    contexts: int = 0  #: K sequences of each feature (DPR's); 0 is one, without an axis

    @property
    def shape(self) -> tuple[int, ...]:
        """(F, S), or (F, K, S)."""
        inner = (self.contexts,) if self.contexts else ()
        return len(self.features), *inner, self.length


class Attachment(NamedTuple):
    """One HDF5 dataset that holds no tokens."""

    name: str  #: of the dataset
    shape: tuple[int, ...]  #: of one row
    dtype: str  #: i4, bool or str


class _Range(NamedTuple):
    """Values of one feature: all from ``low`` to ``high``, one at least ``reached``."""

    feature: str
    low: int
    high: int
    reached: int


@functools.lru_cache(maxsize=64)
def _ranges(
    groups: tuple[RowGroup, ...], vocab_size: int | None, states: int | None
) -> tuple[tuple[_Range, ...], ...]:
    sizes = {feature: group.length for group in groups for feature in group.features}
    size = sizes.get("input_ids", _INT32.max)
    top = _INT32.max if vocab_size is None else vocab_size - 1
    known = {name: _Range(name, low, top, low) for name, low in _IDS.items()}
    known |= {name: _Range(name, 0, 1, 1) for name in _MASKS}
    known |= {name: _Range(name, 0, 1, 0) for name in _FLAGS}
    known |= {name: _Range(name, 0, size - 1, 0) for name in _PLACES}
    known["epigenetic"] = _Range("epigenetic", -1, (states or _INT32.max) - 1, -1)
    anything = _Range("", _INT32.min, _INT32.max, _INT32.min)
    return tuple(
        tuple(
            known.get(re.sub(_SIDES, "", name), anything)._replace(feature=name)
            for name in group.features
        )
        for group in groups
    )


def checked_row(
    groups: tuple[RowGroup, ...],
    stored: Sequence[np.ndarray],
    vocab_size: int | None,
    states: int | None = None,
) -> dict[str, np.ndarray]:
    """One row by feature.

    Args:
        groups: its datasets.
        stored: [F, S] or [F, K, S] of each, any integers.
        vocab_size: ids must be below; None does not look.
        states: epigenetic states must be below; None does not look.

    Returns:
        feature -> int32 [S] or [K, S].

    Raises:
        DataError: it holds what no row can; says which feature and where.
    """
    out: dict[str, np.ndarray] = {}
    known = _ranges(groups, vocab_size, states)
    for group, values, ranges in zip(groups, stored, known, strict=True):
        # Two passes over all features at once: numpy's calls cost more than its work here.
        along = values.reshape(len(values), -1)
        least, most = along.min(axis=1).tolist(), along.max(axis=1).tolist()
        for i, (_, low, high, reached) in enumerate(ranges):
            if least[i] < low or most[i] > high or most[i] < reached:
                raise DataError(_range_problem(along[i], ranges[i], vocab_size))
        out.update(zip(group.features, values.astype(np.int32, copy=False), strict=True))
        # A next-token row; elsewhere the mask says nothing about labels.
        if len(groups) == 1 and group.features[:3] == FEATURES and least[2] < 0:
            bad = (out["labels"] < 0) & ((out["attention_mask"] != 0) | (out["labels"] != IGNORED))
            if bad.any():
                raise DataError(f"{_first('labels', out['labels'], bad)}, where the mask is 1")
    problem = span_problem(out)
    if problem:
        raise DataError(problem)
    return out


def checked_tokens(stored: np.ndarray, vocab_size: int | None) -> np.ndarray:
    """int32 [N] of a corpus' tokens, under the rules of ``input_ids``.

    Raises:
        DataError: an id that is none; says where.
    """
    group = RowGroup("data", ("input_ids",), len(stored))
    return checked_row((group,), [stored[None]], vocab_size)["input_ids"]


def _range_problem(values: np.ndarray, rule: _Range, vocab_size: int | None) -> str:
    bad = (values < rule.low) | (values > rule.high)
    if not bad.any():
        return f"{rule.feature} is 0 everywhere: nothing is read of such a row"
    expected = f"{rule.low} to {rule.high}"
    if re.sub(_SIDES, "", rule.feature) in _IDS:
        limit = "" if vocab_size is None else f" and below the vocabulary of {vocab_size}"
        expected = f"ids of at least 0{limit}"
    return f"{_first(rule.feature, values, bad)}; expected {expected}"


def _first(name: str, values: np.ndarray, bad: np.ndarray) -> str:
    at = int(np.flatnonzero(bad)[0])
    return f"{name}[{at}] is {values[at]}"


def span_problem(row: Mapping[str, np.ndarray]) -> str:
    """Say where a VSL row does not count spans down and positions up in a document, or ''."""
    if "attention_span" not in row:
        return ""
    span, position = row["attention_span"], row["position_ids"]
    size = len(span)
    end = np.arange(size) + span
    if span.min() < 0 or position.min() < 0 or end.max() >= size:
        return "attention_span or position_ids point outside the row"
    inside = span[:-1] > 0
    bad = inside & ((span[1:] != span[:-1] - 1) | (position[1:] != position[:-1] + 1))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        return f"attention_span and position_ids disagree at position {at}"
    return ""
