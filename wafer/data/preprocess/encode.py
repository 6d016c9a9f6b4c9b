"""A worker process: its settings and tokenizer, what it counts, how it mends texts."""

import dataclasses
import functools
import os
import re
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.text.pieces import for_pieces
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


class Encoded(NamedTuple):
    """A batch of records in tokens."""

    sequences: list[Any]  #: per record [n] ids, or [3, n] ids, loss mask and labels
    counts: ReadCounts  #: besides the records that were read


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Everything an encoding depends on; small enough to send to a process."""

    settings: Settings  #: the run's
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


def mended(text: str, settings: Settings) -> str:
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
