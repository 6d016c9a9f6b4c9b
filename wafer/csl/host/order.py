"""Where the items of each PE lie in a host's one-dimensional array.

Copies and streams move ``items`` items of every PE of a rectangle. In row-major order the array is
``[height, width, items]``, the last axis fastest; in column-major order the first axis is fastest.
"""

import enum

import numpy as np

from wafer.csl.host.errors import HostError


class MemcpyOrder(enum.IntEnum):
    """Which axis of [height, width, items] is fastest: the last, or the first."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


def places(
    order: MemcpyOrder, width: int, height: int, items: int, same_along: str = ""
) -> np.ndarray:
    """[height, width, items] int64: place of each item in the host's array.

    Args:
        order: of the array.
        width: columns of the rectangle.
        height: rows of it.
        items: of each PE.
        same_along: 'x' if all PEs of a row share their items (the array is [height, 1, items]),
            'y' if all of a column do ([1, width, items]).

    Raises:
        HostError: an empty rectangle, or no items.
    """
    if min(width, height, items) < 1:
        raise HostError(f"{width} x {height} PEs with {items} item(s) each: all must be positive")
    shape = (1 if same_along == "y" else height, 1 if same_along == "x" else width, items)
    numbers = np.arange(np.prod(shape), dtype=np.int64)
    laid_out = numbers.reshape(shape, order="C" if order == MemcpyOrder.ROW_MAJOR else "F")
    return np.broadcast_to(laid_out, (height, width, items))
