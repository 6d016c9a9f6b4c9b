"""Is a process still the one that registered? A pid alone is reused; its start time is not."""

import os
import pathlib
import subprocess

__all__ = ["identity"]

_PROC = pathlib.Path("/proc")


def identity(pid: int) -> str | None:
    """Name a living process beyond doubt, or return None when it has ended.

    Args:
        pid: process id on this machine.

    Returns:
        Boot id and start time (Linux), or what ``ps`` says of the start (elsewhere). A zombie,
        which has ended and only waits to be collected, counts as ended.
    """
    if not (_PROC / "self" / "stat").exists():
        return _from_ps(pid)
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    state, start = fields[0], fields[19]
    return None if state in "ZX" else f"{_boot()}:{start}"


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _from_ps(pid: int) -> str | None:
    command = ["ps", "-o", "state=,lstart=", "-p", str(pid)]
    out = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
    )
    state, _, start = out.stdout.strip().partition(" ")
    return start.strip() if start and not state.startswith("Z") else None
