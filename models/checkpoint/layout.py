"""The names a checkpoint is made of, and its JSON record: what every reader and writer agrees on.

``docs/concepts/checkpoint-format.md`` describes them for readers without this code. The names
are the format: another name is another ``FORMAT_VERSION``, and needs a reader for the old one.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from models.errors import CheckpointError

__all__ = [
    "CHECKPOINTS",
    "CONFIG",
    "DATA",
    "FORMAT_VERSION",
    "KEY",
    "META",
    "OPT_STATE",
    "PARAMS",
    "SCALE",
    "SPARSITY",
    "STATE",
    "STEP",
    "WRITER",
    "FormatVersionError",
    "drop_from_record",
    "is_checkpoint",
    "read_record",
    "versioned",
    "write_record",
]

FORMAT_VERSION = 1

CHECKPOINTS = "checkpoints"  # folder of a model_dir; a checkpoint is called by its step there

STATE = "state"  # folders of a checkpoint: the arrays, and the record beside them
META = "meta"
_RECORD = "metadata"

PARAMS = "params"  # branches of the arrays' tree
OPT_STATE = "opt_state"
SCALE = "scale"
STEP = "step"  # also a key of the record
KEY = "key"

CONFIG = "config"  # keys of the record
DATA = "data"  # the loader's position
SPARSITY = "sparsity"  # schedules' counters; a finalized checkpoint has none
WRITER = "wafer_version"
_VERSION = "format_version"


class FormatVersionError(CheckpointError):
    """A checkpoint of a format that this code does not know."""


def is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a folder holds arrays and a record."""
    return (path / STATE).is_dir() and (path / META / _RECORD).is_file()


def versioned(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as it is stored, with the version of the format."""
    return {_VERSION: FORMAT_VERSION, **record}


def write_record(folder: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Write the record of a checkpoint's folder."""
    (folder / META).mkdir(parents=True, exist_ok=True)
    (folder / META / _RECORD).write_text(json.dumps(versioned(record)))


def read_record(folder: pathlib.Path) -> dict[str, Any]:
    """Read the record of a checkpoint, without the version.

    Raises:
        CheckpointError: no checkpoint, a damaged one, or one of a newer format.
    """
    if not is_checkpoint(folder):
        raise CheckpointError(
            f"{folder} is not a checkpoint: expected <model_dir>/checkpoints/<step>, or what "
            f"`wafer finalize` wrote, with the folders {STATE} and {META}"
        )
    try:
        record = json.loads((folder / META / _RECORD).read_text())
        version = record.pop(_VERSION, 1)
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{folder} cannot be read, it is damaged: {error}") from None
    if version not in range(1, FORMAT_VERSION + 1):
        writer = record.get(WRITER, "unknown")
        raise FormatVersionError(
            f"{folder} has checkpoint format {version}, written by wafer {writer}; this code reads "
            f"formats up to {FORMAT_VERSION}. Install that version of wafer, or a later one"
        )
    return record


def drop_from_record(folder: pathlib.Path, key: str) -> None:
    """Take a key out of a folder's record; nothing happens where there is none."""
    path = folder / META / _RECORD
    if path.is_file():
        record = json.loads(path.read_text())
        if isinstance(record, dict) and record.pop(key, None) is not None:
            path.write_text(json.dumps(record))
