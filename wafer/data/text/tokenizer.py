"""Byte-level byte-pair tokenizers, trained on the spot, and the bytes each token stands for."""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models as bpe_models, pre_tokenizers, trainers

from wafer.data.text.textfiles import read_text
from wafer.errors import DataError
from wafer.models.convert.tokenizer import added_ids
from wafer.models.guarded import call_in_subprocess

END_OF_TEXT = "<|endoftext|>"
_TRIED = "".join(map(chr, range(32, 127))) + "\n\u00e9\u4e2d\U0001f600"
_MULTIPLE = 100  # tokens or characters made of one
# type of a step -> the most characters that it makes of one, in another form of the same text
_FORMS = {
    "NFKC": 18,
    "NFKD": 18,
    "NFC": 3,
    "NFD": 4,
    "BertNormalizer": 3,
    "Lowercase": 2,
    "ByteLevel": 4,
}
_MULTIPLE_OF_FORMS = 1_000  # XLNet's are NFKD, lower case and a charsmap
# a regex that begins with one character at least: no match of it is empty
_CONSUMING = re.compile(
    r"(?:[^\\\[\](){}*?+|^$]|\\[sSdDwWnrt]|\[[^\[\]\\&]+\])"
    r"(?:\+|\{[1-9][0-9]*(?:,[0-9]*)?\})?+(?![*?+{])(?:[^|\\]|\\[^K])*+"
)
_MOST_TOKENS = 1 << 24  # ids of a vocabulary
# GPT-2's words, which ByteLevel cuts texts into, where all letters are ASCII
_WORDS = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII
)


@contextlib.contextmanager
def tokenizing(problem: str) -> Iterator[None]:
    """Turn what the tokenizers library raises into one error.

    Raises:
        DataError: for plain ``Exception`` and for panics of Rust, which are not even that.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise DataError(f"{problem}: {error}") from None


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a lossless byte-level BPE; token 0 is the end-of-text mark.

    Args:
        texts: training documents.
        vocab_size: tokens in all, at least 257 (256 bytes and the end mark).

    Raises:
        ValueError: ``vocab_size`` cannot hold every byte.
    """
    if vocab_size < 257:
        raise ValueError(
            f"train_input.vocab_size: {vocab_size} cannot hold the 256 bytes and the "
            "end-of-text token; use 257 or more"
        )
    tokenizer = Tokenizer(bpe_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts word by word, each word once: a third of the time of ``encode_batch_fast``.

    Args:
        tokenizer: from ``train_bpe``; its end-of-text mark counts as text where a text has it.
        texts: what to encode.

    Returns:
        The ids of each text, the same as the tokenizer's own.
    """
    tokenizer.encode_special_tokens = True
    split = [_WORDS.findall(text) if text.isascii() else [text] for text in texts]
    words = list(dict.fromkeys(itertools.chain.from_iterable(split)))
    encoded = tokenizer.encode_batch_fast(words, add_special_tokens=False)
    ids = {word: e.ids for word, e in zip(words, encoded, strict=True)}
    return [list(itertools.chain.from_iterable(map(ids.__getitem__, parts))) for parts in split]


def load_tokenizer(path: str | pathlib.Path) -> Tokenizer:
    """Load a Hugging Face ``tokenizer.json``; truncation and padding saved in it are off.

    Raises:
        FileNotFoundError: no such file.
        DataError: it holds no tokenizer, or ids beyond any vocabulary or of other tokens.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"no tokenizer at {path}; expected a Hugging Face tokenizer.json")
    try:  # first where a crash of the library does no harm, and its panics are not printed
        largest = call_in_subprocess("wafer.data.text.tokenizer:largest_id", os.path.abspath(path))
    except ValueError as error:
        raise DataError(f"{path}: not a tokenizer.json ({error})") from None
    if largest >= _MOST_TOKENS:
        raise DataError(f"{path}: token id {largest}; expected ids below {_MOST_TOKENS:,}")
    tokenizer = _opened(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def largest_id(path: str) -> int:
    """The largest token id of a ``tokenizer.json``, -1 where it has none.

    Raises:
        DataError: the library cannot read it, or it multiplies texts.
        ValueError: an added token has another id than the library gives it.
    """
    with tokenizing("it cannot be read"):
        tokenizer = _opened(path)
        _require_bounded(tokenizer)
        ids = tokenizer.get_vocab()
    added_ids(json.loads(read_text(pathlib.Path(path))), ids)
    return max(ids.values(), default=-1)


def _require_bounded(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that may make far more of a text than it has characters."""
    parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder)
    for part in filter(None, parts):
        replaced = changed = 1.0  # stages multiply each other: a later one finds what one put in
        for stage in _stages(json.loads(part.__getstate__())):
            mapped = _longest_mapped(stage)
            _require_few("characters", max(mapped, len(stage.get("prepend", ""))), _MULTIPLE)
            replaced *= max(1, _put_for_one(stage))
            _require_few("characters", replaced, _MULTIPLE)
            changed *= max(mapped, _FORMS.get(stage["type"], 1))
            _require_few("characters", changed, _MULTIPLE_OF_FORMS)
    tokens = 0
    with contextlib.suppress(DataError), tokenizing(""):  # one without a token for them all
        tokens = len(tokenizer.encode(_TRIED).ids)
    _require_few("tokens", tokens, _MULTIPLE, len(_TRIED))


def _require_few(what: str, made: float, most: int, characters: int = 1) -> None:
    if made > most * characters:
        raise DataError(f"it makes {made:,.0f} {what} out of {characters} characters")


def _stages(component: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer, pre-tokenizer or decoder, those of sequences one by one."""
    inner = [component.get(key, ()) for key in ("normalizers", "pretokenizers", "decoders")]
    if not any(inner):
        yield component
    for stage in itertools.chain(*inner):
        yield from _stages(stage)


def _put_for_one(stage: Mapping[str, Any]) -> float:
    """Count the characters that a replacement puts in place of one, at most."""
    if "content" in stage and "pattern" in stage:
        inserted, pattern = len(stage["content"]), stage["pattern"]
        if "Regex" in pattern:
            return inserted if _CONSUMING.fullmatch(pattern["Regex"]) else inserted + 1
        return inserted / len(pattern["String"]) if pattern["String"] else inserted + 1
    # a decoder that finds '' puts a space before each character
    return 2 if "" in (stage.get("suffix"), stage.get("word_delimiter_token")) else 1


def _longest_mapped(stage: Mapping[str, Any]) -> int:
    charsmap = base64.b64decode(stage.get("precompiled_charsmap") or "")
    trie = 4 + int.from_bytes(charsmap[:4], "little")  # SentencePiece's: size, trie, texts
    return max(len(text.decode(errors="replace")) for text in charsmap[trie:].split(b"\0"))


def _opened(path: str | pathlib.Path) -> Tokenizer:
    """Read the file without a byte order mark, which the library refuses."""
    return Tokenizer.from_str(read_text(pathlib.Path(path)))


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """[V] int32: UTF-8 bytes each token stands for; the end mark counts 1 (its newline).

    A byte-level token spells each byte as one character, so its length is its byte count.
    """
    ids = tokenizer.get_vocab()
    sizes = np.zeros(max(ids.values(), default=-1) + 1, np.int32)  # ids may have gaps
    for token, index in ids.items():
        sizes[index] = 1 if token == END_OF_TEXT else len(token)
    return sizes
