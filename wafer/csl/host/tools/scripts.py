"""Running public programs' own scripts: their Python with our modules, and their two commands."""

import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wafer.csl.host.tools.shifts import SCRIPT
from wafer.errors import CompileError
from wafer.models.files import require_path, write_text

_PACKAGES = Path(__file__).parents[4]  # where wafer itself lies
_SHIMS = _PACKAGES / "wafer" / "vendor" / "sdk" / "shims"  # ``import cerebras`` of a script
_COMMANDS = {"cslc": "compile", "cs_python": "run"}


def _require_script(script: str | Path) -> None:
    require_path(Path(script))
    if Path(script).is_dir():
        raise CompileError(f"{script}: a folder; expected a Python script, most often run.py")


def run_script(script: str | Path, arguments: Sequence[str]) -> int:
    """Run a Python script that imports ``cerebras``; its exit status.

    Raises:
        FileNotFoundError: no such script.
        CompileError: it is a folder.
    """
    _require_script(script)
    before = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(_SHIMS), *([before] if before else []), str(_PACKAGES)])
    command = [sys.executable, str(script), *arguments]
    env = os.environ | {"PYTHONPATH": path, SCRIPT: str(script)}
    return subprocess.run(command, env=env, check=False).returncode


def run_here(script: str | Path, arguments: Sequence[str]) -> int:
    """As ``run_script``, in this process; errors of the script are the caller's."""
    _require_script(script)
    before = sys.argv, sys.path
    sys.argv = [str(script), *arguments]
    sys.path = [str(Path(script).resolve().parent), str(_SHIMS), *sys.path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    finally:
        sys.argv, sys.path = before
    return 0


def write_commands(folder: str | Path) -> list[Path]:
    """Write ``cslc`` and ``cs_python`` into a folder, for the PATH of programs' own scripts.

    Returns:
        The files.
    """
    folder = Path(folder)
    files = []
    for name, action in _COMMANDS.items():
        file = folder / name
        packages, python = shlex.quote(str(_PACKAGES)), shlex.quote(sys.executable)
        write_text(
            file,
            "#!/bin/sh\n"
            f'export PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}"{packages}\n'
            f'exec {python} -m wafer csl {action} "$@"\n',
        )
        file.chmod(0o755)
        files.append(file)
    return files
