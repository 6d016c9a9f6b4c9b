"""What a worker process does with records of a vendor's file: hook, regions, tokens, loss weights.

A sequence is [2, n]: ids and loss weights. With VSL it is a list of them, which share a row.
"""

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from wafer.data.preprocess.encode import (
    Encoded,
    Encoder,
    ReadCounts,
    count_marks,
    current,
    current_for_pieces,
    mended,
    to_array,
)
from wafer.data.preprocess.records import TextRecord
from wafer.data.text.tokenizer import tokenizing
from wafer.data.vendor.hooks import Turns, load_hook
from wafer.data.vendor.rows.id_lists import first_value, id_rows
from wafer.data.vendor.rows.images import (
    ImageSequence,
    expand_images,
    has_images,
    image_sequence,
    image_text,
)
from wafer.data.vendor.rows.old_llava import OldImageRow, old_image_row
from wafer.data.vendor.rows.pieces import cut, merge_backward, next_fit
from wafer.data.vendor.rows.preferences import preference_rows
from wafer.data.vendor.rows.regions import (
    Defaults,
    Document,
    TextRegion,
    chat_document,
    is_chat,
    pair_document,
    stretch_over_ends,
    text_document,
    token_ranges,
    truncation,
    weights_of,
)
from wafer.data.vendor.settings import HookSettings
from wafer.data.vendor.special import render_chat
from wafer.errors import DataError

_LOG = logging.getLogger(__name__)
# A word's end, whose blank is the next token's beginning; where there is none, any one blank.
_JOINTS = (re.compile(r"\w(?=[ \n]\w)"), re.compile(r"\S(?=[ \n]\S)"))


class _Batch:
    """One batch of records on its way to sequences, and what is counted on the way.

    Args:
        encoder: the run's, with settings of a vendor's file.
        tokenizer: of this process.
    """

    def __init__(self, encoder: Encoder, tokenizer: Tokenizer) -> None:
        settings = encoder.settings
        if not isinstance(settings, HookSettings):
            raise TypeError(f"expected settings with a read hook, got {type(settings).__name__}")
        self.settings, self.ids, self.tokenizer = settings, encoder.vocabulary, tokenizer
        self.special = encoder.vocabulary.special
        self.counts, self.left_out, self._where = ReadCounts(), list[str](), ""
        weights, drops = settings.semantic_loss_weight, settings.semantic_drop_mask
        attentions = settings.semantic_attention_mask
        self.image_mark = settings.image_token if settings.is_multimodal else ""
        self.defaults = Defaults(weights, drops, self.clean, attentions, self.image_mark)

    def count(self, **more: int) -> None:
        """Add to the sums."""
        self.counts = self.counts.plus(**more)

    def clean(self, text: str) -> str:
        """Mend a text and count it."""
        if not isinstance(text, str):
            raise DataError(f"read_hook: a region is {type(text).__name__}; expected text")
        clean = mended(text, self.settings)
        self.count(
            characters=len(text),
            raw_bytes=_utf8(text),
            clean_characters=len(clean),
            clean_bytes=_utf8(clean),
        )
        return clean

    def attempt(self, function: Callable[[], Any], what: Any, where: str = "") -> Any:
        """Call a function for one record; None where it is left out.

        Args:
            function: makes what the record becomes.
            what: the record, or a document of it, which errors show.
            where: the record's file and number; a document has them.

        Raises:
            DataError: it fails, and bad records are not to be skipped.
        """
        where = self._where = what.where if isinstance(what, Document) else where
        try:
            made = function()
        except Exception as error:  # a hook is the user's program: it raises anything
            shown = " ".join(repr(what).split())[:80]
            problem = error if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
            message = (
                f"{where}: read_hook {self.settings.read_hook}: {problem}; the record is {shown}"
            )
            if not self.settings.skip_bad_records:
                raise DataError(
                    f"{message}. To leave such records out: --skip_bad_records true"
                ) from None
            self.left_out.append(message)
            self.count(records=-1, skipped=1)
            return None
        if made is None:
            self.count(empty=1)
        return made

    def pictured(self, document: Document | None) -> Document | None:
        """A document whose images can be read; None for any other."""
        if document is None or has_images(document.images, self.settings):
            return document and document._replace(where=self._where)
        self.count(without_image=1)
        return None

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[Encoding]:
        """Tokens with their characters."""
        with tokenizing("the tokenizer cannot encode a text of the input"):
            return self.tokenizer.encode_batch(list(texts), add_special_tokens=special)


def encode_examples(records: Sequence[TextRecord]) -> Encoded:
    """Turn a batch of records into sequences, in their order."""
    encoder, tokenizer = current()
    batch = _Batch(encoder, tokenizer)
    settings = batch.settings
    hook = load_hook(settings.read_hook, settings.read_hook_kwargs, settings.rules.release)
    names = settings.fields
    examples = [
        (dict(zip(names, piece, strict=True)), record.where)
        for record in records
        for piece in _cut(record, batch)
    ]
    make, rows = _MODES["old_images" if settings.old_images else settings.mode]
    made = [batch.attempt(lambda e=one: make(batch, hook(e)), one, at) for one, at in examples]
    sequences = rows(batch, [one for one in made if one is not None])
    if settings.vsl:
        backward = settings.mode == "finetuning" or settings.rules.release < (2, 4)
        batch.count(sequences=len(sequences))
        sequences = (merge_backward if backward else next_fit)(sequences, settings.max_seq_length)
    if batch.left_out:
        _LOG.warning("%s record(s) left out, the first: %s", len(batch.left_out), batch.left_out[0])
    return Encoded(sequences, batch.counts)


def _utf8(text: str) -> int:
    """Bytes of a text."""
    return len(text) if text.isascii() else len(text.encode())


def _cut(record: tuple[Any, ...], batch: _Batch) -> Iterator[tuple[Any, ...]]:
    """A record; the vendor's rows have one text longer than a chunk in pieces, by paragraphs."""
    size, text = batch.settings.read_chunk_size * 1024, record[0]
    whole = len(record) > 1 or not isinstance(text, str) or _utf8(text) <= size
    if whole or not batch.settings.rules.exact:
        yield record
        return
    while len(text.encode()) > size:
        paragraph = text.rfind("\n\n", 0, size)
        sentence = max(text.rfind(mark, 0, size) for mark in ".!?")
        end = paragraph + 2 if paragraph >= 0 else sentence + 1 or min(size, len(text))
        yield (text[:end],)
        text = text[end:]
    if text:
        yield (text,)


def _text(batch: _Batch, turns: Turns) -> Document | None:
    document = batch.pictured(text_document(turns, batch.defaults)) if turns else None
    return document if document and document.text else None


def _pretraining(batch: _Batch, documents: Sequence[Document]) -> list[Any]:
    settings = batch.settings
    if settings.is_multimodal:
        return _with_images(batch, documents, image_text)
    texts = [document.text for document in documents]
    if settings.training_objective in ("mlm", "bert_pretraining"):
        return _with_special(batch, texts)
    width, eos = settings.max_seq_length + 1, batch.ids.eos_id
    if settings.overlapping:
        whole = [np.array([*ids, eos], np.int32) for ids in _whole(batch, texts)]
        return (
            _dropping(batch, map(_folded, whole, [width] * len(whole))) if settings.vsl else whole
        )
    if all(region.weight == 1 for document in documents for region in document.regions):
        made = _plain(batch, texts)  # no region's place matters
    else:
        tried = [
            batch.attempt(lambda d=document, e=encoding: _weighted(batch, d, e), document)
            for document, encoding in zip(documents, batch.encode(texts), strict=True)
        ]
        made = [sequence for sequence in tried if sequence is not None]
    if not settings.vsl:
        return made
    return _dropping(batch, (cut(one, width, eos, settings.rules.exact) for one in made))


def _plain(batch: _Batch, texts: Sequence[str]) -> list[np.ndarray]:
    """[2, n] ids and weights 1, without special tokens at the end (a mark ends documents)."""
    stretches = [_stretches(text, batch.settings.chunk_bytes) for text in texts]
    with tokenizing("the tokenizer cannot encode a text of the input"):
        special = batch.tokenizer.encode("a").special_tokens_mask
        after = next((i for i, mark in enumerate(reversed(special)) if not mark), 0)
        encodings = batch.tokenizer.encode_batch_fast([next(parts) for parts in stretches])
        ids = [to_array(encoding.ids) for encoding in encodings]
        ids = [one[: len(one) - after] for one in ids]
        for i, parts in enumerate(stretches):
            more = (current_for_pieces().encode(p, add_special_tokens=False).ids for p in parts)
            ids[i] = np.concatenate([ids[i], *map(to_array, more)])
    batch.count(marks=count_marks(ids, batch.tokenizer) - (sum(special) - after) * len(ids))
    whole = np.concatenate([*ids, np.empty(0, np.int32)])
    rows = np.stack([whole, np.ones_like(whole)])
    ends = itertools.accumulate(map(len, ids))
    return [rows[:, end - len(one) : end] for one, end in zip(ids, ends, strict=True)]


def _stretches(text: str, size: int) -> Iterator[str]:
    """A text that is longer than a chunk in stretches, so that encoding it takes little memory."""
    start = 0
    while len(text) - start > size:
        found = (joint.search(text, start + size, start + 2 * size) for joint in _JOINTS)
        end = next((joint.end() for joint in found if joint), start + size)
        yield text[start:end]
        start = end
    yield text[start:]


def _dropping(batch: _Batch, documents: Iterable[list[np.ndarray]]) -> list[np.ndarray]:
    """The pieces of all documents that are long enough."""
    least = max(batch.settings.min_sequence_len, 2)
    kept = [[piece for piece in one if piece.shape[1] >= least] for one in documents]
    batch.count(discarded=sum(not one for one in kept))
    return [piece for one in kept for piece in one]


def _folded(ids: np.ndarray, width: int) -> list[np.ndarray]:
    """[2, n] pieces that share one token; none predicts the first token of the next (2.3)."""
    weights = np.ones((1, width), np.int32)
    weights[0, 0] = 0
    pieces = [ids[None, i : i + width] for i in range(0, len(ids), width - 1)]
    return [np.concatenate([piece, weights[:, : piece.shape[1]]]) for piece in pieces]


def _weighted(batch: _Batch, document: Document, encoding: Encoding) -> np.ndarray:
    """[2, n] ids and weights of the regions' tokens; the first region begins with the text."""
    regions = document.regions
    by_gaps = batch.settings.rules.release >= (2, 7)
    ranges = token_ranges(encoding.offsets, regions, by_gaps=by_gaps)
    ranges[0] = (0, ranges[0][1])
    weights = weights_of(len(encoding.ids), regions, ranges)
    kept = np.concatenate([np.arange(first, end) for first, end in ranges])
    return np.stack([np.array(encoding.ids), weights])[:, kept].astype(np.int32)


def _whole(batch: _Batch, texts: Sequence[str]) -> list[list[int]]:
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


def _with_special(batch: _Batch, texts: Sequence[str]) -> list[np.ndarray]:
    """Ids [1, n] with special tokens: rows of at most S, or a whole document for BERT."""
    settings = batch.settings
    if settings.training_objective == "bert_pretraining":
        return [np.array([encoding.ids], np.int32) for encoding in batch.encode(texts)]
    batch.tokenizer.enable_truncation(settings.max_seq_length)
    parts = [
        [encoding, *([] if settings.rules.exact else encoding.overflowing)]
        for encoding in batch.encode(texts)
    ]
    return [np.array([part.ids], np.int32) for one in parts for part in one]


def _conversation(batch: _Batch, turns: Turns) -> tuple[Document, bool] | None:
    if not turns:
        return None
    settings, special, chat = batch.settings, batch.special, is_chat(turns)
    if chat:
        render = lambda messages: render_chat(
            special.chat_template or "", messages, special.names()
        )
        document = chat_document(turns, batch.defaults, render)
    else:
        after = {"prompt": separator(settings, special.sep), "completion": special.eos or ""}
        document = pair_document(turns, batch.defaults, after)
    document = batch.pictured(document)
    if document is None:
        return None
    mark = settings.end_of_turn_token or special.eos
    image = batch.image_mark
    return stretch_over_ends(document, mark, chat=chat, image_mark=image), chat


def separator(settings: HookSettings, own: str | None) -> str:
    """The text after a prompt."""
    given = "sep_token" in settings.model_fields_set
    return (settings.sep_token or "") if given else own or "<|sep|>"


def _with_images(
    batch: _Batch,
    documents: Sequence[Document],
    function: Callable[..., ImageSequence],
    chats: Sequence[bool] | None = None,
) -> list[ImageSequence]:
    """Sequences of documents with images; ``chats`` have no special tokens added."""
    settings = batch.settings
    by_gaps = settings.rules.release >= (2, 7)

    def sequence(document: Document, encoding: Encoding) -> ImageSequence:
        expanded = expand_images(
            encoding.ids, encoding.offsets, document.images, settings, batch.ids
        )
        ranges = token_ranges(expanded.offsets, document.regions, by_gaps=by_gaps)
        return function(document, expanded, ranges)

    sequences = []
    for document, chat in zip(documents, chats or [False] * len(documents), strict=True):
        encoding = batch.encode([document.text], special=not chat)[0]
        made = batch.attempt(
            lambda d=document, e=encoding: sequence(d, e), document.text, document.where
        )
        sequences += [] if made is None else [made]
    return sequences


def _finetuning(batch: _Batch, made: Sequence[tuple[Document, bool]]) -> list[Any]:
    settings = batch.settings
    if settings.is_multimodal:
        documents, chats = [document for document, _ in made], [chat for _, chat in made]
        sequences = _with_images(batch, documents, image_sequence, chats)
        fits = range(settings.min_sequence_len, settings.max_seq_length + 1)
        fitting = [one for one in sequences if one.tokens.shape[1] in fits]
        batch.count(discarded=len(sequences) - len(fitting))
        return fitting
    encodings = [batch.encode([document.text], special=not chat)[0] for document, chat in made]
    rows = [
        batch.attempt(lambda d=d, e=e: _supervised(batch, d, e), d)
        for (d, _), e in zip(made, encodings, strict=True)
    ]
    kept = [row for row in rows if row is not None and row.size]
    batch.count(discarded=sum(row is not None and not row.size for row in rows))
    return kept


def _supervised(batch: _Batch, document: Document, encoding: Encoding) -> np.ndarray:
    """[2, n] ids and weights; empty where the document is too short or too long."""
    settings, count = batch.settings, len(encoding.ids)
    by_gaps = settings.rules.release >= (2, 7)
    ranges = token_ranges(encoding.offsets, document.regions, by_gaps=by_gaps)
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
    kept = truncation(
        count,
        document.regions,
        ranges,
        length=settings.max_seq_length,
        least=shorten.max_turn_length or settings.max_seq_length,
        keep_start=shorten.prompt_truncation_mode == "keep_start",
    )
    return nothing if kept is None else rows[:, kept]


def _as_they_are(batch: _Batch, made: Sequence[Any]) -> list[Any]:
    del batch
    return list(made)


def _preferred(batch: _Batch, turns: Turns) -> np.ndarray | None:
    if not turns:
        return None
    texts = {turn["type"]: str(turn["content"][0]["text"]).strip() for turn in turns}
    settings, special = batch.settings, batch.special
    render = lambda messages: batch.clean(
        render_chat(special.chat_template or "", messages, special.names())
    )
    special_too = settings.rules.release < (2, 5)
    encode = lambda text: batch.encode([text], special=special_too)[0].ids
    begin = batch.tokenizer.token_to_id(special.bos or special.eos or "")
    return preference_rows(texts, render, encode, settings, batch.ids, begin=begin)


def _old_image(batch: _Batch, turns: Turns) -> tuple[OldImageRow | None] | None:
    """A row, or None in a tuple where it is too long."""
    images = [TextRegion(0, 0, 0, path=turn["image"]) for turn in turns if "image" in turn]
    document = batch.pictured(Document("", [], tuple(images))) if turns else None
    if document is None:
        return None
    texts = [batch.clean(first_value(turn)) for turn in turns]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    path = images[0].path if images else ""
    return (old_image_row(pairs, path, batch.tokenizer, batch.settings, batch.ids),)


def _fitting(batch: _Batch, rows: Sequence[tuple[OldImageRow | None]]) -> list[OldImageRow]:
    fitting = [row for (row,) in rows if row is not None]
    batch.count(discarded=len(rows) - len(fitting))
    return fitting


_MODES: dict[str, tuple[Callable[..., Any], Callable[..., list[Any]]]] = {
    "pretraining": (_text, _pretraining),
    "finetuning": (_conversation, _finetuning),
    "dpo": (_preferred, _as_they_are),
    "nlg": (lambda b, turns: id_rows(turns, b.settings.max_seq_length, b.ids.size), _as_they_are),
    "old_images": (_old_image, _fitting),
}
"""Mode -> how a record's turns are read, and how a batch of that becomes sequences."""
