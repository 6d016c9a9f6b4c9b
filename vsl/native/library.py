"""A native CPU library built by ``setup.py``: load it on first use, register it with XLA, call it.

The libraries are optional (``python setup.py build_ext --inplace`` builds them in a checkout).
Without one its package computes the same in pure JAX, and one log line says so. The environment
variable WAFER_NATIVE, read at load, is 0 to do without, or avx2 or baseline to go no further than
that instruction set.
"""

import ctypes
import dataclasses
import functools
import logging
import os
import pathlib
from typing import Any

import jax

__all__ = ["Library"]

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Library:
    """One shared library of XLA FFI handlers, or of plain functions.

    Attributes:
        what: what it computes, for messages.
        path: the ``_native.so`` file.
        handlers: its exported handlers, none if host code calls its functions with ``ctypes``.
        instead: what serves without it.
    """

    what: str
    path: pathlib.Path
    handlers: tuple[str, ...]
    instead: str

    def available(self) -> bool:
        """True when the library can be used; the first call loads it."""
        return _load(self) is not None

    def usable(self) -> bool:
        """True when programs compiled now run on the CPU and the library is there."""
        return jax.default_backend() == "cpu" and self.available()

    def target(self) -> str | None:
        """Return the instruction set chosen at load: avx512, avx2, baseline; None without."""
        library = _load(self)
        return None if library is None else _target(library)

    def loaded(self) -> ctypes.CDLL:
        """The library itself, whose functions ``ctypes`` calls.

        Raises:
            RuntimeError: the library is not there; ask ``available`` first.
        """
        library = _load(self)
        if library is None:
            raise RuntimeError(
                f"the native {self.what} is not built; use {self.instead}, or build it with "
                "`python setup.py build_ext --inplace`"
            )
        return library

    def call(
        self,
        name: str,
        result: jax.ShapeDtypeStruct | tuple[jax.ShapeDtypeStruct, ...],
        *operands: jax.Array,
        **attributes: Any,
    ) -> Any:
        """Call a handler; under vmap it runs once per batch element.

        Raises:
            RuntimeError: the library is not there; ask ``available`` first.
        """
        self.loaded()
        run = jax.ffi.ffi_call(name, result, vmap_method="sequential")
        return run(*operands, **attributes)


@functools.cache
def _load(library: Library) -> ctypes.CDLL | None:
    """Load and register once per process; None, with one line, when that is not possible."""
    try:
        if os.environ.get("WAFER_NATIVE", "1") == "0":
            raise OSError("switched off by WAFER_NATIVE=0")
        loaded = ctypes.CDLL(str(library.path))
        loaded.wafer_native_target.restype = ctypes.c_char_p
        for name in library.handlers:
            capsule = jax.ffi.pycapsule(getattr(loaded, name))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except (OSError, AttributeError) as error:
        _LOG.warning(
            "%s: no native library (%s); using %s. To build it, install a C++ compiler and run "
            "`pip install --force-reinstall wafer`, or `python setup.py build_ext --inplace` in a "
            "checkout",
            library.what,
            error,
            library.instead,
        )
        return None
    _LOG.debug("%s: native library %s, target %s", library.what, library.path, _target(loaded))
    return loaded


def _target(loaded: ctypes.CDLL) -> str:
    return loaded.wafer_native_target().decode().removeprefix("wafer_tile_")
