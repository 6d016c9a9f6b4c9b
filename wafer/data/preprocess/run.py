"""Preprocessing from beginning to end: read, tokenize in several processes, pack, write.

Batches of records go through in order, whatever the number of processes, so that the rows depend
on the input and the settings alone. After each HDF5 file the standing is saved.
"""

import functools
import logging
import math
import operator
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from tokenizers import Tokenizer

from wafer.data.preprocess import progress as standings
from wafer.data.preprocess.encode import Encoded, Encoder, ReadCounts, encode
from wafer.data.preprocess.layouts import Layout, layout_of
from wafer.data.preprocess.output import OutputSummary, PreprocessJob, Sink, outputs
from wafer.data.preprocess.packing import Packer
from wafer.data.preprocess.pool import Pool, open_pool
from wafer.data.preprocess.progress import ResumePoint, Saved, fingerprint
from wafer.data.preprocess.records import (
    BEGINNING,
    RecordBatch,
    RecordPosition,
    batches,
    find_inputs,
)
from wafer.data.preprocess.vocabulary import RowVocabulary, build_vocabulary, describe
from wafer.data.rowfiles.described import PARAMS
from wafer.data.text.tokenizer import load_tokenizer
from wafer.data.vendor import vocabulary as vendor_vocabulary
from wafer.data.vendor.hooks import load_hook
from wafer.data.vendor.rows import layouts as vendor_layouts
from wafer.data.vendor.rows.encode import encode_examples
from wafer.data.vendor.settings import AnySettings, HookSettings
from wafer.data.vendor.special import SETTINGS_FILES, SPECIAL_IDS, tell_of_template
from wafer.errors import DataError
from wafer.models.errors import optional
from wafer.models.files import atomic_write, made_folder

_LOG = logging.getLogger(__name__)
_PIECE = 4 << 20  # bytes of rows that are made at once

Keep = Callable[[tuple[str, ...]], bool]


def preprocess(settings: AnySettings, keep: Keep | None = None) -> OutputSummary:
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
    inputs = find_inputs(
        settings.input_dir, settings.metadata_files, settings.fields, settings.output_dir
    )
    if settings.resume_from_checkpoint is False:
        _clear(folder, settings)
    with made_folder(folder):
        return _made(settings, inputs, folder, keep)


def _made(
    settings: AnySettings, inputs: list[pathlib.Path], folder: pathlib.Path, keep: Keep | None
) -> OutputSummary:
    """Do it in a folder that is there."""
    tokenizer = _tokenizer(settings, inputs, folder, keep)
    ids, layout = _rules(settings, tokenizer)
    if isinstance(settings, HookSettings):
        vendor_vocabulary.keep_settings(settings, ids, tokenizer, folder)
    mark = fingerprint(settings, inputs, tokenizer.to_str())
    job = PreprocessJob(settings, inputs, tokenizer, ids, layout, folder, mark)
    saved = standings.load(folder, mark)
    if saved is None:
        _check_empty(job)
    else:
        _LOG.info(
            "Going on after %d file(s), %d rows, %d records",
            saved.written.files,
            saved.written.rows,
            saved.standing.counts.records,
        )
    return _work(job, saved, keep)


def _rules(settings: AnySettings, tokenizer: Tokenizer) -> tuple[RowVocabulary, Layout]:
    """Ids and row layout by the kind of settings."""
    if settings.use_ftfy:
        optional("ftfy", "use_ftfy")  # a missing package ends the run now
    if isinstance(settings, HookSettings):
        # a wrong name ends the run now
        load_hook(settings.read_hook, settings.read_hook_kwargs, settings.rules.release)
        if settings.mode == "dpo" or "chat" in (settings.read_hook or ""):
            optional("jinja2", "a chat template")
        ids = vendor_vocabulary.describe(settings, tokenizer)
        _LOG.info("%s", settings.rules)
        return ids, vendor_layouts.layout_of(settings, ids, tokenizer)
    if settings.mode.startswith("Summarization"):
        for path in filter(None, (settings.huggingface_tokenizer, settings.encoder_file)):
            tell_of_template(path)
    ids = describe(settings, tokenizer)
    return ids, layout_of(settings, ids)


def _read(
    settings: AnySettings,
    inputs: list[pathlib.Path],
    keep: Keep | None,
    start: RecordPosition = BEGINNING,
) -> Iterator[RecordBatch]:
    skip, chunk = settings.skip_bad_records, settings.chunk_bytes
    for batch in batches(inputs, settings.fields, start, skip_bad=skip, chunk=chunk):
        if keep is None:
            yield batch
        else:
            yield batch._replace(records=[record for record in batch.records if keep(record)])


def _clear(folder: pathlib.Path, settings: AnySettings) -> None:
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
    complete = (job.folder / PARAMS).is_file()
    if existing and complete:
        raise DataError(
            f"{job.folder}: holds a complete dataset already ({len(existing)} files). Give another "
            "output_dir, or --resume_from_checkpoint false to make it again"
        )


def _tokenizer(
    settings: AnySettings, inputs: list[pathlib.Path], folder: pathlib.Path, keep: Keep | None
) -> Tokenizer:
    """Load or train the tokenizer; keep it beside the rows."""
    path = folder / "tokenizer.json"
    if isinstance(settings, HookSettings):
        tokenizer = vendor_vocabulary.build_vocabulary(settings)
    elif settings.tokenizer_type == "TrainBPE" and standings.exists(folder) and path.is_file():
        return load_tokenizer(path)  # a run that goes on keeps its vocabulary
    else:
        if settings.tokenizer_type == "TrainBPE":
            _LOG.info("Training a byte-pair vocabulary of %s tokens", settings.vocab_size)
        read = _read(settings, inputs, keep)
        texts = (text for batch in read for record in batch.records for text in record)
        tokenizer = build_vocabulary(settings, texts)
    with atomic_write(path, sync=True) as partial:  # its own `save` has an error of its own
        partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8", newline="\n")
    return tokenizer


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _work(job: PreprocessJob, saved: Saved | None, keep: Keep | None) -> OutputSummary:
    settings = job.settings
    packer = job.layout.packer()
    begin = (
        ResumePoint(RecordPosition(), 0, ReadCounts(), packer.state())
        if saved is None
        else saved.standing
    )
    packer.restore(begin.packer)
    encoder = Encoder(settings, job.ids, job.tokenizer.to_str())
    read = _read(settings, job.inputs, keep, begin.position)
    total = sum(path.stat().st_size for path in job.inputs)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TextColumn("{task.fields[speed]:,.0f} documents/s"),
        TimeElapsedColumn(),
        TextColumn("ETA"),
        TimeRemainingColumn(),
        disable=not settings.display_pbar,
    )
    processes = settings.processes or _cores()
    with open_pool(encoder, processes) as pool, bar, Sink(job, begin, saved) as sink:
        task = bar.add_task(
            "preprocess", total=total, completed=begin.bytes_read, rows=sink.rows, speed=0.0
        )
        started = time.monotonic()
        function = encode_examples if isinstance(settings, HookSettings) else encode
        encoded = pool.map(function, ((batch.records, batch) for batch in read))
        for rows, standing in _naming(
            _shaped(job, pool, _packed(encoded, packer, begin, settings)), job, begin.position
        ):
            sink.add(rows, standing)
            if standing is not None:
                read_now = standing.counts.records - begin.counts.records
                speed = read_now / max(time.monotonic() - started, 1e-9)
                bar.update(task, completed=standing.bytes_read, rows=sink.rows, speed=speed)
        return sink.finish()


def _naming(
    shaped: Iterator[tuple[list[np.ndarray], ResumePoint | None]],
    job: PreprocessJob,
    position: RecordPosition,
) -> Iterator[tuple[list[np.ndarray], ResumePoint | None]]:
    """Rows as they come; a process that dies names the records that were next.

    Raises:
        DataError: a process died.
    """
    try:
        for rows, standing in shaped:
            position = position if standing is None else standing.position
            yield rows, standing
    except BrokenProcessPool:
        path = job.inputs[min(position.file, len(job.inputs) - 1)]
        raise DataError(
            f"{path}: a process that encodes records from number {position.record + 1} on ended "
            "without an answer (killed, or out of memory). Fewer need less: --processes 1"
        ) from None


def _packed(
    encoded: Iterator[tuple[Encoded, RecordBatch]],
    packer: Packer,
    begin: ResumePoint,
    settings: AnySettings,
) -> Iterator[tuple[tuple[list[Any], int], ResumePoint]]:
    """What becomes rows after each batch, the number of its first row, and the standing."""
    counts, position, read = begin.counts, begin.position, begin.bytes_read
    earlier = counts.discarded
    corpus, limit = settings.data_format == "corpus", settings.row_limit or math.inf
    for texts, batch in encoded:
        full = []
        for sequence in texts.sequences:
            if counts.rows + len(full) < limit:
                full += [sequence] if corpus else packer.add(sequence)
        first = counts.rows
        counts = ReadCounts(*map(operator.add, counts, texts.counts))
        counts = counts.plus(records=len(batch.records), skipped=batch.skipped, rows=len(full))
        earlier += texts.counts.discarded
        counts = counts._replace(discarded=earlier + packer.discarded)
        position, read = batch.end, batch.bytes_read
        yield (full, first), ResumePoint(position, read, counts, packer.state())
        if counts.rows >= limit:
            return
    if limit < math.inf:
        _LOG.warning("token_limit: the input has fewer tokens (%s rows)", f"{counts.rows:,}")
    rest = packer.finish() if settings.write_remainder else []
    last = counts._replace(discarded=earlier + packer.discarded, rows=counts.rows + len(rest))
    yield (rest, counts.rows), ResumePoint(position, read, last, packer.state())


def _pieces(
    packed: Iterator[tuple[tuple[list[Any], int], ResumePoint]], size: int
) -> Iterator[tuple[tuple[list[Any], int], ResumePoint | None]]:
    """Cut batches to ``size`` rows; the standing comes with the last piece of each."""
    for (full, first), standing in packed:
        starts = range(0, max(len(full), 1), size)
        for start in starts:
            piece = full[start : start + size], first + start
            yield piece, standing if start == starts[-1] else None


def _shaped(
    job: PreprocessJob, pool: Pool, packed: Iterator[tuple[tuple[list[Any], int], ResumePoint]]
) -> Iterator[tuple[list[np.ndarray], ResumePoint | None]]:
    if job.settings.data_format == "corpus":
        empty = np.empty(0, np.int32)
        for (full, _), standing in packed:
            yield [np.concatenate([*full, empty])], standing
        return
    shaper = functools.partial(_rows, job.layout, job.settings.seed)
    row = 4 * sum(len(group.features) * group.length for group in job.layout.groups)
    pieces = _pieces(packed, max(_PIECE // row, 1))
    if job.layout.heavy:
        yield from pool.map(shaper, pieces)
        return
    for work, standing in pieces:
        yield shaper(work), standing


def _rows(layout: Layout, seed: int, work: tuple[list[Any], int]) -> list[np.ndarray]:
    """Make rows of what the packer gave; the draws of a row depend on its number alone."""
    full, first = work
    rows = [
        layout.shape(item, functools.partial(np.random.default_rng, (seed, first + i)))
        for i, item in enumerate(full)
    ]
    if not rows:
        return [np.empty((0, len(g.features), g.length), np.int32) for g in layout.groups]
    return [np.stack(arrays) for arrays in zip(*rows, strict=True)]
