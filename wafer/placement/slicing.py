"""Slicing floor plans of a chain of kernels: what fits, exactly, and samples of what fits.

A slicing plan cuts a rectangle in two by one line, and so on down to one kernel per piece. For
kernels in a fixed order whose pieces are always neighbours in that order, the least height of
every segment at every width follows from the segments it can be cut into (Stockmeyer's shape
curves, inside an optimal-split recursion like that of matrix chains). So one table answers whether
a time cap is feasible, and every walk down the table is a plan that fits.
"""

import dataclasses

import numpy as np

from wafer.placement.blocks import NEVER

__all__ = ["Piece", "Table", "inverse", "leaves", "mirror"]


@dataclasses.dataclass
class Piece:
    """The rectangle of kernels ``i .. j - 1`` of the order, cut in two unless it is one kernel."""

    i: int
    j: int
    x: int
    y: int
    width: int
    height: int
    parts: tuple["Piece", ...] = ()


def leaves(piece: Piece) -> list[Piece]:
    """The pieces of single kernels, in no particular order."""
    if not piece.parts:
        return [piece]
    return [leaf for part in piece.parts for leaf in leaves(part)]


def mirror(piece: Piece, box: Piece, across: bool) -> Piece:
    """The piece reflected inside ``box``: left and right change places if ``across``."""
    x = 2 * box.x + box.width - piece.x - piece.width if across else piece.x
    y = piece.y if across else 2 * box.y + box.height - piece.y - piece.height
    parts = tuple(mirror(part, box, across) for part in piece.parts)
    return Piece(piece.i, piece.j, x, y, piece.width, piece.height, parts)


def inverse(curve: np.ndarray) -> np.ndarray:
    """Least width for each height from least height for each width (both fall); square range."""
    n = curve.shape[-1]
    count = np.zeros((*curve.shape[:-1], n + 1), np.int32)
    rows = np.arange(curve.size // n).repeat(n)
    np.add.at(count.reshape(-1, n + 1), (rows, np.minimum(curve, n).ravel()), 1)
    least = n - np.cumsum(count, -1)[..., :n]  # widths whose height exceeds each height
    return np.where(least < n, least, NEVER).astype(np.int16)


class Table:
    """Least heights and widths of every segment of an order.

    Attributes:
        n: kernels.
        heights: [n + 1, n + 1, limit + 1] int16; heights[i, j, w] of kernels i .. j - 1.
        widths: the same the other way round.
    """

    def __init__(self, curves: np.ndarray) -> None:
        """Fill the table.

        Args:
            curves: [n, limit + 1] least height of each kernel for each width, ``NEVER`` if none.
        """
        self.n, points = len(curves), curves.shape[1]
        shape = (self.n + 1, self.n + 1, points)
        self.heights = np.full(shape, NEVER, np.int16)
        self.widths = np.full(shape, NEVER, np.int16)
        at = np.arange(self.n)
        self.heights[at, at + 1] = curves
        self.widths[at, at + 1] = inverse(np.asarray(curves))
        for length in range(2, self.n + 1):
            i = np.arange(self.n + 1 - length)
            high, wide = (np.full((len(i), points), NEVER, np.int16) for _ in range(2))
            for cut in range(1, length):
                m = i + cut
                np.minimum(high, self.heights[i, m] + self.heights[m, i + length], out=high)
                np.minimum(wide, self.widths[i, m] + self.widths[m, i + length], out=wide)
            high = np.minimum(high, inverse(wide))
            self.heights[i, i + length] = np.minimum(high, NEVER)
            self.widths[i, i + length] = inverse(high)

    def fits(self, width: int, height: int) -> bool:
        """Whether all kernels fit the rectangle."""
        return bool(self.heights[0, self.n, width] <= height)

    def sample(self, rng: np.random.Generator, box: Piece, across: float = 0.5) -> Piece:
        """A random plan of ``box``, which must be large enough.

        Args:
            rng: source of randomness.
            box: the rectangle and its kernels.
            across: preference for cutting left from right, between 0 and 1.
        """
        i, j = box.i, box.j
        if j - i == 1:
            return Piece(i, j, box.x, box.y, box.width, box.height)
        stack = self.heights[i, i + 1 : j, box.width] + self.heights[i + 1 : j, j, box.width]
        side = self.widths[i, i + 1 : j, box.height] + self.widths[i + 1 : j, j, box.height]
        sides, stacks = np.flatnonzero(side <= box.width), np.flatnonzero(stack <= box.height)
        horizontal = len(stacks) == 0 or (len(sides) > 0 and rng.random() < across)
        options = sides if horizontal else stacks
        m = i + 1 + int(options[int(rng.random() * len(options))])
        need = (self.widths if horizontal else self.heights)[
            :, :, box.height if horizontal else box.width
        ]
        first, second = int(need[i, m]), int(need[m, j])
        whole = box.width if horizontal else box.height
        slack = whole - first - second
        draw = rng.random(2)
        share = (0, slack, round(slack * first / (first + second)))[int(3 * draw[0])]
        first += share
        segments = ((i, m, first), (m, j, whole - first))
        parts, offset = [], 0
        for a, b, length in segments if draw[1] < 0.5 else segments[::-1]:
            if horizontal:
                inner = Piece(a, b, box.x + offset, box.y, length, box.height)
            else:
                inner = Piece(a, b, box.x, box.y + offset, box.width, length)
            parts.append(self.sample(rng, inner, across))
            offset += length
        return Piece(i, j, box.x, box.y, box.width, box.height, tuple(parts))
