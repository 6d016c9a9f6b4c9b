"""Where ``setup.data`` of a vendor's file lies on this machine; nothing is downloaded."""

import logging
import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from pydantic import Field

from wafer.data.preprocess.records import SUFFIXES
from wafer.data.preprocess.settings import Text
from wafer.data.text.textfiles import read_json
from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import Bool, Section, parse

_LOG = logging.getLogger(__name__)
_IDLE = (  # keywords of load_dataset that steer a download
    *("download_config", "download_mode", "features", "format", "ignore_verifications"),
    *("keep_in_memory", "name", "num_proc", "revision", "save_infos", "storage_options"),
    *("streaming", "task", "token", "trust_remote_code", "use_auth_token", "verification_mode"),
)


class DataSource(Section):
    """``setup.data``."""

    type: Literal["local", "huggingface"]
    source: Text  #: a folder, or what the hub calls the data set
    split: Text | None = None  #: of type huggingface: which part is read; train
    cache_dir: Text | None = None  #: of type huggingface: where the vendor's tool has put it
    data_dir: Text | None = None  #: of type huggingface: folder inside the source
    subsets: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None  #: a run of each
    top_level_as_subsets: Bool = False  #: every folder of the source is a run of its own

    def model_post_init(self, _: object) -> None:
        """Refuse what a local source has not."""
        keys = ("split", "cache_dir", "data_dir") if self.type == "local" else ()
        if unsupported := [key for key in keys if getattr(self, key) is not None]:
            message = "a local source is read whole; name its folder in source, or write "
            message += "type: huggingface, which reads one split of a folder"
            raise ConfigError([Problem((key,), message) for key in unsupported])
        if self.type == "huggingface" and self.top_level_as_subsets:
            raise ConfigError([Problem(("top_level_as_subsets",), "is for type: local")])


_USUAL = ("train", "validation", "valid", "dev", "test", "eval")


def data_source(data: object) -> DataSource:
    """Check ``setup.data``; keywords of ``load_dataset`` without effect here are logged.

    Raises:
        ConfigError: unknown keys, wrong values.
    """
    read = data
    if isinstance(data, Mapping):
        read = {key: value for key, value in data.items() if key not in _IDLE}
        for key in (key for key in data if key in _IDLE):
            _LOG.info("data.%s: no effect here: nothing is downloaded", key)
    try:
        return parse(DataSource, read)
    except SectionError as error:
        raise ConfigError(error.under("setup", "data").problems) from None


def inputs_of(data: DataSource) -> list[str]:
    """Files and folders to read.

    Raises:
        ConfigError: nothing on this machine.
    """
    if data.type == "local":
        return [os.path.expanduser(data.source)]
    return _hugging_face(data)


def subsets_of(data: DataSource) -> dict[str, list[str]]:
    """Name -> files and folders of each part that is to be a run of its own.

    Args:
        data: the section; ``top_level_as_subsets`` names every folder of a local source,
            ``subsets`` some of them.

    Raises:
        ConfigError: both keys, or a folder that does not exist.
    """
    every, names = data.top_level_as_subsets, data.subsets
    if every and names:
        raise _problem("subsets", "stands beside top_level_as_subsets; keep one")
    if data.type == "huggingface":
        of = lambda name: data.model_copy(update={"data_dir": name})
        return {name: inputs_of(of(name)) for name in names or ()}
    root = pathlib.Path(data.source).expanduser()
    folders = sorted(path for path in root.glob("*") if path.is_dir()) if every or names else []
    missing = set(names or ()) - {path.name for path in folders}
    if missing or (every and not folders):
        shown = ", ".join(sorted(missing)) or "a folder"
        raise _problem("subsets", f"{root} has no folder {shown}")
    return {path.name: [str(path)] for path in folders if every or path.name in (names or ())}


def _problem(key: str, message: str) -> ConfigError:
    return ConfigError([Problem(("setup", "data", *([key] if key else [])), message)])


def _hugging_face(data: DataSource) -> list[str]:
    source, split = data.source, data.split or "train"
    if "[" in split or "+" in split:
        raise _problem(
            "split", f"{split!r}: slices and sums are not read; name one split, such as train"
        )
    cache = pathlib.Path(data.cache_dir or "./input_dir").expanduser()
    written = cache / split / "data"  # where the vendor's tool writes what it has downloaded
    for folder in (pathlib.Path(source).expanduser(), *_snapshots(source, cache)):
        if folder.is_dir():
            return _split_files(folder / (data.data_dir or ""), data.split)
    if written.is_dir():
        return [str(written)]
    if others := [path.parent.name for path in sorted(cache.glob("*/data"))]:
        raise _no_split(split, str(cache), others)
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


def _no_split(split: str, location: str, known: Iterable[str]) -> ConfigError:
    names = list(known)
    hint = did_you_mean(split, names)
    return _problem(
        "split",
        f"{split!r}: {location} has no such split{hint}; it has: "
        f"{', '.join(names) or 'nothing to read'}",
    )


def _split_files(folder: pathlib.Path, requested: str | None) -> list[str]:
    """A split of a folder that ``save_to_disk`` wrote, or of one with data files by their names."""
    split = requested or "train"
    if (folder / split / "state.json").is_file():
        return [str(folder / split)]
    if (state := folder / "state.json").is_file():
        saved = read_json(state)
        own = saved.get("_split") if isinstance(saved, dict) else None
        if requested not in (None, own or "train", folder.name):
            raise _no_split(split, str(folder), [str(own or "train")])
        return [str(folder)]
    if (folder / "dataset_dict.json").is_file():
        raise _no_split(
            split, str(folder), (p.parent.name for p in sorted(folder.glob("*/state.json")))
        )
    files = [p for p in sorted(folder.rglob("*")) if p.name.lower().endswith(tuple(SUFFIXES))]
    files = [path for path in files if path.suffix != ".md"]
    named = [path for path in files if split in _words(path, folder)]
    if not named and split == "train":  # no name says otherwise
        named = [path for path in files if not set(_USUAL) & _words(path, folder)]
    if not named:
        listed = ", ".join(str(path.relative_to(folder)) for path in files[:5]) or "nothing to read"
        hint = did_you_mean(split, set().union(*(_words(path, folder) for path in files)))
        raise _problem(
            "split", f"{split!r}: no file of {folder} is named so{hint}; it has: {listed}"
        )
    return [str(path) for path in named]


def _words(path: pathlib.Path, folder: pathlib.Path) -> set[str]:
    """Words of a file's name and of its folders inside ``folder``."""
    text = str(path.relative_to(folder))
    for mark in "-_./\\ ":
        text = text.replace(mark, " ")
    return set(text.split())
