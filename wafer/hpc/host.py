"""What host functions of all programs share: a runtime, and arrays to and from PEs."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

import wafer.csl

__all__ = ["read", "runtime", "write"]


def runtime(program: str, **params: int) -> wafer.csl.Runtime:
    """A program of this package, compiled for WSE-2 and loaded.

    Args:
        program: its folder.
        params: of its layout.
    """
    layout = Path(__file__).parent / program / "layout.csl"
    return wafer.csl.Runtime(wafer.csl.compile(layout, params=params))


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
