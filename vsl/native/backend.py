"""Build backend: setuptools', with Zig's C++ compiler from the index where none works here.

``pyproject.toml`` names it and ``setup.py`` runs it, both before the package can be imported: it
imports nothing of ours, and the installed package never loads it.
"""

import importlib.util
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "compiler",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "local_compiler",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

if sys.version_info < (3, 11):  # noqa: UP036  older pips name a dependency that 3.10 lacks
    sys.exit(f"wafer-jax requires Python 3.11 or later; this is {platform.python_version()}")

_ZIG = "ziglang>=0.17"
_HAS_ZIG = {"x86_64", "amd64", "aarch64", "arm64"}  # with Linux or macOS
_PROBE = "#include <vector>\nint size() { return int(std::vector<int>(3).size()); }\n"


def _works(command: list[str]) -> bool:
    """Whether a compiler makes a shared library of C++17."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "probe.cc")
        source.write_text(_PROBE, encoding="utf-8")
        flags = ["-std=c++17", "-fPIC", "-shared", "-o", str(source.with_suffix(".so"))]
        try:
            subprocess.run([*command, *flags, str(source)], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return False
    return True


def local_compiler() -> list[str] | None:
    """The C++ compiler to call: CXX, what Python was built with, or a usual name; None: none works.

    CXX is not tried: a compiler that was asked for by name is not replaced.
    """
    if asked := os.environ.get("CXX"):
        return shlex.split(asked)
    own = shlex.split(sysconfig.get_config_var("CXX") or "")[:1]
    candidates = [own, ["c++"], ["g++"], ["clang++"]]
    return next((command for command in candidates if command and _works(command)), None)


def compiler() -> list[str] | None:
    """``local_compiler``, or that of the package ``ziglang``, without this machine's extensions."""
    command = local_compiler()
    if command is None and importlib.util.find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "c++", "-mcpu=baseline"]
    return command


def _required_compilers() -> list[str]:
    suits = platform.system() in {"Linux", "Darwin"} and platform.machine().lower() in _HAS_ZIG
    wanted = os.environ.get("WAFER_NATIVE", "1") != "0"
    return [_ZIG] if suits and wanted and local_compiler() is None else []


def get_requires_for_build_wheel(
    config_settings: Mapping[str, str | list[str] | None] | None = None,
) -> list[str]:
    """What pip installs before it builds a wheel."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _required_compilers()


def get_requires_for_build_editable(
    config_settings: Mapping[str, str | list[str] | None] | None = None,
) -> list[str]:
    """Likewise for ``pip install -e``."""
    return build_meta.get_requires_for_build_editable(config_settings) + _required_compilers()
