"""Is the native CPU library there? Load it on first use and register its functions with XLA.

The library is built by ``setup.py`` (``python setup.py build_ext --inplace`` in a checkout).
Without it every function of this package computes the same in pure JAX, and one log line says so.
The environment variable WAFER_NATIVE, read at load, is 0 to do without it, or avx2 or baseline to
go no further than that instruction set.
"""

import ctypes
import functools
import logging
import os
import pathlib
from typing import Any

import jax

__all__ = ["HANDLERS", "available", "call", "target", "usable"]

_LOG = logging.getLogger(__name__)
_LIBRARY = pathlib.Path(__file__).with_name("_native.so")
HANDLERS = (
    "wafer_sparse_multiply",
    "wafer_sparse_input_gradient",
    "wafer_sparse_weight_gradient",
    "wafer_sparse_gradients",
    "wafer_sparse_topk_mask",
    "wafer_sparse_pattern_of_mask",
    "wafer_sparse_update_pattern",
    "wafer_sparse_take",
    "wafer_sparse_to_dense",
    "wafer_sparse_gather",
)


@functools.cache
def _load() -> ctypes.CDLL | None:
    """Load and register once per process; None, with one line, when that is not possible."""
    try:
        if os.environ.get("WAFER_NATIVE", "1") == "0":
            raise OSError("switched off by WAFER_NATIVE=0")
        library = ctypes.CDLL(str(_LIBRARY))
        library.wafer_sparse_target.restype = ctypes.c_char_p
        for name in HANDLERS:
            capsule = jax.ffi.pycapsule(getattr(library, name))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except (OSError, AttributeError) as error:
        _LOG.warning(
            "sparse kernels: no native library (%s); computing with masked dense products. "
            "To build it, install a C++ compiler and run `pip install --force-reinstall wafer`, "
            "or `python setup.py build_ext --inplace` in a checkout",
            error,
        )
        return None
    _LOG.debug("sparse kernels: native library %s, target %s", _LIBRARY, _target(library))
    return library


def _target(library: ctypes.CDLL) -> str:
    return library.wafer_sparse_target().decode().removeprefix("wafer_tile_")


def available() -> bool:
    """True when the native library can be used; the first call loads it."""
    return _load() is not None


def usable() -> bool:
    """True when programs compiled now run on the CPU and the library is there."""
    return jax.default_backend() == "cpu" and available()


def target() -> str | None:
    """Return the instruction set chosen at load: avx512, avx2, baseline; None without library."""
    library = _load()
    return None if library is None else _target(library)


def call(name: str, result: jax.ShapeDtypeStruct | tuple, *operands: jax.Array) -> Any:
    """Call a registered handler; under vmap it runs once per batch element.

    Raises:
        RuntimeError: the library is not there; ask ``available`` first.
    """
    if not available():
        raise RuntimeError(
            "the native sparse kernels are not built; use implementation='masked' or 'auto', or "
            "build them with `python setup.py build_ext --inplace`"
        )
    return jax.ffi.ffi_call(name, result, vmap_method="sequential")(*operands)
