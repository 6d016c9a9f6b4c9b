"""Files and folders that appear whole under their name or not at all; JSON files of others."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

__all__ = ["appearing_whole", "read_json"]


@contextlib.contextmanager
def appearing_whole(path: pathlib.Path, *, sync: bool = False) -> Iterator[pathlib.Path]:
    """Give a name beside ``path`` to write to; the block's end renames it to ``path``.

    A kill, an error or a full disk leaves what was at ``path`` before. What a killed process
    wrote stays beside it, as ``.NAME.partial-PID``.

    Args:
        path: of a file, which is replaced, or of a folder, which does not exist or is empty.
        sync: wait until a file's bytes are on the disk before it gets its name.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    partial.parent.mkdir(parents=True, exist_ok=True)
    _remove(partial)  # a killed process had the same number
    try:
        yield partial
        if sync:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        FileNotFoundError: no such file.
        ValueError: something else; names the file, and the line where it is no JSON.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise ValueError(f"{path}: not JSON ({error})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(content).__name__}")
    return content
