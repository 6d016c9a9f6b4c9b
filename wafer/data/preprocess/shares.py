"""The part of the input that one of N shards reads: it depends on the input and N alone."""

import dataclasses
import hashlib
import json
import logging
import os
import pathlib
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.data.preprocess.records import BEGINNING, RecordPosition
from wafer.data.preprocess.settings import Settings
from wafer.errors import ConfigError, DataError, Problem
from wafer.models.errors import optional

_LOG = logging.getLogger(__name__)
_SLURM = "SLURM_ARRAY_TASK_"


@dataclasses.dataclass(frozen=True)
class Shard:
    """One of N parts of the input."""

    index: int  #: from 0
    count: int  #: N

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.index:05d}_of_{self.count:05d}"


class InputShare(NamedTuple):
    """What a run reads: all of the input, or that of a shard."""

    files: list[pathlib.Path]  #: in order
    start: RecordPosition = BEGINNING  #: first record in these files
    end: RecordPosition | None = None  #: record after the last; None is the end of the files
    shard: Shard | None = None  #: whose share it is
    inputs: str = ""  #: digest of the names and sizes of all input files of a sharded run


def find_shard(settings: Settings) -> Shard | None:
    """Return the shard that ``shard`` names; None without the key.

    Raises:
        ConfigError: not I/N with I below N, not the N of ``shards``, or an array of SLURM that is
            not numbered from 0.
    """
    text, count = settings.shard, settings.shards
    if text is None:
        return None
    if text == "slurm":
        index, tasks, first = (os.environ.get(_SLURM + key, "") for key in ("ID", "COUNT", "MIN"))
        if not index or (count is None and (not tasks or first not in ("", "0"))):
            raise ConfigError([Problem(("shard",), _slurm_problem(index, tasks, first))])
        text = f"{index}/{count or tasks}"
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text, re.ASCII)
    shard = Shard(*map(int, match.groups())) if match else Shard(0, 0)
    if shard.index >= shard.count:
        message = f"{text!r}: expected I/N with I from 0 to N - 1, such as 0/64, or slurm"
        raise ConfigError([Problem(("shard",), message)])
    if count not in (None, shard.count):
        message = f"{count}, but shard is {shard}; keep one of the numbers"
        raise ConfigError([Problem(("shards",), message)])
    return shard


def _slurm_problem(index: str, tasks: str, first: str) -> str:
    if not index or not tasks:
        return f"slurm: {_SLURM}ID and {_SLURM}COUNT are not set; use it in a job of an array"
    return (
        f"slurm: the array begins at {first}; number it from 0 (--array=0-{int(tasks) - 1}), or "
        "give the number of all shards with --shards"
    )


def shard_settings(settings: Settings, shard: Shard, folder: pathlib.Path) -> Settings:
    """Return the settings of one shard; draws differ from shard to shard.

    Args:
        settings: of the run.
        shard: which one.
        folder: for its rows.
    """
    keys = {"shard": str(shard), "shards": None, "seed": shard_seed(settings.seed, shard.index)}
    return settings.model_copy(update=keys | {"output_dir": str(folder)})


def shard_seed(seed: int, index: int) -> int:
    """Return the seed of a shard; the first has that of the run."""
    return int(np.random.SeedSequence((seed, index)).generate_state(1)[0]) if index else seed


def cut(sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """Cut a list into consecutive parts of about given shares; no part is empty.

    Args:
        sizes: [n] of the items, in order.
        shares: [K] positive, K <= n.

    Returns:
        [K - 1] index of the first item of each part but the first.

    >>> cut([1, 1, 1, 3], [1, 1])
    [3]
    """
    ends = np.cumsum(sizes)
    middles = np.diff(ends, prepend=0) / -2 + ends
    wanted = np.cumsum(shares)[:-1] / np.sum(shares) * ends[-1]
    starts: list[int] = []
    for part, start in enumerate(np.searchsorted(middles, wanted).tolist(), 1):
        least = starts[-1] + 1 if starts else 1
        starts.append(min(max(start, least), len(sizes) - len(shares) + part))
    return starts


def input_share(settings: Settings, files: list[pathlib.Path]) -> InputShare:
    """Return what a run reads of its input files.

    Raises:
        ConfigError: ``shard`` names none.
        DataError: fewer pieces (files, row groups of Parquet) than shards.
    """
    shard = find_shard(settings)
    if shard is None:
        return InputShare(files)
    pieces = [piece for index, path in enumerate(files) for piece in _pieces(index, path)]
    if len(pieces) < shard.count:
        raise DataError(
            f"shard {shard}: the input has {len(pieces)} piece(s); expected {shard.count} or more. "
            "A piece is a file, or a row group of a Parquet file. Use fewer shards, or cut the "
            "files (JSON lines: `split -n l/64`)"
        )
    sizes = [size for _, size in pieces]
    starts = [0, *cut(sizes, [1] * shard.count), len(pieces)]
    first, last = starts[shard.index : shard.index + 2]
    points = [*(point for point, _ in pieces), RecordPosition(len(files), 0)]
    start, end = points[first], points[last]
    own, mean = sum(sizes[first:last]), sum(sizes) / shard.count
    level = logging.WARNING if own > 2 * mean else logging.INFO
    message = "Shard %s: %s bytes of the input; the mean of a shard is %s"
    _LOG.log(level, message, shard, f"{own:,}", f"{mean:,.0f}")
    known = json.dumps([(path.name, path.stat().st_size) for path in files])
    return InputShare(
        files[start.file : end.file + (end.record > 0)],
        RecordPosition(0, start.record),
        RecordPosition(end.file - start.file, end.record),
        shard,
        hashlib.sha256(known.encode()).hexdigest(),
    )


def _pieces(index: int, path: pathlib.Path) -> list[tuple[RecordPosition, int]]:
    """Where a file may be cut: (first record, bytes) of each piece."""
    size = path.stat().st_size
    if not path.name.lower().endswith(".parquet"):
        return [(RecordPosition(index), size)]
    parquet = optional("pyarrow.parquet", f"reading {path.name}")
    try:
        with parquet.ParquetFile(path) as file:
            groups = range(file.num_row_groups)
            rows = [file.metadata.row_group(group).num_rows for group in groups]
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    rows = rows or [0]
    firsts = [sum(rows[:group]) for group in range(len(rows))]
    total = max(sum(rows), 1)
    return [
        (RecordPosition(index, first), size * count // total)
        for first, count in zip(firsts, rows, strict=True)
    ]
