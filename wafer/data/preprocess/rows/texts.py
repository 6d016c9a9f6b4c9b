"""Texts of pretraining as sequences: whole, in pieces, with weights, with images."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding

from wafer.data.preprocess.encode import count_marks, current_for_pieces, to_array
from wafer.data.preprocess.rows.batch import EncodingBatch
from wafer.data.preprocess.rows.hooks import Turns
from wafer.data.preprocess.rows.images import ImageSequence, expand_images, image_text
from wafer.data.preprocess.rows.packing import SinglePacker, ended
from wafer.data.preprocess.rows.regions import Document, text_document, weights_of
from wafer.data.preprocess.rows.sentences import sentences
from wafer.data.text.tokenizer import tokenizing

# A word's end, whose blank is the next token's beginning; where there is none, any one blank.
_JOINTS = (re.compile(r"\w(?=[ \n]\w)"), re.compile(r"\S(?=[ \n]\S)"))


def read_text_turns(batch: EncodingBatch, turns: Turns) -> Document | None:
    """Read turns as one text; None where there is none, or an image is missing."""
    document = batch.pictured(text_document(turns, batch.defaults)) if turns else None
    kept = document and (document.text or batch.settings.rules.plain)
    return document if kept else None


def ended_texts(batch: EncodingBatch, documents: Sequence[Document]) -> list[np.ndarray]:
    """[n] ids of each text, and the end mark."""
    ids = batch.plain_ids([document.text for document in documents])
    return batch.kept(to_array([*one, batch.ids.eos_id]) if one else None for one in ids)


def ended_sentences(batch: EncodingBatch, documents: Sequence[Document]) -> list[np.ndarray]:
    """[n] ids whose sentences end with the end mark; the mark itself is in no sentence."""
    eos = batch.ids.eos_id
    split = [sentences(document.text) for document in documents]
    unread = iter(batch.plain_ids([sentence for one in split for sentence in one]))
    rows = []
    for document in split:
        ids = [i for _ in document for i in (*(t for t in next(unread) if t != eos), eos)]
        rows.append(np.array(ids, np.int32) if set(ids) - {eos} else None)
    return batch.kept(rows)


def with_images(
    batch: EncodingBatch,
    documents: Sequence[Document],
    function: Callable[..., ImageSequence],
    chats: Sequence[bool] | None = None,
) -> list[ImageSequence]:
    """Sequences of documents with images; ``chats`` have no special tokens added."""

    def sequence(document: Document, encoding: Encoding) -> ImageSequence:
        expanded = expand_images(
            encoding.ids, encoding.offsets, document.images, batch.settings, batch.ids
        )
        return function(document, expanded, batch.ranges(expanded.offsets, document.regions))

    sequences = []
    for document, chat in zip(documents, chats or [False] * len(documents), strict=True):
        encoding = batch.encode([document.text], special=not chat)[0]
        image_sequence = batch.attempt(
            functools.partial(sequence, document, encoding), document.text, document.where
        )
        sequences += [] if image_sequence is None else [image_sequence]
    return sequences


def pretraining_sequences(batch: EncodingBatch, documents: Sequence[Document]) -> list[Any]:
    """Make sequences of documents by the objective: see ``documents``."""
    settings = batch.settings
    if settings.is_multimodal:
        return with_images(batch, documents, image_text)
    texts = [document.text for document in documents]
    if settings.training_objective in ("mlm", "bert_pretraining"):
        return _with_special(batch, texts)
    if settings.overlap:
        eos = batch.ids.eos_id
        whole = [np.array([*ids, eos], np.int32) for ids in _whole(batch, texts)]
        return _dropping(batch, whole, 1) if settings.vsl else whole
    if all(region.weight == 1 for document in documents for region in document.regions):
        sequences = _unweighted(batch, texts)  # no region's place matters
    else:
        tried = [
            batch.attempt(functools.partial(_weighted, batch, document, encoding), document)
            for document, encoding in zip(documents, batch.encode(texts), strict=True)
        ]
        sequences = [sequence for sequence in tried if sequence is not None]
    if not settings.rules.lossy:
        sequences = [ended(one, one.shape[1] + 1, batch.ids.eos_id) for one in sequences]
    return _dropping(batch, sequences, 0) if settings.vsl else sequences


def _unweighted(batch: EncodingBatch, texts: Sequence[str]) -> list[np.ndarray]:
    """[2, n] ids and weights 1, without special tokens at the end (a mark ends documents)."""
    stretches = [_stretches(text, batch.settings.read_chunk_size * 1024) for text in texts]
    with tokenizing("the tokenizer cannot encode a text of the input"):
        special = batch.tokenizer.encode("a").special_tokens_mask
        after = next((i for i, mark in enumerate(reversed(special)) if not mark), 0)
        encodings = batch.tokenizer.encode_batch_fast([next(pieces) for pieces in stretches])
        ids = [to_array(encoding.ids) for encoding in encodings]
        ids = [token_ids[: len(token_ids) - after] for token_ids in ids]
        for i, pieces in enumerate(stretches):
            more = (current_for_pieces().encode(p, add_special_tokens=False).ids for p in pieces)
            ids[i] = np.concatenate([ids[i], *map(to_array, more)])
    batch.count(marks=count_marks(ids, batch.tokenizer) - (sum(special) - after) * len(ids))
    whole = np.concatenate([*ids, np.empty(0, np.int32)])
    rows = np.stack([whole, np.ones_like(whole)])
    ends = itertools.accumulate(map(len, ids))
    return [rows[:, end - len(token_ids) : end] for token_ids, end in zip(ids, ends, strict=True)]


def _stretches(text: str, size: int) -> Iterator[str]:
    """A text that is longer than a chunk in stretches, so that encoding it takes little memory."""
    start = 0
    while len(text) - start > size:
        found = (joint.search(text, start + size, start + 2 * size) for joint in _JOINTS)
        end = next((joint.end() for joint in found if joint), start + size)
        yield text[start:end]
        start = end
    yield text[start:]


def _dropping(
    batch: EncodingBatch, documents: Iterable[np.ndarray], shared: int
) -> list[np.ndarray]:
    """[2, n] pieces of at most S + 1 tokens of all documents that are long enough.

    Pieces that share a token have no loss on the first.
    """
    settings = batch.settings
    width, least = settings.max_seq_length + 1, max(settings.min_sequence_len, 2)
    mark = batch.ids.eos_id if settings.rules.lossy and not shared else None
    packer = SinglePacker(width - shared, shared, least, eos_id=mark)
    pieces = [piece for document in documents for piece in packer.add(document)]
    batch.count(discarded=packer.discarded)
    if not shared:
        return pieces
    return [np.stack([piece, np.arange(len(piece)) > 0]).astype(np.int32) for piece in pieces]


def _weighted(batch: EncodingBatch, document: Document, encoding: Encoding) -> np.ndarray:
    """[2, n] ids and weights of the regions' tokens; the first region begins with the text."""
    regions = document.regions
    ranges = batch.ranges(encoding.offsets, regions)
    ranges[0] = (0, ranges[0][1])
    weights = weights_of(len(encoding.ids), regions, ranges)
    kept = np.concatenate([np.arange(first, end) for first, end in ranges])
    return np.stack([np.array(encoding.ids), weights])[:, kept].astype(np.int32)


def _whole(batch: EncodingBatch, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text; long texts in pieces where the settings ask for it."""
    settings = batch.settings
    if not settings.split_text_to_tokenize:
        return [encoding.ids for encoding in batch.encode(texts)]
    out = []
    for text in texts:
        encodings = batch.encode(list(_blank_pieces(text, settings.chunk_len_to_split)))
        first = int(settings.remove_bos_in_chunks)
        ids = encodings[0].ids[:first]
        out.append([*ids, *(i for encoding in encodings for i in encoding.ids[first:])])
    return out


def _blank_pieces(text: str, least: int) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find(" ", start + least)
        end = len(text) if end < 0 else end
        yield text[start:end]
        start = end


def _with_special(batch: EncodingBatch, texts: Sequence[str]) -> list[np.ndarray]:
    """Ids [1, n] with special tokens: rows of at most S, or a whole document for BERT."""
    settings = batch.settings
    if settings.training_objective == "bert_pretraining":
        return [np.array([encoding.ids], np.int32) for encoding in batch.encode(texts)]
    batch.tokenizer.enable_truncation(settings.max_seq_length)
    encodings = [
        [encoding, *([] if settings.rules.lossy else encoding.overflowing)]
        for encoding in batch.encode(texts)
    ]
    return [np.array([part.ids], np.int32) for one in encodings for part in one]
