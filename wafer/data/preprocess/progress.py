"""Where a preprocessing run stands: what it has written, what it still holds, its settings.

The file is replaced whole after every HDF5 file, so that a run killed at any instant goes on from
the last complete one and writes the very files it would have written.
"""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from wafer.data.preprocess.encode import ReadCounts
from wafer.data.preprocess.records import RecordPosition
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.shares import InputShare
from wafer.errors import DataError
from wafer.models.files import atomic_write

_FILE = ".preprocess.npz"
_FORMAT = 4  # of what is in it
# Keys that change how fast or how loudly, never what is written.
_FREE = (
    "processes",
    "display_pbar",
    "resume_from_checkpoint",
    "skip_bad_records",
    "output_dir",
    "described",
    "shard",
    "shards",
)


class OutputCounts(NamedTuple):
    """What the complete files hold."""

    files: int = 0  #: their number
    rows: int = 0  #: in them; tokens for the corpus format
    slots: int = 0  #: positions of all rows
    tokens: int = 0  #: positions in use
    loss: int = 0  #: positions that carry loss
    pads: int = 0  #: positions whose id is that of padding
    plain: int = 0  #: positions whose id is neither that of padding nor the end mark


class ResumePoint(NamedTuple):
    """A point between two batches from which the run can go on."""

    position: RecordPosition  #: next record
    bytes_read: int  #: of the input
    counts: ReadCounts  #: sums
    packer: dict[str, np.ndarray]  #: what the packer holds


def deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what is written."""
    return {key: value for key, value in settings.items() if key not in _FREE}


def fingerprint(settings: Settings, share: InputShare, tokenizer: str) -> str:
    """Hash of everything that decides what is written."""
    keys = deciding(settings.model_dump())
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in share.files]
    borders = [] if share.shard is None else [share.start, share.end]
    text = json.dumps([_FORMAT, keys, files, tokenizer, *borders], default=str, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def exists(folder: pathlib.Path) -> bool:
    """Whether an unfinished run has left its standing here."""
    return (folder / _FILE).is_file()


class Saved(NamedTuple):
    """Where a run stands after a complete file."""

    written: OutputCounts  #: the complete files
    standing: ResumePoint  #: after the last batch that is in them as a whole
    skip: int  #: rows of the next batch that are in them already


def save(folder: pathlib.Path, mark: str, saved: Saved) -> None:
    """Write the standing after a complete file; ``mark`` is from ``fingerprint``."""
    standing, counts = saved.standing[:3], saved.written
    numbers = {"mark": mark, "written": counts, "standing": standing, "skip": saved.skip}
    arrays: dict[str, Any] = {"numbers": np.array(json.dumps(numbers))}
    arrays |= {f"packer/{key}": value for key, value in saved.standing.packer.items()}
    with atomic_write(folder / _FILE, sync=True) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def load(folder: pathlib.Path, mark: str) -> Saved | None:
    """Read the standing of an earlier run; None when there is none.

    Raises:
        DataError: the earlier run had other settings.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    with np.load(path, allow_pickle=False) as stored:
        numbers = json.loads(str(stored["numbers"]))
        packer = {
            name.removeprefix("packer/"): stored[name] for name in stored.files if name != "numbers"
        }
    if numbers["mark"] != mark:
        raise DataError(
            f"{folder}: holds the output of a run with other settings, inputs or tokenizer, which "
            "cannot be continued. Give another output_dir, or --resume_from_checkpoint false to "
            "begin again here"
        )
    position, read, counts = numbers["standing"]
    standing = ResumePoint(RecordPosition(*position), read, ReadCounts(*counts), packer)
    return Saved(OutputCounts(*numbers["written"]), standing, numbers["skip"])


def forget(folder: pathlib.Path) -> None:
    """Drop the standing: the output is complete, or the run begins again."""
    (folder / _FILE).unlink(missing_ok=True)
    for partial in folder.glob(".*.partial-*"):  # of killed runs
        partial.unlink(missing_ok=True)
