"""The vendor's HDF5 layouts: which features a row has, and how packed tokens become one.

"sample": dataset ``data`` int32 [N, F, S]; features of different lengths stand in ``data_0``,
``data_1``, ... "corpus": ``data`` is one list of tokens.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.objectives import (
    corrupt_spans,
    fill_in_the_middle,
    longest_source,
)
from wafer.data.batching.sources import FEATURES, VSL_FEATURES
from wafer.data.preprocess.encode import current, current_for_pieces
from wafer.data.preprocess.packing import BinPacker, Packer, SinglePacker, StreamPacker
from wafer.data.preprocess.sentences import SentencePacker, SentencePair
from wafer.data.preprocess.settings import RunSettings, Settings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import Attachment, RowGroup
from wafer.data.text.pieces import decode_inside
from wafer.errors import DataError

Row = tuple[np.ndarray, ...]  # one array [F, S] for each group
Draws = Callable[[], np.random.Generator]  # the generator of a row, made where one is used


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a mode lays out its rows."""

    groups: tuple[RowGroup, ...]  #: the HDF5 datasets
    packer: Callable[[], Packer]  #: makes the packer
    #: (what the packer gave, this row's draws) -> arrays, one for each group
    shape: Callable[[Any, Draws], Row]
    heavy: bool = False  #: shaping is worth a process of its own
    #: datasets beside the groups, whose arrays follow theirs in a row
    attachments: tuple[Attachment, ...] = ()
    #: further keys of ``data_params.json``
    described: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def padded(rows: np.ndarray, length: int, fill: Sequence[int]) -> np.ndarray:
    """[F, n] rows to [F, length] int32; each feature has its own padding."""
    out = np.empty((len(rows), length), np.int32)
    out[:] = np.array(fill, np.int32)[:, None]
    out[:, : rows.shape[1]] = rows
    return out


def lm_row(tokens: np.ndarray, length: int, pad_id: int) -> np.ndarray:
    """[n] tokens, or [3, n] rows, to the [3, length] rows input ids, loss mask, labels."""
    if tokens.ndim > 1:
        return padded(tokens, length, (pad_id, 0, pad_id))
    count = len(tokens) - 1
    out = np.full((3, length), pad_id, np.int32)
    out[0, :count], out[1, :count], out[2, :count] = tokens[:-1], 1, tokens[1:]
    out[1, count:] = 0
    return out


def vsl_row(blocks: Sequence[np.ndarray], length: int, pad_id: int) -> np.ndarray:
    """Sequences [3, n] side by side, with ``attention_span`` and ``position_ids``: [5, length]."""
    rows = np.concatenate(blocks, axis=1)
    rows = np.concatenate([rows, spans_and_places(block.shape[1] for block in blocks)])
    return padded(rows, length, (pad_id, 0, pad_id, 0, 0))


def spans_and_places(lengths: Iterable[int]) -> np.ndarray:
    """[2, n] positions from each to its sequence's end, and from its beginning."""
    places = [np.arange(length) for length in lengths]
    return np.stack([np.concatenate([one[::-1] for one in places]), np.concatenate(places)])


def _lm_shape(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    if tokens.ndim == 1 and settings.short_seq_prob:
        rng = draws()
        if rng.random() < settings.short_seq_prob:
            tokens = tokens[: int(rng.integers(2, len(tokens) + 1))]
    return (lm_row(tokens, settings.max_seq_length, ids.pad_id),)


def fim_row(settings: RunSettings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    """Move the middles of the documents inside a row; what no longer fits at its end is cut."""
    rng = draws()
    ends = np.flatnonzero(tokens == ids.eos_id) + 1
    moved: list[int] = []
    for piece in np.split(tokens, ends):
        ended = len(piece) > 0 and piece[-1] == ids.eos_id
        body = piece[:-1].tolist() if ended else piece.tolist()
        if body and rng.random() < settings.fim_rate:
            body = _moved(body, settings, ids, rng)
        moved += [*body, *([ids.eos_id] if ended else [])]
    whole = np.array(moved[: settings.max_seq_length + 1], np.int32)
    return (lm_row(whole, settings.max_seq_length, ids.pad_id),)


def _moved(body: list[int], settings: RunSettings, ids: RowVocabulary, rng: Any) -> list[int]:
    _, tokenizer = current()
    if ids.fim is None:
        return body
    text = decode_inside(tokenizer, body, ids.fim[0])
    if "\ufffd" in text:  # the row's border cuts a character: leave it whole
        return body
    encode = lambda part: current_for_pieces().encode(part, add_special_tokens=False).ids
    return fill_in_the_middle(text, encode, rng, ids.fim, rng.random() < settings.spm_rate)


def _mlm_shape(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    """[CLS] tokens [SEP]; the tokens to hide are drawn anew at every reading."""
    del draws
    whole = np.array([ids.cls_id, *tokens, ids.sep_id], np.int32)
    rows = np.stack([whole, np.ones(len(whole), np.int32)])
    return (padded(rows, settings.max_seq_length, (ids.pad_id, 0)),)


def _nsp_shape(settings: Settings, ids: RowVocabulary, pair: SentencePair, draws: Draws) -> Row:
    """[CLS] first [SEP] second [SEP], and whether the second text is a random one."""
    del draws
    tokens = np.array([ids.cls_id, *pair.first, ids.sep_id, *pair.second, ids.sep_id], np.int32)
    segments = np.arange(len(tokens)) >= len(pair.first) + 2
    rows = np.stack([tokens, np.ones(len(tokens), np.int32), segments.astype(np.int32)])
    label = np.full((1, 1), pair.is_random, np.int32)
    return padded(rows, settings.max_seq_length, (ids.pad_id, 0, 0)), label


def _t5_shape(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    pair = corrupt_spans(
        tokens,
        draws(),
        vocab_size=ids.size,
        density=settings.noise_density,
        mean_span=settings.mean_noise_span_length,
    )
    source, target = (np.append(part, np.int32(ids.eos_id)) for part in pair)
    begin = np.concatenate([[ids.pad_id], target[:-1]]).astype(np.int32)  # T5 starts with padding
    encoder = np.stack([source, np.ones(len(source), np.int32)])
    decoder = np.stack([begin, np.ones(len(begin), np.int32), target])
    return (
        padded(encoder, settings.max_seq_length, (ids.pad_id, 0)),
        padded(decoder, settings.tgt_max_sequence_length, (ids.pad_id, 0, ids.pad_id)),
    )


def _stream(settings: Settings, length: int, shared: int) -> Callable[[], Packer]:
    kind = StreamPacker if settings.pack_sequences else SinglePacker
    return functools.partial(kind, length, shared, settings.min_sequence_len)


def layout_of(settings: Settings, ids: RowVocabulary) -> Layout:
    """Choose the layout of a mode.

    Raises:
        DataError: a row too short for its mode, T5 targets longer than their row.
    """
    mode, length = settings.mode, settings.max_seq_length
    bind = lambda shape: functools.partial(shape, settings, ids)
    rows = (RowGroup("data", FEATURES, length),)
    if settings.vsl:
        shortest = settings.min_sequence_len
        pack = functools.partial(BinPacker, length, settings.fold_long_doc, shortest)
        shape = lambda blocks, draws: (vsl_row(blocks, length, ids.pad_id),)
        return Layout((RowGroup("data", VSL_FEATURES, length),), pack, shape)
    if mode.startswith("MLM"):
        return _bert_layout(settings, ids)
    if mode == "T5":
        raw = longest_source(
            length,
            settings.tgt_max_sequence_length,
            settings.extra_ids,
            settings.noise_density,
            settings.mean_noise_span_length,
        )
        targets = ("decoder_input_ids", "decoder_attention_mask", "labels")
        groups = (
            RowGroup("data_0", ("input_ids", "attention_mask"), length),
            RowGroup("data_1", targets, settings.tgt_max_sequence_length),
        )
        return Layout(groups, _stream(settings, raw, 0), bind(_t5_shape))
    if mode == "FIM":
        return Layout(rows, _stream(settings, length, 1), bind(fim_row), heavy=True)
    if mode == "Summarization":
        return Layout(rows, functools.partial(SinglePacker, length, 0, 0), bind(_lm_shape))
    return Layout(rows, _stream(settings, length, 1), bind(_lm_shape))


def _bert_layout(settings: Settings, ids: RowVocabulary) -> Layout:
    length = settings.max_seq_length
    if length < 5:
        raise DataError(f"max_seq_length: {length} leaves no room between [CLS] and [SEP]")
    if settings.mode == "MLM":
        group = RowGroup("data", ("input_ids", "attention_mask"), length)
        shape = functools.partial(_mlm_shape, settings, ids)
        return Layout((group,), _stream(settings, length - 2, 0), shape)
    groups = (
        RowGroup("data_0", ("input_ids", "attention_mask", "token_type_ids"), length),
        RowGroup("data_1", ("next_sentence_label",), 1),
    )
    pack = functools.partial(
        SentencePacker,
        length - 3,
        ids.eos_id,
        settings.short_seq_prob,
        settings.min_sequence_len,
        settings.seed,
    )
    return Layout(groups, pack, functools.partial(_nsp_shape, settings, ids))
