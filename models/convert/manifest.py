"""Checksums beside weights whose form has none: Hugging Face's folders, files of other formats.

A manifest is a JSON file: ``{"tensors": {name: {"shape": …, "dtype": …, "checksum": …}}}``, with
the checksums of our own format.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wafer.models.checkpoint.checksums import ArrayRecord
from wafer.models.checkpoint.tensors import Tensors
from wafer.models.checkpoint.verify import Verified
from wafer.models.convert.files import open_arrays
from wafer.models.errors import CheckpointError, first_lines
from wafer.models.files import contained_file, read_json, write_text

_NAME = "manifest.json"


def manifest_of(path: Path) -> Path:
    """Return where the manifest of a folder, or of a file, is; refuse a link out of the folder."""
    return contained_file(path / _NAME if path.is_dir() else path.with_name(f"{path.name}.{_NAME}"))


def keep_manifest(path: Path, records: Mapping[str, ArrayRecord]) -> Path:
    """Write a manifest.

    Args:
        path: the folder or file with the tensors.
        records: tensor name -> what identifies it.

    Returns:
        The manifest's file.
    """
    target = manifest_of(path)
    tensors = {name: records[name]._asdict() for name in sorted(records)}
    write_text(target, json.dumps({"tensors": tensors}, indent=1) + "\n")
    return target


def write_manifest(path: Path, tensors: Tensors | None = None) -> Path:
    """Read every tensor of a folder or file and write its manifest.

    Args:
        path: a checkpoint of ours, a Hugging Face folder or weight file.
        tensors: what is there, of a file in another format.

    Raises:
        FileNotFoundError: nothing there.
        ValueError: no weights, or damaged ones.
    """
    arrays: Any = open_arrays(path) if tensors is None else tensors
    return keep_manifest(path, {name: ArrayRecord.of(np.asarray(arrays[name])) for name in arrays})


def verify_manifest(path: Path, tensors: Tensors | None = None) -> Verified:
    """Read every tensor and compare it with the manifest; arguments as ``write_manifest``.

    Raises:
        CheckpointError: no manifest, a damaged one, or tensors that differ from it; lists them.
    """
    try:
        stored = read_json(manifest_of(path))["tensors"]
        expected = {
            name: ArrayRecord(tuple(one["shape"]), one["dtype"], one["checksum"])
            for name, one in stored.items()
        }
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: has no checksums; write them while it is sound: wafer checkpoint manifest"
        ) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{manifest_of(path)}: no manifest ({error!r})") from None
    found: dict[str, ArrayRecord] = {}
    size = 0
    try:
        arrays: Any = open_arrays(path) if tensors is None else tensors
        for name in arrays:
            value = np.asarray(arrays[name])
            found[name] = ArrayRecord.of(value)
            size += value.nbytes
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from None
    wrong = [
        f"{name}: {found.get(name, 'missing')}; {manifest_of(path).name} has "
        f"{expected.get(name, 'no such tensor')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]
    if wrong:
        listed = first_lines(wrong)
        raise CheckpointError(f"{path} is not what its manifest was written of:\n  {listed}")
    return Verified(len(found), size, checked=True)
