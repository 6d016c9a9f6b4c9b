"""The C++ machine as a library: its functions for ``wafer.machine.engine``."""

import ctypes
import functools
from typing import Any

__all__ = ["available", "how_to_build", "machine_library"]

_I32, _I64, _AT = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
_FUNCTIONS = {
    "csl_create": ([_AT, _I64], _AT),
    "csl_destroy": ([_AT], None),
    "csl_cycle": ([_AT], _I64),
    "csl_run": ([_AT, _I64, _I32], _I32),
    "csl_launch": ([_AT, _I32, _I32, _AT, _I32], _I32),
    "csl_has_command": ([_AT, _I32], _I32),
    "csl_copy": ([_AT, _I32, _I64, _I64, _AT, _I32], _I32),
    "csl_memories": ([_AT, _I32, _I64, _AT, _I32], _I32),
    "csl_worked": ([_AT, _AT], None),
    "csl_inject": ([_AT, _I32, _I32, _AT, _I64], _I32),
    "csl_collect": ([_AT, _I32, _I32, _AT, _I64], _I64),
    "csl_enter": ([_AT, _I32, _I32, _I32, _AT, _AT, _I64], _I32),
    "csl_open": ([_AT, _I32, _I32, _I32], _I32),
    "csl_left": ([_AT, _I32, _I32, _I32, _AT, _I64], _I64),
    "csl_check_bounds": ([_AT, _I32, _AT, _I64], None),
    "csl_fault": ([_AT, _AT], None),
    "csl_waiting": ([_AT, _AT, _I64], _I64),
    "csl_prints": ([_AT], _I64),
    "csl_print": ([_AT, _I64, _AT], _AT),
    "csl_links": ([_AT], _AT),
    "csl_work": ([_AT, _I32, _AT], None),
    "csl_record": ([_AT, _AT], None),
    "csl_recorded": ([_AT, _AT], None),
    "csl_recording": ([_AT, _AT, _AT], None),
}


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


def machine_library() -> ctypes.CDLL:
    """Load the machine and declare its functions."""
    library = _native().loaded()
    for name, (arguments, result) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library
