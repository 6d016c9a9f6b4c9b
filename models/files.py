"""Files and folders that appear whole under their name or not at all; JSON files of others."""

import contextlib
import errno
import glob
import json
import logging
import os
import pathlib
import re
import shutil
import stat
import time
from collections.abc import Iterator
from typing import Any

import psutil

from wafer.models.errors import LinkError, did_you_mean, disk_full

JsonObject = dict[str, Any]  # a parsed JSON file: a config.json, the record of a checkpoint

STORES = "s3|gs"  # schemes of object stores
_LONGEST_NAME = 200  # bytes; file systems take 255, and a name may get an ending
_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def atomic_write(path: pathlib.Path, *, sync: bool = False) -> Iterator[pathlib.Path]:
    """Give a name beside ``path`` to write to; the block's end renames it to ``path``.

    A kill, an error or a full disk leaves what was at ``path`` before. What a killed process
    wrote stays beside it, as ``.NAME.partial-PID``; ``remove_partials`` removes that.

    Args:
        path: of a file, which is replaced, or of a folder, which does not exist or is empty.
        sync: wait until a file's bytes are on the disk before it gets its name.

    Raises:
        OSError: a full disk's names ``path``.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    with made_folder(path.parent):
        _remove(partial)  # a killed process had the same number
        try:
            yield partial
            if sync:
                with partial.open("rb") as file:
                    os.fsync(file.fileno())
            partial.replace(path)
        except (OSError, ValueError) as error:
            if full := disk_full(error, path):
                raise full from error
            raise
        finally:
            name = glob.escape(partial.name)
            remove_written(partial.parent, name, f"{name}.*")  # Orbax's


@contextlib.contextmanager
def made_folder(path: pathlib.Path) -> Iterator[None]:
    """Make a folder and those above it; after an error in the block those that are empty go."""
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):  # it has files
                folder.rmdir()
        raise


def write_text(path: pathlib.Path, text: str) -> None:
    """Write a file of text as UTF-8, whole or not at all; one that is there keeps its mode."""
    path = path.resolve()  # of a link, what it leads to
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
        if path.exists():
            shutil.copymode(path, partial)


def file_name(name: str) -> str:
    """Return a name that a file of a given folder may have.

    Raises:
        ValueError: it leads to another folder, or no file can be called so.
    """
    if name in ("", "..") or pathlib.PurePath(name).name != name or not name.isprintable():
        raise ValueError(f"{name[:80]!r}: expected the name of a file, without folders")
    if len(name.encode(errors="surrogatepass")) > _LONGEST_NAME:
        raise ValueError(f"{name[:80]!r}...: longer than {_LONGEST_NAME} bytes")
    return name


def contained_file(path: pathlib.Path, folder: pathlib.Path | None = None) -> pathlib.Path:
    """Return a path in a folder of weights, unless it is a link to a file outside the folder.

    A folder may come from anywhere; the path of the folder itself is the user's. Hugging Face's
    cache has such links: from ``snapshots/HASH`` into ``blobs`` beside ``snapshots``.

    Args:
        path: in the folder, at any depth; nothing need be there.
        folder: None is the path's own.

    Raises:
        LinkError: names the link and the file that it leads to.
    """
    folder = path.parent if folder is None else folder
    home, target = (pathlib.Path(os.path.realpath(p)) for p in (folder, path))
    places = (p for p in (home, *home.parents) if p.parent.name == "snapshots")
    blobs = [place.parents[1] / "blobs" for place in places]
    if target.is_relative_to(home) or target.parent in blobs:
        return path
    raise LinkError(
        f"{path}: a link to {target}, outside {folder}; expected a file of the folder itself. Copy "
        "the file to the link's place if you trust it"
    )


def require_contained(folder: pathlib.Path) -> None:
    """Refuse a folder with a link, at any depth, that ``contained_file`` refuses."""
    for place, folders, files in os.walk(folder):
        for path in (pathlib.Path(place, name) for name in (*folders, *files)):
            if path.is_symlink():
                contained_file(path, folder)


def require_path(path: pathlib.Path) -> None:
    """Refuse a path where nothing is.

    Raises:
        FileNotFoundError: names the path, and what is called like it in its folder.
    """
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(f"{path} is a link to {os.readlink(path)}, which does not exist")
    if not path.exists():
        beside = os.listdir(path.parent) if path.parent.is_dir() else []
        raise FileNotFoundError(f"{path} does not exist{did_you_mean(path.name, beside)}")


def require_local(path: str) -> str:
    """Return a path of this machine.

    Raises:
        ValueError: an address of an object store, also one that ``pathlib`` changed to ``s3:/``.
    """
    if re.match(f"({STORES}):/", path):
        address = re.sub(":/+", "://", path, count=1)
        raise ValueError(
            f"{address}: an object store; expected a path of this machine. Checkpoints alone are "
            "kept there (runconfig.checkpoint_root, `wafer checkpoint copy`)"
        )
    return path


def require_outside(target: str | os.PathLike[str], source: str | os.PathLike[str]) -> None:
    """Refuse an output within the folder that is read.

    Raises:
        ValueError: names both.
    """
    inner, outer = (pathlib.Path(path).resolve() for path in (target, source))
    if inner == outer or outer in inner.parents:
        raise ValueError(f"{target} is within {source}, which is read; choose a folder outside it")


def not_a_file(path: pathlib.Path) -> str:
    """Say why a path cannot be read to its end as a file, or '' where it can.

    Opening a pipe waits for its writer, and a device may have no end.

    Raises:
        OSError: nothing is there, or it cannot be looked at.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return "this link leads to itself"
    return "" if stat.S_ISREG(mode) else "this is no regular file"


def remove_partials(path: pathlib.Path) -> None:
    """Remove what killed processes of this machine left beside a path, as above."""
    begin = f".{path.name}.partial-"
    for partial in path.parent.glob(f"{glob.escape(begin)}*"):
        number = re.match(r"[0-9]+", partial.name.removeprefix(begin))
        if number and not psutil.pid_exists(int(number[0])):
            _LOG.warning("Removed a half-written %s (its writer was killed)", partial)
            _remove(partial)


def remove_written(folder: pathlib.Path, *patterns: str) -> None:
    """Remove what a writer that failed has left, also what its threads still bring back."""
    for _ in range(20):
        remaining = [path for pattern in patterns for path in folder.glob(pattern)]
        if not remaining:
            return
        for path in remaining:
            _remove(path)
        time.sleep(0.05)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_json(path: pathlib.Path) -> JsonObject:
    """Read a JSON file that holds an object.

    Raises:
        FileNotFoundError: no such file.
        ValueError: something else; names the file, and the line where it is no JSON.
    """
    if problem := not_a_file(path):
        raise ValueError(f"{path}: {problem}; expected a JSON file")
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
