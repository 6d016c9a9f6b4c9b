"""A lower bound on the contest's score: what no placement can beat.

Two rectangles that do not overlap have centres at least half the sum of their shorter sides apart,
so the wires are at least sum(degree / 2 * shorter side). Short sides want long rectangles, and the
wafer has room for few: every rectangle takes its area, and beside a long one only few widths fit. A
side longer than half the wafer is therefore counted as long as the wafer less the most that other
sides can fill beside it; areas counted like this still add up to at most the wafer's (conservative
scales, Fekete and Schepers 2004). A knapsack over the area that is left finds the least wires.

Along a path of connected kernels more is known. Walk it and call kernels a stack while all of them
are apart in one axis, say y: their heights add up to at most the wafer's, so paths whose shorter
sides add up to more break into several stacks. A break costs:

- a turn, if the next kernel is not apart in y from the last one: the last one's wires are then half
  its height plus half its width long;
- a fold, if it is not apart in y from an earlier one: the wires from that one on, all counted in y,
  lead in x over half the width of both as well.

A turn starts the next stack with its kernel, a fold with the kernel after it, so no wire pays for
two breaks. Only one kernel can have two parts: one that turns may also be the earlier one of the
next fold (or the later one of a fold the earlier one of the next: no cheaper than a turn).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.placement.blocks import area_bound
from wafer.placement.contest import ContestGraph

__all__ = ["score_bound", "wire_bound"]


class _Sides(NamedTuple):
    """Kernels of one kind and degree: how many, half the degree, shapes no other dominates."""

    number: int
    half: float
    short: np.ndarray
    long: np.ndarray


def _sides(graph: ContestGraph, cap: float) -> list[_Sides]:
    """Shapes within ``cap``, by kind."""
    limit = max(graph.width, graph.height)
    degrees = np.bincount(np.array(graph.edges, int).ravel(), minlength=len(graph.kernels))
    kinds: dict[tuple, list[int]] = {}
    for at, kernel in enumerate(graph.kernels):
        kinds.setdefault((kernel.parts, int(degrees[at])), []).append(at)
    by_kind = []
    for (_, degree), members in kinds.items():
        curve = graph.kernels[members[0]].choices(cap, graph.memlimit, limit).curve(limit)
        short = np.flatnonzero(np.diff(curve, prepend=limit + 1) < 0)
        short = short[(curve[short] <= limit) & (short <= curve[short])]
        by_kind.append(_Sides(len(members), degree / 2, short, curve[short]))
    return by_kind


def _filled(lengths: Sequence[int], limit: int) -> np.ndarray:
    """For each room 0..limit, the most that sums of ``lengths`` fill of it."""
    reach = 1
    for length in lengths:
        step = length
        while step <= limit:
            reach |= reach << step
            step *= 2
        reach &= (1 << (limit + 1)) - 1
    sums = [x for x in range(limit + 1) if reach >> x & 1]
    return np.array(sums)[np.searchsorted(sums, np.arange(limit + 1), side="right") - 1]


def _counted(sides: Sequence[_Sides], limit: int) -> np.ndarray:
    """[limit + 1] what each length counts."""
    lengths = np.unique(np.concatenate([[*s.short, *s.long] for s in sides]).astype(int))
    filled = _filled(lengths[lengths > 0].tolist(), limit)
    counted = np.arange(limit + 1)
    return np.where(counted > limit / 2, limit - filled[limit - np.arange(limit + 1)], counted)


def wire_bound(graph: ContestGraph, cap: float) -> float:
    """Least wire length in PEs of any placement within ``cap`` cycles, infinite if there is none.

    Args:
        graph: the case; areas are counted as they are where the wafer is not a square.
        cap: cycles per sample.
    """
    sides, paths = _sides(graph, cap), _paths(graph)
    if not all(len(s.short) for s in sides):
        return np.inf
    limit, room = max(graph.width, graph.height), graph.width * graph.height
    while True:
        square = graph.width == graph.height
        counted = _counted(sides, limit) if square else np.arange(limit + 1)
        areas = [counted[s.short] * counted[s.long] for s in sides]
        spare = room - sum(s.number * int(a.min()) for s, a in zip(sides, areas, strict=True))
        if spare < 0:
            return np.inf
        fits = [a - a.min() <= spare for a in areas]
        if all(f.all() for f in fits):
            stacks = -(-_cheapest([s._replace(half=1.0) for s in sides], areas, spare) // limit)
            return _cheapest(sides, areas, spare, max(0, int(stacks) - paths))
        sides = [
            s._replace(short=s.short[f], long=s.long[f]) for s, f in zip(sides, fits, strict=True)
        ]


def _paths(graph: ContestGraph) -> int:
    """How many paths along connections visit every kernel once (a few, not always the fewest)."""
    near: list[set[int]] = [set() for _ in graph.kernels]
    for a, b in graph.edges:
        near[a].add(b)
        near[b].add(a)
    left, count = set(range(len(near))), 0
    while left:
        at: int | None = min(left, key=lambda k: (len(near[k] & left), k))
        count += 1
        while at is not None:
            left.remove(at)
            at = min(near[at] & left, key=lambda k: (len(near[k] & left), k), default=None)
    return count


def _ways(s: _Sides) -> list[tuple[int, np.ndarray]]:
    """What a kernel's wires may cost, by its part in breaks: a turn counts 2, each end of a fold 1.

    Half the longer side is paid instead of half the shorter one at a turn, beside it in a fold.
    """
    fold = (s.short + s.long) / 2 + (s.half - 0.5) * s.short
    ways = [(0, s.half * s.short)]
    if s.half >= 0.5:
        ways.append((1, fold))
    if s.half >= 1:
        ways += [(2, fold - s.short / 2), (3, fold)]
    return ways


def _front(extra: np.ndarray, cost: np.ndarray, room: int) -> list[tuple[int, float]]:
    """(extra, cost) of the choices that no other dominates."""
    order = np.lexsort((cost, extra))
    useful = order[cost[order] < np.minimum.accumulate([np.inf, *cost[order][:-1]])]
    return [(int(extra[k]), float(cost[k])) for k in useful if extra[k] <= room]


def _cheapest(
    sides: Sequence[_Sides], areas: Sequence[np.ndarray], spare: int, breaks: int = 0
) -> float:
    """Least wires with so many breaks over shapes whose areas exceed the least by ``spare`` in all.

    Areas are counted in whole units of which the spare holds at most 20,000, rounded down.
    """
    unit, need = -(-(spare + 1) // 20_000), 2 * breaks
    room = spare // unit
    best = np.full((need + 1, room + 1), np.inf)  # by parts in breaks, by spare area
    best[0] = 0
    for s, area in zip(sides, areas, strict=True):
        extra = (area - area.min()).astype(int) // unit
        ways = [(min(part, need), _front(extra, cost, room)) for part, cost in _ways(s)]
        for _ in range(s.number):
            now = np.full_like(best, np.inf)
            for part, choices in ways:
                moved = np.full_like(best, np.inf)
                moved[part:] = best[: need + 1 - part]
                moved[-1] = best[need - part :].min(axis=0)
                for e, cost in choices:
                    np.minimum(now[:, e:], moved[:, : room + 1 - e] + cost, out=now[:, e:])
            best = np.minimum.accumulate(now, axis=1)
    return float(best[-1, -1])


def score_bound(
    graph: ContestGraph, enough: float, longest: float | None = None, gap: float = 2e-4
) -> float:
    """A score (without adapters) that no placement is below.

    Between two caps the time is at least the lower one and the wire bound that of the higher one,
    so the range is split where the bound is least until it is nearly closed.

    Args:
        graph: the case.
        enough: greater bounds need not be told apart and come out as this (a known score).
        longest: most time, as a multiple of the area bound.
        gap: relative precision.
    """
    bound = area_bound(graph.kernels, graph.width, graph.height, graph.memlimit)
    known: dict[float, float] = {}

    def wires(cap: float) -> float:
        if cap not in known:
            known[cap] = graph.wlength * wire_bound(graph, cap)
        return known[cap]

    top = bound * longest if longest else max(bound, enough / graph.wdeltat)
    parts = [(bound - 1, top)]  # the area bound is found on whole cycles
    while True:
        values = [graph.wdeltat * low + wires(high) for low, high in parts]
        at = int(np.argmin(values))
        low, high = parts[at]
        if graph.wdeltat * (high - low) <= gap * values[at] or values[at] >= enough:
            return float(min(values[at], enough))
        middle = low + (high - low) / (2 if high < 2 * low else 4)
        parts[at : at + 1] = [(low, middle), (middle, high)]
