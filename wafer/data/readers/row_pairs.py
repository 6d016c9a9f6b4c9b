"""HDF5 rows of several sequences: DPO's pairs of answers, DPR's questions with their contexts."""

import functools
import pathlib
import shlex
from collections.abc import Sequence

import numpy as np

from wafer.data.batching.batches import row_lengths
from wafer.data.batching.dataset import Context, Dataset
from wafer.data.batching.pipeline import Rows
from wafer.data.batching.sources import FEATURES, PAIR_FEATURES
from wafer.data.readers.rows import assemble, row_folders
from wafer.data.readers.text.preferences import pair_row
from wafer.data.rowfiles.files import Hdf5Source
from wafer.data.sections.base import RowsInput
from wafer.errors import DataError

REFERENCE = "reference_logps.npy"  # float32 [N, 2] beside the rows, which `wafer score` writes

_NAMES = {  # feature of a row -> of a batch
    f"{side}_{name}": f"{prefix}{name}"
    for side, prefix in (("questions", ""), ("ctx", "context_"))
    for name in ("input_ids", "attention_mask", "token_type_ids")
}


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
        self._parts = [Hdf5Source([folder], vocab_size) for folder in folders]
        for source in self._parts:
            source.require(PAIR_FEATURES)
        self._ends = np.cumsum([len(source) for source in self._parts])
        self._reference = None
        if reference:
            own = zip(folders, self._parts, strict=True)
            self._reference = np.concatenate([_reference(f, len(source)) for f, source in own])

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


def dpo_rows(cfg: RowsInput, context: Context) -> Dataset:
    """Read DpoHDF5DataProcessor's rows: [N, 6, S], a chosen and a rejected answer.

    Raises:
        DataError: other rows, or no log-probabilities of the reference beside them.
    """
    dpo = getattr(context.config, "dpo", None)
    free = dpo is not None and dpo.reference_free
    open_rows = functools.partial(PairSource, vocab_size=context.vocab_size, reference=not free)
    source, first, note = assemble(cfg, open_rows)
    return Dataset(
        source=source,
        row_length=2 * first.length,
        complete=True,
        summary=f"HDF5: {len(source):,} pairs of answers of {first.length} tokens{note}",
    )


def dpr_rows(cfg: RowsInput, context: Context) -> Dataset:
    """Read DPRHDF5DataProcessor's rows: a question [S] and its contexts [K, S], its own first.

    Raises:
        DataError: rows without the features.
    """
    source, first, note = assemble(cfg, lambda names: Hdf5Source(names, context.vocab_size))
    first.require([name for name in _NAMES if not name.endswith("token_type_ids")])
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
    return {batch: row[stored] for stored, batch in _NAMES.items() if stored in row}
