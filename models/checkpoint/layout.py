"""The names a checkpoint is made of, and its JSON record: what every reader and writer agrees on.

``docs/concepts/checkpoint-format.md`` describes them for readers without this code. The names
are the format: another name is another ``FORMAT_VERSION``, and needs a reader for the old one.
"""

import json
import logging
import pathlib
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np

from wafer.models.errors import CheckpointError
from wafer.models.files import JsonObject, contained_file, read_json, require_contained, write_text

_LOG = logging.getLogger(__name__)

FORMAT_VERSION = 2

CHECKPOINTS = "checkpoints"  # folder of a model_dir; a checkpoint is called by its step there

STATE = "state"  # folders of a checkpoint: the arrays, and the record beside them
META = "meta"
RECORD = "metadata"

PARAMS = "params"  # branches of the arrays' tree
OPT_STATE = "opt_state"
SCALE = "scale"
STEP = "step"  # also a key of the record
KEY = "key"

CONFIG = "config"  # keys of the record
DATA = "data"  # the loader's position
SPARSITY = "sparsity"  # schedules' counters; a finalized checkpoint has none
PRUNED = "pruned"  # of weights alone: names of the parameters whose NaN are marks
WRITER = "wafer_version"
_VERSION = "format_version"

# What the run file in a record goes through when it is read: keys that have other names by now.
config_readers: list[Callable[[Mapping[str, Any]], dict[str, Any]]] = []
_CHECKSUMS = "checksums"  # of the arrays, by name
_OWN = "record_checksum"
RESERVED = (_VERSION, _CHECKSUMS, _OWN)


class FormatVersionError(CheckpointError):
    """A checkpoint of a format that this code does not know."""


class ContentError(CheckpointError):
    """A checkpoint that is whole, but holds what no run wrote."""


def step_folders(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return a ``checkpoints`` folder's, called by their steps, in order; it may be missing."""
    return sorted(
        (path for path in folder.glob("*") if path.name.isdigit()), key=lambda path: int(path.name)
    )


def complete_checkpoints(paths: Iterable[pathlib.Path]) -> list[pathlib.Path]:
    """Return those that are checkpoints, and log the others: half of them was copied or removed.

    Raises:
        LinkError: a part is missing because a link leads out of the checkpoint.
    """
    complete = {path: is_checkpoint(path) for path in paths}
    for path in (path for path, whole in complete.items() if not whole):
        _require_own(path)
    for path in (path for path, whole in complete.items() if not whole):
        missing = f"{META}/{RECORD}" if (path / STATE).is_dir() else STATE
        _LOG.warning("Skipped a half-written checkpoint: %s has no %s", path, missing)
    return [path for path, whole in complete.items() if whole]


def is_checkpoint(path: pathlib.Path) -> bool:
    """Whether a folder holds arrays and a record."""
    return (path / STATE).is_dir() and (path / META / RECORD).is_file()


def _require_own(path: pathlib.Path) -> None:
    """Refuse a checkpoint whose parts are missing because links lead out of it to nothing."""
    for part in (STATE, META, f"{META}/{RECORD}"):
        contained_file(path / part, path)


def versioned(record: Mapping[str, object], sums: Mapping[str, str]) -> JsonObject:
    """Return a record as it is stored: with the version of the format, and checksums."""
    return _sealed({**record, _VERSION: FORMAT_VERSION, _CHECKSUMS: dict(sums)})


def _sealed(content: Mapping[str, object]) -> JsonObject:
    content = json.loads(json.dumps(content))  # tuples as lists, keys as text: as it is read
    return {**content, _OWN: _checksum(content)}


def _checksum(content: Mapping[str, object]) -> str:
    """Eight digits that do not depend on spaces or on the order of keys."""
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"


def write_record(
    folder: pathlib.Path, record: Mapping[str, object], sums: Mapping[str, str]
) -> None:
    """Write the record of a checkpoint's folder; see ``versioned``."""
    write_text(folder / META / RECORD, json.dumps(versioned(record, sums)))


def record_entry(record: Mapping[str, object], folder: object, *path: str) -> Any:
    """Return what a record holds under a path of keys; None where there is nothing.

    Args:
        record: as ``read_record`` gives it.
        folder: of the checkpoint, for errors.
        *path: keys, from the record down; every one holds a mapping, but ``step`` a count.

    Raises:
        CheckpointError: a value of another kind.
    """
    value: Any = record
    for key in path:
        value = value.get(key)
        if value is None:
            return None
        if not _fits(key, value):
            expected = "a number of steps, 0 or more" if key == STEP else "a mapping of keys"
            raise CheckpointError(
                f"{folder}: {key} of its record is {str(value)[:60]!r}; expected {expected}. The "
                "record was edited: put the one back that was written"
            )
    return value


def _fits(key: str, value: object) -> bool:
    if key == STEP:
        return type(value) is int and 0 <= value < 2**31
    return isinstance(value, Mapping)


def is_of_run(record: Mapping[str, object]) -> bool:
    """Whether a record is that of a run's checkpoint: it has the whole configuration."""
    config = record.get(CONFIG)
    return isinstance(config, Mapping) and "runconfig" in config


def model_section(record: Mapping[str, object], folder: object) -> JsonObject:
    """Return the ``model`` section of a checkpoint's record.

    Raises:
        CheckpointError: it has none, or something else in its place.
    """
    section = record_entry(record, folder, CONFIG, "model")
    if section is None:
        raise CheckpointError(
            f"{folder} does not say what model it is of: its weights keep the names of the file "
            "they were read from. Convert that file itself: wafer convert convert --tgt-fmt wafer "
            "--config params.yaml"
        )
    return dict(section)


def read_record(folder: pathlib.Path) -> tuple[JsonObject, dict[str, str] | None]:
    """Read the record of a checkpoint.

    Returns:
        (the record without version and checksums, array name -> checksum). Version 1 of the format
        has no checksums: None.

    Raises:
        CheckpointError: no checkpoint, a damaged one, one of a newer format, or links out of it.
    """
    if not is_checkpoint(folder):
        _require_own(folder)
        raise CheckpointError(
            f"{folder} is not a checkpoint: expected <model_dir>/checkpoints/<step>, or what "
            f"`wafer finalize` wrote, with the folders {STATE} and {META}"
        )
    require_contained(folder)
    path = folder / META / RECORD
    try:
        record = read_json(path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder} cannot be read, it is damaged: {error}") from None
    stored_sum = record.pop(_OWN, None)
    if stored_sum not in (None, _checksum(record)):
        raise CheckpointError(
            f"{folder} cannot be read, it is damaged: {path} has checksum {_checksum(record)}, it "
            f"was written with {stored_sum}"
        )
    named = folder.parent.name == CHECKPOINTS and folder.name.isdigit()
    if named and is_of_run(record):
        _check_step(folder, record, int(folder.name), "the folder's name")
    version = record.pop(_VERSION, 1)
    if version not in range(1, FORMAT_VERSION + 1):
        writer = record.get(WRITER, "unknown")
        raise FormatVersionError(
            f"{folder} has checkpoint format {version}, written by wafer {writer}; this code reads "
            f"formats up to {FORMAT_VERSION}. Install that version of wafer, or a later one"
        )
    for read in config_readers if isinstance(record.get(CONFIG), dict) else ():
        record[CONFIG] = read(record[CONFIG])
    if version == 1 and stored_sum is None and _CHECKSUMS not in record:  # else a key was damaged
        _LOG.info("%s has checkpoint format 1, without checksums: damage may go unnoticed", folder)
        return record, None
    sums = record.pop(_CHECKSUMS, None)
    if version == 1 or stored_sum is None or not isinstance(sums, dict):
        raise CheckpointError(
            f"{folder} cannot be read, it is damaged: {path} must have all of {', '.join(RESERVED)}"
        )
    return record, sums


def _check_step(folder: pathlib.Path, record: Mapping[str, object], step: int, name: str) -> None:
    held = record_entry(record, folder, STEP)
    if held not in (None, step):
        raise ContentError(
            f"{folder}: step of its record is {held}, {name} says {step}; put back what was written"
        )


def check_step(
    folder: pathlib.Path, record: Mapping[str, object], arrays: Mapping[str, object]
) -> None:
    """Compare the step of a record with the array beside it.

    Args:
        folder: of the checkpoint, for errors.
        record: as ``read_record`` gives it.
        arrays: of the checkpoint, by name.

    Raises:
        CheckpointError: they differ.
    """
    if STEP in arrays and is_of_run(record):
        _check_step(folder, record, int(np.asarray(arrays[STEP])), f"its array {STEP}")


def amend_record(
    folder: pathlib.Path, drop: Collection[str], sums: Mapping[str, str] | None
) -> None:
    """Take keys out of a folder's record, where there is one, and renew its checksums.

    Args:
        folder: the checkpoint.
        drop: the keys.
        sums: of the arrays as they are now; None for a record without checksums.
    """
    path = folder / META / RECORD
    if not path.is_file():
        return
    content = {key: value for key, value in read_json(path).items() if key not in (*drop, _OWN)}
    if sums is not None:
        content = _sealed(content | {_CHECKSUMS: dict(sums)})
    write_text(path, json.dumps(content))
