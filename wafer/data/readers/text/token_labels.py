"""Token classification: CoNLL-like columns (a word and its label per line) or CSV of pieces.

Of columns, the first piece of a word carries its label; the others, ``[CLS]`` and ``[SEP]`` carry
no loss. The CSV labels every piece ('X' continues a word), ``[CLS]`` and ``[SEP]``, and
all of them carry loss; with ``model.include_padding_in_loss`` padding does, too, as class 0.
"""

import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, sequence_row
from wafer.data.text.textfiles import (
    ending,
    find_described,
    read_labels,
    read_rows,
    text_lines,
    words_of,
)
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError

_ENDINGS = ("txt", "conll", "bio", "tsv", "csv")
_NO_WORD = {"X", "[CLS]", "[SEP]", "[PAD]"}  # labels of the CSV that begin no word


class Sentence(NamedTuple):
    """Words with their labels; ``where`` names the file and the first line."""

    where: str
    words: list[str]
    labels: list[str]
    pieces: bool = False  #: the words are word pieces and special tokens already (CSV)


# ids of pieces and special tokens, positions of those that carry loss, their classes
_Encoded = tuple[list[int], list[int], list[int]]


def _columns(path: pathlib.Path) -> Iterator[Sentence]:
    words: list[str] = []
    labels: list[str] = []
    first = 1
    for number, line in enumerate(text_lines(path), 1):
        cells = line.split("\t") if "\t" in line else words_of(line)
        if not line.strip(" \t") or cells[0] == "-DOCSTART-":
            if words:
                yield Sentence(f"{path}, row {first}", words, labels)
            words, labels, first = [], [], number + 1
            continue
        if len(cells) < 2:
            raise DataError(f"{path}, row {number}: {line!r}; expected a word and its label")
        words.append(cells[0])
        labels.append(cells[-1].strip(" "))
    if words:
        yield Sentence(f"{path}, row {first}", words, labels)


def _csv(path: pathlib.Path) -> Iterator[Sentence]:
    for row in read_rows(path):
        words, labels = map(row.words, ("tokens", "labels"))
        if len(words) != len(labels):
            raise DataError(f"{row.where}: {len(words)} tokens, but {len(labels)} labels")
        yield Sentence(row.where, words, labels, words[:1] == ["[CLS]"])


def _vocabulary_of_labels(cfg: Any, rows: Sequence[Sentence], *, training: bool) -> dict[str, int]:
    """From label_vocab_file, label2id.json beside the data, or the labels of the training file."""
    beside = [pathlib.Path(place) / "label2id.json" for place in cfg.data_dir]
    given = [pathlib.Path(cfg.label_vocab_file)] if cfg.label_vocab_file else []
    for path in given or [path for path in beside if path.is_file()]:
        return read_labels(path)
    sentences = rows if training else _sentences(cfg, training=True)
    names = {label for sentence in sentences for label in sentence.labels}
    ordered = sorted(names - {"O"})
    return {label: i for i, label in enumerate(["O", *ordered] if "O" in names else ordered)}


def _classes(sentence: Sentence, known: Mapping[str, int], num_labels: int | None) -> list[int]:
    classes = []
    for word, label in zip(sentence.words, sentence.labels, strict=True):
        if label not in known:
            raise DataError(
                f"{sentence.where}: label {label!r} of {word!r} is not in the label vocabulary "
                f"({', '.join(known)})"
            )
        if num_labels is not None and not 0 <= known[label] < num_labels:
            raise DataError(
                f"{sentence.where}: label {label!r} is class {known[label]}, outside the model's "
                f"{num_labels} classes (model.num_labels)"
            )
        classes.append(known[label])
    return classes


def _encode(sentence: Sentence, classes: list[int], vocabulary: Vocabulary) -> _Encoded:
    if sentence.pieces:
        unknown = vocabulary.id_of("[UNK]", "<unk>")
        known = map(vocabulary.tokenizer.token_to_id, sentence.words)
        ids = [unknown if index is None else index for index in known]
        return ids, list(range(len(ids))), classes
    ids, heads = [vocabulary.cls], []
    for piece in vocabulary.encode_words(sentence.words):
        heads.append(len(ids))
        ids += piece
    return [*ids, vocabulary.sep], heads, classes


def entities(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, first, one past the last) of every entity of a BIO sequence.

    As the CoNLL script: an I- that continues nothing begins an entity.

    >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"]))
    [('LOC', 3, 4), ('LOC', 4, 5), ('PER', 0, 2)]
    """
    spans: set[tuple[str, int, int]] = set()
    kind, begin = "", 0
    for i, label in enumerate([*labels, "O"]):
        mark, _, name = label.partition("-")
        goes_on = mark == "I" and bool(kind) and kind == (name or _untyped(label))
        if kind and not goes_on:
            spans.add((kind, begin, i))
            kind = ""
        if not goes_on and mark in {"B", "I"}:
            kind, begin = name or _untyped(label), i
    return spans


def _untyped(label: str) -> str:
    """Type of a label without one: plain B and I are one type."""
    return label if label not in {"B", "I"} else "B/I"


class TokenScorer:
    """Macro F1 over the B- and I- classes of tokens, and F1 of whole entities.

    Tokens are those that carry loss; entities are those of words.

    Args:
        names: label -> class.
    """

    reads = ("logits",)

    def __init__(self, names: Mapping[str, int]) -> None:
        self._names = {index: name for name, index in names.items()}
        self._pairs: list[tuple[list[int], list[int]]] = []

    def add(self, rows: Rows, outputs: Mapping[str, np.ndarray]) -> None:
        """Take true and predicted classes of the words of every row."""
        chosen = outputs["logits"].argmax(-1)
        for mask, labels, predicted in zip(
            rows["loss_mask"] != 0, rows["labels"], chosen, strict=True
        ):
            self._pairs.append((labels[mask].tolist(), predicted[mask].tolist()))

    def result(self) -> dict[str, float]:
        """``eval/f1_score`` (tokens) and ``eval/entity_f1``."""
        truth = np.array([label for labels, _ in self._pairs for label in labels])
        chosen = np.array([label for _, labels in self._pairs for label in labels])
        scores = []
        for index, name in self._names.items():
            if name.startswith(("B", "I")) and ((truth == index) | (chosen == index)).any():
                hits = ((truth == index) & (chosen == index)).sum()
                scores.append(2 * hits / ((truth == index).sum() + (chosen == index).sum()))
        pairs = [[entities(part) for part in self._words(*pair)] for pair in self._pairs]
        hits = sum(len(true & ours) for true, ours in pairs)
        total = sum(len(true) + len(ours) for true, ours in pairs)
        return {
            "eval/f1_score": float(np.mean(scores)) if scores else 0.0,
            "eval/entity_f1": 2 * hits / max(total, 1),
        }

    def _words(self, *classes: Sequence[int]) -> list[list[str]]:
        """Name true and predicted classes of the tokens that begin a word."""
        named = [[self._names.get(index, "O") for index in own] for own in classes]
        begins = [label not in _NO_WORD for label in named[0]]
        return [list(itertools.compress(own, begins)) for own in named]


def _sentences(cfg: Any, *, training: bool) -> list[Sentence]:
    stems = ("train",) if training else ("dev", "devel", "valid", "testa")
    names = [f"{stem}.{end}" for stem in stems for end in _ENDINGS]
    files = find_described(cfg.data_dir, [*names, "*-[0-9]*.csv"])
    return [s for f in files for s in (_csv(f) if ending(f) == ".csv" else _columns(f))]


def token_classification(cfg: Any, context: Context) -> Dataset:
    """Read train.* or dev.* (also valid.*, devel.*) files, or the files that ``meta.dat`` names.

    Raises:
        DataError: a wrong line or label; names file and row. Columns where padding carries loss.
    """
    sentences = _sentences(cfg, training=context.training)
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    known = _vocabulary_of_labels(cfg, sentences, training=context.training)
    examples = [
        _encode(sentence, _classes(sentence, known, context.num_labels), vocabulary)
        for sentence in sentences
    ]
    padded = bool(getattr(context.config, "include_padding_in_loss", None))
    other = next((sentence.where for sentence in sentences if not sentence.pieces), None)
    if padded and other is not None:
        raise DataError(
            f"{other}: include_padding_in_loss is for CSV of pieces, which labels [CLS], [SEP] "
            "and every piece of a word; drop the key"
        )
    length = cfg.max_sequence_length

    def build(example: _Encoded) -> Rows:
        ids, heads, classes = example
        last = len(ids) - 1  # [SEP], which closes a row that is cut
        ids = [*ids[:last][: length - 1], ids[last]]
        labels, weights = np.zeros(length, np.int32), np.full(length, padded, np.int32)
        for head, label in zip(heads, classes, strict=True):
            if head < length - 1 or head == last:
                at = min(head, length - 1)
                labels[at], weights[at] = label, 1
        row = sequence_row(ids, length, vocabulary.pad, [0] * len(ids))
        return row | {"labels": labels, "loss_mask": weights}

    return Dataset(
        source=RowSource(examples, build, cfg.data_dir[0]),
        row_length=length,
        complete=True,
        scorer=functools.partial(TokenScorer, known),
        summary=f"tokens with labels: {len(examples):,} sentences, classes {', '.join(known)}",
    )
