"""Slicing floor plans of kernels in a fixed order: what fits, and plans with short wires.

A slicing plan cuts a rectangle in two by one line, and so on down to one kernel per piece. The
kernels of a piece are always neighbors in the order, so the least height of every segment at every
width follows from the segments it can be cut into (Stockmeyer's shape curves, inside an
optimal-split recursion like that of matrix chains). ``least_cap`` finds the least cap on cycles
whose ``ShapeTable`` has a plan that fits; ``anneal`` then walks down that table for plans with
short wires. The table is exact up to 16 kernels. Of longer segments it tries some cuts only: what
it says fits does fit. Segments of the same sequence of curves, as repeated layers have them, share
a row of the table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

NEVER = 10_000  # a height or width that fits nowhere
_CLOSE = 1.002  # bisection ends when the cap is known to this factor
_FACTORS = (1.0, 1.04, 1.2, 2.0, math.inf)  # of the least cap, where the bisection may begin
_ALL_CUTS = 16  # kernels of a segment up to which every cut is tried
_BESIDE_ODDS = (0.5, 1.0, 0.0, 0.9, 0.1)  # of the plans that annealing begins with, in turn
_LARGE = 24  # kernels of a piece that is seldom drawn again: that hardly ever shortens its wires


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
    """Return the pieces of single kernels, in no particular order."""
    if not piece.parts:
        return [piece]
    return [leaf for part in piece.parts for leaf in leaves(part)]


def topological_order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return a topological order that follows a branch to its end before it takes another.

    A chain comes out as itself; of two branches that meet again, one follows the other.

    Args:
        count: nodes 0 .. count - 1.
        edges: (source, target) pairs of an acyclic graph.

    Raises:
        ValueError: the edges close a cycle.
    """
    waiting = [0] * count
    after: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        waiting[target] += 1
        after[source].append(target)
    ready = [node for node in reversed(range(count)) if not waiting[node]]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for target in sorted(after[node], reverse=True):
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    if len(order) < count:
        raise ValueError(f"kernels {sorted(set(range(count)) - set(order))} lie on a cycle")
    return order


def _inverse(curves: np.ndarray) -> np.ndarray:
    """[rows, points] least width for each height from least height for each width; both fall."""
    rows, points = curves.shape
    at = np.minimum(curves, points) + np.arange(rows, dtype=np.int64)[:, None] * (points + 1)
    count = np.bincount(at.ravel(), minlength=rows * (points + 1)).reshape(rows, points + 1)
    least = points - np.cumsum(count[:, :points], 1)  # widths whose height exceeds each height
    return np.where(least < points, least, NEVER).astype(np.int16)


@functools.cache
def _cuts(count: int) -> list[int]:
    """Sizes of the first part to try: all of a short segment, else ever fewer from either end."""
    if count <= _ALL_CUTS:
        return list(range(1, count))
    ends = [s for k in range(12) for s in (2**k, 3 * 2**k) if 2 * s <= count]
    return sorted({*ends, *(count - s for s in ends), count // 2})


class ShapeTable:
    """Least heights and widths of every segment of an order, as far as ``_cuts`` finds them.

    Attributes:
        n: kernels.
        row: [n + 1, n + 1] the row of the segment of kernels i .. j - 1.
        least_height: [rows, points] int16, for each width; ``NEVER`` if none.
        least_width: [rows, points] int16, for each height; ``NEVER`` if none.
    """

    def __init__(self, curves: np.ndarray) -> None:
        """Fill the table.

        Args:
            curves: [n, points] least height of each kernel for each width, ``NEVER`` if none.
        """
        distinct, kinds = np.unique(np.minimum(curves, NEVER), axis=0, return_inverse=True)
        kinds = kinds.ravel()
        self.n, points = len(curves), curves.shape[1]
        self.row = np.full((self.n + 1, self.n + 1), -1, np.int32)
        starts = [np.arange(self.n)]
        rows = len(distinct)
        self.row[starts[0], starts[0] + 1] = kinds
        for count in range(2, self.n + 1):
            i = np.arange(self.n + 1 - count)
            pairs = self.row[i, i + count - 1].astype(np.int64) * self.n + kinds[i + count - 1]
            _, first, same = np.unique(pairs, return_index=True, return_inverse=True)
            self.row[i, i + count] = rows + same
            starts.append(first)
            rows += len(first)
        self.least_height = np.full((rows, points), NEVER, np.int16)
        self.least_width = self.least_height.copy()
        self.least_height[: len(distinct)], self.least_width[: len(distinct)] = (
            distinct,
            _inverse(distinct),
        )
        for count, i in enumerate(starts[1:], 2):
            high, wide = (np.full((len(i), points), NEVER, np.int16) for _ in range(2))
            for cut in _cuts(count):
                one, other = self.row[i, i + cut], self.row[i + cut, i + count]
                np.minimum(high, self.least_height[one] + self.least_height[other], out=high)
                np.minimum(wide, self.least_width[one] + self.least_width[other], out=wide)
            at = self.row[i, i + count]
            self.least_height[at] = np.minimum(high, _inverse(wide))
            self.least_width[at] = _inverse(self.least_height[at])

    def fits(self, width: int, height: int) -> bool:
        """Return whether all kernels fit the rectangle: True is certain, False up to 16 kernels."""
        return bool(self.least_height[self.row[0, self.n], width] <= height)

    def sample(self, rng: np.random.Generator, box: Piece, beside_odds: float = 0.5) -> Piece:
        """Draw a random plan of ``box``, which must be large enough.

        Args:
            rng: source of randomness.
            box: the rectangle and its kernels.
            beside_odds: probability of cutting left from right where both ways fit.
        """
        i, j = box.i, box.j
        if j - i == 1:
            return Piece(i, j, box.x, box.y, box.width, box.height)
        lower, upper = self.row[i, i + 1 : j], self.row[i + 1 : j, j]
        stack = self.least_height[lower, box.width] + self.least_height[upper, box.width]
        side = self.least_width[lower, box.height] + self.least_width[upper, box.height]
        sides, stacks = np.flatnonzero(side <= box.width), np.flatnonzero(stack <= box.height)
        beside = len(stacks) == 0 or (len(sides) > 0 and rng.random() < beside_odds)
        options = sides if beside else stacks
        split = int(options[int(rng.random() * len(options))])
        least, common = (self.least_width, box.height) if beside else (self.least_height, box.width)
        first, second = int(least[lower[split], common]), int(least[upper[split], common])
        whole = box.width if beside else box.height
        slack = whole - first - second
        first += (0, slack, round(slack * first / (first + second)))[int(3 * rng.random())]
        segments = ((i, i + 1 + split, first), (i + 1 + split, j, whole - first))
        children, offset = [], 0
        for a, b, size in segments if rng.random() < 0.5 else segments[::-1]:
            if beside:
                inner = Piece(a, b, box.x + offset, box.y, size, box.height)
            else:
                inner = Piece(a, b, box.x, box.y + offset, box.width, size)
            children.append(self.sample(rng, inner, beside_odds))
            offset += size
        return Piece(i, j, box.x, box.y, box.width, box.height, tuple(children))


def least_cap(
    curves_at: Callable[[float], np.ndarray], low: float, most: float, width: int, height: int
) -> tuple[float, ShapeTable] | None:
    """Find the least cap at which the table has a plan, to 0.2 %.

    Args:
        curves_at: a cap's curves, [n, points] as for ``ShapeTable``.
        low: the least cap to try.
        most: the highest.
        width: PEs in x.
        height: PEs in y.

    Returns:
        The cap and its table; None if ``most`` is too low.
    """
    first, best = low, None
    for factor in _FACTORS if low <= most else ():
        cap = math.floor(min(first * factor, most))
        if (table := ShapeTable(curves_at(cap))).fits(width, height):
            best = cap, table
            break
        low = cap + 1
    while best and best[0] / low > _CLOSE:
        cap = math.floor((low * best[0]) ** 0.5)
        if (table := ShapeTable(curves_at(cap))).fits(width, height):
            best = cap, table
        else:
            low = cap + 1
    return best


class Connections(NamedTuple):
    """Connections between positions of the order: sources [E] and targets [E]."""

    sources: np.ndarray
    targets: np.ndarray

    def length(self, centers: np.ndarray) -> float:
        """Return the sum of L1 distances; centers [n, 2] in PEs."""
        return float(np.abs(centers[self.sources] - centers[self.targets]).sum())


def _centers_of(piece: Piece, out: np.ndarray) -> np.ndarray:
    """Write the centers of the piece's kernels into ``out`` [n, 2], by position in the order."""
    for leaf in leaves(piece):
        out[leaf.i] = leaf.x + leaf.width / 2, leaf.y + leaf.height / 2
    return out


def _mirror(piece: Piece, box: Piece, sideways: bool) -> Piece:
    """Return the piece reflected inside ``box``: left and right change places if ``sideways``."""
    x = 2 * box.x + box.width - piece.x - piece.width if sideways else piece.x
    y = piece.y if sideways else 2 * box.y + box.height - piece.y - piece.height
    parts = tuple(_mirror(part, box, sideways) for part in piece.parts)
    return Piece(piece.i, piece.j, x, y, piece.width, piece.height, parts)


def _replace(piece: Piece, path: Sequence[int], new: Piece) -> Piece:
    if not path:
        return new
    parts = list(piece.parts)
    parts[path[0]] = _replace(parts[path[0]], path[1:], new)
    return dataclasses.replace(piece, parts=tuple(parts))


def _inner(piece: Piece, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Piece]]:
    """Return all pieces that are cut, with the path to each."""
    if not piece.parts:
        return []
    below = [x for at, part in enumerate(piece.parts) for x in _inner(part, (*path, at))]
    return [(path, piece), *below]


def anneal(
    table: ShapeTable,
    wires: Connections,
    room: tuple[int, int],
    rng: np.random.Generator,
    *,
    moves: int,
    draws: int = 40,
) -> tuple[Piece, float]:
    """Shorten the wires: draw plans, then anneal the best by drawing or mirroring pieces of it.

    Args:
        table: segments at the plan's cap.
        wires: connections, in positions of the table's order.
        room: (width, height) that fits all kernels; the plan takes the part of least width +
            height that does.
        rng: source of randomness.
        moves: how many changes to try.
        draws: plans to begin with.

    Returns:
        The best plan met and its wire length in PEs.
    """
    width, height = room
    high = table.least_height[table.row[0, table.n], : width + 1].astype(np.int64)
    width = int(np.where(high <= height, high + np.arange(width + 1), 2 * NEVER).argmin())
    box = Piece(0, table.n, 0, 0, width, int(high[width]))
    blank = np.empty((table.n, 2))
    measure = lambda plan: wires.length(_centers_of(plan, blank))
    drawn = (table.sample(rng, box, _BESIDE_ODDS[at % 5]) for at in range(draws))
    length, _, plan = min((measure(plan), at, plan) for at, plan in enumerate(drawn))
    centers, best = _centers_of(plan, np.empty((table.n, 2))), (plan, length)
    pieces = _inner(plan)
    heat = 0.15 * length / max(len(wires.sources), 1)
    for move in range(moves if pieces else 0):
        path, piece = pieces[int(rng.random() * len(pieces))]
        if piece.j - piece.i > _LARGE and rng.random() < 0.9:
            continue
        draw = rng.random()
        mirror = functools.partial(_mirror, piece, piece, draw < 0.15)
        new = mirror() if draw < 0.3 else table.sample(rng, piece, rng.random())
        tried = _centers_of(new, centers.copy())
        after = wires.length(tried)
        warm = heat * (1 - move / moves) ** 2 + 1e-9
        if after <= length or rng.random() < math.exp((length - after) / warm):
            plan, centers, length = _replace(plan, path, new), tried, after
            pieces = _inner(plan)
            if length < best[1]:
                best = plan, length
    return best
