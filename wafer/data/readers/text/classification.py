"""Sentence classification: GLUE's SST-2 and MNLI in their published files."""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, cut_pair, sequence_row
from wafer.data.text.textfiles import Row, find_files, read_rows
from wafer.data.text.wordpiece import Vocabulary, load_vocabulary
from wafer.errors import DataError

_MNLI = {"entailment": 0, "neutral": 1, "contradiction": 2}
_ENDINGS = ("tsv", "jsonl")


class _Example(NamedTuple):
    """ids_b: None for one sentence; group: 'matched', 'mismatched' or ''."""

    ids_a: np.ndarray
    ids_b: np.ndarray | None
    label: int
    group: str


class ClassifierScorer:
    """F1 of class 1 for two classes; MNLI's matched and mismatched accuracies.

    Args:
        groups: [N] which set each example belongs to, '' for none.
        labels: [N] classes.
        num_labels: C.
    """

    reads = ("logits",)

    def __init__(self, groups: list[str], labels: list[int], num_labels: int | None) -> None:
        self._groups, self._labels, self._classes = groups, labels, num_labels
        self._seen: list[tuple[str, int, int]] = []

    def add(self, rows: Rows, outputs: Mapping[str, np.ndarray]) -> None:
        """Take the predicted class of every real row."""
        chosen = outputs["logits"][:, 0].argmax(-1)
        for row, predicted in zip(rows["row"], chosen, strict=True):
            if row:
                index = int(row) - 1
                self._seen.append((self._groups[index], self._labels[index], int(predicted)))

    def result(self) -> dict[str, float]:
        """``eval/f1_score``; ``eval/accuracy_matched`` and ``eval/accuracy_mismatched``."""
        scores = {}
        if self._classes == 2:
            both = sum(label == predicted == 1 for _, label, predicted in self._seen)
            either = sum((label == 1) + (predicted == 1) for _, label, predicted in self._seen)
            scores["eval/f1_score"] = 2 * both / max(either, 1)
        for group in ("matched", "mismatched"):
            right = [label == predicted for name, label, predicted in self._seen if name == group]
            if right:
                scores[f"eval/accuracy_{group}"] = sum(right) / len(right)
        return scores


def _features(vocabulary: Vocabulary, length: int, example: _Example) -> dict[str, np.ndarray]:
    cls, sep = vocabulary.cls, vocabulary.sep
    if example.ids_b is None:
        ids = [cls, *example.ids_a[: length - 2], sep]
        segments = [0] * len(ids)
    else:
        a, b = cut_pair(example.ids_a, example.ids_b, length - 3)
        ids = [cls, *a, sep, *b, sep]
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    row = sequence_row(ids, length, vocabulary.pad, segments)
    return row | {"labels": np.asarray(example.label, np.int32)}


def _dataset(
    cfg: Any,
    context: Context,
    vocabulary: Vocabulary,
    examples: list[_Example],
    files: list[pathlib.Path],
) -> Dataset:
    build = functools.partial(_features, vocabulary, cfg.max_sequence_length)
    source = RowSource(examples, build, files[0])
    groups, labels = [e.group for e in examples], [e.label for e in examples]
    return Dataset(
        source=source,
        row_length=cfg.max_sequence_length,
        complete=True,
        scorer=functools.partial(ClassifierScorer, groups, labels, context.num_labels),
        summary=f"{cfg.data_processor}: {len(source):,} examples from {', '.join(map(str, files))}",
    )


def checked_label(row: Row, label: Any, num_labels: int | None) -> int:
    """Read a class.

    Raises:
        DataError: no whole number, or none of the model's classes; names file and row.
    """
    try:
        number = int(label)
    except (TypeError, ValueError):
        raise DataError(f"{row.where}: label {label!r}; expected a whole number") from None
    if number < 0 or (num_labels is not None and number >= num_labels):
        raise DataError(
            f"{row.where}: label {number} is outside the model's {num_labels} classes "
            "(model.num_labels)"
        )
    return number


def sst2(cfg: Any, context: Context) -> Dataset:
    """Read SST-2: train.tsv or dev.tsv with the columns ``sentence`` and ``label``.

    Raises:
        DataError: a file, column or label that is not there; names file and row.
    """
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}.{ending}" for ending in _ENDINGS])
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    texts, labels = [], []
    for row in (row for file in files for row in read_rows(file)):
        texts.append(row.text("sentence"))
        labels.append(checked_label(row, row.get("label"), context.num_labels))
    encoded = vocabulary.encode_all(texts)
    examples = [_Example(ids, None, label, "") for ids, label in zip(encoded, labels, strict=True)]
    return _dataset(cfg, context, vocabulary, examples, files)


def _mnli_files(cfg: Any, *, training: bool) -> Iterator[tuple[str, list[pathlib.Path]]]:
    if training:
        names = ("train", "multinli_*_train")
        yield "", find_files(cfg.data_dir, _with_endings(names))
        return
    if any(pathlib.Path(place).is_file() for place in cfg.data_dir):
        for path in find_files(cfg.data_dir, ()):
            yield "mismatched" if "mismatched" in path.name else "matched", [path]
        return
    for group in ("matched", "mismatched"):
        names = (f"dev_{group}", f"multinli_*_dev_{group}")
        yield group, find_files(cfg.data_dir, _with_endings(names))


def _with_endings(stems: tuple[str, ...]) -> list[str]:
    return [f"{stem}.{ending}" for stem in stems for ending in _ENDINGS]


def mnli(cfg: Any, context: Context) -> Dataset:
    """Read MNLI: train, dev_matched and dev_mismatched, as TSV or as MultiNLI's JSON lines.

    Rows without agreement (gold label '-') are left out, as everywhere.

    Raises:
        DataError: a file, column or label that is not there; names file and row.
    """
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    first, second, labels, groups, files = [], [], [], [], []
    for group, parts in _mnli_files(cfg, training=context.training):
        files += parts
        for row in (row for file in parts for row in read_rows(file)):
            gold = row.get("gold_label", "label")
            if gold == "-":
                continue
            if isinstance(gold, str) and gold not in _MNLI and not gold.isdigit():
                raise DataError(f"{row.where}: label {gold!r}; expected one of {', '.join(_MNLI)}")
            labels.append(checked_label(row, _MNLI.get(gold, gold), context.num_labels))
            first.append(row.text("sentence1", "premise"))
            second.append(row.text("sentence2", "hypothesis"))
            groups.append(group)
    both = map(vocabulary.encode_all, (first, second))
    examples = list(map(_Example, *both, labels, groups))
    return _dataset(cfg, context, vocabulary, examples, files)
