"""Example programs in this process: the module of their host script, and a loaded runtime."""

import functools
import importlib.util
import sys

import wafer.csl
from wafer.csl.host.tools.examples import EXAMPLES


@functools.cache
def script(name, file="run"):
    """A Python file of an example as a module; files beside it can be imported meanwhile."""
    folder = EXAMPLES / name
    spec = importlib.util.spec_from_file_location(f"{name}_{file}", folder / f"{file}.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
        for path in folder.glob("*.py"):  # examples may have files of the same name
            sys.modules.pop(path.stem, None)
    return module


def runtime(name, arch="wse2", **params):
    """An example, compiled and loaded."""
    return wafer.csl.Runtime(_compiled(name, arch, tuple(sorted(params.items()))))


@functools.lru_cache(maxsize=8)
def _compiled(name, arch, params):
    return wafer.csl.compile(EXAMPLES / name / "layout.csl", params=dict(params), arch=arch)


def run(name, *arguments, options=None, **params):
    """What the host script of an example gives for its arguments, by a program of these params."""
    return script(name).run(runtime(name, **params), *arguments, **(options or {}))
