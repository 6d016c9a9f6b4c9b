"""Preprocessing from beginning to end: read, tokenize in several processes, pack, write.

Batches of records go through in order, whatever the number of processes, so that the rows depend
on the input and the settings alone. After each HDF5 file the standing is saved.
"""

import functools
import logging
import math
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np
from rich.progress import Progress, TextColumn
from tokenizers import Tokenizer

from wafer.data.preprocess import progress as standings
from wafer.data.preprocess.encode import Encoded, Encoder, ReadCounts
from wafer.data.preprocess.output import OutputSummary, PreprocessJob, Sink, outputs
from wafer.data.preprocess.pool import Pool, open_pool
from wafer.data.preprocess.progress import ResumePoint, Saved, fingerprint
from wafer.data.preprocess.records import (
    InputRecord,
    RecordBatch,
    RecordPosition,
    batches,
    find_inputs,
)
from wafer.data.preprocess.rows.chat import SETTINGS_FILES, SPECIAL_IDS, tell_of_template
from wafer.data.preprocess.rows.documents import encode_records, training_texts
from wafer.data.preprocess.rows.hooks import load_hook
from wafer.data.preprocess.rows.images import image_layout
from wafer.data.preprocess.rows.layouts import RowLayout, layout_of
from wafer.data.preprocess.rows.packing import Packer
from wafer.data.preprocess.rows.prompted_images import prompted_image_layout
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.shares import InputShare, input_share
from wafer.data.preprocess.vocabulary import (
    RowVocabulary,
    build_vocabulary,
    describe,
    keep_marks,
)
from wafer.data.rowfiles.described import PARAMS
from wafer.data.text.tokenizer import load_tokenizer
from wafer.errors import DataError
from wafer.models.errors import optional
from wafer.models.files import atomic_write, made_folder

_LOG = logging.getLogger(__name__)
_PIECE = 4 << 20  # bytes of rows that are made at once

Keep = Callable[[InputRecord], bool]


class PackedRows(NamedTuple):
    """What some rows are made of."""

    items: list[Any]  #: what the packer gave
    first: int  #: number of the first row
    point: ResumePoint | None  #: after a batch; None inside one


def input_files(settings: Settings) -> list[pathlib.Path]:
    """Return the files that a run reads; see ``find_inputs``."""
    return find_inputs(
        settings.input_dir, settings.metadata_files, settings.columns, settings.output_dir
    )


def preprocess(settings: Settings, keep: Keep | None = None) -> OutputSummary:
    """Turn text into HDF5 rows.

    A run that was killed goes on where its last complete file ends, and gives the same files as
    one that was not.

    Args:
        settings: what to read, how to lay it out, where to write; ``split`` is the caller's.
        keep: whether a record counts; None takes all.

    Returns:
        What was written; also in ``data_params.json`` beside the files.

    Raises:
        DataError: input, tokenizer or output folder that cannot be used.
    """
    folder = pathlib.Path(settings.output_dir)
    share = input_share(settings, input_files(settings))
    if settings.resume_from_checkpoint is False:
        _clear(folder, settings)
    with made_folder(folder):
        tokenizer = _tokenizer(settings, share, folder, keep)
        ids, layout = _rules(settings, tokenizer)
        if settings.rules.named_marks:
            keep_marks(settings, ids, tokenizer, folder)
        mark = fingerprint(settings, share, tokenizer.to_str())
        job = PreprocessJob(settings, share, tokenizer, ids, layout, folder, mark)
        saved = standings.load(folder, mark)
        if saved is None:
            _check_empty(job)
        else:
            files, rows = saved.written.files, saved.written.rows
            records = saved.standing.counts.records
            _LOG.info("Going on after %d file(s), %d rows, %d records", files, rows, records)
        return _work(job, saved, keep)


def _rules(settings: Settings, tokenizer: Tokenizer) -> tuple[RowVocabulary, RowLayout]:
    """Ids and row layout; a missing package or a wrong name ends the run now."""
    if settings.use_ftfy:
        optional("ftfy", "use_ftfy")
    load_hook(settings.read_hook, settings.read_hook_kwargs)
    plain, images = settings.rules.plain, settings.is_multimodal
    if settings.mode == "dpo" or ("chat" in settings.read_hook and not plain):
        optional("jinja2", "a chat template")
    ids = describe(settings, tokenizer)
    if images and plain:
        return ids, prompted_image_layout(settings, ids, tokenizer)
    if images:
        return ids, image_layout(settings, ids)
    for path in (settings.huggingface_tokenizer, settings.encoder_file):
        if path and plain and settings.mode == "finetuning":
            tell_of_template(path)
    return ids, layout_of(settings, ids, tokenizer)


def _read(
    settings: Settings,
    share: InputShare,
    keep: Keep | None,
    start: RecordPosition | None = None,
) -> Iterator[RecordBatch]:
    skip, chunk = settings.skip_bad_records, settings.chunk_bytes
    files, columns, begin = share.files, settings.columns, start or share.start
    for batch in batches(files, columns, begin, end=share.end, skip_bad=skip, chunk=chunk):
        yield batch._replace(records=[r for r in batch.records if keep is None or keep(r)])


def _clear(folder: pathlib.Path, settings: Settings) -> None:
    """Remove what an earlier run into this folder wrote, and nothing else."""
    standings.forget(folder)
    names = (PARAMS, "tokenizer.json", SPECIAL_IDS, *SETTINGS_FILES)
    own = [*(folder / name for name in names), *outputs(folder, settings.output_name)]
    for path in own:
        path.unlink(missing_ok=True)


def _check_empty(job: PreprocessJob) -> None:
    if job.settings.resume_from_checkpoint:
        raise DataError(f"resume_from_checkpoint: {job.folder} holds no unfinished run")
    existing = outputs(job.folder, job.settings.output_name)
    if existing and (job.folder / PARAMS).is_file():
        raise DataError(
            f"{job.folder}: holds a complete dataset already ({len(existing)} files). Give another "
            "output_dir, or --resume_from_checkpoint false to make it again"
        )


def _tokenizer(
    settings: Settings, share: InputShare, folder: pathlib.Path, keep: Keep | None
) -> Tokenizer:
    """Load or train the tokenizer; keep it beside the rows."""
    path = folder / "tokenizer.json"
    if settings.tokenizer_type == "TrainBPE":
        if standings.exists(folder) and path.is_file():
            return load_tokenizer(path)  # a run that goes on keeps its vocabulary
        _LOG.info("Training a byte-pair vocabulary of %s tokens", settings.vocab_size)
    read = _read(settings, share, keep)
    texts = (text for batch in read for text in training_texts(batch.records, settings))
    tokenizer = build_vocabulary(settings, texts)
    with atomic_write(path, sync=True) as partial:  # its own `save` has an error of its own
        partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
    return tokenizer


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: PreprocessJob, saved: Saved | None, keep: Keep | None) -> OutputSummary:
    settings, share = job.settings, job.share
    packer = job.layout.packer()
    begin = saved.standing if saved else ResumePoint(share.start, 0, ReadCounts(), packer.state())
    packer.restore(begin.packer)
    encoder = Encoder(settings, job.ids, job.tokenizer.to_str())
    read = _read(settings, share, keep, begin.position)
    total = sum(path.stat().st_size for path in share.files)
    shown = "{task.fields[rows]:,} rows, {task.fields[speed]:,.0f} documents/s"
    bar = Progress(
        *Progress.get_default_columns(), TextColumn(shown), disable=not settings.display_pbar
    )
    processes = settings.processes or _cores()
    position = begin.position
    with open_pool(encoder, processes) as pool, bar, Sink(job, begin, saved) as sink:
        task = bar.add_task(
            "preprocess", total=total, completed=begin.bytes_read, rows=sink.rows, speed=0.0
        )
        started = time.monotonic()
        encoded = pool.map(encode_records, ((batch.records, batch) for batch in read))
        try:
            for rows, point in _shaped(job, pool, _packed(job, encoded, packer, begin)):
                sink.add(rows, point)
                if point is not None:
                    position = point.position
                    read_now = point.counts.records - begin.counts.records
                    speed = read_now / max(time.monotonic() - started, 1e-9)
                    bar.update(task, completed=point.bytes_read, rows=sink.rows, speed=speed)
        except BrokenProcessPool:
            path = share.files[min(position.file, len(share.files) - 1)]
            raise DataError(
                f"{path}: a process that encodes records from number {position.record + 1} on "
                "ended without an answer (killed, or out of memory). Fewer need less: "
                "--processes 1"
            ) from None
        return sink.finish()


def _packed(
    job: PreprocessJob,
    encoded: Iterable[tuple[Encoded, RecordBatch]],
    packer: Packer,
    begin: ResumePoint,
) -> Iterator[PackedRows]:
    """What becomes rows, a few megabytes of them at a time."""
    settings, counts, end = job.settings, begin.counts, begin
    earlier, limit = counts.discarded, settings.row_limit or math.inf
    for texts, batch in encoded:
        items: list[Any] = []
        for sequence in texts.sequences:
            if counts.rows + len(items) < limit:
                items += packer.add(sequence)
        first = counts.rows
        read = ReadCounts(records=len(batch.records), skipped=batch.skipped, rows=len(items))
        counts = ReadCounts(*map(sum, zip(counts, texts.counts, read, strict=True)))
        earlier += texts.counts.discarded
        counts = counts._replace(discarded=earlier + packer.discarded)
        end = ResumePoint(batch.end, batch.bytes_read, counts, packer.state())
        yield from _pieces(job.layout, PackedRows(items, first, end))
        if counts.rows >= limit:
            return
    if limit < math.inf:
        _LOG.warning("token_limit: the input has fewer tokens (%s rows)", f"{counts.rows:,}")
    remainder = packer.finish() if settings.write_remainder else []
    last = counts._replace(discarded=earlier + packer.discarded, rows=counts.rows + len(remainder))
    end = end._replace(counts=last, packer=packer.state())
    yield from _pieces(job.layout, PackedRows(remainder, counts.rows, end))


def _pieces(layout: RowLayout, packed: PackedRows) -> Iterator[PackedRows]:
    """Cut a batch; the point comes with its last piece."""
    row = 4 * sum(len(group.features) * group.length for group in layout.groups)
    size = max(_PIECE // row, 1) if row else len(packed.items) or 1
    starts = range(0, max(len(packed.items), 1), size)
    for start in starts:
        point = packed.point if start == starts[-1] else None
        yield PackedRows(packed.items[start : start + size], packed.first + start, point)


def _shaped(
    job: PreprocessJob, pool: Pool, packed: Iterator[PackedRows]
) -> Iterator[tuple[list[np.ndarray], ResumePoint | None]]:
    """Rows [N, F, S] of each group, or tokens [N], and the point after them."""
    shape = functools.partial(_rows, job.layout, job.settings.seed)
    if job.layout.heavy:
        yield from pool.map(shape, ((rows._replace(point=None), rows.point) for rows in packed))
        return
    for rows in packed:
        yield shape(rows), rows.point


def _rows(layout: RowLayout, seed: int, packed: PackedRows) -> list[np.ndarray]:
    """Make rows; the draws of a row depend on its number alone."""
    if not layout.groups:
        return [np.concatenate([*packed.items, np.empty(0, np.int32)])]
    rows = [
        layout.shape(item, functools.partial(np.random.default_rng, (seed, packed.first + i)))
        for i, item in enumerate(packed.items)
    ]
    if not rows:
        return [np.empty((0, len(g.features), g.length), np.int32) for g in layout.groups]
    return [np.stack(arrays) for arrays in zip(*rows, strict=True)]
