"""Plans that no cuts make: five blocks around a centre, where slicing just fails to fit.

In a wheel every block ends at the side of the next one, so no line crosses it; it is the smallest
plan that is not slicing. ``Windows`` knows the least heights of every multiset of kernels. A wheel
across the wafer needs four of them whose widths add up to the wafer's above and below and whose
heights add up alike left and right: a join of pairs by those sums. The fifth fills the centre, the
kernels that are left lie in a strip beside it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wafer.placement.slicing import Piece
from wafer.placement.windows import Windows

__all__ = ["Wheel", "drawn", "wheels"]


class Wheel(NamedTuple):
    """Five rows of the table and the sides that place them, clockwise from the upper left corner.

    rows: of the four arms and the centre.
    sides: [4] pairs of width and height of the arms.
    rest: row of what lies in the strip, 0 if nothing.
    """

    rows: tuple[int, ...]
    sides: tuple[tuple[int, int], ...]
    rest: int

    def boxes(self) -> list[tuple[int, int, int, int]]:
        """(x, y, width, height) of the arms and the centre."""
        (aw, ah), (bw, bh), (cw, ch), (dw, dh) = self.sides
        width, height = aw + bw, ah + dh
        arms = [(0, 0, aw, ah), (aw, 0, bw, bh), (dw, bh, cw, ch), (0, ah, dw, dh)]
        return [*arms, (dw, ah, width - bw - dw, height - ah - ch)]


class _Blocks(NamedTuple):
    """Multisets with sides at which they waste little, one entry per pair of sides."""

    row: np.ndarray
    width: np.ndarray
    height: np.ndarray
    area: np.ndarray


def _blocks(table: Windows, spare: int, limit: int, most: int) -> tuple[_Blocks, np.ndarray]:
    """Blocks of at most ``most`` kernels, the ``limit`` that waste least; least area by row."""
    counts, edge = table.counts(), table.high.shape[1] - 1
    wide = np.arange(edge + 1)
    least = np.zeros(counts.shape[1], np.int64)
    for row in np.flatnonzero(counts.sum(1) == 1):
        sizes = table.high[row].astype(np.int64) * wide
        least[counts[row].argmax()] = sizes[table.high[row] <= edge].min(initial=edge**2 + 1)
    area, shapes = counts @ least, []
    for row in np.flatnonzero((counts.sum(1) <= most) & (counts.sum(1) > 0)):
        high = table.high[row].astype(np.int64)
        width = np.flatnonzero(np.diff(high, prepend=edge + 1) < 0)
        width = width[high[width] * width <= area[row] + spare]
        shapes.append(np.stack([np.full_like(width, row), width, high[width]]))
    row, width, height = np.concatenate(shapes, 1)
    best = np.argsort(width * height - area[row], kind="stable")[:limit]
    row, width, height = row[best], width[best], height[best]
    return _Blocks(row, width, height, area[row]), area


def _pairs(blocks: _Blocks, counts: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks (one, other) as wide as the wafer together, the other one higher."""
    order = np.argsort(blocks.width, kind="stable")
    sorted_widths, ones, others = blocks.width[order], [], []
    for one in range(len(blocks.row)):
        goal = width - blocks.width[one]
        other = order[slice(*np.searchsorted(sorted_widths, (goal, goal + 1)))]
        both = counts[blocks.row[one]] + counts[blocks.row[other]]
        good = (blocks.height[other] > blocks.height[one]) & (both <= counts[-1]).all(1)
        ones.append(np.full(good.sum(), one))
        others.append(other[good])
    return np.concatenate(ones), np.concatenate(others)


def _joined(
    blocks: _Blocks, pair: tuple[np.ndarray, np.ndarray], part: int = 50_000
) -> Iterator[np.ndarray]:
    """Arms [4, N] (indices of blocks, clockwise) whose heights add up alike left and right."""
    step = blocks.height[pair[1]] - blocks.height[pair[0]]
    order = np.argsort(step, kind="stable")
    one, other, step = pair[0][order], pair[1][order], step[order]
    low, high = np.searchsorted(step, step), np.searchsorted(step, step, "right")
    for begin in range(0, len(one), part):
        many = (high - low)[begin : begin + part]
        top = np.repeat(np.arange(begin, begin + len(many)), many)
        behind = np.arange(len(top)) - np.repeat(np.cumsum(many) - many, many)
        below = low[top] + behind
        yield np.stack([one[top], other[top], one[below], other[below]])


def wheels(
    table: Windows, width: int, height: int, *, limit: int = 9000, most: int = 8
) -> list[Wheel]:
    """Wheels as wide as the wafer that leave room for all other kernels beside them.

    Args:
        table: of all kernels, with a window as large as their number.
        width: PEs in x.
        height: PEs in y.
        limit: most blocks to combine.
        most: most kernels of a block.
    """
    counts = table.counts()
    blocks, area = _blocks(table, width * height, 1, 1)
    spare = width * height - int(area[-1])
    if spare < 0 or counts[-1].sum() < 5:
        return []
    blocks, area = _blocks(table, spare, limit, most)
    pair = _pairs(blocks, counts, width)
    centres = np.flatnonzero(counts.sum(1) == 1)
    fitting = []
    for arms in _joined(blocks, pair):
        a, b, c, d = arms
        tall = blocks.height[a] + blocks.height[d]
        across = width - blocks.width[b] - blocks.width[d]
        down = tall - blocks.height[a] - blocks.height[c]
        room = width * tall - blocks.area[arms].sum(0)
        fits = (tall <= height) & (across > 0) & (down > 0) & (room - area[centres].max() <= spare)
        at = np.flatnonzero(fits & (room >= area[centres].min()))
        inside = counts[blocks.row[arms[:, at]]].sum(0)
        for centre in centres:
            good = table.high[centre, across[at]] <= down[at]
            left = counts[-1] - inside[good] - counts[centre]
            wheel, left = at[good][(left >= 0).all(1)], left[(left >= 0).all(1)]
            rest = table.rows(left)
            need = np.where(rest > 0, table.high[rest, width], 0)
            good = need <= height - tall[wheel]
            for i, strip in zip(wheel[good], rest[good], strict=True):
                rows = (*blocks.row[arms[:, i]].tolist(), int(centre))
                sides = zip(blocks.width[arms[:, i]], blocks.height[arms[:, i]], strict=True)
                fitting.append(Wheel(rows, tuple((int(w), int(h)) for w, h in sides), int(strip)))
    return fitting


def drawn(table: Windows, wheel: Wheel, box: Piece, rng: np.random.Generator) -> Piece:
    """A random plan of all kernels: the wheel's five blocks as one piece, then the strip."""
    left = tuple(range(table.n))
    parts = []
    for row, (x, y, width, height) in zip(wheel.rows, wheel.boxes(), strict=True):
        members = table.members(left, row, rng.random() < 0.5)
        left = tuple(k for k in left if k not in members)
        inner = Piece(members[0], members[-1] + 1, x, y, width, height)
        parts.append(table.arranged(rng, members, inner, rng.random()))
    tall = wheel.sides[0][1] + wheel.sides[3][1]
    core = Piece(0, table.n, 0, 0, box.width, tall, tuple(parts))
    if not left:
        return core
    strip = Piece(left[0], left[-1] + 1, 0, tall, box.width, box.height - tall)
    parts = core, table.arranged(rng, left, strip, rng.random())
    return Piece(0, table.n, 0, 0, box.width, box.height, parts)
