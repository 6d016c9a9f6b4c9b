"""The user's own vocabulary: WordPiece from vocab.txt, or any tokenizer.json."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models as token_models, normalizers, pre_tokenizers

from wafer.data.sections.base import InputSection
from wafer.data.text.textfiles import ending, read_text, text_lines
from wafer.data.text.tokenizer import load_tokenizer, tokenizing
from wafer.errors import DataError
from wafer.models.convert.tokenizer import special_ids

_CHUNK = 10_000  # texts that are tokenized at once


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A tokenizer and the file it came from."""

    tokenizer: Tokenizer  #: without special tokens added by itself
    path: pathlib.Path  #: the file, for errors

    @property
    def size(self) -> int:
        """V, tokens in the vocabulary."""
        return self.tokenizer.get_vocab_size()

    def id_of(self, *names: str) -> int:
        """Id of the first of these tokens that the vocabulary has.

        Raises:
            DataError: it has none of them.
        """
        for name in names:
            index = self.tokenizer.token_to_id(name)
            if index is not None:
                return index
        raise DataError(f"{self.path}: no token {' or '.join(names)}; this data needs one")

    def mark(self, section: InputSection, key: str) -> int:
        """Id of the token that a key of a section names.

        Where the section leaves the key out and the vocabulary lacks its default, the files beside
        the vocabulary decide, as they do for ``wafer generate``.

        Args:
            section: the input section.
            key: ``eos_token`` or ``bos_token``.

        Raises:
            DataError: there is no such token.
        """
        name = getattr(section, key)
        if key not in section.model_fields_set and self.tokenizer.token_to_id(name) is None:
            named = special_ids(self.path.parent).get(f"{key}_id")
            if named is not None:
                return named[0] if isinstance(named, list) else named
        return self.id_of(name)

    @property
    def cls(self) -> int:
        """Id that begins a sequence."""
        return self.id_of("[CLS]", "<s>", "[cls]")

    @property
    def sep(self) -> int:
        """Id that ends a text."""
        return self.id_of("[SEP]", "</s>", "[sep]")

    @property
    def pad(self) -> int:
        """Id of padding; anything does, no model reads it."""
        index = self.tokenizer.token_to_id("[PAD]")
        return 0 if index is None else index

    @property
    def marks(self) -> tuple[int, int, int]:
        """Ids around a text: ``cls``, ``sep`` and ``pad``."""
        return self.cls, self.sep, self.pad

    @property
    def json(self) -> str | None:
        """Text of a tokenizer.json; None for other files."""
        return read_text(self.path) if ending(self.path) == ".json" else None

    def _encoded(self, encode: Callable[..., Any], texts: str | list[str]) -> Any:
        with tokenizing(f"{self.path}: the tokenizer cannot encode a text of the input"):
            return encode(texts, add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, no special tokens."""
        return self._encoded(self.tokenizer.encode, text).ids

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids [n] int32 of every text, on all cores and without a Python object per token."""
        ids = []
        for start in range(0, len(texts), _CHUNK):
            part = list(texts[start : start + _CHUNK])
            encoded = self._encoded(self.tokenizer.encode_batch_fast, part)
            ids += [np.asarray(e.ids, np.int32) for e in encoded]
        return ids

    def encode_rows(self, rows: Sequence[Sequence[str]]) -> list[list[np.ndarray]]:
        """Ids of the texts of every row; see ``encode_all``."""
        ids = iter(self.encode_all([text for texts in rows for text in texts]))
        return [[next(ids) for _ in texts] for texts in rows]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """Ids of every word by itself; a word the vocabulary drops becomes its unknown token."""
        encoded = self._encoded(self.tokenizer.encode_batch_fast, list(words))
        return [e.ids or [self.id_of("[UNK]", "<unk>")] for e in encoded]

    def encode_spans(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Ids [n] of a text and the characters [n, 2] (first, one past the last) of each."""
        encoded = self._encoded(self.tokenizer.encode, text)
        offsets = np.asarray(encoded.offsets, np.int32).reshape(-1, 2)
        return np.asarray(encoded.ids, np.int32), offsets


def load_vocabulary(path: str, do_lower: bool = False, vocab_size: int | None = None) -> Vocabulary:
    """Load ``vocab_file``.

    Args:
        path: a tokenizer.json, else a text file with one WordPiece a line (BERT's vocab.txt).
        do_lower: lower-case and strip accents; a tokenizer.json says so itself.
        vocab_size: of the model, or None.

    Raises:
        DataError: no such file, no vocabulary, ids that the model has no embedding for.
    """
    vocabulary = _read(path, do_lower)
    if vocab_size is not None and vocabulary.size > vocab_size:
        raise DataError(
            f"{path}: {vocabulary.size} tokens, but model.vocab_size is {vocab_size}; make them "
            "equal"
        )
    return vocabulary


def _read(path: str, do_lower: bool) -> Vocabulary:
    file = pathlib.Path(path)
    if not file.is_file():
        raise DataError(f"vocab_file: {file} does not exist; expected vocab.txt or tokenizer.json")
    if ending(file) == ".json":
        return Vocabulary(load_tokenizer(file), file)
    tokens = text_lines(file)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        repeated = next(t for i, t in enumerate(tokens) if vocab[t] != i)
        raise DataError(f"vocab_file: {file}: {repeated!r} stands on more than one line")
    unknown = next((t for t in ("[UNK]", "<unk>", "[unk]") if t in vocab), None)
    if unknown is None:
        raise DataError(f"vocab_file: {file} has no [UNK]; a WordPiece vocabulary needs it")
    model = token_models.WordPiece(vocab, unk_token=unknown, max_input_chars_per_word=100)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=do_lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = [t for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if t in vocab]
    tokenizer.add_special_tokens(special)
    return Vocabulary(tokenizer, file)
