"""Row layouts: which features a row has, and how packed tokens become one.

"sample": dataset ``data`` int32 [N, F, S]; features of different lengths stand in ``data_0``,
``data_1``, ... "corpus": ``data`` is one list of tokens.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from wafer.data.batching.objectives import corrupt_spans, fill_in_the_middle, longest_source
from wafer.data.batching.sources import FEATURES, PAIR_FEATURES, VSL_FEATURES
from wafer.data.preprocess.encode import current, current_for_pieces
from wafer.data.preprocess.rows.packing import (
    BinPacker,
    Masked,
    MaskPacker,
    Packer,
    SinglePacker,
    StreamPacker,
)
from wafer.data.preprocess.rows.sentences import SentencePacker, SentencePair
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.rules import Attachment, RowGroup
from wafer.data.text.pieces import decode_inside
from wafer.errors import DataError

Row = tuple[np.ndarray, ...]  # one array [F, S] for each group
Draws = Callable[[], np.random.Generator]  # the generator of a row, made where one is used


@dataclasses.dataclass(frozen=True)
class RowLayout:
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
    lengths = [block.shape[1] for block in blocks]
    return _with_spans(np.concatenate(blocks, axis=1), lengths, length, pad_id)


def _with_spans(rows: np.ndarray, lengths: Iterable[int], length: int, pad_id: int) -> np.ndarray:
    """[5, length] of [3, n] rows whose sequences have these lengths."""
    whole = np.concatenate([rows, _spans_and_places(lengths)])
    return padded(whole, length, (pad_id, 0, pad_id, 0, 0))


def _spans_and_places(lengths: Iterable[int]) -> np.ndarray:
    """[2, n] positions from each to its sequence's end, and from its beginning."""
    places = [np.arange(length) for length in lengths]
    return np.stack([np.concatenate([one[::-1] for one in places]), np.concatenate(places)])


_BERT = ("input_ids", "attention_mask", "token_type_ids")


def _shifted(tokens: np.ndarray) -> np.ndarray:
    """[3, n - 1] input ids, weights of the labels, and labels of [2, n] ids and weights."""
    return np.stack([tokens[0, :-1], tokens[1, 1:], tokens[0, 1:]])


def _next_tokens(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    """Next-token rows of ids [n], [2, n] with weights, or [3, n] as they are."""
    if settings.short_seq_prob and settings.mode == "pretraining":
        rng = draws()
        if rng.random() < settings.short_seq_prob:
            plain = settings.rules.plain
            most = len(tokens) + 1 if plain else settings.max_seq_length
            tokens = tokens[..., : int(rng.integers(2, most))]
    rows = _shifted(tokens) if tokens.shape[0] == 2 and tokens.ndim > 1 else tokens
    pad_id = 0 if settings.mode == "nlg" else ids.pad_id
    return (loss_written(settings, lm_row(rows, settings.max_seq_length, pad_id)),)


def loss_written(settings: Settings, row: np.ndarray) -> np.ndarray:
    """Invert the loss mask of a row [F, S] where the settings ask for it."""
    if settings.inverted_mask:
        row[1] = row[1] == 0
    return row


def _side_by_side(
    settings: Settings, ids: RowVocabulary, group: Sequence[np.ndarray], draws: Draws
) -> Row:
    """Sequences side by side: [3, n] each, or [2, n], whose last token of all is a label alone."""
    del draws
    if settings.rules.plain:
        row = vsl_row(group, settings.max_seq_length, ids.pad_id)
    else:
        lengths = [*(piece.shape[1] for piece in group[:-1]), group[-1].shape[1] - 1]
        row = _with_spans(
            _shifted(np.concatenate(group, axis=1)), lengths, settings.max_seq_length, ids.pad_id
        )
    return (loss_written(settings, row),)


def _fim_row(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
    """Move the middles of the documents inside a row; what no longer fits at its end is cut."""
    rng, tokens = draws(), tokens[0] if tokens.ndim > 1 else tokens
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


def _moved(
    body: list[int], settings: Settings, ids: RowVocabulary, rng: np.random.Generator
) -> list[int]:
    _, tokenizer = current()
    if ids.fim is None:
        return body
    text = decode_inside(tokenizer, body, ids.fim[0])
    if "\ufffd" in text:  # the row's border cuts a character: leave it whole
        return body
    encode = lambda part: current_for_pieces().encode(part, add_special_tokens=False).ids
    return fill_in_the_middle(text, encode, rng, ids.fim, rng.random() < settings.spm_rate)


def _dynamic_mlm_row(
    settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws
) -> Row:
    """[CLS] tokens [SEP]; the tokens to hide are drawn anew at every reading."""
    del draws
    whole = np.array([ids.cls_id, *tokens, ids.sep_id], np.int32)
    rows = np.stack([whole, np.ones(len(whole), np.int32)])
    return (padded(rows, settings.max_seq_length, (ids.pad_id, 0)),)


def _nsp_row(settings: Settings, ids: RowVocabulary, pair: SentencePair, draws: Draws) -> Row:
    """[CLS] first [SEP] second [SEP], and whether the second text is a random one."""
    del draws
    tokens = np.array([ids.cls_id, *pair.first, ids.sep_id, *pair.second, ids.sep_id], np.int32)
    segments = np.arange(len(tokens)) >= len(pair.first) + 2
    rows = np.stack([tokens, np.ones(len(tokens), np.int32), segments.astype(np.int32)])
    label = np.full((1, 1), pair.is_random, np.int32)
    return padded(rows, settings.max_seq_length, (ids.pad_id, 0, 0)), label


def _t5_row(settings: Settings, ids: RowVocabulary, tokens: np.ndarray, draws: Draws) -> Row:
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


def _mlm_row(settings: Settings, ids: RowVocabulary, masked: Masked, draws: Draws) -> Row:
    del draws
    length = settings.max_seq_length
    rows = np.stack([masked.ids, np.ones_like(masked.ids)])
    fill = (ids.pad_id, 0)
    if settings.use_vsl:
        rows, fill = np.concatenate([rows, _spans_and_places(masked.lengths)]), (*fill, 0, 0)
    data = padded(rows, length, fill)
    if settings.mlm_with_gather:
        hidden = np.stack([masked.labels, masked.positions, np.ones_like(masked.labels)])
        return data, padded(hidden, _most(settings), (settings.ignore_index, 0, 0))
    labels = np.full((1, length), settings.ignore_index, np.int32)
    labels[0, masked.positions] = masked.labels
    return data, labels


def _most(settings: Settings) -> int:
    """Hidden tokens of a row at most."""
    return math.ceil(settings.mlm_fraction * settings.max_seq_length)


def _stream(settings: Settings, ids: RowVocabulary) -> Callable[[], Packer]:
    """The packer of next-token rows."""
    length, least, lossy = settings.max_seq_length, settings.min_sequence_len, settings.rules.lossy
    if settings.overlap:
        shape, mark = (length, 1), None
    else:
        shape, mark = (length + 1, 0), ids.eos_id if lossy else None
    if not settings.pack_sequences:
        return functools.partial(SinglePacker, *shape, max(least, 2), eos_id=mark)
    keep = not (lossy and settings.overlap)
    every = not settings.overlap
    return functools.partial(StreamPacker, *shape, least, every=every, eos_id=mark, flush=keep)


def layout_of(settings: Settings, ids: RowVocabulary, tokenizer: Tokenizer) -> RowLayout:
    """Choose the layout of a mode and objective of texts.

    Raises:
        DataError: a row too short for its mode, T5 targets longer than their row.
    """
    length, objective = settings.max_seq_length, settings.training_objective
    bind = lambda shape: functools.partial(shape, settings, ids)
    if settings.data_format == "corpus":
        return RowLayout((), Packer, lambda tokens, _: (tokens,))
    if objective in _OBJECTIVES:
        return _OBJECTIVES[objective](settings, ids, tokenizer)
    if settings.vsl:
        bins = functools.partial(
            BinPacker, length, settings.fold_long_doc, settings.min_sequence_len
        )
        pack = bins if settings.rules.plain else Packer
        return RowLayout((RowGroup("data", VSL_FEATURES, length),), pack, bind(_side_by_side))
    if settings.mode == "dpo":
        return RowLayout((RowGroup("data", PAIR_FEATURES, length),), Packer, lambda row, _: (row,))
    pack = _stream(settings, ids) if settings.mode == "pretraining" else Packer
    shape = _fim_row if objective == "fim" else _next_tokens
    return RowLayout((RowGroup("data", FEATURES, length),), pack, bind(shape), objective == "fim")


def _pieces(settings: Settings, length: int) -> Callable[[], Packer]:
    """The packer of rows that share no token."""
    least = settings.min_sequence_len
    if settings.pack_sequences:
        return functools.partial(StreamPacker, length, 0, least)
    return functools.partial(SinglePacker, length, 0, max(least, 2))


def _t5_layout(settings: Settings, ids: RowVocabulary, _: Tokenizer) -> RowLayout:
    length, target = settings.max_seq_length, settings.tgt_max_sequence_length
    spans = (settings.noise_density, settings.mean_noise_span_length)
    raw = longest_source(length, target, settings.extra_ids, *spans)
    targets = ("decoder_input_ids", "decoder_attention_mask", "labels")
    groups = (RowGroup("data_0", _BERT[:2], length), RowGroup("data_1", targets, target))
    return RowLayout(groups, _pieces(settings, raw), functools.partial(_t5_row, settings, ids))


def _room(settings: Settings, marks: int) -> int:
    """Tokens of a BERT row beside its marks."""
    if settings.max_seq_length < 5:
        raise DataError(
            f"max_seq_length: {settings.max_seq_length} leaves no room between [CLS] and [SEP]"
        )
    return settings.max_seq_length - marks


def _dynamic_mlm_layout(settings: Settings, ids: RowVocabulary, _: Tokenizer) -> RowLayout:
    group = RowGroup("data", _BERT[:2], settings.max_seq_length)
    pack = _pieces(settings, _room(settings, 2))
    return RowLayout((group,), pack, functools.partial(_dynamic_mlm_row, settings, ids))


def _nsp_layout(settings: Settings, ids: RowVocabulary, _: Tokenizer) -> RowLayout:
    groups = (
        RowGroup("data_0", _BERT, settings.max_seq_length),
        RowGroup("data_1", ("next_sentence_label",), 1),
    )
    pack = functools.partial(
        SentencePacker,
        _room(settings, 3),
        ids.eos_id,
        settings.short_seq_prob,
        settings.min_sequence_len,
        settings.seed,
    )
    return RowLayout(groups, pack, functools.partial(_nsp_row, settings, ids))


def _bert_layout(settings: Settings, ids: RowVocabulary, _: Tokenizer) -> RowLayout:
    length, first = settings.max_seq_length, settings.truncate_to_msl is True
    pack = functools.partial(
        SinglePacker, length, 0, max(settings.min_sequence_len, 1), first=first
    )
    rows = lambda tokens: np.concatenate([tokens, np.ones_like(tokens), np.zeros_like(tokens)])
    shape = lambda tokens, _: (padded(rows(tokens), length, (ids.pad_id, 0, 0)),)
    return RowLayout((RowGroup("data", _BERT, length),), pack, shape)


def _mlm_layout(settings: Settings, ids: RowVocabulary, tokenizer: Tokenizer) -> RowLayout:
    length, special = settings.max_seq_length, ids.special
    named = (special.cls, special.pad, special.eos, special.unk)
    special_ids = {tokenizer.token_to_id(name) for name in named if name} | {ids.pad_id, ids.eos_id}
    left_out = {tokenizer.token_to_id(name) for name in settings.excluded_tokens}
    allowed = [i for i in sorted(tokenizer.get_vocab().values()) if i not in left_out]
    pack = functools.partial(
        MaskPacker,
        settings.mlm_fraction,
        _most(settings),
        settings.seed,
        ids.mask_id or 0,
        special=frozenset(index for index in special_ids if index is not None),
        allowed=allowed,
    )
    spans = VSL_FEATURES[3:] if settings.use_vsl else ()
    labels = (
        RowGroup("labels", ("labels", "masked_lm_positions", "masked_lm_mask"), _most(settings))
        if settings.mlm_with_gather
        else RowGroup("labels", ("labels",), length)
    )
    groups = (RowGroup("data", (*_BERT[:2], *spans), length), labels)
    return RowLayout(groups, pack, functools.partial(_mlm_row, settings, ids))


_OBJECTIVES: dict[str | None, Callable[[Settings, RowVocabulary, Tokenizer], RowLayout]] = {
    "mlm": _mlm_layout,
    "bert_pretraining": _bert_layout,
    "dynamic_mlm": _dynamic_mlm_layout,
    "nsp": _nsp_layout,
    "t5": _t5_layout,
}
