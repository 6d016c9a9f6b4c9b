"""Files and folders that appear under their name when they are complete, or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

__all__ = ["appearing_whole"]


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
