"""Shards of a preprocessing run become one folder of rows, as a run with ``shards`` makes it.

Each shard is whole in ``OUTPUT/shards/I_of_N``. The merge checks all of them, moves their HDF5
files under the numbers that follow each other, writes ``data_params.json``, and removes
``shards``. After a kill it continues: a file is in one place or in the other.
"""

import dataclasses
import logging
import pathlib
import shutil
from collections.abc import Iterable
from typing import Any

from wafer.data.preprocess.encode import ReadCounts
from wafer.data.preprocess.output import OutputSummary, averages
from wafer.data.preprocess.progress import OutputCounts, deciding
from wafer.data.preprocess.settings import Settings
from wafer.data.preprocess.shares import Shard, shard_seed
from wafer.data.rowfiles.described import PARAMS
from wafer.data.rowfiles.files import folder_params
from wafer.data.rowfiles.writer import write_json
from wafer.data.text.textfiles import read_json
from wafer.errors import DataError
from wafer.models.files import atomic_write

_LOG = logging.getLogger(__name__)
SHARDS = "shards"  # folder of them in an output folder
_MERGED = ".merged"  # its name when it is to be removed
_MARK = "shard.json"  # of a complete shard
# Paths to what "input" and "tokenizer" compare: they differ from machine to machine.
_PATHS = ("input_dir", "metadata_files", "huggingface_tokenizer", "encoder_file", "vocab_file")
_NOT_SUMMED = ("vocab_size", "eos_id", "pad_id", "mask_id", "special_ids")
_Move = tuple[pathlib.Path, pathlib.Path]  # from, to


def mark_complete(folder: pathlib.Path, shard: Shard) -> None:
    """Say in a shard's folder that every part of it is complete."""
    write_json(folder / _MARK, dataclasses.asdict(shard))


def unmark(folder: pathlib.Path) -> None:
    """Take that back: the shard is made again."""
    (folder / _MARK).unlink(missing_ok=True)


def _is_merged(root: pathlib.Path) -> bool:
    if (root / PARAMS).is_file():
        return True
    written = (folder_params(path.parent).get("settings") or {} for path in root.rglob(PARAMS))
    return any(settings.get("shards") for settings in written)


def check_output(settings: Settings, count: int) -> pathlib.Path:
    """Return the folder of the shards; check that N shards may be written to ``output_dir``.

    Raises:
        DataError: it is inside the input, holds a complete dataset or shards of another N.
    """
    root = pathlib.Path(settings.output_dir)
    inputs = [*(settings.input_dir or ()), *(f for fs in settings.subsets.values() for f in fs)]
    for path in inputs:
        if root.resolve().is_relative_to(pathlib.Path(path).resolve()):
            raise DataError(
                f"output_dir: {root} is inside the input folder {path}, where shards that run at "
                "the same time would read each other's files. Give a folder outside"
            )
    folder = root / SHARDS
    if not folder.is_dir() and _is_merged(root):
        raise DataError(f"{root}: holds a complete dataset already. Give another output_dir")
    known = {Shard(index, count).folder for index in range(count)}
    others = sorted({path.name for path in folder.glob("*_of_*")} - known)
    if others:
        raise DataError(
            f"{folder}: holds {others[0]}, which is no shard of {count}. Give the same number of "
            "shards to every run (--shards N in an array of which some tasks are repeated), or "
            "another output_dir"
        )
    return folder


def merge_shards(output_dir: str) -> list[OutputSummary]:
    """Merge the shards in an output folder; the result depends on the shards alone.

    Args:
        output_dir: that of the shards' runs.

    Returns:
        What each folder of rows holds; nothing where the shards have been merged already.

    Raises:
        DataError: shards that are missing, doubled, unfinished, or of other settings or inputs;
            names them, and moves nothing.
    """
    root = pathlib.Path(output_dir)
    shutil.rmtree(root / _MERGED, ignore_errors=True)  # the merge was killed at its end
    if not (root / SHARDS).is_dir():
        if not _is_merged(root):
            raise DataError(
                f"{root}: no folder {SHARDS}; expected the output_dir of `wafer data preprocess "
                "--shard I/N`"
            )
        _LOG.info("%s is merged already", root)
        return []
    shards = _complete_shards(root / SHARDS)
    parts = sorted({p.parent.relative_to(f) for f in shards for p in f.rglob(PARAMS)})
    if not parts:
        raise DataError(f"{root / SHARDS}: holds no {PARAMS}; run the shards again")
    plans = [_plan(root / part, [folder / part for folder in shards]) for part in parts]
    for moves, _ in plans:
        for source, target in moves:
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.exists():
                source.rename(target)
    for part, (_, summary) in zip(parts, plans, strict=True):
        for path in _beside(shards[0] / part):
            with atomic_write(summary.folder / path.name, sync=True) as partial:
                shutil.copyfile(path, partial)
        write_json(summary.folder / PARAMS, summary.params)
    (root / SHARDS).rename(root / _MERGED)
    shutil.rmtree(root / _MERGED)
    return [summary for _, summary in plans]


def _complete_shards(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the folders of all N shards in their order."""
    marks: dict[Shard, list[pathlib.Path]] = {}
    for path in sorted(folder.glob(f"*/{_MARK}")):
        marks.setdefault(Shard(**read_json(path)), []).append(path.parent)
    counts = sorted({shard.count for shard in marks})
    if len(counts) != 1:
        found = f"complete shards of {counts}" if counts else "no complete shard"
        raise DataError(f"{folder}: holds {found}; expected those of one number N")
    shards = [Shard(index, counts[0]) for index in range(counts[0])]
    lines = {
        "missing or unfinished": [str(one.index) for one in shards if one not in marks],
        "doubled": [path.name for paths in marks.values() for path in paths if len(paths) > 1],
    }
    if any(lines.values()):
        found = "; ".join(f"{what}: {', '.join(names)}" for what, names in lines.items() if names)
        raise DataError(
            f"{folder}: {found}; expected one of each from 0 to {counts[0] - 1}. Run what is "
            f"missing with --shard I/{counts[0]}, remove what is doubled, then merge"
        )
    return [marks[one][0] for one in shards]


def _beside(folder: pathlib.Path) -> list[pathlib.Path]:
    """The tokenizer and its settings."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix != ".h5")
    return [path for path in files if path.name not in (PARAMS, _MARK) and path.name[0] != "."]


def _plan(target: pathlib.Path, folders: list[pathlib.Path]) -> tuple[list[_Move], OutputSummary]:
    """Files to move, and what the merged folder holds.

    Raises:
        DataError: shards that do not fit together, a missing file, a file of another dataset.
    """
    params = [folder_params(folder) for folder in folders]
    seed = (params[0].get("settings") or {}).get("seed", 0)
    identities = [_identity(*pair) for pair in zip(folders, params, strict=True)]
    for index, identity in enumerate(identities):
        wanted = identities[0] | {"seed": shard_seed(seed, index)}
        for name, value in wanted.items():
            if identity.get(name) != value:
                raise DataError(
                    f"{folders[index]}: its {name} differs from that of {folders[0]}. Remove the "
                    "shard that is wrong and run it again with the same command"
                )
    files = [
        folder / f"{one['settings']['output_name']}_{number:05d}.h5"
        for folder, one in zip(folders, params, strict=True)
        for number in range(one["post-process"]["files"])
    ]
    name = params[0]["settings"]["output_name"]
    moves = [(file, target / f"{name}_{number:05d}.h5") for number, file in enumerate(files)]
    _check_files(target, moves)
    return moves, _summary(target, params, len(folders))


def _identity(folder: pathlib.Path, params: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same in all shards, by key, and the seed."""
    if not {"settings", "shard"} <= params.keys():
        raise DataError(f"{folder}: {PARAMS} is missing or not that of a shard; run it again")
    settings = deciding(params["settings"])
    return {key: value for key, value in settings.items() if key not in _PATHS} | {
        "input": params["shard"]["inputs"],
        "tokenizer": {path.name: path.read_bytes() for path in _beside(folder)},
    }


def _check_files(target: pathlib.Path, moves: Iterable[_Move]) -> None:
    for source, to in moves:
        if source.exists() and to.exists():
            raise DataError(f"{to}: is there already, and so is {source}. Remove one of them")
        if not source.exists() and not to.exists():
            raise DataError(
                f"{source}: no such file. Run this shard again with --resume_from_checkpoint false"
            )
    odd = sorted(set(target.glob("*.h5")) - {to for _, to in moves})
    if odd:
        raise DataError(f"{odd[0]}: is of none of the shards. Remove it")


def _summary(target: pathlib.Path, params: list[dict[str, Any]], count: int) -> OutputSummary:
    sums = {
        key: [sum(column) for column in zip(*(one["shard"][key] for one in params), strict=True)]
        for key in ("written", "counts")
    }
    written, counts = OutputCounts(*sums["written"]), ReadCounts(*sums["counts"])
    if not written.rows:
        raise DataError(f"{target}: no row was made in any shard")
    after = {
        key: value if key in _NOT_SUMMED else sum(one["post-process"][key] for one in params)
        for key, value in params[0]["post-process"].items()
    }
    means = averages(written, counts)
    settings = {"output_dir": str(target), "shard": None, "shards": count}
    merged = params[0] | {
        "n_examples": written.rows,
        "output_dir": str(target),
        "settings": params[0]["settings"] | settings,
        "post-process": after | {key: value for key, value in means.items() if key in after},
    }
    del merged["shard"]
    return OutputSummary(target, written, counts, merged)
