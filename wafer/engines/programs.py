"""Compiled programs by shape: ahead of time, in the background, each compilation reported.

Compilation is the longest part of a short run's start. XLA compiles outside Python's lock, so the
trainer asks for its programs first and prepares the data meanwhile.
"""

import concurrent.futures
import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
from jaxtyping import PyTree

from wafer.models.once import known_options

_LOG = logging.getLogger(__name__)


def shapes_of(tree: PyTree) -> Hashable:
    """Structure, shapes and dtypes of a tree of arrays: what a program is compiled for."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple([x.shape for x in leaves]), tuple([x.dtype for x in leaves])


class Programs:
    """Compile once per key; later callers wait for the same program."""

    def __init__(self) -> None:
        self._futures: dict[tuple[Hashable, ...], concurrent.futures.Future[Any]] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Name of every program asked for so far, one entry per shape."""
        return [str(key[0]) for key in self._futures]

    def texts(self) -> list[str]:
        """HLO text of every finished program, which a profile's operations are looked up in."""
        finished = [future for future in self._futures.values() if future.done()]
        return [f.result().as_text() for f in finished if f.exception() is None]

    def get(
        self, key: tuple[Hashable, ...], lower: Callable[[], jax.stages.Lowered]
    ) -> jax.stages.Compiled:
        """Return the program of ``key``; compile it on the first call.

        Args:
            key: names the program and its shapes; its first element is shown in the log.
            lower: traces and lowers it.
        """
        with self._lock:
            future = self._futures.get(key)
            is_first = future is None
            if future is None:
                future = self._futures[key] = concurrent.futures.Future()
        if is_first:
            try:
                future.set_result(_compile(str(key[0]), lower))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()


@functools.cache
def compiler_options() -> dict[str, str | bool]:
    """Options of XLA that every program of a run is compiled with.

    On a CPU XLA hands sums over an axis to a library by default, one sweep over memory for each;
    left to the compiler they join their neighbours, and a layer norm runs three times faster. It
    also copies every weight that the optimizer overwrites, unless told to look where it is read.
    A release that does not know an option is taken as it comes.
    """
    if jax.default_backend() != "cpu":
        return {}
    wanted: dict[str, str | bool] = {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT",
        "xla_cpu_copy_insertion_use_region_analysis": True,
    }
    return known_options(wanted)


def _compile(name: str, lower: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
    start = time.perf_counter()
    compiled = lower().compile(compiler_options=compiler_options())
    _LOG.debug("Compiled %s in %.1f s", name, time.perf_counter() - start)
    return compiled
