"""Rectangles for a model's kernels: the slowest as fast as possible, then wires short.

At a cap on cycles every kernel has a curve of smallest rectangles. The kernels, in the order of
the data, are laid in rows like a snake; one recursion over prefix sums gives the least height of
every number of rows, and bisection the least cap that fits. Then up to three neighbours may share
a column of a row, which lowers the cap further. Graphs of few kernels are cut finer still with the
contest placer's table of all slicing plans and annealed (``slicing``, ``refine``).
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.costs import Choices
from wafer.placement.blocks import NEVER
from wafer.placement.order import chain
from wafer.placement.refine import Wires, anneal, centres_of
from wafer.placement.slicing import Piece, Table, leaves

__all__ = ["Floor", "Spot", "lay_out", "least_cap"]

_FEW = 24  # kernels up to which all slicing plans are searched
_ROWS = 24
_COLUMN = 3  # kernels that may share a column of a row
_CLOSE = 1.002  # bisection ends when the cap is known to this factor
_MOVES = 3000


class Spot(NamedTuple):
    """A kernel's place: corner, row of its choices, whether h lies along x."""

    x: int
    y: int
    choice: int
    turned: bool


class Floor(NamedTuple):
    """Spots by kernel, and cycles per sample of the slowest."""

    spots: tuple[Spot, ...]
    cap: int


@dataclasses.dataclass(frozen=True)
class _Row:
    begin: int
    end: int
    height: int


def _sizes(choices: Choices, *, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """(width, height) of every choice."""
    return (choices.rows, choices.columns) if turned else (choices.columns, choices.rows)


def _least(choices: Choices, cap: float, width: int, height: int) -> np.ndarray:
    """[height + 1] least width at each height, ``NEVER`` where no choice is in time."""
    best = np.full(height + 1, NEVER, np.int32)
    quick = choices.cycles <= cap
    for turned in (False, True):
        w, h = _sizes(choices, turned=turned)
        fits = quick & (w <= width) & (h <= height)
        np.minimum.at(best, h[fits], w[fits].astype(np.int32))
    return np.minimum.accumulate(best)


def _curves(choices: Sequence[Choices], cap: float, width: int, height: int) -> np.ndarray:
    """[n, height + 1]; kernels that share their choices share the work."""
    known: dict[int, np.ndarray] = {}
    for option in choices:
        if id(option) not in known:
            known[id(option)] = _least(option, cap, width, height)
    return np.stack([known[id(option)] for option in choices])


def least_cap(choices: Sequence[Choices], width: int, height: int) -> float:
    """Cycles that no placement can beat: at fewer the smallest areas exceed the wafer.

    Returns:
        Infinity if no cap fits.
    """
    curves = [np.unique(option.cycles) for option in choices]
    caps = np.unique(np.concatenate(curves))

    def fits(cap: float) -> bool:
        lines = _curves(choices, cap, width, height).astype(np.int64)
        areas = np.where(lines < NEVER, lines * np.arange(height + 1), NEVER**2)[:, 1:].min(1)
        return bool(areas.sum() <= width * height)

    low, high = 0, len(caps) - 1
    if not fits(caps[high]):
        return float("inf")
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(caps[middle]) else (middle + 1, high)
    return float(caps[low])


def _stacks(lines: np.ndarray, width: int) -> list[np.ndarray]:
    """Least widths of columns of 1, 2 and 3 neighbours: [n - size + 1, height + 1] each."""
    n, points = lines.shape
    heights = np.arange(points)
    tall = np.stack(
        [points - np.searchsorted(line[::-1], np.arange(width + 1), side="right") for line in lines]
    ).astype(np.int64)  # least height at each width
    tall[tall >= points] = NEVER
    stacks = [lines]
    for size in range(2, min(_COLUMN, n) + 1):
        total = np.sum([tall[i : n - size + 1 + i] for i in range(size)], axis=0)
        least = [width + 1 - np.searchsorted(row[::-1], heights, side="right") for row in total]
        stacks.append(np.where(np.asarray(least) <= width, least, NEVER).astype(np.int64))
    return stacks


def _heights(stacks: Sequence[np.ndarray], width: int) -> np.ndarray:
    """[n + 1, n + 1] least height of a row of kernels begin .. end - 1, from ``_stacks``."""
    n, points = stacks[0].shape
    high = np.full((n + 1, n + 1), NEVER, np.int64)
    for begin in range(n):
        wide = [np.zeros(points, np.int64)]
        for end in range(begin + 1, n + 1):
            sizes = range(1, min(len(stacks), end - begin) + 1)
            options = [wide[-size] + stacks[size - 1][end - size] for size in sizes]
            wide.append(functools.reduce(np.minimum, options))
            if wide[-1][-1] > width:
                break
            high[begin, end] = points - np.searchsorted(wide[-1][::-1], width, side="right")
    return high


def _rows(high: np.ndarray, height: int) -> list[list[_Row]]:
    """For each number of rows the plan of least height, if it fits; high from ``_heights``."""
    n = len(high) - 1
    most = min(n, _ROWS)
    total = np.full((most + 1, n + 1), NEVER, np.int64)
    cut = np.zeros((most + 1, n + 1), np.int64)
    total[0, 0] = 0
    for row in range(1, most + 1):
        options = total[row - 1][:, None] + high
        cut[row] = options.argmin(0)
        total[row] = np.minimum(options.min(0), NEVER)
    plans = []
    for count in range(1, most + 1):
        if total[count, n] > height:
            continue
        rows, end = [], n
        for row in range(count, 0, -1):
            begin = int(cut[row, end])
            rows.append(_Row(begin, end, int(high[begin, end])))
            end = begin
        plans.append(rows[::-1])
    return plans


def _columns(stacks: Sequence[np.ndarray], row: _Row) -> list[tuple[int, int, int]]:
    """(begin, end, width) of a row's columns at its height."""
    best: list[tuple[int, int]] = [(0, 0)]  # (width, size of the last column)
    for end in range(row.begin + 1, row.end + 1):
        sizes = range(1, min(len(stacks), end - row.begin) + 1)
        options = [
            (best[-size][0] + int(stacks[size - 1][end - size, row.height]), size) for size in sizes
        ]
        best.append(min(options))
    columns, end = [], row.end
    while end > row.begin:
        size = best[end - row.begin][1]
        columns.append((end - size, end, int(stacks[size - 1][end - size, row.height])))
        end -= size
    return columns[::-1]


def _boxes(stacks: Sequence[np.ndarray], rows: Sequence[_Row]) -> list[Piece]:
    """Boxes by position in the order; every second row runs back."""
    lined = [_columns(stacks, row) for row in rows]
    widest = max(sum(wide for _, _, wide in columns) for columns in lined)
    boxes, y = [], 0
    for number, (row, columns) in enumerate(zip(rows, lined, strict=True)):
        x = widest if number % 2 else 0
        for begin, end, wide in columns:
            x -= wide if number % 2 else 0
            boxes += _stack(stacks[0], Piece(begin, end, x, y, wide, row.height))
            x += 0 if number % 2 else wide
        y += row.height
    return boxes


def _stack(lines: np.ndarray, column: Piece) -> list[Piece]:
    """The kernels of a column one above the other, spare height shared out."""
    tall = [int(np.argmax(lines[at] <= column.width)) for at in range(column.i, column.j)]
    spare, y, boxes = column.height - sum(tall), column.y, []
    for at, high in enumerate(tall):
        share = spare // (len(tall) - at)
        spare -= share
        boxes.append(
            Piece(column.i + at, column.i + at + 1, column.x, y, column.width, high + share)
        )
        y += high + share
    return boxes


def _length(boxes: Sequence[Piece], wires: Wires) -> float:
    centres = np.asarray([(b.x + b.width / 2, b.y + b.height / 2) for b in boxes])
    return wires.length(centres)


def _pick(choices: Choices, box: Piece, cap: float) -> Spot:
    """The quickest choice in a box, the smallest of equals, in the box's middle."""
    best: tuple | None = None
    for turned in (False, True):
        w, h = _sizes(choices, turned=turned)
        rows = np.flatnonzero((w <= box.width) & (h <= box.height) & (choices.cycles <= cap))
        if len(rows):
            order = np.lexsort((choices.sram[rows], (w * h)[rows], choices.cycles[rows]))
            at = int(rows[order[0]])
            key = (int(choices.cycles[at]), int(w[at] * h[at]), turned, at)
            best = key if best is None else min(best, key)
    if best is None:
        raise ValueError(f"no choice of at most {cap} cycles fits {box.width} x {box.height} PEs")
    _, _, turned, at = best
    w, h = _sizes(choices, turned=turned)
    x, y = box.x + (box.width - int(w[at])) // 2, box.y + (box.height - int(h[at])) // 2
    return Spot(x, y, at, turned)


def _finer(
    choices: Sequence[Choices], wires: Wires, box: Piece, caps: tuple[float, float], seed: int
) -> tuple[float, list[Piece]] | None:
    """The least cap of all slicing plans and the shortest wires found there; None if not below."""
    limit = max(box.width, box.height)

    def table(cap: float) -> Table:
        high = _curves(choices, cap, box.height, limit)  # widths and heights change places
        high = np.where(high <= box.height, high, NEVER)
        return Table(high)

    low, high = caps
    feasible: tuple[float, Table] | None = None
    while high / low > _CLOSE:
        middle = np.floor((low * high) ** 0.5)
        candidate = table(middle)
        if candidate.fits(box.width, box.height):
            high, feasible = middle, (middle, candidate)
        else:
            low = middle + 1
    if feasible is None:
        return None
    cap, candidate = feasible
    rng = np.random.default_rng(seed)
    best: tuple[float, Piece] | None = None
    for draw in range(40):
        tree = candidate.sample(rng, box, (0.5, 1.0, 0.0, 0.9, 0.1)[draw % 5])
        length = wires.length(centres_of(tree, np.empty((candidate.n, 2))))
        if best is None or length < best[0]:
            best = length, tree
    assert best is not None
    tree, _ = anneal(candidate, wires, best[1], rng, _MOVES)
    return cap, sorted(leaves(tree), key=lambda leaf: leaf.i)


def _bisect(
    fits: Callable[[float], list[list[_Row]]], low: float, high: float
) -> tuple[float, list[list[_Row]]]:
    """The least cap with a plan, to ``_CLOSE``, and its plans; ``high`` has one."""
    plans: list[list[_Row]] = []
    while high / low > _CLOSE:
        middle = float(np.floor((low * high) ** 0.5))
        at_middle = fits(middle)
        if at_middle:
            high, plans = middle, at_middle
        else:
            low = middle + 1
    return high, plans or fits(high)


def lay_out(
    choices: Sequence[Choices],
    edges: Sequence[tuple[int, int]],
    width: int,
    height: int,
    seed: int = 0,
) -> Floor | None:
    """Place kernels so that the slowest is as fast as it can be.

    Args:
        choices: of each kernel; only those that fit a PE's memory.
        edges: pairs of kernels.
        width: PEs in x.
        height: PEs in y.
        seed: of the annealing of small graphs.

    Returns:
        The plan, or None if nothing fits.
    """
    order = chain(len(choices), edges)
    ordered = [choices[k] for k in order]
    at = np.argsort(order)
    pairs = np.asarray(edges, np.int64).reshape(-1, 2)
    wires = Wires(at[pairs[:, 0]], at[pairs[:, 1]])
    bound = least_cap(ordered, width, height)
    if not np.isfinite(bound):
        return None

    def plain(cap: float) -> list[list[_Row]]:
        return _rows(_heights([_curves(ordered, cap, width, height)], width), height)

    def stacked(cap: float) -> list[list[_Row]]:
        stacks = _stacks(_curves(ordered, cap, width, height), width)
        return _rows(_heights(stacks, width), height)

    high = bound
    while not plain(high):
        high = high * 1.1 + 1
        if high > 1e3 * bound + 1e9:
            return None
    cap, _ = _bisect(plain, bound, high)
    cap, plans = _bisect(stacked, bound, cap)
    stacks = _stacks(_curves(ordered, cap, width, height), width)
    boxes = min((_boxes(stacks, rows) for rows in plans), key=lambda b: _length(b, wires))
    if len(ordered) <= _FEW and cap > bound:
        whole = Piece(0, len(ordered), 0, 0, width, height)
        finer = _finer(ordered, wires, whole, (bound, cap), seed)
        cap, boxes = finer or (cap, boxes)
    spots = [_pick(c, b, cap) for c, b in zip(ordered, boxes, strict=True)]
    slowest = max(int(c.cycles[s.choice]) for c, s in zip(ordered, spots, strict=True))
    return Floor(tuple(spots[int(k)] for k in at), slowest)
