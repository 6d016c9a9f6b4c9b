"""The folder of what can be made again: floor plans, compiled programs, tokenized text.

It is ``wafer`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. ``WAFER_CACHE`` names another folder, or is
``off``. Whatever lies there may be removed at any time.
"""

import atexit
import contextlib
import hashlib
import io
import json
import logging
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from wafer.models.files import atomic_write
from wafer.models.user.trust import child_environment

_OFF = ("off", "0", "no", "false", "")
_MOST = 12  # files of a kind; the oldest go
_MOST_PROGRAMS = 1 << 30  # bytes
_CALL = "import json, pkgutil, sys; pkgutil.resolve_name(sys.argv[1])(*json.loads(sys.argv[2]))"
_AHEAD: list[subprocess.Popen[bytes]] = []  # processes that fill the folder
_LOG = logging.getLogger(__name__)


def cache_folder() -> pathlib.Path | None:
    """Where things are kept; None when the user switched that off."""
    asked = os.environ.get("WAFER_CACHE")
    if asked is not None:
        return None if asked.lower() in _OFF else pathlib.Path(asked)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "wafer"


def make_ahead(function: str, *arguments: object) -> None:
    """Call a function that ends in ``cached_arrays`` in a process of its own, and return at once.

    The next ``cached_arrays`` here waits for it. Whatever goes wrong there is left to the caller
    here, who makes the arrays then and sees the error.

    Args:
        function: 'module:name'.
        arguments: JSON values.
    """
    if cache_folder() is None:
        return
    # One arena of malloc, which a run asks for, is a lock between the tokenizers' threads.
    env = {k: v for k, v in child_environment().items() if k != "GLIBC_TUNABLES"}
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CALL, function, json.dumps(arguments)],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(child.kill)
    _AHEAD.append(child)


def cached_arrays(
    kind: str, depends_on: object, make: Callable[[], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Arrays as ``make`` gives them, from the folder when they lie there.

    It first waits for what ``make_ahead`` began.

    Args:
        kind: a folder's name.
        depends_on: JSON values; all that the arrays follow from.
        make: called when nothing is kept, or what is kept is damaged.
    """
    while _AHEAD:
        _AHEAD.pop().wait()
    folder = cache_folder()
    if folder is None:
        return make()
    name = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    path = folder / kind / f"{name}.arrays"
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        _LOG.warning("%s: %s; making it again", path, error)
    arrays = make()
    try:
        _write(path, arrays)
    except OSError as error:
        _LOG.warning("%s could not be kept (%s)", path, error)
    return arrays


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
    whole = path.read_bytes()
    digest, archive = whole[:32], whole[32:]
    if hashlib.sha256(archive).digest() != digest:
        raise ValueError("damaged")
    with np.load(io.BytesIO(archive)) as kept:
        return {name: kept[name] for name in kept.files}


def _write(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    archive = io.BytesIO()
    np.savez(archive, **cast(dict[str, Any], arrays))
    with atomic_write(path) as partial:
        partial.write_bytes(hashlib.sha256(archive.getvalue()).digest() + archive.getvalue())
    for old in sorted(path.parent.glob("*.arrays"), key=lambda p: -p.stat().st_mtime)[_MOST:]:
        old.unlink(missing_ok=True)


def keep_programs(folder: str | None = None) -> None:
    """Keep what this process compiles for the next one (JAX's persistent compilation cache).

    Args:
        folder: the user's; else what ``JAX_COMPILATION_CACHE_DIR`` says, else in our own.
    """
    import jax

    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", folder)
        return
    kept = cache_folder()
    if jax.config.values["jax_compilation_cache_dir"] is not None or kept is None:
        return
    programs = kept / "programs" / _processor()
    with contextlib.suppress(OSError):
        _remove_oldest(programs)
    # JAX's own limit counts all files anew, under a lock, for each that it writes.
    jax.config.update("jax_compilation_cache_dir", str(programs))
    # A run's first state is a hundred small programs, a few milliseconds each to load.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _remove_oldest(folder: pathlib.Path) -> None:
    """Remove the files that were read longest ago, until the others have three quarters of room."""
    files = [(entry, entry.stat()) for entry in os.scandir(folder)]
    total = sum(state.st_size for _, state in files)
    if total <= _MOST_PROGRAMS:
        return
    for entry, state in sorted(files, key=lambda f: max(f[1].st_atime, f[1].st_mtime)):
        pathlib.Path(entry).unlink(missing_ok=True)
        total -= state.st_size
        if total <= _MOST_PROGRAMS * 3 // 4:
            return


def _processor() -> str:
    """A name for what compiled programs run on: a folder may be shared by several machines."""
    lines: list[str] = []
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        lines = pathlib.Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    kind = f"{platform.machine()} {platform.processor()} {features}"
    return f"{platform.machine()}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
