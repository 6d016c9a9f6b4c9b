"""``wafer checkpoint``: verify, describe, copy, move and delete checkpoints."""

import argparse
import contextlib
import datetime
import os
import pathlib
import shutil
import sys
from typing import Any, NamedTuple

from wafer.models.errors import plain
from wafer.models.shown.html import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verify = verbs.add_parser("verify", help="read every array, compare it with its checksum")
    verify.add_argument(
        "folder",
        help="a checkpoint, a model_dir (all of its checkpoints), or what has a manifest",
    )
    verify.set_defaults(run=_verify, addresses=("folder",))
    manifest = verbs.add_parser("manifest", help="write checksums beside weights that have none")
    manifest.add_argument("path", help="a Hugging Face folder, a .mdl file, or a checkpoint")
    manifest.set_defaults(run=_manifest)
    init = verbs.add_parser("init", help="write the checkpoint of step 0 of a run file")
    init.add_argument("-p", "--params", required=True, help="params YAML")
    init.add_argument("-o", "--model_dir", help="folder of the run (default: the file's)")
    init.set_defaults(run=_init)
    info = verbs.add_parser("info", help="size, time and step of a checkpoint or a .mdl file")
    info.add_argument("path")
    info.set_defaults(run=_info, addresses=("path",))
    delete = verbs.add_parser("delete", help="remove a checkpoint or a .mdl file")
    delete.add_argument("path")
    delete.set_defaults(run=_delete, addresses=("path",))
    for name, change in (("copy", _copy), ("move", shutil.move)):
        verb = verbs.add_parser(name, help=f"{name} a checkpoint or a .mdl file")
        verb.add_argument("source")
        verb.add_argument("target", help="a new path; with / at its end, the folder to put it in")
        verb.set_defaults(run=_transfer, change=change, addresses=("source", "target"))


def _verify(args: argparse.Namespace) -> int:
    from wafer.models.checkpoint.layout import is_checkpoint
    from wafer.models.checkpoint.stores import is_url, local_path
    from wafer.models.checkpoint.verify import checkpoints_in, verify
    from wafer.models.convert.manifest import manifest_of, verify_manifest
    from wafer.models.errors import CheckpointError

    folder, damaged = local_path(args.folder), 0
    alone = folder.is_file() or (folder / "config.json").is_file()  # no checksums of its own
    for path in [folder] if alone else checkpoints_in(folder):
        try:
            summed = manifest_of(path).is_file()
            own = is_checkpoint(path) or not (alone or summed)
            report = verify(path) if own else None
            if summed or report is None:
                with _other(path) as tensors:
                    listed = verify_manifest(path, tensors)
                report = report or listed
        except CheckpointError as error:
            damaged = 1
            sys.stderr.write(plain(f"{error}\n"))
            continue
        said = "sound" if report.checked else "readable (format 1 has no checksums)"
        where = args.folder if is_url(args.folder) else path
        sys.stdout.write(f"{where}: {said}, {report.arrays} arrays, {report.size / 1e6:,.1f} MB\n")
    return damaged


def _other(path: pathlib.Path) -> contextlib.AbstractContextManager[Any]:
    """Open a file of another format than ours and Hugging Face's; gives None for those."""
    from wafer.vendor.mdl.file import MdlFile

    return MdlFile(path) if path.suffix == ".mdl" else contextlib.nullcontext()


def _manifest(args: argparse.Namespace) -> int:
    from wafer.models.convert.manifest import write_manifest

    path = pathlib.Path(args.path)
    with _other(path) as tensors:
        sys.stdout.write(f"Saved {write_manifest(path, tensors)}\n")
    return 0


def _init(args: argparse.Namespace) -> int:
    from wafer.commands.run import init_checkpoint

    given = {} if args.model_dir is None else {"model_dir": args.model_dir}
    path = init_checkpoint(args.params, **given)
    sys.stdout.write(f"Saved initial checkpoint at: {path}\n")
    return 0


def _checkpoint_path(text: str) -> pathlib.Path:
    """The path of a checkpoint's folder or of a ``.mdl``.

    Raises:
        CheckpointError: it is neither.
    """
    from wafer.models.checkpoint.layout import is_checkpoint
    from wafer.models.checkpoint.stores import local_path
    from wafer.models.errors import CheckpointError

    path = local_path(text).expanduser()
    if is_checkpoint(path) or (path.suffix == ".mdl" and path.is_file()):
        return path
    raise CheckpointError(f"{path}: expected a checkpoint (<model_dir>/checkpoints/<step>) or .mdl")


class CheckpointInfo(NamedTuple):
    """What a checkpoint or a ``.mdl`` file is."""

    path: str  #: of it, or its address at a store
    size: int  #: bytes of its files
    modified: datetime.datetime | None  #: when one was written last; None at a store
    step: int | None  #: that it was written after
    params: tuple[tuple[str, tuple[int, ...], str], ...]  #: (name, shape, dtype); () of a ``.mdl``

    def __repr__(self) -> str:
        when, step = self.modified, self.step
        said = "none" if step is None else f"{step:,}"
        changed = "" if when is None else f", last modified {when.isoformat(' ', 'seconds')}"
        return f"{self.path}: {self.size / 1e6:,.1f} MB{changed}, step {said}"

    def _repr_html_(self) -> str:
        rows = [(name, "x".join(map(str, shape)), dtype) for name, shape, dtype in self.params]
        return table(repr(self), ("parameter", "shape", "dtype"), rows)


def info(checkpoint: str | os.PathLike[str]) -> CheckpointInfo:
    """Describe a checkpoint, whose arrays are not read.

    Args:
        checkpoint: its folder, also at ``s3://`` or ``gs://``, or a ``.mdl`` file.

    Raises:
        CheckpointError: it is neither, or damaged.
    """
    from wafer.models.checkpoint.layout import STEP, record_entry
    from wafer.models.checkpoint.reader import open_params
    from wafer.models.checkpoint.stores import is_url

    path, params = _checkpoint_path(os.fspath(checkpoint)), ()
    files = [file for file in path.rglob("*") if file.is_file()] or [path]
    if path.is_dir():
        record, arrays = open_params(path)
        step = record_entry(record, path, STEP)
        params = tuple((name, leaf.shape, leaf.dtype.name) for name, leaf in arrays.items())
    else:
        with _other(path) as file:
            step = file.scalar("global_step")
    size = sum(file.stat().st_size for file in files)
    where, changed = os.fspath(checkpoint), None
    if not is_url(where):
        where = str(path)
        changed = datetime.datetime.fromtimestamp(max(file.stat().st_mtime for file in files))
    return CheckpointInfo(where, size, changed, None if step is None else int(step), params)


def _info(args: argparse.Namespace) -> int:
    sys.stdout.write(f"{info(args.path)}\n")
    return 0


def _delete(args: argparse.Namespace) -> int:
    from wafer.models.checkpoint.stores import is_url, place_of

    if is_url(args.path):
        store, name = place_of(args.path)
        store.delete(name)
        sys.stdout.write(f"Deleted {args.path}\n")
        return 0
    path = _checkpoint_path(args.path)
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    sys.stdout.write(f"Deleted {path}\n")
    return 0


def _copy(source: pathlib.Path, target: pathlib.Path) -> None:
    from wafer.models.files import atomic_write, require_contained

    require_contained(source)
    with atomic_write(target) as partial:
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, partial)


def _transfer(args: argparse.Namespace) -> int:
    from wafer.models.checkpoint.stores import is_url, local_output
    from wafer.models.convert.tokenizer import carry_tokenizer

    stored = [is_url(text) for text in (args.source, args.target)]
    if any(stored) and args.change is not _copy:
        raise ValueError("move: not at a store; copy the checkpoint, then delete it")
    if stored[1]:
        source = _checkpoint_path(args.source)
        url = f"{args.target}{source.name if args.target.endswith('/') else ''}"
        with local_output(url) as path:
            _copy(source, path)
            if source.is_dir():
                carry_tokenizer(source, path, alone=True)
        sys.stdout.write(f"{args.source} -> {url}\n")
        return 0
    source, target = _checkpoint_path(args.source), pathlib.Path(args.target).expanduser()
    if args.target.endswith("/") or target.is_dir():
        target /= source.name
    if target.exists():
        raise FileExistsError(f"{target} is there already; name another path")
    target.parent.mkdir(parents=True, exist_ok=True)
    args.change(source, target)
    sys.stdout.write(f"{args.source if stored[0] else source} -> {target}\n")
    return 0
