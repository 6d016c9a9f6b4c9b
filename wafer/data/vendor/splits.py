"""Whole runs of a preprocessing file: parts of documents and of context lengths, shuffled rows."""

import pathlib
import shutil
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess.output import OutputSummary, outputs
from wafer.data.preprocess.parts import document_hash, preprocess_parts
from wafer.data.preprocess.run import Keep, preprocess
from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.folders import shuffle_folder
from wafer.data.vendor.inner import ContextSplits, DocumentSplit
from wafer.data.vendor.settings import AnySettings, HookSettings
from wafer.errors import ConfigError, DataError, Problem

_IN_ORDER = ".in_order"  # rows that are still to be shuffled


class _Share(NamedTuple):
    """A part of the documents."""

    name: str  #: of its folder
    low: float  #: low, high: of the documents' draws, from 0 to 1
    high: float
    splits: ContextSplits | None = None  #: ``context_splits`` of its own


def preprocess_all(settings: AnySettings) -> Iterator[OutputSummary]:
    """Make every part that the settings ask for.

    Yields:
        What was written for each.

    Raises:
        ConfigError: fractions or lengths that are none.
        DataError: what ``preprocess`` raises.
    """
    if isinstance(settings, HookSettings) and settings.subsets:
        for name, inputs in settings.subsets.items():
            folder = str(pathlib.Path(settings.output_dir) / name)
            keys = {"input_dir": tuple(inputs), "output_dir": folder, "subsets": {}}
            yield from preprocess_all(settings.model_copy(update=keys))
    elif settings.split:
        yield from preprocess_parts(settings)
    elif not isinstance(settings, HookSettings):
        yield preprocess(settings)
    else:
        for share, keep in _parts(settings):
            yield _shuffled(share, keep) if share.shuffle else preprocess(share, keep)


def _parts(settings: HookSettings) -> Iterator[tuple[HookSettings, Keep | None]]:
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
                lambda document, draws=draws: all(
                    share.low <= document_hash(document, seed) / 2**64 < share.high
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


def _shuffled(settings: HookSettings, keep: Keep | None) -> OutputSummary:
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
