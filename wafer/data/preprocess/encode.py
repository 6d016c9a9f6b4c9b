"""What a worker process does with a batch of records: mend the text, tokenize, mark the loss.

Light on purpose: a spawned worker imports only this, numpy and the tokenizer.
"""

import dataclasses
import functools
import os
import re
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wafer.data.batching.objectives import conversation
from wafer.data.preprocess.sentences import sentences
from wafer.data.preprocess.settings import RunSettings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.text.pieces import for_pieces
from wafer.data.text.tokenizer import tokenizing
from wafer.models.errors import optional


class ReadCounts(NamedTuple):
    """Sums over what is read."""

    records: int = 0  #: texts read
    skipped: int = 0  #: records that could not be read, or whose hook fails
    discarded: int = 0  #: records or rests too short or too long
    characters: int = 0  #: of the texts
    rows: int = 0  #: made so far, those not yet written included
    raw_bytes: int = 0  #: of the texts, in UTF-8; this and the next four where a hook makes them
    clean_characters: int = 0  #: of the mended texts
    clean_bytes: int = 0  #: of the mended texts, in UTF-8
    empty: int = 0  #: records without text
    sequences: int = 0  #: before they share rows
    marks: int = 0  #: special tokens that stood in the texts
    without_image: int = 0  #: records whose image is missing, or with too many

    def plus(self, **more: int) -> "ReadCounts":
        """Add to some of the sums."""
        return self._replace(**{key: getattr(self, key) + n for key, n in more.items()})


class Encoded(NamedTuple):
    """A batch of records in tokens."""

    sequences: list[Any]  #: per record [n] ids, or [3, n] ids, loss mask and labels
    counts: ReadCounts  #: besides the records that were read


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Everything an encoding depends on; small enough to send to a process."""

    settings: Any  #: the run's
    vocabulary: RowVocabulary  #: ids
    tokenizer: str  #: its JSON


_WIKITEXT = (  # in this order, which decides where two of them meet
    ("s '", "s'"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (r" @\.@ ", "."),
    *((rf" {re.escape(mark)} ", f"{mark} ") for mark in ":;.!?,"),
    (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r'"\s*([^"]*?)\s*"', r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" ° ", "°"),
    (" \n", "\n"),
    ("\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)


_LINES = re.compile(r"[^\n]*\n|[^\n]+")
# Lines that ftfy leaves as they are: printable ASCII without the sign that begins an entity.
_SOUND = re.compile(r"[\t\n -%'-~]*")


def fix_text(text: str, normalization: str | None) -> str:
    """``ftfy.fix_text``, which is asked only about lines that it may change."""
    if _SOUND.fullmatch(text):
        return text
    ftfy = optional("ftfy", "use_ftfy")
    entities: str | bool = "auto"
    out = []
    for line in _LINES.findall(text):
        if "<" in line:  # ftfy takes a text with tags for HTML, from there on
            entities = False
        sound = _SOUND.fullmatch(line)
        keys = {"unescape_html": entities, "normalization": normalization}
        out.append(line if sound else ftfy.fix_text(line, **keys))
    return "".join(out)


def detokenize_wikitext(text: str) -> str:
    """Undo the spaces and @-@ marks that WikiText puts around punctuation."""
    for pattern, replacement in _WIKITEXT:
        text = re.sub(pattern, replacement, text)
    return text


def mended(text: str, settings: RunSettings) -> str:
    """A text as ftfy and the detokenizer leave it."""
    if settings.use_ftfy:
        text = fix_text(text, settings.ftfy_normalizer)
    if settings.wikitext_detokenize:
        text = detokenize_wikitext(text)
    return text


_STATE: dict[str, object] = {}  # of this process: the encoder and its tokenizer


def start_worker(encoder: Encoder, parent: int | None) -> None:
    """Prepare this process.

    Args:
        encoder: what to encode with.
        parent: process to live and die with; None when this is the main process.
    """
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # several processes already share the cores
    tokenizer = Tokenizer.from_str(encoder.tokenizer)
    tokenizer.encode_special_tokens = encoder.settings.encode_special_tokens
    _STATE["encoder"] = encoder
    _STATE["tokenizer"] = tokenizer
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def _follow(parent: int) -> None:
    """End with the parent: a killed main process must not leave workers behind."""
    wait = threading.Event()
    while os.getppid() == parent:
        wait.wait(0.5)
    os._exit(1)


def current() -> tuple[Encoder, Tokenizer]:
    """What ``start_worker`` prepared."""
    encoder, tokenizer = _STATE["encoder"], _STATE["tokenizer"]
    if not isinstance(encoder, Encoder) or not isinstance(tokenizer, Tokenizer):
        raise RuntimeError("start_worker was not called in this process")
    return encoder, tokenizer


@functools.cache
def _for_pieces(tokenizer: str, encode_special_tokens: bool) -> Tokenizer:
    pieces = for_pieces(Tokenizer.from_str(tokenizer))
    pieces.encode_special_tokens = encode_special_tokens
    return pieces


def current_for_pieces() -> Tokenizer:
    """Return this process's tokenizer for pieces from inside a text; see ``for_pieces``."""
    encoder, tokenizer = current()
    return _for_pieces(encoder.tokenizer, tokenizer.encode_special_tokens)


def encode(records: Sequence[tuple[str, ...]]) -> Encoded:
    """Tokenize a batch of records, in their order."""
    encoder, tokenizer = current()
    settings = encoder.settings
    texts = [mended(text, settings) for record in records for text in record]
    if settings.contexts_key is not None:
        is_context = (i < len(r) - 2 for r in records for i in range(len(r)))
        separator = settings.context_separator
        texts = [t + separator * c for t, c in zip(texts, is_context, strict=True)]
    if settings.mode == "MLM_NSP":
        return _documents(texts, encoder, tokenizer)
    ids = _encoded(texts, tokenizer)
    if settings.mode.startswith("Summarization"):
        unread = iter(ids)
        read = [[next(unread) for _ in record] for record in records]
        row_of = _turns if settings.contexts_key is None else _with_contexts
        rows = [row_of(record, encoder) for record in read]
    else:
        eos = encoder.vocabulary.eos_id
        ids = [to_array(tokens) for tokens in ids]
        rows = [np.append(tokens, np.int32(eos)) if len(tokens) else None for tokens in ids]
    kept = [row for row in rows if row is not None]
    return _counted(rows, kept, texts, count_marks(ids, tokenizer))


def _encoded(texts: list[str], tokenizer: Tokenizer) -> list[list[int]]:
    with tokenizing("the tokenizer cannot encode a text of the input"):
        return [e.ids for e in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def to_array(ids: Sequence[int]) -> np.ndarray:
    """[n] int32 ids of a text."""
    return np.fromiter(ids, np.int32, len(ids))


def count_marks(texts: Sequence[Sequence[int] | np.ndarray], tokenizer: Tokenizer) -> int:
    """Count the special tokens in texts of [n] ids each."""
    added = tokenizer.get_added_tokens_decoder()
    special = np.zeros(max(added, default=-1) + 2, bool)  # the last is that of all larger ids
    special[[i for i, token in added.items() if token.special]] = True
    whole = np.concatenate([*texts, np.empty(0, np.int32)])
    return int(np.count_nonzero(special.take(whole.astype(np.intp), mode="clip")))


def _documents(texts: list[str], encoder: Encoder, tokenizer: Tokenizer) -> Encoded:
    """Documents whose sentences end with the end mark; the mark itself is in no sentence."""
    eos = encoder.vocabulary.eos_id
    split = [sentences(text) for text in texts]
    flat = [sentence for one in split for sentence in one]
    encoded = _encoded(flat, tokenizer)
    unread = iter(encoded)
    rows = []
    for one in split:
        ids = [i for _ in one for i in (*(t for t in next(unread) if t != eos), eos)]
        rows.append(np.array(ids, np.int32))
    kept = [row for row in rows if (row != eos).any()]
    return _counted(rows, kept, texts, count_marks(encoded, tokenizer))


def _counted(rows: Sequence[Any], kept: list[Any], texts: Sequence[str], marks: int) -> Encoded:
    discarded, characters = len(rows) - len(kept), sum(map(len, texts))
    return Encoded(kept, ReadCounts(discarded=discarded, characters=characters, marks=marks))


def _turns(texts: list[list[int]], encoder: Encoder) -> np.ndarray | None:
    """Rows of prompts and completions in turns; None when they do not fit or one is empty."""
    settings, ids = encoder.settings, encoder.vocabulary
    between = [] if ids.sep_id is None else [ids.sep_id]
    if settings.eos_after_prompt:
        between = [ids.eos_id, *between]
    asks, answers = ids.before
    pairs = zip(texts[::2], texts[1::2], strict=True)
    turns = [([*asks, *ask, *between, *answers], answer) for ask, answer in pairs]
    rows = conversation(turns, eos_id=ids.eos_id, pad_id=ids.pad_id)
    if settings.vsl:
        rows = rows[:, :-1]  # side by side, the end mark is a label only, as in other VSL rows
    length = rows.shape[1]
    short = sum(map(len, texts)) < settings.min_sequence_len
    return None if not all(texts) or short or length > settings.max_seq_length else rows


def _with_contexts(texts: list[list[int]], encoder: Encoder) -> np.ndarray | None:
    """Rows of a prompt behind as many of its contexts, the best first, as fit whole."""
    *contexts, ask, answer = texts
    if not ask:
        return None
    for count in range(len(contexts), -1, -1):
        before = [token for context in contexts[:count] for token in context]
        rows = _turns([[*before, *ask], answer], encoder)
        if rows is not None:
            return rows
    return None
