"""The text every machine has: the functions of the Python standard library's own sources.

One example is one top-level function or method (functions inside functions stay part of their
parent, so that no held-out text also stands in the training text). Tests and generated tables
are left out. Byte counts differ between Python versions; ``Corpus.digest`` names the exact text.
"""

import ast
import bz2
import dataclasses
import functools
import hashlib
import lzma
import math
import pathlib
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from wafer.data.batching.dataset import TOKENIZER, Context, Dataset
from wafer.data.batching.sources import DocumentSource
from wafer.data.text.tokenizer import END_OF_TEXT, load_tokenizer, token_bytes, train_bpe

__all__ = ["Corpus", "load_corpus", "pystdlib", "yardsticks"]

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


@dataclasses.dataclass(frozen=True)
class Corpus:
    """De-duplicated functions, split by function.

    Attributes:
        train: function sources for training.
        held_out: function sources for evaluation; no text stands in both.
        digest: hexadecimal SHA-256 over all texts.
    """

    train: tuple[str, ...]
    held_out: tuple[str, ...]
    digest: str


def _outer_functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _outer_functions(child)


def _functions_of(path: pathlib.Path) -> Iterator[str]:
    source = path.read_text("utf-8", errors="replace")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return
    lines = source.splitlines(keepends=True)
    for node in _outer_functions(tree):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        yield textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).strip("\n")


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
    root = pathlib.Path(root or sysconfig.get_paths()["stdlib"])
    texts: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if _SKIPPED.isdisjoint(path.relative_to(root).parts[:-1]):
            for text in _functions_of(path):
                texts[text.encode()[:max_bytes].decode("utf-8", errors="ignore")] = None
    texts.pop("", None)
    if not texts:
        raise FileNotFoundError(
            f"no Python functions found below {root}: the standard library's sources are not "
            "installed there. Point train_input.source_dir at any folder of .py files."
        )
    parts: tuple[list[str], list[str]] = ([], [])
    whole = hashlib.sha256()
    for text in texts:
        digest = hashlib.sha256(text.encode()).digest()
        whole.update(digest)
        parts[digest[0] < _HELD_OUT_PER_256].append(text)
    return Corpus(tuple(parts[0]), tuple(parts[1]), whole.hexdigest())


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


def _encode(tokenizer: Tokenizer, texts: tuple[str, ...], max_length: int) -> DocumentSource:
    end: Any = tokenizer.token_to_id(END_OF_TEXT)
    documents = [[*e.ids, end] for e in tokenizer.encode_batch_fast(list(texts))]
    return DocumentSource(documents, end, max_length)


def pystdlib(cfg: Any, context: Context) -> Dataset:
    """Read the running Python's sources, with a tokenizer trained on the training part."""
    corpus = load_corpus(cfg.source_dir, cfg.max_bytes)
    kept = context.folder / TOKENIZER  # a resumed run must keep its vocabulary
    tokenizer = load_tokenizer(kept) if kept.exists() else train_bpe(corpus.train, cfg.vocab_size)
    texts = corpus.train if cfg.split == "train" else corpus.held_out
    source = _encode(tokenizer, texts, cfg.max_sequence_length)
    mean = float(source.lengths.mean())
    return Dataset(
        source=source,
        row_length=cfg.max_sequence_length,
        pack=cfg.use_vsl,
        mean_length=mean,
        tokenizer=tokenizer.to_str(pretty=True),
        token_bytes=token_bytes(tokenizer),
        references={} if cfg.split == "train" else yardsticks(texts),
        summary=(
            f"Python standard library, {cfg.split}: {len(texts):,} functions, "
            f"{sum(len(t.encode()) for t in texts) / 1e6:.2f} MB, {source.lengths.sum():,} tokens, "
            f"longest/mean = {source.lengths.max()}/{mean:.0f} = {source.lengths.max() / mean:.1f} "
            f"(text sha256 {corpus.digest[:12]})"
        ),
    )
