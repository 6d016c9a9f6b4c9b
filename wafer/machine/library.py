"""The C++ machine as a library: its functions for ``wafer.machine.engine``."""

import ctypes
from typing import Any

import numpy as np

from vsl.native.library import Library, how_to_build

__all__ = ["available", "call", "how_to_build"]

_LIBRARY = Library(
    what="machine for CSL",
    package="wafer.machine.native",
    handlers=(),
    instead="the machine in JAX",
)
available = _LIBRARY.available


def call(name: str, *arguments: Any) -> int:
    """Call a function of ``native/machine.cc``: all is numbers of 64 bits, arrays their addresses.

    Raises:
        RuntimeError: the library is not built.
    """
    function = getattr(_LIBRARY.loaded(), f"csl_{name}")
    function.restype = ctypes.c_int64
    numbers = (one.ctypes.data if isinstance(one, np.ndarray) else int(one) for one in arguments)
    return function(*map(ctypes.c_int64, numbers))
