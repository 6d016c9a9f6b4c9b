"""Where ``setup.data`` of a vendor's file lies on this machine; nothing is downloaded."""

import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from models.files import read_json
from wafer.data.preprocess.records import SUFFIXES
from wafer.errors import ConfigError, Problem

__all__ = ["inputs_of", "subsets_of"]

_LOG = logging.getLogger(__name__)
_READ = ("type", "source", "split", "cache_dir", "data_dir", "subsets", "top_level_as_subsets")

_USUAL = ("train", "validation", "valid", "dev", "test", "eval")


def inputs_of(data: Any) -> list[str]:
    """Files and folders to read.

    Args:
        data: the section: ``type``, ``source``, ``split``, ``cache_dir`` and keywords of Hugging
            Face's ``load_dataset``.

    Raises:
        ConfigError: no such type, no source, nothing on this machine.
    """
    if not isinstance(data, Mapping):
        raise _problem("", f"expected keys such as type and source, got {data!r}")
    kind, source = data.get("type"), data.get("source")
    if kind not in ("local", "huggingface"):
        raise _problem("type", f"{kind!r}: expected local or huggingface")
    if not isinstance(source, str) or not source:
        raise _problem("source", "missing; name the folder to read")
    for key in (key for key in data if key not in _READ):
        _LOG.info("data.%s: no effect here: nothing is downloaded", key)
    if kind == "local":
        if data.get("split") not in (None, "train"):
            raise _problem(
                "split",
                f"{data['split']!r}: a local source is read whole; expected train or no key. Name "
                "the files of the split as source",
            )
        return [os.path.expanduser(source)]
    return _hugging_face(data, source)


def subsets_of(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name -> files and folders of each part that is to be a run of its own.

    Args:
        data: the section; ``top_level_as_subsets`` names every folder of a local source,
            ``subsets`` some of them.

    Raises:
        ConfigError: both keys, or a folder that does not exist.
    """
    every, names = data.get("top_level_as_subsets"), data.get("subsets")
    if every and names:
        raise _problem("subsets", "stands beside top_level_as_subsets; keep one")
    if data["type"] == "huggingface":
        return {name: inputs_of(dict(data) | {"data_dir": name}) for name in names or ()}
    root = pathlib.Path(data["source"]).expanduser()
    folders = sorted(path for path in root.glob("*") if path.is_dir()) if every or names else []
    missing = set(names or ()) - {path.name for path in folders}
    if missing or (every and not folders):
        shown = ", ".join(sorted(missing)) or "a folder"
        raise _problem("subsets", f"{root} has no folder {shown}")
    return {path.name: [str(path)] for path in folders if every or path.name in (names or ())}


def _problem(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(("setup", "data", *([key] if key else [])), message)])


def _hugging_face(data: Mapping[str, Any], source: str) -> list[str]:
    split = data.get("split") or "train"
    if "[" in split or "+" in split:
        raise _problem(
            "split", f"{split!r}: slices and sums are not read; name one split, such as train"
        )
    cache = pathlib.Path(data.get("cache_dir") or "./input_dir").expanduser()
    written = cache / split / "data"  # where the vendor's tool writes what it has downloaded
    for folder in (pathlib.Path(source).expanduser(), *_snapshots(source, cache)):
        if folder.is_dir():
            return _split_files(folder / (data.get("data_dir") or ""), split)
    if written.is_dir():
        return [str(written)]
    raise _problem(
        "source",
        f"{source}: not on this machine, and nothing is downloaded here. Where there is a network: "
        f"`hf download --repo-type dataset {source} --local-dir FOLDER` (or `save_to_disk` of the "
        f"datasets library), then source: FOLDER; also read: {written}",
    )


def _snapshots(source: str, cache: pathlib.Path) -> list[pathlib.Path]:
    """What the hub's client has stored of a data set, the newest first."""
    home = pathlib.Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = os.environ.get("HF_HUB_CACHE") or home / "hub"
    name = f"datasets--{source.replace('/', '--')}"
    found = [p for root in (hub, cache) for p in pathlib.Path(root).glob(f"{name}/snapshots/*")]
    return sorted(found, key=lambda path: -path.stat().st_mtime)


def _split_files(folder: pathlib.Path, split: str) -> list[str]:
    """A split of a folder that ``save_to_disk`` wrote, or of one with data files by their names."""
    if (folder / split / "state.json").is_file():
        return [str(folder / split)]
    if (folder / "state.json").is_file():
        saved = read_json(folder / "state.json").get("_split") or "train"
        if split not in (saved, "train"):
            raise _problem("split", f"{split!r}: {folder} is of {saved!r} alone")
        return [str(folder)]
    if (folder / "dataset_dict.json").is_file():
        raise _problem("split", f"{split!r}: {folder} has no such split")
    files = [p for p in sorted(folder.rglob("*")) if p.name.lower().endswith(tuple(SUFFIXES))]
    files = [path for path in files if path.suffix != ".md"]
    named = [path for path in files if split in _words(path, folder)]
    if not named and split == "train":  # no name says otherwise
        named = [path for path in files if not set(_USUAL) & _words(path, folder)]
    if not named:
        listed = ", ".join(str(path.relative_to(folder)) for path in files[:5]) or "nothing to read"
        raise _problem("split", f"{split!r}: no file of {folder} is named so; it has: {listed}")
    return [str(path) for path in named]


def _words(path: pathlib.Path, folder: pathlib.Path) -> set[str]:
    """Words of a file's name and of its folders inside ``folder``."""
    text = str(path.relative_to(folder))
    for mark in "-_./\\ ":
        text = text.replace(mark, " ")
    return set(text.split())
