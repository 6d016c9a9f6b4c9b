"""Prompts with answers as sequences: conversations, pairs encoded apart, token ids, with images."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Encoding

from wafer.data.batching.objectives import conversation
from wafer.data.preprocess.rows.batch import EncodingBatch
from wafer.data.preprocess.rows.chat import render_chat
from wafer.data.preprocess.rows.image_hooks import Turn, Turns
from wafer.data.preprocess.rows.images import image_sequence
from wafer.data.preprocess.rows.preferences import preference_rows
from wafer.data.preprocess.rows.prompted_images import PromptedImage, prompted_image_row
from wafer.data.preprocess.rows.regions import (
    Document,
    TextRegion,
    chat_document,
    is_chat,
    pair_document,
    stretch_over_ends,
    truncation,
    weights_of,
)
from wafer.data.preprocess.rows.texts import with_images
from wafer.errors import DataError


class Apart(NamedTuple):
    """A record whose texts are encoded apart."""

    contexts: list[str]
    texts: list[str]  #: prompts and completions in turn


def read_apart(batch: EncodingBatch, turns: Turns) -> Apart:
    """Read prompts and completions, and the contexts before them, as texts."""
    texts: dict[bool, list[str]] = {True: [], False: []}
    for turn in turns:
        texts[turn["type"] == "context"].append(batch.clean(turn["content"][0]["text"]))
    separator = batch.settings.context_separator
    return Apart([text + separator for text in texts[True]], texts[False])


def pair_rows(batch: EncodingBatch, pairs: Sequence[Apart]) -> list[np.ndarray]:
    """[3, n] rows of prompts and completions in turn."""
    texts = [text for p in pairs for text in (*p.contexts, *p.texts)]
    unread = iter(batch.plain_ids(texts))
    ids = [([next(unread) for _ in p.contexts], [next(unread) for _ in p.texts]) for p in pairs]
    return batch.kept(_paired(batch, *pair) for pair in ids)


def _paired(
    batch: EncodingBatch, contexts: Sequence[list[int]], texts: Sequence[list[int]]
) -> np.ndarray | None:
    """A row behind as many contexts, the best first, as fit whole; None where one is empty."""
    settings, ids = batch.settings, batch.ids
    if not all(texts):
        return None
    for count in range(len(contexts), -1, -1):
        before = [i for context in contexts[:count] for i in context]
        asks = [[*before, *texts[0]], *texts[2::2]]
        turns = [
            ([*ids.before_prompt, *ask, *ids.after_prompt, *ids.before_answer], answer)
            for ask, answer in zip(asks, texts[1::2], strict=True)
        ]
        rows = conversation(turns, eos_id=ids.eos_id, pad_id=ids.pad_id)
        if settings.vsl:
            rows = rows[:, :-1]  # side by side, the end mark is a label only
        size = len(before) + sum(map(len, texts))
        if size >= settings.min_sequence_len and rows.shape[1] <= settings.max_seq_length:
            return rows
    return None


def read_conversation(batch: EncodingBatch, turns: Turns) -> tuple[Document, bool] | None:
    """Read a conversation as a document, and whether it went through a chat template."""
    if not turns:
        return None
    settings, special, chat = batch.settings, batch.special, is_chat(turns)
    if chat:
        render = lambda messages: render_chat(
            special.chat_template or "", messages, special.names()
        )
        document = chat_document(turns, batch.defaults, render)
    else:
        given = settings.sep_token
        after = special.sep or "<|sep|>" if given is None else given
        after = {"prompt": after, "completion": special.eos or ""}
        document = pair_document(turns, batch.defaults, after)
    document = batch.pictured(document)
    if document is None:
        return None
    mark = settings.end_of_turn_token or special.eos
    image = batch.image_mark
    return stretch_over_ends(document, mark, chat=chat, image_mark=image), chat


def finetuning_sequences(batch: EncodingBatch, docs: Sequence[tuple[Document, bool]]) -> list[Any]:
    """Make [2, n] ids and weights of documents, or sequences with images."""
    settings = batch.settings
    if settings.is_multimodal:
        documents, chats = [document for document, _ in docs], [chat for _, chat in docs]
        sequences = with_images(batch, documents, image_sequence, chats)
        fits = range(settings.min_sequence_len, settings.max_seq_length + 1)
        return batch.kept(one if one.tokens.shape[1] in fits else None for one in sequences)
    encodings = [batch.encode([document.text], special=not chat)[0] for document, chat in docs]
    rows = [
        batch.attempt(functools.partial(_supervised, batch, d, e), d)
        for (d, _), e in zip(docs, encodings, strict=True)
    ]
    return batch.kept(row if row.size else None for row in rows if row is not None)


def _supervised(batch: EncodingBatch, document: Document, encoding: Encoding) -> np.ndarray:
    """[2, n] ids and weights; empty where the document is too short or too long."""
    settings, count = batch.settings, len(encoding.ids)
    ranges = batch.ranges(encoding.offsets, document.regions)
    weights = weights_of(count, document.regions, ranges)
    rows = np.stack([np.array(encoding.ids), weights]).astype(np.int32)
    nothing = rows[:, :0]
    if count < settings.min_sequence_len:
        return nothing
    if count <= settings.max_seq_length:
        return rows
    shorten = settings.truncation
    if shorten is None:
        return nothing
    keep_mask = truncation(
        count,
        document.regions,
        ranges,
        length=settings.max_seq_length,
        least=shorten.max_turn_length or settings.max_seq_length,
        keep_start=shorten.prompt_truncation_mode == "keep_start",
    )
    return nothing if keep_mask is None else rows[:, keep_mask]


def read_preferences(batch: EncodingBatch, turns: Turns) -> np.ndarray | None:
    """Read a chosen and a rejected answer as [6, S] rows; None where there is none."""
    if not turns:
        return None
    texts = {turn["type"]: str(turn["content"][0]["text"]).strip() for turn in turns}
    settings, special = batch.settings, batch.special
    render = lambda messages: batch.clean(
        render_chat(special.chat_template or "", messages, special.names())
    )
    special_too = settings.rules.answer_marks
    encode = lambda text: batch.encode([text], special=special_too)[0].ids
    begin = batch.tokenizer.token_to_id(special.bos or special.eos or "")
    return preference_rows(texts, render, encode, settings, batch.ids, begin=begin)


def read_prompted_image(batch: EncodingBatch, turns: Turns) -> tuple[PromptedImage | None] | None:
    """A row, or None in a tuple where it is too long."""
    images = [TextRegion(0, 0, 0, path=turn["image"]) for turn in turns if "image" in turn]
    document = batch.pictured(Document("", [], tuple(images))) if turns else None
    if document is None:
        return None
    texts = [batch.clean(_first_value(turn)) for turn in turns]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    path = images[0].path if images else ""
    return (prompted_image_row(pairs, path, batch.tokenizer, batch.settings, batch.ids),)


def fitting_rows(
    batch: EncodingBatch, rows: Sequence[tuple[PromptedImage | None]]
) -> list[PromptedImage]:
    """Return the rows that are not too long."""
    return batch.kept(row for (row,) in rows)


def read_ids(batch: EncodingBatch, turns: Turns) -> np.ndarray | None:
    """[3, n] ids, loss mask and labels of ids of a context and a completion; None without labels.

    Raises:
        DataError: something else than ids, or too many.
    """
    if not turns:
        return None
    context, completion = (_ids(turn, batch.ids.size) for turn in turns[:2])
    ids = np.array([*context, *completion])
    if not completion or len(ids) < 2:
        return None
    if len(ids) - 1 > batch.settings.max_seq_length:
        raise DataError(
            f"{len(ids) - 1} tokens of context and completion, but max_seq_length is "
            f"{batch.settings.max_seq_length}"
        )
    mask = np.arange(len(ids) - 1) >= max(len(context) - 1, 1)
    return np.stack([ids[:-1], mask, ids[1:]]).astype(np.int32)


def _first_value(turn: Turn) -> Any:
    """The first region of a turn, as its hook gave it."""
    return next(value for key, value in turn["content"][0].items() if key != "include_tags")


def _ids(turn: Turn, size: int) -> list[int]:
    value = _first_value(turn)
    try:
        ids = [-1 if isinstance(token, bool) else operator.index(token) for token in value]
    except TypeError:
        ids = [-1]
    if any(not 0 <= token < size for token in ids):
        raise DataError(
            f"mode nlg: the {turn['type']} is {str(value)[:40]!r}; expected token ids "
            f"below the tokenizer's vocabulary of {size}, as "
            'in {"context": [464, 2068], "completion": [7586, 21831]}. For texts: mode: '
            "finetuning, read_hook: prompt_completion"
        )
    return ids
