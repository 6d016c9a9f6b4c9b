"""The C++ machine as a library: its functions for ``wafer.machine.engine``."""

import ctypes
import functools
from typing import Any

import numpy as np

__all__ = ["available", "call", "how_to_build"]


@functools.cache
def _native() -> Any:
    # Imported late: it takes JAX along, which scripts of the host need not wait for.
    from vsl.native.library import Library

    return Library(
        what="machine for CSL",
        package="wafer.machine.native",
        handlers=(),
        instead="the machine in JAX",
    )


def available() -> bool:
    """True when the machine is built; the first call loads it."""
    return _native().available()


def how_to_build() -> str:
    """The command that builds the machine for this install."""
    from vsl.native.library import how_to_build as command

    return command()


def call(name: str, *arguments: Any) -> int:
    """Call a function of ``native/machine.cc``: all is numbers of 64 bits, arrays their addresses.

    Raises:
        RuntimeError: the library is not built.
    """
    function = getattr(_native().loaded(), f"csl_{name}")
    function.restype = ctypes.c_int64
    numbers = (one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments)
    return function(*map(ctypes.c_int64, numbers))
