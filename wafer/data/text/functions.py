"""The text every machine has: the functions of the Python standard library's own sources.

One example is one top-level function or method (functions inside functions stay part of their
parent, so that no held-out text also stands in the training text). Tests and generated tables
are left out. Byte counts differ between Python versions; ``Corpus.digest`` names the exact text.

Nothing here imports jax: a process of its own makes the tokens while a run's own process does.
"""

import ast
import bz2
import dataclasses
import functools
import gc
import hashlib
import inspect
import itertools
import json
import lzma
import math
import os
import pathlib
import sys
import sysconfig
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Tokenizer, processors

from wafer.cache import cached_arrays
from wafer.data.text.tokenizer import (
    END_OF_TEXT,
    encode_words,
    load_tokenizer,
    tokenizing,
    train_bpe,
)
from wafer.errors import DataError
from wafer.version import __version__

# Left out: tests (many distributions strip them), bundled programs, and generated tables.
_SKIPPED = frozenset(
    (
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "encodings",
        "ensurepip",
        "site-packages",
        "dist-packages",
        "__pycache__",
    )
)
_HELD_OUT_PER_256 = 13  # about 5 % of the functions, chosen by a hash of their text
_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # where statements hold statements


@dataclasses.dataclass(frozen=True)
class Corpus:
    """De-duplicated functions, split by function."""

    train: tuple[str, ...]  #: function sources for training
    held_out: tuple[str, ...]  #: function sources for evaluation; no text stands in both
    digest: str  #: hexadecimal SHA-256 over all texts


def _outer_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in itertools.chain.from_iterable(getattr(node, block, ()) for block in _BLOCKS):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _outer_functions(child)


def _parsed(source: str) -> ast.Module:
    """Parse; Python 3.11 counts depth once for all threads, and another parse may spoil it."""
    try:
        return ast.parse(source)
    except SystemError:
        return ast.parse(source)


def _functions_of(path: pathlib.Path) -> Iterator[str]:
    source = path.read_text("utf-8-sig", errors="replace")
    try:
        tree = _parsed(source)
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return
    lines = source.split("\n")  # as the parser counts them; str.splitlines cuts at form feeds, too
    for node in _outer_functions(tree):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        yield textwrap.dedent("\n".join(lines[first - 1 : node.end_lineno])).strip("\n")


def _sources(root: str | pathlib.Path | None) -> tuple[pathlib.Path, list[pathlib.Path]]:
    """The folder, and the Python files below it that count, in order."""
    folder = pathlib.Path(root or sysconfig.get_paths()["stdlib"])
    paths: list[pathlib.Path] = []
    for place, inside, names in os.walk(folder):
        inside[:] = [name for name in inside if name not in _SKIPPED]
        paths += [pathlib.Path(place, name) for name in names if name.endswith(".py")]
    return folder, sorted(paths)


@functools.cache  # train_input and eval_input read the same text
def load_corpus(root: str | pathlib.Path | None = None, max_bytes: int = 1024) -> Corpus:
    """Collect, cap, de-duplicate and split the functions below a source tree.

    Args:
        root: folder to read; the running Python's standard library when None.
        max_bytes: longer functions are cut here (UTF-8 bytes, never inside a character).

    Returns:
        The corpus; about 14,000 functions on Python 3.11.

    Raises:
        FileNotFoundError: no Python source lies below ``root``.
    """
    folder, paths = _sources(root)
    texts: dict[str, None] = {}
    for text in itertools.chain.from_iterable(map(_functions_of, paths)):
        texts[text.encode()[:max_bytes].decode("utf-8", errors="ignore")] = None
    texts.pop("", None)
    if not texts:
        raise FileNotFoundError(
            f"no Python functions found below {folder}: the standard library's sources are not "
            "installed there. Point train_input.source_dir at any folder of .py files."
        )
    splits: tuple[list[str], list[str]] = ([], [])
    whole = hashlib.sha256()
    for text in texts:
        digest = hashlib.sha256(text.encode()).digest()
        whole.update(digest)
        splits[digest[0] < _HELD_OUT_PER_256].append(text)
    return Corpus(tuple(splits[0]), tuple(splits[1]), whole.hexdigest())


def yardsticks(texts: tuple[str, ...]) -> dict[str, float]:
    """Bits per byte of simple compressors on the texts, one newline after each.

    Returns:
        'order-0' (entropy of the byte histogram), 'bz2' and 'xz' (whole text, best level).
    """
    data = "".join(text + "\n" for text in texts).encode()
    counts = Counter(data)
    entropy = -sum(n / len(data) * math.log2(n / len(data)) for n in counts.values())
    return {
        "order-0": entropy,
        "bz2": 8 * len(bz2.compress(data)) / len(data),
        "xz": 8 * len(lzma.compress(data, preset=9)) / len(data),
    }


@functools.cache  # of train_input and eval_input
def _trained(root: str | None, max_bytes: int, vocab_size: int) -> str:
    tokenizer = train_bpe(load_corpus(root, max_bytes).train, vocab_size)
    end: Any = tokenizer.token_to_id(END_OF_TEXT)
    tokenizer.post_processor = processors.TemplateProcessing(  # prompts begin as the rows do
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A $B",
        special_tokens=[(END_OF_TEXT, end)],
    )
    return tokenizer.to_str(pretty=True)


def _checked(tokenizer: Tokenizer, path: str | pathlib.Path, vocab_size: int) -> Tokenizer:
    """The tokenizer of the run's weights, if it can be theirs."""
    size = tokenizer.get_vocab_size()
    if tokenizer.token_to_id(END_OF_TEXT) is None:
        raise DataError(
            f"{path}: has no token {END_OF_TEXT}, with which every function ends. The run's "
            "weights belong to this tokenizer; prepare texts with it by `wafer data preprocess`"
        )
    if size > vocab_size:
        raise DataError(
            f"{path}: has {size:,} tokens, vocab_size of the input section is {vocab_size:,}. The "
            f"run's weights belong to this tokenizer: set vocab_size (also the model's) to {size}"
        )
    return tokenizer


def _tokenized(cfg: Any, tokenizer: Tokenizer | None) -> dict[str, np.ndarray]:
    """Tokens of all texts one after another, with all that is said of them as JSON."""
    corpus = load_corpus(cfg.source_dir, cfg.max_bytes)
    texts = corpus.train if cfg.split == "train" else corpus.held_out
    if tokenizer is None:
        tokenizer = Tokenizer.from_str(_trained(cfg.source_dir, cfg.max_bytes, cfg.vocab_size))
        encoded = encode_words(tokenizer, texts)
    else:
        tokenizer.encode_special_tokens = True  # a mark that a source file spells out is text
        with tokenizing("the tokenizer cannot encode a text of the input"):
            batch = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        encoded = [e.ids for e in batch]
    end: Any = tokenizer.token_to_id(END_OF_TEXT)
    documents = [[*ids, end] for ids in encoded]
    about = {
        "tokenizer": tokenizer.to_str(pretty=True),
        "functions": len(texts),
        "bytes": sum(len(t.encode()) for t in texts),
        "digest": corpus.digest,
        "references": {} if cfg.split == "train" else yardsticks(texts),
    }
    return {
        "lengths": np.fromiter(map(len, documents), np.int64),
        "tokens": np.fromiter(itertools.chain.from_iterable(documents), np.int32),
        "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
    }


def _depends_on(cfg: Any, tokenizer: str) -> list[object]:
    """What the tokens follow from; a file that was written since has another time."""
    folder, paths = _sources(cfg.source_dir)
    states = ((p.relative_to(folder).as_posix(), p.stat()) for p in paths)
    return [
        [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in states],
        str(folder.absolute()),
        [cfg.split, cfg.max_bytes, cfg.vocab_size],
        tokenizer,
        [sys.version, tokenizers.__version__, __version__],
        [inspect.getsource(sys.modules[m]) for m in (__name__, train_bpe.__module__)],
    ]


def tokens_of(cfg: Any, path: pathlib.Path | None) -> dict[str, np.ndarray]:
    """Return the tokens of a section's split, from the cache's folder when they lie there.

    Args:
        cfg: the section, with ``source_dir``, ``split``, ``max_bytes`` and ``vocab_size``.
        path: tokenizer.json of the run's weights; None trains one on the training part.

    Returns:
        ``tokens`` [N] int32 of all functions one after another, ``lengths`` of each, and what else
        is known of them: ``about``, JSON as bytes.

    Raises:
        DataError: a tokenizer that cannot be the weights' own.
        FileNotFoundError: no Python source lies below ``source_dir``.
    """
    text = path.read_text(encoding="utf-8") if path else ""

    def make() -> dict[str, np.ndarray]:
        tokenizer = path and _checked(load_tokenizer(path), path, cfg.vocab_size)
        return _tokenized(cfg, tokenizer or None)

    return cached_arrays("pystdlib", _depends_on(cfg, text), make)


def keep_tokens(sections: list[dict[str, object]]) -> None:
    """Put the tokens of a new run's sections, given as their keys, into the cache's folder.

    The reader of the first finds no tokenizer and trains one; those of the others find that one.
    """
    gc.disable()  # trees of syntax, which hold no circles
    text = ""

    def make(cfg: Any) -> dict[str, np.ndarray]:
        kept = Tokenizer.from_str(text) if text else None
        return _tokenized(cfg, kept and _checked(kept, "tokenizer.json", cfg.vocab_size))

    for cfg in (types.SimpleNamespace(**section) for section in sections):
        arrays = cached_arrays("pystdlib", _depends_on(cfg, text), functools.partial(make, cfg))
        text = text or json.loads(arrays["about"].tobytes())["tokenizer"]
