"""Sentence classification: GLUE's SST-2 and MNLI in their published files."""

import functools
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.rowsets import RowSource, text_row
from wafer.data.sections.base import TextInput
from wafer.data.text.textfiles import Row, find_files, read_rows
from wafer.data.text.wordpiece import load_vocabulary
from wafer.errors import DataError

_MNLI = {"entailment": 0, "neutral": 1, "contradiction": 2}
_ENDINGS = ("tsv", "jsonl")


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
        """Take the predicted class of every row."""
        for row, scores in zip(rows["row"], outputs["logits"][:, 0], strict=True):
            index = int(row) - 1
            self._seen.append((self._groups[index], self._labels[index], int(scores.argmax())))

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


def _dataset(
    cfg: TextInput,
    context: Context,
    rows: Sequence[tuple[str, int, Sequence[str]]],
    files: Sequence[pathlib.Path],
) -> Dataset:
    """Rows of (group, class, one text or two)."""
    vocabulary = load_vocabulary(cfg.vocab_file, cfg.do_lower, context.vocab_size)
    length, groups, labels = cfg.max_sequence_length, [r[0] for r in rows], [r[1] for r in rows]
    ids = vocabulary.encode_rows([texts for _, _, texts in rows])

    def build(index: int) -> Rows:
        label = {"labels": np.asarray(labels[index], np.int32)}
        return text_row(vocabulary.marks, length, *ids[index]) | label

    return Dataset(
        source=RowSource(range(len(rows)), build, files[0]),
        row_length=length,
        complete=True,
        scorer=functools.partial(ClassifierScorer, groups, labels, context.num_labels),
        summary=f"{cfg.data_processor}: {len(rows):,} examples from {', '.join(map(str, files))}",
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


def sst2(cfg: TextInput, context: Context) -> Dataset:
    """Read SST-2: train.tsv or dev.tsv with the columns ``sentence`` and ``label``.

    Raises:
        DataError: a file, column or label that is not there; names file and row.
    """
    stem = "train" if context.training else "dev"
    files = find_files(cfg.data_dir, [f"{stem}.{ending}" for ending in _ENDINGS])
    rows = [
        ("", checked_label(row, row.get("label"), context.num_labels), (row.text("sentence"),))
        for file in files
        for row in read_rows(file)
    ]
    return _dataset(cfg, context, rows, files)


def _mnli_files(cfg: TextInput, *, training: bool) -> Iterator[tuple[str, list[pathlib.Path]]]:
    if not training and any(pathlib.Path(place).is_file() for place in cfg.data_dir):
        for path in find_files(cfg.data_dir, ()):
            yield "mismatched" if "mismatched" in path.name else "matched", [path]
        return
    groups = {"": "train"} if training else {g: f"dev_{g}" for g in ("matched", "mismatched")}
    for group, stem in groups.items():
        names = [f"{begin}{stem}.{end}" for begin in ("", "multinli_*_") for end in _ENDINGS]
        yield group, find_files(cfg.data_dir, names)


def mnli(cfg: TextInput, context: Context) -> Dataset:
    """Read MNLI: train, dev_matched and dev_mismatched, as TSV or as MultiNLI's JSON lines.

    Rows without agreement (gold label '-') are left out, as everywhere.

    Raises:
        DataError: a file, column or label that is not there; names file and row.
    """
    rows: list[tuple[str, int, Sequence[str]]] = []
    files: list[pathlib.Path] = []
    for group, parts in _mnli_files(cfg, training=context.training):
        files += parts
        for row in (row for file in parts for row in read_rows(file)):
            gold = row.get("gold_label", "label")
            if gold == "-":
                continue
            if isinstance(gold, str) and gold not in _MNLI and not gold.isdigit():
                raise DataError(f"{row.where}: label {gold!r}; expected one of {', '.join(_MNLI)}")
            label = checked_label(row, _MNLI.get(gold, gold), context.num_labels)
            texts = row.text("sentence1", "premise"), row.text("sentence2", "hypothesis")
            rows.append((group, label, texts))
    return _dataset(cfg, context, rows, files)
