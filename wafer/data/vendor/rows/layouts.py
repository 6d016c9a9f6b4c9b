"""Row layouts of the vendor's modes."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from wafer.data.batching.sources import FEATURES, PAIR_FEATURES, VSL_FEATURES
from wafer.data.preprocess.layouts import (
    Draws,
    Layout,
    Row,
    fim_row,
    lm_row,
    padded,
    spans_and_places,
)
from wafer.data.preprocess.packing import Packer, SinglePacker, StreamPacker
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import RowGroup
from wafer.data.vendor.rows.images import image_layout
from wafer.data.vendor.rows.old_llava import old_image_layout
from wafer.data.vendor.rows.packers import (
    BertPacker,
    CutPacker,
    Masked,
    MaskPacker,
    OverlapPacker,
    Ready,
)
from wafer.data.vendor.settings import HookSettings

_BERT = ("input_ids", "attention_mask", "token_type_ids")


def _shifted(tokens: np.ndarray) -> np.ndarray:
    """[3, n - 1] input ids, weights of the labels, and labels of [2, n] ids and weights."""
    return np.stack([tokens[0, :-1], tokens[1, 1:], tokens[0, 1:]])


def _rows(settings: HookSettings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    """Next-token rows of ids [n], [2, n] with weights, or [3, n] as they are."""
    short = settings.short_seq_prob
    if settings.mode == "pretraining" and short:
        rng = draws()
        if rng.random() < short:
            tokens = tokens[..., : int(rng.integers(2, settings.max_seq_length))]
    rows = _shifted(tokens) if tokens.shape[0] == 2 and tokens.ndim > 1 else tokens
    pad_id = 0 if settings.mode == "nlg" else ids.pad_id
    return (_written(settings, lm_row(rows, settings.max_seq_length, pad_id)),)


def _written(settings: HookSettings, row: np.ndarray) -> np.ndarray:
    if settings.inverted_mask:
        row[1] = row[1] == 0
    return row


def _vsl_rows(settings: HookSettings, ids: RowVocabulary, group: Any, draws: Draws) -> Row:
    """Sequences side by side; the last token of the row is a label alone."""
    del draws
    rows = _shifted(np.concatenate(group, axis=1))
    lengths = [*(piece.shape[1] for piece in group[:-1]), group[-1].shape[1] - 1]
    whole = np.concatenate([rows, spans_and_places(lengths)])
    filled = padded(whole, settings.max_seq_length, (ids.pad_id, 0, ids.pad_id, 0, 0))
    return (_written(settings, filled),)


def _mlm_row(settings: HookSettings, ids: RowVocabulary, masked: Masked, draws: Draws) -> Row:
    del draws
    length = settings.max_seq_length
    rows = np.stack([masked.ids, np.ones_like(masked.ids)])
    fill = (ids.pad_id, 0)
    if settings.use_vsl:
        rows, fill = np.concatenate([rows, spans_and_places(masked.lengths)]), (*fill, 0, 0)
    data = padded(rows, length, fill)
    if settings.mlm_with_gather:
        hidden = np.stack([masked.labels, masked.positions, np.ones_like(masked.labels)])
        return data, padded(hidden, _most(settings), (settings.ignore_index, 0, 0))
    labels = np.full((1, length), settings.ignore_index, np.int32)
    labels[0, masked.positions] = masked.labels
    return data, labels


def _most(settings: HookSettings) -> int:
    """Hidden tokens of a row at most."""
    return math.ceil(settings.mlm_fraction * settings.max_seq_length)


def _fim_row(settings: HookSettings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    return fim_row(settings, ids, tokens[0] if tokens.ndim > 1 else tokens, draws)


def _stream(settings: HookSettings, ids: RowVocabulary) -> Callable[[], Packer]:
    length, least = settings.max_seq_length, settings.min_sequence_len
    exact, pack = settings.rules.exact, settings.pack_sequences
    if not settings.overlapping:
        return functools.partial(CutPacker, length, least, ids.eos_id, pack=pack, exact=exact)
    if not pack:
        return functools.partial(SinglePacker, length, 1, least)
    return functools.partial(OverlapPacker if exact else StreamPacker, length, 1, least)


def layout_of(settings: HookSettings, ids: RowVocabulary, tokenizer: Tokenizer) -> Layout:
    """Choose the layout of a mode and objective."""
    length, objective = settings.max_seq_length, settings.training_objective
    bind = lambda shape: functools.partial(shape, settings, ids)
    if settings.is_multimodal:
        old = settings.old_images
        return old_image_layout(settings, ids, tokenizer) if old else image_layout(settings, ids)
    if objective == "mlm":
        return _mlm_layout(settings, ids, tokenizer)
    if objective == "bert_pretraining":
        first = settings.truncate_to_msl is True
        pack = functools.partial(BertPacker, length, settings.min_sequence_len, first=first)
        rows = lambda tokens: np.concatenate([tokens, np.ones_like(tokens), np.zeros_like(tokens)])
        shape = lambda tokens, draws: (padded(rows(tokens), length, (ids.pad_id, 0, 0)),)
        return Layout((RowGroup("data", _BERT, length),), pack, shape)
    if settings.vsl:
        return Layout((RowGroup("data", VSL_FEATURES, length),), Ready, bind(_vsl_rows))
    if settings.mode == "dpo":
        return Layout((RowGroup("data", PAIR_FEATURES, length),), Ready, lambda row, draws: (row,))
    pack = _stream(settings, ids) if settings.mode == "pretraining" else Ready
    shape = _fim_row if objective == "fim" else _rows
    return Layout((RowGroup("data", FEATURES, length),), pack, bind(shape), objective == "fim")


def _mlm_layout(settings: HookSettings, ids: RowVocabulary, tokenizer: Tokenizer) -> Layout:
    length, special = settings.max_seq_length, ids.special
    named = (special.cls, special.pad, special.eos, special.unk)
    found = {tokenizer.token_to_id(name) for name in named if name} | {ids.pad_id, ids.eos_id}
    left_out = {tokenizer.token_to_id(name) for name in settings.excluded_tokens}
    allowed = [i for i in sorted(tokenizer.get_vocab().values()) if i not in left_out]
    pack = functools.partial(
        MaskPacker,
        settings.mlm_fraction,
        _most(settings),
        settings.seed,
        ids.mask_id or 0,
        special=frozenset(index for index in found if index is not None),
        allowed=allowed,
    )
    spans = VSL_FEATURES[3:] if settings.use_vsl else ()
    labels = (
        RowGroup("labels", ("labels", "masked_lm_positions", "masked_lm_mask"), _most(settings))
        if settings.mlm_with_gather
        else RowGroup("labels", ("labels",), length)
    )
    groups = (RowGroup("data", (*_BERT[:2], *spans), length), labels)
    return Layout(groups, pack, functools.partial(_mlm_row, settings, ids))
