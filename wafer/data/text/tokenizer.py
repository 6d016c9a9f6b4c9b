"""Byte-level byte-pair tokenizers, trained on the spot, and the bytes each token stands for."""

import pathlib
from collections.abc import Iterable

import numpy as np
from tokenizers import Tokenizer, decoders, models as bpe_models, pre_tokenizers, trainers

__all__ = ["END_OF_TEXT", "load_tokenizer", "token_bytes", "train_bpe"]

END_OF_TEXT = "<|endoftext|>"


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


def load_tokenizer(path: str | pathlib.Path) -> Tokenizer:
    """Load a Hugging Face ``tokenizer.json``.

    Raises:
        FileNotFoundError: no such file.
    """
    if not pathlib.Path(path).is_file():
        raise FileNotFoundError(f"no tokenizer at {path}; expected a Hugging Face tokenizer.json")
    return Tokenizer.from_file(str(path))


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """[V] int32: UTF-8 bytes each token stands for; the end mark counts 1 (its newline).

    A byte-level token spells each byte as one character, so its length is its byte count.
    """
    sizes = np.zeros(tokenizer.get_vocab_size(), np.int32)
    for token, index in tokenizer.get_vocab().items():
        sizes[index] = 1 if token == END_OF_TEXT else len(token)
    return sizes
