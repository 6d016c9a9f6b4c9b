"""Whole runs: parts such as training and evaluation, lengths of rows, shuffled rows.

Each document is in one part.
"""

import hashlib
import json
import logging
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess import progress
from wafer.data.preprocess.merge import check_output, mark_complete, merge_shards, unmark
from wafer.data.preprocess.output import OutputSummary, outputs
from wafer.data.preprocess.records import batches
from wafer.data.preprocess.rows.documents import training_texts
from wafer.data.preprocess.run import Keep, input_files, preprocess
from wafer.data.preprocess.settings import ContextSplits, DocumentSplit, Settings
from wafer.data.preprocess.shares import Shard, cut, find_shard, input_share, shard_settings
from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.files import folder_params
from wafer.data.rowfiles.folders import shuffle_folder, split_folder
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.sections import parse

_LOG = logging.getLogger(__name__)
_IN_ORDER = ".in_order"  # rows that are still to be shuffled
_BY_ROW = "--by row shares the rows out one by one, whatever documents they hold"

Document = tuple[Any, ...]


class Parts(NamedTuple):
    """Which part a document belongs to: the same for equal documents."""

    seed: int  #: of the hashes
    bounds: np.ndarray  #: [K - 1] uint64, the least hash of each part but the first

    def part_of(self, document: Document) -> int:
        """The part of a document's texts."""
        return int(np.searchsorted(self.bounds, document_hash(document, self.seed), side="right"))


def document_hash(document: Document, seed: int) -> np.uint64:
    """64 bits of a document's texts."""
    text = json.dumps([seed, *document]).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=8).digest(), np.uint64)[0]


def share_out(documents: Iterable[Document], ratios: Sequence[float], seed: int) -> Parts:
    """Choose parts at random whose characters are as ``ratios`` says, as nearly as documents allow.

    Args:
        documents: their texts.
        ratios: [K] positive shares.
        seed: of the choice.

    Raises:
        DataError: fewer different documents than parts.
    """
    sizes: dict[int, int] = {}
    for document in documents:
        key = int(document_hash(document, seed))
        sizes[key] = sizes.get(key, 0) + sum(len(str(text)) for text in document) + 1
    count, parts = len(sizes), len(ratios)
    if count < parts:
        raise DataError(f"ratios: {parts} parts, but only {count} different document(s)")
    hashes = np.array(sorted(sizes), np.uint64)
    return Parts(seed, hashes[cut([sizes[key] for key in hashes.tolist()], ratios)])


def _part_folder(settings: Settings, part: int) -> pathlib.Path:
    return pathlib.Path(settings.output_dir) / f"split_{part}"


def _is_complete(folder: pathlib.Path, settings: Settings) -> bool:
    """Whether an earlier run has finished this part.

    Raises:
        DataError: with other settings, or a shard of other input files.
    """
    if not (folder / PARAMS).is_file() or progress.exists(folder):
        return False
    params = folder_params(folder)
    written, other = params.get("settings") or {}, ""
    if progress.deciding(written) != progress.deciding(settings.model_dump(mode="json")):
        other = "settings"
    elif "shard" in params:
        share = input_share(settings, input_files(settings))
        other = "" if share.inputs == params["shard"]["inputs"] else "input files"
    if other:
        raise DataError(
            f"{folder}: holds rows of other {other}. Give another output_dir, or "
            "--resume_from_checkpoint false to make them again"
        )
    return True


def preprocess_parts(settings: Settings) -> Iterator[OutputSummary]:
    """Make the rows of each part in a folder of its own: ``output_dir/split_0``, ``split_1``, ...

    A vocabulary is trained on the texts of the first part. A run that was killed goes on.

    Args:
        settings: with ``split``.

    Yields:
        What was written for each part that was not complete yet.

    Raises:
        DataError: all parts are complete, or what ``preprocess`` raises.
    """
    ratios = settings.split or (1.0,)
    lists = settings.columns.lists
    document = lambda r: tuple(training_texts([r], settings)) if lists else r.values
    read = batches(input_files(settings), settings.columns, skip_bad=settings.skip_bad_records)
    parts = share_out((document(r) for batch in read for r in batch.records), ratios, settings.seed)
    made = 0
    for part in range(len(ratios)):
        folder = _part_folder(settings, part)
        own: dict[str, Any] = {"output_dir": str(folder)}
        if part and settings.tokenizer_type == "TrainBPE":
            own["tokenizer_type"] = "HuggingFaceTokenizer"
            own["huggingface_tokenizer"] = str(_part_folder(settings, 0) / "tokenizer.json")
        share = settings.model_copy(update=own)
        if settings.resume_from_checkpoint is not False and _is_complete(folder, share):
            _LOG.info("%s is complete", folder)
            continue
        made += 1
        yield preprocess(share, lambda record, part=part: parts.part_of(document(record)) == part)
    if not made:
        raise DataError(
            f"{settings.output_dir}: holds all {len(ratios)} parts already. Give another "
            "output_dir, or --resume_from_checkpoint false to make them again"
        )


def split_rows(
    source: str, target: str, ratios: Sequence[float], *, seed: int, size: int, by: str
) -> dict[pathlib.Path, int]:
    """Share a folder of rows out to ``target/split_0``, ``split_1``, ...

    Rows that hold pieces of documents are made again from their texts, so that no document is in
    two parts. Rows of whole records, and those of which nothing is known, are shared out as they
    are.

    Args:
        source: folder of rows.
        target: folder of the parts.
        ratios: positive shares; they need not sum to 1.
        seed: of what goes where.
        size: rows of every file but the last.
        by: 'document', or 'row' for rows as they are.

    Returns:
        folder of each part -> its rows; tokens of a corpus.

    Raises:
        DataError: rows that cannot be read, texts that are no longer there.
    """
    params = folder_params(source)
    written = params.get("settings") or {}
    known = "rules" in written
    if by == "document" and not known:
        _LOG.warning(
            "%s: %s does not say which documents the rows hold; pieces of one document may be in "
            "several parts",
            source,
            PARAMS,
        )
    if by == "row" or not known or written["mode"] != "pretraining":
        return split_folder(source, target, ratios, seed=seed, samples_per_file=size)
    own = {
        "output_dir": target,
        "split": list(ratios),
        "shards": None,
        "seed": seed,
        "files_per_record": size,
        "resume_from_checkpoint": None,
    }
    if not written["rules"]["named_marks"]:  # else settings name the tokenizer's folder
        own["tokenizer_type"] = "HuggingFaceTokenizer"
        own["huggingface_tokenizer"] = str(pathlib.Path(source) / "tokenizer.json")
    settings = parse(Settings, written | own)
    _LOG.info("Making the rows of %s again, so that each document is in one part", source)
    try:
        input_files(settings)
    except DataError as error:
        raise DataError(
            f"{source}: its rows hold pieces of documents, so they are made again from the texts, "
            f"which are not where they were ({error}). `wafer data preprocess --split` makes parts "
            f"from texts; {_BY_ROW}"
        ) from None
    made = list(preprocess_parts(settings))
    then, now = (
        params.get("post-process", {}).get("processed"),
        sum(summary.counts.records for summary in made),
    )
    if now != then:
        _LOG.warning("%s: made of %s records, of which there are %s now", source, then, now)
    return {summary.folder: summary.written.rows for summary in made}


class _Share(NamedTuple):
    """A part of the documents."""

    name: str  #: of its folder
    low: float  #: low, high: of the documents' draws, from 0 to 1
    high: float
    splits: ContextSplits | None = None  #: ``context_splits`` of its own


def preprocess_all(settings: Settings) -> Iterator[OutputSummary]:
    """Make every part that the settings ask for.

    Yields:
        What was written for each.

    Raises:
        ConfigError: fractions or lengths that are none.
        DataError: what ``preprocess`` raises.
    """
    if settings.shard is None and settings.shards is None:
        yield from _whole(settings)
        return
    shard = find_shard(settings)
    count = shard.count if shard else settings.shards or 1
    root = check_output(settings, count)
    for one in [shard] if shard else [Shard(index, count) for index in range(count)]:
        own = shard_settings(settings, one, root / one.folder)
        if settings.resume_from_checkpoint is False:
            unmark(root / one.folder)
        summaries = list(_whole(own))
        mark_complete(root / one.folder, one)
        yield from summaries if shard else ()
    if shard is None:
        yield from merge_shards(settings.output_dir)
    else:
        message = "Shard %s is complete. When all are: wafer data merge %s"
        _LOG.info(message, shard, settings.output_dir)


def _whole(settings: Settings) -> Iterator[OutputSummary]:
    if settings.subsets:
        for name, inputs in settings.subsets.items():
            folder = str(pathlib.Path(settings.output_dir) / name)
            keys = {"input_dir": tuple(inputs), "output_dir": folder, "subsets": {}}
            yield from _whole(settings.model_copy(update=keys))
    elif settings.split:
        yield from preprocess_parts(settings)
    else:
        parts, again = list(_parts(settings)), settings.resume_from_checkpoint is False
        folder = lambda share: pathlib.Path(share.output_dir)
        left = [part for part in parts if again or not _is_complete(folder(part[0]), part[0])]
        if not left and not settings.shard:
            left = parts  # the first names the folder
        for share, keep in left:
            yield _shuffled(share, keep) if share.shuffle else preprocess(share, keep)


def _parts(settings: Settings) -> Iterator[tuple[Settings, Keep | None]]:
    """Settings and documents of each split and each length."""
    if not settings.data_splits and not settings.context_splits:
        yield settings, None
        return
    splits = settings.data_splits or {"": DocumentSplit(split_fraction=1)}
    fractions = [split.split_fraction for split in splits.values()]
    inner = [split.context_splits or settings.context_splits for split in splits.values()]
    for split in _shares("data_splits", list(splits), fractions, inner):
        contexts = split.splits or ContextSplits(
            MSL_List=(settings.max_seq_length,), split_fractions=(1,)
        )
        names = [str(name) for name in contexts.MSL_List]
        for context in _shares(
            "context_splits", names, contexts.split_fractions, [None] * len(names)
        ):
            folder = pathlib.Path(settings.output_dir) / split.name
            folder = folder / f"msl_{context.name}" if split.splits else folder
            own = {"output_dir": str(folder), "max_seq_length": row_length(context.name)}
            draws = ((settings.split_seed, split), (settings.split_seed + 1, context))
            yield (
                settings.model_copy(update=own),
                lambda record, draws=draws: all(
                    share.low <= document_hash(record.values, seed) / 2**64 < share.high
                    for seed, share in draws
                ),
            )


def _shares(key: str, names: list[str], fractions: Any, inner: list[Any]) -> list[_Share]:
    """Parts of [0, 1) in proportion to numbers, or texts such as 1/3."""
    try:
        parts = np.array([float(Fraction(str(fraction))) for fraction in fractions])
    except (ValueError, ZeroDivisionError, TypeError):
        parts = np.zeros(0)
    if len(parts) != len(names) or not len(parts) or (parts <= 0).any():
        message = f"{fractions!r}: expected one number above 0 for each of {', '.join(names)}"
        raise ConfigError([Problem((key, "split_fractions"), message)])
    ends = np.cumsum(parts) / parts.sum()
    starts = [0.0, *ends[:-1]]
    ends[-1] = 2.0
    return [_Share(*part) for part in zip(names, starts, ends, inner, strict=True)]


def row_length(text: str) -> int:
    """S of a context length: 1K is 1024, 0.5K is 512.

    Raises:
        ConfigError: it is no length.

    >>> row_length("0.5K")
    512
    """
    number = text.upper().removesuffix("K")
    try:
        length = float(number) * (1024 if number != text.upper() else 1)
    except ValueError:
        length = 0.5
    if length != int(length) or length < 2:
        message = f"{text!r}: expected a length such as 2048 or 2K"
        raise ConfigError([Problem(("context_splits", "MSL_List"), message)])
    return int(length)


def _shuffled(settings: Settings, keep: Keep | None) -> OutputSummary:
    """Make the rows in order, then write them in random order."""
    folder = pathlib.Path(settings.output_dir)
    first = folder / _IN_ORDER
    if settings.resume_from_checkpoint is False:
        (folder / PARAMS).unlink(missing_ok=True)
    elif (folder / PARAMS).is_file():
        raise DataError(
            f"{folder}: holds a complete dataset already. Give another output_dir, or "
            "--resume_from_checkpoint false to make it again"
        )
    elif (first / PARAMS).is_file():
        shutil.rmtree(first)  # the run was killed while it shuffled
    for path in outputs(folder, "examples"):
        path.unlink()
    summary = preprocess(settings.model_copy(update={"output_dir": str(first)}), keep)
    shuffle_folder(
        first, folder, seed=settings.shuffle_seed, samples_per_file=settings.files_per_record
    )
    shutil.rmtree(first)
    return summary._replace(folder=folder)
