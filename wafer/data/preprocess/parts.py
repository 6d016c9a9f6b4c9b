"""Texts shared out to parts, such as training and evaluation: each document is in one part."""

import hashlib
import json
import logging
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess import progress
from wafer.data.preprocess.output import OutputSummary
from wafer.data.preprocess.records import batches, find_inputs
from wafer.data.preprocess.run import preprocess
from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.files import folder_params
from wafer.data.rowfiles.folders import split_folder
from wafer.data.vendor.load import is_hooked, parse_settings
from wafer.data.vendor.settings import AnySettings
from wafer.errors import DataError

_LOG = logging.getLogger(__name__)
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
    ends = np.cumsum([sizes[key] for key in hashes.tolist()])
    middles = np.diff(ends, prepend=0) / -2 + ends
    wanted = np.cumsum(ratios)[:-1] / np.sum(ratios) * ends[-1]
    starts: list[int] = []
    for part, start in enumerate(np.searchsorted(middles, wanted).tolist(), 1):
        least = starts[-1] + 1 if starts else 1  # no part is empty
        starts.append(min(max(start, least), count - parts + part))
    return Parts(seed, hashes[starts])


def _part_folder(settings: AnySettings, part: int) -> pathlib.Path:
    return pathlib.Path(settings.output_dir) / f"split_{part}"


def _is_complete(folder: pathlib.Path, settings: AnySettings) -> bool:
    """Whether an earlier run has finished this part.

    Raises:
        DataError: with other settings.
    """
    if not (folder / PARAMS).is_file() or progress.exists(folder):
        return False
    written = folder_params(folder).get("settings")
    if progress.deciding(written or {}) != progress.deciding(settings.model_dump(mode="json")):
        raise DataError(f"{folder}: holds rows of other settings; give another output_dir")
    return True


def preprocess_parts(settings: AnySettings) -> Iterator[OutputSummary]:
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
    inputs = find_inputs(
        settings.input_dir, settings.metadata_files, settings.fields, settings.output_dir
    )
    read = batches(inputs, settings.fields, skip_bad=settings.skip_bad_records)
    parts = share_out((r for batch in read for r in batch.records), ratios, settings.seed)
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
        yield preprocess(share, lambda document, part=part: parts.part_of(document) == part)
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
    written = params.get("settings")
    if by == "document" and not written:
        _LOG.warning(
            "%s: %s does not say which documents the rows hold; pieces of one document may be in "
            "several parts",
            source,
            PARAMS,
        )
    whole = str(params.get("mode")).startswith(("Summarization", "finetuning", "dpo", "nlg"))
    if by == "row" or not written or whole:
        return split_folder(source, target, ratios, seed=seed, samples_per_file=size)
    own = {
        "output_dir": target,
        "split": list(ratios),
        "seed": seed,
        "files_per_record": size,
        "resume_from_checkpoint": None,
    }
    if not is_hooked(written):  # a read hook's file names the tokenizer's folder
        own["tokenizer_type"] = "HuggingFaceTokenizer"
        own["huggingface_tokenizer"] = str(pathlib.Path(source) / "tokenizer.json")
    settings = parse_settings(written | own)
    _LOG.info("Making the rows of %s again, so that each document is in one part", source)
    try:
        find_inputs(
            settings.input_dir, settings.metadata_files, settings.fields, settings.output_dir
        )
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
