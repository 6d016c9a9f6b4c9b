"""Protein classification: remote homology, a sequence and its fold (TAPE, Rao et al. 2019)."""

import functools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.rowsets import RowSource, text_row
from wafer.data.readers.text.classification import ClassifierScorer, checked_label
from wafer.data.text.fasta import letter_codes, read_fasta
from wafer.data.text.textfiles import Row, find_files, read_labels, read_rows
from wafer.errors import DataError
from wafer.models.errors import did_you_mean

# ESM's, in its order: the weights of its models fit.
VOCABULARY = (
    *("<cls>", "<pad>", "<eos>", "<unk>"),
    *"LAGVSERTIDPKQNFYMHWCXBUZO.-",
    *("<null_1>", "<mask>"),
)
_CLS, _PAD, _EOS = 0, 1, 2
_CODES = letter_codes({letter: i for i, letter in enumerate(VOCABULARY) if len(letter) == 1})


def _label(row: Row, known: Mapping[str, int] | None, num_labels: int | None) -> int:
    label = row.get("label", "fold_label")
    if known is None:
        return checked_label(row, label, num_labels)
    if label not in known:
        raise DataError(
            f"{row.where}: label {label!r} is not in label_vocab_file{did_you_mean(label, known)}"
        )
    return checked_label(row, known[label], num_labels)


def _proteins(
    path: pathlib.Path, known: Mapping[str, int] | None, num_labels: int | None
) -> Iterator[tuple[np.ndarray, int]]:
    """Ids of the amino acids of every sequence, and its class from the table beside the file."""
    table = path.with_suffix(".tsv")
    if not table.is_file():
        raise DataError(f"{table} does not exist; {path.name} needs a table of id and label")
    records = read_fasta(path, _CODES, "amino acids (ACDEFGHIKLMNPQRSTVWY, BOUXZ, '.', '-')")
    names = {record.name for record in records}
    labels: dict[str, int] = {}
    for row in read_rows(table):
        name = row.text("id")
        if name not in names:
            raise DataError(
                f"{row.where}: label of {name!r}, which {path} does not hold"
                f"{did_you_mean(name, names)}"
            )
        if name in labels:
            raise DataError(f"{row.where}: a second label of {name!r}")
        labels[name] = _label(row, known, num_labels)
    for record in records:
        if record.name not in labels:
            raise DataError(f"{record.where}: {record.name!r} has no label in {table}")
        yield record.codes, labels[record.name]


def remote_homology(cfg: Any, context: Context) -> Dataset:
    """Read proteins and their classes: train.fasta or valid.fasta, the table beside it.

    Raises:
        DataError: bad FASTA, a label without its sequence or the other way round, an unknown
            label; names file and line.
    """
    stem = "train" if context.training else "valid"
    paths = find_files(cfg.data_dir, [f"{stem}.fasta"])
    known = read_labels(pathlib.Path(cfg.label_vocab_file)) if cfg.label_vocab_file else None
    proteins = [p for path in paths for p in _proteins(path, known, context.num_labels)]
    labels = [label for _, label in proteins]
    build = lambda protein: (
        text_row((_CLS, _EOS, _PAD), cfg.max_sequence_length, protein[0])
        | {"labels": np.asarray(protein[1], np.int32)}
    )
    scorer = functools.partial(ClassifierScorer, [""] * len(labels), labels, context.num_labels)
    return Dataset(
        source=RowSource(proteins, build, paths[0]),
        row_length=cfg.max_sequence_length,
        complete=True,
        scorer=scorer,
        summary=f"proteins: {len(proteins):,} sequences of {len(set(labels)):,} classes from "
        f"{', '.join(map(str, paths))}",
    )
