"""What a preprocessing run writes: whole HDF5 files, their description, and what it reports."""

import contextlib
import dataclasses
import glob
import math
import operator
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from tokenizers import Tokenizer

from wafer.data.preprocess import progress
from wafer.data.preprocess.encode import ReadCounts
from wafer.data.preprocess.progress import OutputCounts, ResumePoint, Saved
from wafer.data.preprocess.rows.layouts import RowLayout
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.shares import InputShare
from wafer.data.preprocess.vocabulary import RowVocabulary
from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.writer import Append, described, growing, write_json
from wafer.errors import DataError


class OutputSummary(NamedTuple):
    """What a run has written."""

    folder: pathlib.Path  #: of the output
    written: OutputCounts  #: HDF5 files and what is in them
    counts: ReadCounts  #: of what was read
    params: dict[str, Any]  #: the content of ``data_params.json``

    def __repr__(self) -> str:
        after, counts, written = self.params["post-process"], self.counts, self.written
        corpus = self.params["data_format"] == "corpus"
        share = written.tokens / max(written.slots, 1)
        loss = (
            f"{written.loss:,} carry loss"
            if "loss_valid_tokens" in after
            else "those that carry loss are drawn at every reading"
        )
        warnings = (  # a number of what is left out, and what
            (after["discarded"], "empty, too short or too long, left out"),
            (counts.empty, "records left out: nothing to train on, or an empty field"),
            (
                counts.marks,
                "special token(s), such as <|endoftext|>, stood in the texts and were read as "
                "marks; --encode_special_tokens true reads them as text",
            ),
            (
                counts.without_image,
                "records left out: an image is missing in image_dir, or there are more than "
                "max_num_img",
            ),
            (counts.skipped, "records could not be read, left out"),
        )
        lines = [
            f"{written.rows:,} {'tokens' if corpus else 'rows'} in {written.files} file(s) in "
            f"{self.folder}",
            f"{counts.records:,} records, {counts.characters:,} characters, "
            f"vocabulary {after['vocab_size']:,}",
            *(f"{number:,} {what}" for number, what in warnings if number),
        ]
        if not corpus:
            lines.append(
                f"{written.tokens:,} tokens in {written.slots:,} slots ({share:.1%}), {loss}"
            )
        return "\n".join(lines)


class PreprocessJob(NamedTuple):
    """A checked run, ready to start."""

    settings: Settings
    share: InputShare
    tokenizer: Tokenizer
    ids: RowVocabulary
    layout: RowLayout
    folder: pathlib.Path
    mark: str


def outputs(folder: pathlib.Path, name: str) -> list[pathlib.Path]:
    """The HDF5 files that a run with this ``output_name`` writes."""
    return sorted(folder.glob(f"{glob.escape(name)}_[0-9]*.h5"))


class Sink:
    """Writes rows into the file that grows; saves the standing after each that is complete.

    A context manager: what is not complete at its end is dropped.

    Args:
        job: the run.
        begin: the standing from which rows are made.
        saved: of the run that it continues, or None.
    """

    def __init__(self, job: PreprocessJob, begin: ResumePoint, saved: Saved | None) -> None:
        self._job, self._standing = job, begin
        self._since = 0  # rows made since that standing
        self._skipped = saved.skip if saved else 0  # of these, in complete files already
        self._written = self._complete = saved.written if saved else OutputCounts()
        limit = job.settings.files_per_record
        self._limit = limit if job.layout.groups else limit * job.settings.max_seq_length
        self._open = contextlib.ExitStack()
        self._append: Append | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Drop the file that is not complete."""
        unfinished = DataError("not complete")
        self._open.__exit__(type(unfinished), unfinished, None)

    @property
    def rows(self) -> int:
        """Rows written, those of the unfinished file included."""
        return self._written.rows

    def add(self, rows: list[np.ndarray], standing: ResumePoint | None) -> None:
        """Take rows, [N, F, S] for each group, and the standing where a batch ends with them."""
        start = min(self._skipped - self._since, len(rows[0])) if self._skipped > self._since else 0
        while start < len(rows[0]):
            room = self._limit - (self._written.rows - self._complete.rows)
            piece = [values[start : start + room] for values in rows]
            start += len(piece[0])
            self._write(piece)
            if len(piece[0]) == room:
                self._end_file()
                saved = Saved(self._complete, self._standing, self._since + start)
                progress.save(self._job.folder, self._job.mark, saved)
        self._since += len(rows[0])
        if standing is not None:
            self._skipped = max(self._skipped - self._since, 0)
            self._standing, self._since = standing, 0

    def _write(self, rows: list[np.ndarray]) -> None:
        job, groups = self._job, self._job.layout.groups
        if self._append is None:
            path = job.folder / f"{job.settings.output_name}_{self._written.files:05d}.h5"
            compression = None if job.settings.compression == "none" else job.settings.compression
            self._append = self._open.enter_context(
                growing(path, groups, compression, attachments=job.layout.attachments)
            )
        self._append(rows)
        self._written = OutputCounts(*map(operator.add, self._written, _counts_of(job, rows)))

    def _end_file(self) -> None:
        self._open.close()
        self._append = None
        self._complete = self._written = self._written._replace(files=self._written.files + 1)

    def finish(self) -> OutputSummary:
        """Write the last file and ``data_params.json``."""
        if self._append is not None and self._job.settings.write_remainder:
            self._end_file()
        counts = self._standing.counts
        if not self._complete.rows and self._job.share.shard is None:
            n = counts.without_image
            hint = f"; {n:,} records have no image in image_dir, or too many" if n else ""
            raise DataError(
                f"{self._job.folder}: no row was made: the input is empty, or every text is "
                f"shorter than min_sequence_len {self._job.settings.min_sequence_len} or, where "
                "texts are not cut (prompts, fold_long_doc false), longer than max_seq_length "
                f"{self._job.settings.max_seq_length}{hint}"
            )
        params = _params(self._job, self._complete, counts)
        write_json(self._job.folder / PARAMS, params)
        progress.forget(self._job.folder)
        return OutputSummary(self._job.folder, self._complete, counts, params)


def _counts_of(job: PreprocessJob, rows: list[np.ndarray]) -> OutputCounts:
    """Sums over rows [N, F, S] of each group, or over tokens [N]."""
    groups = job.layout.groups
    if not groups:
        return OutputCounts(rows=len(rows[0]))
    wide = [values for values in rows[: len(groups)] if values.shape[1] > 1]
    features, first = groups[0].features, wide[0][:, 0]
    if "key_padding_mask" in features:
        tokens = int((wide[0][:, features.index("key_padding_mask")] == 0).sum())
    else:
        tokens = sum(int(filled(values).sum()) for values in wide)
    padding = first == job.ids.pad_id
    return OutputCounts(
        rows=len(rows[0]),
        slots=sum(values.shape[0] * values.shape[2] for values in wide),
        tokens=tokens,
        loss=_with_loss(rows[: len(groups)], [group.features for group in groups], job.settings),
        pads=int(padding.sum()),
        plain=int((~padding & (first != job.ids.eos_id)).sum()),
    )


_MASKS = ("loss_mask", "decoder_attention_mask", "masked_lm_mask")


def _loss_masks(features: Sequence[str]) -> list[int]:
    """Return the features of a group that say which positions carry loss."""
    named = [i for i, name in enumerate(features) if name in _MASKS]
    sides = [name.removesuffix("labels") for name in features if name.endswith("labels")]
    beside = [f"{side}attention_mask" for side in sides]
    return named or [features.index(name) for name in beside if name in features]


def _with_loss(
    groups: list[np.ndarray], features: Sequence[Sequence[str]], settings: Settings
) -> int:
    """Count the positions that carry loss in the rows of each group."""
    count = 0
    for rows, names in zip(groups, features, strict=True):
        if tuple(names) == ("labels",):
            count += int(np.count_nonzero(rows != settings.ignore_index))
        for i in _loss_masks(names):
            inverted = settings.inverted_mask and names[i] in {"attention_mask", "loss_mask"}
            count += int(np.count_nonzero((rows[:, i] != 0) != inverted))
    return count


def _params(job: PreprocessJob, written: OutputCounts, counts: ReadCounts) -> dict[str, Any]:
    """The content of ``data_params.json``: settings, layout, and what came out."""
    settings, share, ids, groups = job.settings, job.share, job.ids, job.layout.groups
    layout = described(groups) if groups else {"features": ["tokens"]}
    after: dict[str, Any] = {
        "processed": counts.records,
        "discarded": counts.discarded,
        "skipped": counts.skipped,
        "raw_chars_count": counts.characters,
        "special_tokens_in_texts": counts.marks,
        "files": written.files,
        "vocab_size": ids.size,
        "eos_id": ids.eos_id,
        "pad_id": ids.pad_id,
    }
    if ids.mask_id is not None:
        after |= {"mask_id": ids.mask_id, "special_ids": _special(job)}
    if groups:
        after |= {"num_slots": written.slots, "num_tokens": written.tokens}
        after["loss_valid_tokens"] = written.loss
    more = dict(settings.described)
    if more:
        known = {"eos_id": ids.eos_id, "pad_id": ids.pad_id, "vocab_size": ids.size}
        more["processing"] = dict(more.get("processing") or {}) | known
        more["features"] = list(groups[0].features)
        after |= _sums(settings, written, counts)
        if settings.mode != "pretraining":
            del after["special_tokens_in_texts"]  # they are not counted
    # Whether the positions that carry loss are drawn when rows are read.
    if not any(_loss_masks(g.features) or g.features == ("labels",) for g in groups):
        for key in ("loss_valid_tokens", "num_masked_tokens"):
            after.pop(key, None)
    if share.shard is not None:
        sums = {"written": list(written), "counts": list(counts)}  # for the merge
        more["shard"] = {**dataclasses.asdict(share.shard), "inputs": share.inputs, **sums}
    return more | {
        "n_examples": written.rows,
        **layout,
        **job.layout.described,
        "data_format": settings.data_format,
        "dtype": "i4",
        "compression": settings.compression,
        "samples_per_file": settings.files_per_record,
        "output_dir": settings.output_dir,
        "mode": settings.mode,
        "settings": settings.model_dump(),
        "post-process": after,
    }


def _sums(settings: Settings, written: OutputCounts, counts: ReadCounts) -> dict[str, Any]:
    """Sums of ``post-process`` under the names that files with groups of keys know."""
    read = counts.records - counts.empty
    sums: dict[str, Any] = {
        "processed_files": read,
        "discarded_files": counts.discarded,
        "successful_files": read - counts.discarded,
        "n_examples": written.rows,
        "raw_bytes_count": counts.raw_bytes,
        "normalized_chars_count": counts.clean_characters,
        "normalized_bytes_count": counts.clean_bytes,
        "num_tokens": written.slots,
        "num_pad_tokens": written.pads,
        "non_pad_tokens": written.plain,
        "num_masked_tokens": written.slots - written.loss,
    }
    if settings.mode == "finetuning":
        sums |= {"total_raw_docs": counts.records, "raw_docs_skipped": counts.empty}
    if settings.vsl:
        sums["num_sequences_before_packing"] = counts.sequences
    means = averages(written, counts)
    return sums | {key: value for key, value in means.items() if settings.vsl or key != _PACKING}


_PACKING = "vsl_packing_factor"


def averages(written: OutputCounts, counts: ReadCounts) -> dict[str, float]:
    """Means over the rows."""
    rows = max(written.rows, 1)
    return {
        "average_chars_per_sequence": math.ceil(counts.characters / rows),
        "average_bytes_per_sequence": math.ceil(counts.raw_bytes / rows),
        _PACKING: counts.sequences / rows,
    }


def _special(job: PreprocessJob) -> list[int]:
    """Ids that are never masked."""
    added = job.tokenizer.get_added_tokens_decoder()
    ids = job.ids
    known = {ids.eos_id, ids.pad_id, ids.cls_id, ids.sep_id, ids.mask_id} - {None}
    return sorted(known | {index for index, token in added.items() if token.special})


def filled(rows: np.ndarray) -> np.ndarray:
    """[N] positions in use of rows [N, F, S]: a prompt carries no loss but is no padding."""
    mask = rows[:, 1] != 0
    if rows.shape[1] == 5:
        return (mask | (rows[:, 3] > 0) | (rows[:, 4] > 0)).sum(axis=1)
    return np.where(mask, np.arange(1, mask.shape[1] + 1), 0).max(axis=1, initial=0)
