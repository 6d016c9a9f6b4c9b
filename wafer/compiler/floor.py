"""Rectangles for a model's kernels: the slowest as fast as possible, then wires short.

At a cap on cycles every kernel has a curve of smallest rectangles. ``slicing_floorplan`` finds the
least cap at which the kernels, in the order of the data, fit the wafer, and a plan of it with short
wires.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.compiler.costs import Choices
from wafer.compiler.slicing_floorplan import (
    NEVER,
    Connections,
    Piece,
    ShapeTable,
    anneal,
    least_cap,
    leaves,
    topological_order,
)

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


def _sizes(choices: Choices, *, turned: bool) -> tuple[np.ndarray, np.ndarray]:
    """(width, height) of every choice."""
    return (choices.rows, choices.columns) if turned else (choices.columns, choices.rows)


def _curve(choices: Choices, cap: float, width: int, height: int) -> np.ndarray:
    """[max(width, height) + 1] least height at each width, ``NEVER`` where no choice is in time."""
    best = np.full(max(width, height) + 1, NEVER, np.int32)
    quick = choices.cycles <= cap
    for turned in (False, True):
        w, h = _sizes(choices, turned=turned)
        fits = quick & (w <= width) & (h <= height)
        np.minimum.at(best, w[fits], h[fits].astype(np.int32))
    return np.minimum.accumulate(best)


def _curves(choices: Sequence[Choices], cap: float, width: int, height: int) -> np.ndarray:
    """[n, points]; kernels that share their choices share the work."""
    known = {id(option): option for option in choices}
    curves = {key: _curve(option, cap, width, height) for key, option in known.items()}
    return np.stack([curves[id(option)] for option in choices])


def area_bound(choices: Sequence[Choices], width: int, height: int) -> float:
    """Return cycles that no placement can beat: at fewer the smallest areas exceed the wafer.

    Args:
        choices: of each kernel.
        width: PEs in x.
        height: PEs in y.

    Returns:
        Infinity if no cap fits.
    """
    caps = np.unique(np.concatenate([np.unique(option.cycles) for option in choices]))

    def fits(cap: float) -> bool:
        lines = _curves(choices, cap, width, height).astype(np.int64)
        areas = np.where(lines < NEVER, lines * np.arange(lines.shape[1]), NEVER**2)[:, 1:].min(1)
        return bool(areas.sum() <= width * height)

    low, high = 0, len(caps) - 1
    if not fits(caps[high]):
        return math.inf
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(caps[middle]) else (middle + 1, high)
    return float(caps[low])


def _pick(choices: Choices, box: Piece, cap: float) -> Spot:
    """The quickest choice in a box, the smallest of equals, in the box's middle."""
    keys = []
    for turned in (False, True):
        w, h = _sizes(choices, turned=turned)
        rows = np.flatnonzero((w <= box.width) & (h <= box.height) & (choices.cycles <= cap))
        if len(rows):
            order = np.lexsort((choices.sram[rows], (w * h)[rows], choices.cycles[rows]))
            choice = int(rows[order[0]])
            keys.append((int(choices.cycles[choice]), int(w[choice] * h[choice]), turned, choice))
    if not keys:
        raise ValueError(f"no choice of at most {cap} cycles fits {box.width} x {box.height} PEs")
    _, _, turned, choice = min(keys)
    w, h = _sizes(choices, turned=turned)
    x, y = box.x + (box.width - int(w[choice])) // 2, box.y + (box.height - int(h[choice])) // 2
    return Spot(x, y, choice, turned)


class Fit(NamedTuple):
    """What fits a rectangle at the least cap, before the kernels have places."""

    cap: float  #: cycles per sample that no kernel exceeds
    table: ShapeTable  #: sizes at that cap, of the kernels in ``order``
    order: np.ndarray  #: [n] kernels by position
    room: tuple[int, int]  #: (width, height) in PEs


def fit(
    choices: Sequence[Choices],
    edges: Sequence[tuple[int, int]],
    width: int,
    height: int,
    most: float = math.inf,
) -> Fit | None:
    """Find the least cap at which the kernels fit.

    Args:
        choices: of each kernel; only those that fit a PE's memory.
        edges: pairs of kernels.
        width: PEs in x.
        height: PEs in y.
        most: cycles that the slowest kernel may take.

    Returns:
        None if nothing fits.
    """
    order = topological_order(len(choices), edges)
    ordered = [choices[k] for k in order]
    slowest = max(int(option.cycles.max()) for option in choices)
    curves_at = lambda cap: _curves(ordered, cap, width, height)
    bound = area_bound(ordered, width, height)
    found = least_cap(curves_at, bound, min(most, slowest), width, height)
    return found and Fit(*found, np.asarray(order), (width, height))


def lay_out(
    choices: Sequence[Choices], edges: Sequence[tuple[int, int]], fitting: Fit, seed: int
) -> Floor:
    """Place kernels at their least cap, with short wires.

    Args:
        choices: as for ``fit``.
        edges: pairs of kernels.
        fitting: from ``fit``.
        seed: of the search for short wires.
    """
    rank = np.argsort(fitting.order)
    pairs = rank[np.asarray(edges, np.int64).reshape(-1, 2)]
    wires, rng = Connections(pairs[:, 0], pairs[:, 1]), np.random.default_rng(seed)
    plan, _ = anneal(fitting.table, wires, fitting.room, rng, moves=_MOVES)
    boxes = sorted(leaves(plan), key=lambda leaf: leaf.i)
    spots = tuple(
        _pick(option, boxes[k], fitting.cap) for option, k in zip(choices, rank, strict=True)
    )
    slowest = max(int(c.cycles[s.choice]) for c, s in zip(choices, spots, strict=True))
    return Floor(spots, slowest)
