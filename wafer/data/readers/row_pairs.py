"""HDF5 rows of several sequences: DPO's pairs of answers, DPR's questions with their contexts."""

import functools
import pathlib
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from wafer.data.batching.batches import row_lengths
from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.sources import FEATURES, PAIR_FEATURES
from wafer.data.readers.rows import assemble, row_folders
from wafer.data.readers.text.preferences import pair_row
from wafer.data.rowfiles.files import Hdf5Source
from wafer.errors import DataError

Rows = dict[str, np.ndarray]

REFERENCE = "reference_logps.npy"  # float32 [N, 2] beside the rows, which `wafer score` writes

_QUESTION = ("questions_input_ids", "questions_attention_mask")
_CONTEXT = ("ctx_input_ids", "ctx_attention_mask")
_SEGMENTS = ("questions_token_type_ids", "ctx_token_type_ids")


def _open(folder: str, features: Sequence[str], vocab_size: int | None) -> Hdf5Source:
    source = Hdf5Source([folder], vocab_size)
    source.require(features)
    return source


class PairSource:
    """Rows of a chosen and a rejected answer, side by side in one row of [2 S].

    Args:
        folders: of HDF5 files.
        vocab_size: ids must be below; None does not look.
        reference: read each folder's log-probabilities of the reference, too.

    Raises:
        DataError: other rows, or no log-probabilities beside them.
    """

    def __init__(
        self, folders: Sequence[str], vocab_size: int | None = None, *, reference: bool = True
    ) -> None:
        self._parts = [_open(folder, PAIR_FEATURES, vocab_size) for folder in folders]
        self._ends = np.cumsum([len(part) for part in self._parts])
        self._reference = None
        if reference:
            own = zip(folders, self._parts, strict=True)
            self._reference = np.concatenate([_reference(f, len(part)) for f, part in own])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def length(self) -> int:
        """S, tokens of one answer with its prompt."""
        return self._parts[0].row_shape[1]

    def __getitem__(self, index: int) -> Rows:
        part = int(np.searchsorted(self._ends, index, side="right"))
        row = self._parts[part][index - (int(self._ends[part - 1]) if part else 0)]
        answers = []
        for side in ("chosen", "rejected"):
            answer = np.stack([row[f"{side}_{name}"] for name in FEATURES])
            answers.append(answer[:, : row_lengths(answer[1])])
        pair = pair_row(answers, self.length)
        if self._reference is None:
            return pair
        return pair | {"reference_logps": self._reference[index]}


def _reference(folder: str, count: int) -> np.ndarray:
    path = pathlib.Path(folder) / REFERENCE
    rows = shlex.quote(folder)
    command = f"`wafer score --params X.yaml --checkpoint_path DIR --input {rows}` writes it"
    if not path.is_file():
        raise DataError(f"{path}: no such file; {command}")
    try:
        values = np.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read ({error}); {command}") from None
    if values.shape != (count, 2) or values.dtype.kind != "f" or not np.isfinite(values).all():
        raise DataError(
            f"{path}: {values.dtype}{list(values.shape)}; expected finite float32 [{count}, 2], "
            f"as many as rows; {command}"
        )
    return values.astype(np.float32)


def dpo_rows(cfg: Any, context: Context) -> Dataset:
    """Read DpoHDF5DataProcessor's rows: [N, 6, S], a chosen and a rejected answer.

    Raises:
        DataError: other rows, or no log-probabilities of the reference beside them.
    """
    dpo = getattr(context.config, "dpo", None)
    free = dpo is not None and dpo.reference_free
    open_rows = functools.partial(PairSource, vocab_size=context.vocab_size, reference=not free)
    source, note = assemble(cfg, open_rows)
    length = PairSource(row_folders(cfg)[:1], reference=False).length
    return Dataset(
        source=source,
        row_length=2 * length,
        complete=True,
        summary=f"HDF5: {len(source):,} pairs of answers of {length} tokens{note}",
    )


def dpr_rows(cfg: Any, context: Context) -> Dataset:
    """Read DPRHDF5DataProcessor's rows: a question [S] and its contexts [K, S], its own first.

    Raises:
        DataError: rows without the features.
    """
    needed = (*_QUESTION, *_CONTEXT)
    first = _open(row_folders(cfg)[0], needed, context.vocab_size)
    source, note = assemble(cfg, lambda names: Hdf5Source(names, context.vocab_size))
    contexts = next(group for group in first.groups if "ctx_input_ids" in group.features)
    if not contexts.contexts:
        raise DataError(
            f"{row_folders(cfg)[0]}: contexts of shape {contexts.shape}; expected [F, K, S], K "
            "contexts of a question"
        )
    return Dataset(
        source=source,
        row_length=contexts.length,
        complete=True,
        transform=_question,
        summary=f"HDF5: {len(source):,} questions with {contexts.contexts} contexts each{note}",
    )


def _question(row: Rows, rng: np.random.Generator) -> Rows:
    """Rename a row's features to a batch's."""
    del rng
    names = dict(zip(_QUESTION, ("input_ids", "attention_mask"), strict=True))
    names |= dict(zip(_CONTEXT, ("context_input_ids", "context_attention_mask"), strict=True))
    names |= dict(zip(_SEGMENTS, ("token_type_ids", "context_token_type_ids"), strict=True))
    return {batch: row[stored] for stored, batch in names.items() if stored in row}
