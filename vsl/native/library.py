"""A native CPU library built by ``setup.py``: load it on first use, register it with XLA, call it.

A checkout whose libraries are not built takes those of an installed wafer that was built from the
same sources. Without any the package computes the same in pure JAX, and logs once which are
missing and how to build them. The environment variable WAFER_NATIVE, read at load, is 0 to do
without, or avx2 or baseline to go no further than that instruction set.
"""

import ctypes
import dataclasses
import functools
import importlib.metadata
import json
import logging
import os
import pathlib
import shlex
import sys
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from wafer.vsl.native.sources import LIBRARIES, digest

_LOG = logging.getLogger(__name__)
_ROOT = pathlib.Path(__file__).parents[3]
_REPORTED = set[str]()  # packages of which a line was logged


@dataclasses.dataclass(frozen=True)
class Library:
    """One shared library of XLA FFI handlers, or of plain functions."""

    package: str  #: of ``LIBRARIES``, which its sources and the ``_native.so`` are in, with dots
    instead: str  #: what serves without it
    #: its exported handlers, none if host code calls its functions with ``ctypes``
    handlers: tuple[str, ...] = ()

    def available(self) -> bool:
        """True when the library can be used; the first call loads it."""
        return _load(self) is not None

    def usable(self) -> bool:
        """True when programs compiled now run on the CPU and the library is there."""
        import jax  # late: a library of plain functions needs none, and it takes a second

        return jax.default_backend() == "cpu" and self.available()

    def target(self) -> str | None:
        """Return the instruction set chosen at load: avx512, avx2, baseline; None without."""
        library = _load(self)
        return None if library is None else library.wafer_native_target().decode()

    def loaded(self) -> ctypes.CDLL:
        """The library itself, whose functions ``ctypes`` calls.

        Raises:
            RuntimeError: the library is not there; ask ``available`` first.
        """
        library = _load(self)
        if library is None:
            raise RuntimeError(
                f"{LIBRARIES[self.package]}: the native library is not built; use {self.instead},"
                f" or build it: {how_to_build()}"
            )
        return library

    def call(
        self,
        name: str,
        result: Any,
        *operands: Any,
        **attributes: object,
    ) -> Any:
        """Call a handler; under vmap it runs once per batch element.

        Args:
            name: of the handler.
            result: ``jax.ShapeDtypeStruct`` of its result, or a tuple of them.
            operands: arrays.
            attributes: of the call.

        Raises:
            RuntimeError: the library is not there, or programs do not run on the CPU; ask
                ``usable`` first.
        """
        import jax

        self.loaded()
        if (backend := jax.default_backend()) != "cpu":
            raise RuntimeError(
                f"{LIBRARIES[self.package]}: the native library is for CPUs, and programs run on "
                f"{backend.upper()} here; use {self.instead}"
            )
        together = vary_together(operands)
        like = jax.typeof(together[0])
        if manual_axes(like):
            kind = like.manual_axis_type
            struct = lambda leaf, sharding: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding, manual_axis_type=kind
            )
            replicated = lambda leaf: like.sharding.update(spec=jax.P(*[None] * leaf.ndim))
            result = jax.tree.map(lambda leaf: struct(leaf, replicated(leaf)), result)
        run = jax.ffi.ffi_call(name, result, vmap_method="sequential")
        return run(*together, **attributes)


@functools.cache
def _load(library: Library) -> ctypes.CDLL | None:
    """Load and register once per process; None when that is not possible, which is logged."""
    try:
        loaded = ctypes.CDLL(str(_find(library.package)))
        loaded.wafer_native_target.restype = ctypes.c_char_p
        for name in library.handlers:
            import jax

            capsule = jax.ffi.pycapsule(getattr(loaded, name))
            jax.ffi.register_ffi_target(name, capsule, platform="cpu")
    except (OSError, AttributeError) as error:
        _report(library.package, error)
        return None
    target = loaded.wafer_native_target().decode()
    _LOG.debug("native library %s, target %s", loaded._name, target)
    return loaded


def _report(package: str, error: Exception) -> None:
    """Log in one line all libraries that are missing, those that nothing asked for yet, too."""
    if package in _REPORTED:
        return
    missing = [package]
    for other in LIBRARIES.keys() - _REPORTED - {package}:
        try:
            _find(other)
        except OSError:
            missing.append(other)
    _REPORTED.update(missing)
    _LOG.warning(
        "no native library for %s (%s); JAX serves instead, many times slower. To build it, with a "
        "C++ compiler: %s",
        "; ".join(name for key, name in LIBRARIES.items() if key in missing),
        error,
        how_to_build(),
    )


def how_to_build() -> str:
    """The commands that build the libraries of this install."""
    python = shlex.quote(sys.executable)
    if (_ROOT / "setup.py").is_file():
        build = f"`cd {shlex.quote(str(_ROOT))} && {python} setup.py build_ext --inplace`"
        needs = f"`{python} -m pip install 'setuptools>=77'`, without a C++ compiler also ziglang"
        return f"{build} (it needs {needs})"
    source = _installed_from()
    path = "CHECKOUT" if source is None else shlex.quote(str(source))
    where = " with the path of a checkout of wafer" if source is None else ""
    return f"`{python} -m pip install --force-reinstall --no-deps {path}`{where}"


def _installed_from() -> pathlib.Path | None:
    """The folder that this package was installed from, if it is still there."""
    try:
        record = importlib.metadata.distribution("wafer-jax").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    url = urllib.parse.urlsplit(json.loads(record or "{}").get("url", ""))
    folder = pathlib.Path(urllib.request.url2pathname(url.path))
    return folder if url.scheme == "file" and (folder / "setup.py").is_file() else None


def _find(package: str) -> pathlib.Path:
    """Find the library beside its sources; for a checkout, else an installed one of those sources.

    Raises:
        OSError: there is none, or WAFER_NATIVE is 0.
    """
    if os.environ.get("WAFER_NATIVE", "1") == "0":
        raise OSError("switched off by WAFER_NATIVE=0")
    file = pathlib.Path(*package.split("."), "_native.so")
    problem, expected, paths = f"{_ROOT / file} is missing", b"", [_ROOT / file]
    if (_ROOT / "setup.py").is_file():
        expected = digest(_ROOT, package).encode()
        paths += [pathlib.Path(entry) / file for entry in sys.path]
    for path in paths:
        if path.is_file():
            if not expected or expected in path.read_bytes():
                return path
            problem = f"{path} was built from other sources than those in {_ROOT}"
    raise FileNotFoundError(problem)


def vary_together(operands: Sequence[Any]) -> Sequence[Any]:
    """Let arrays vary over the same axes of a ``jax.shard_map``, as JAX's own functions do.

    A weight that all devices share is cast where it meets their data: the transpose of the cast
    sums its gradient over the devices.
    """
    import jax

    axes = [manual_axes(jax.typeof(leaf)) for leaf in operands]
    union = frozenset().union(*axes)
    if not union:
        return operands
    return [
        leaf if own == union else jax.lax.pcast(leaf, tuple(union - own), to="varying")
        for leaf, own in zip(operands, axes, strict=True)
    ]


def manual_axes(aval: object) -> frozenset[str]:
    """Return the axes of a ``jax.shard_map`` that an array's values vary over."""
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else frozenset()
