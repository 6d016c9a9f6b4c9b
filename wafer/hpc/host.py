"""What host functions of all programs share: a runtime, and arrays to and from PEs."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import numpy.typing as npt

import wafer.csl

_COUNTED = ContextVar[list[wafer.csl.Runtime] | None]("counted", default=None)


@contextmanager
def counted() -> Iterator[list[wafer.csl.Runtime]]:
    """Keep the runtime of every program that runs within, in order, with its counts and energy."""
    runtimes = list[wafer.csl.Runtime]()
    token = _COUNTED.set(runtimes)
    try:
        yield runtimes
    finally:
        _COUNTED.reset(token)


def runtime(program: str, **params: float) -> wafer.csl.Runtime:
    """A program of this package, compiled for WSE-2 and loaded.

    Args:
        program: its folder.
        params: of its layout.
    """
    out = wafer.csl.Runtime(_compiled(program, tuple(sorted(params.items()))))
    kept = _COUNTED.get()
    if kept is not None:
        kept.append(out)
    return out


@functools.lru_cache(maxsize=8)
def _compiled(program: str, params: tuple[tuple[str, float], ...]) -> wafer.csl.Image:
    """Kept, as a program is often run again with other values: to compile takes longest."""
    layout = Path(__file__).parent / program / "layout.csl"
    return wafer.csl.compile(layout, params=dict(params))


def write(at: wafer.csl.Runtime, name: str, values: np.ndarray) -> None:
    """Copy to every PE.

    Args:
        at: the program.
        name: of an exported array.
        values: [height, width, items] of 32 bits each.
    """
    height, width, items = values.shape
    at.memcpy_h2d(at.get_id(name), values, 0, 0, width, height, items)


def read(at: wafer.csl.Runtime, name: str, items: int, dtype: npt.DTypeLike) -> np.ndarray:
    """[height, width, items] of an exported array with elements of 32 bits, from every PE."""
    width, height = at.whole.width, at.whole.height
    values = np.zeros((height, width, items), dtype)
    at.memcpy_d2h(values, at.get_id(name), 0, 0, width, height, items)
    return values
