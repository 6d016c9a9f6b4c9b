"""The lower bound on the contest's score: by hand, against brute force, against the placer."""

import dataclasses
import itertools

import numpy as np
import pytest
from helpers.paths import GOLDEN
from hypothesis import given, settings, strategies as st

from wafer.placement import bounds
from wafer.placement.blocks import ContestKernel, Conv
from wafer.placement.contest import ContestGraph, read_graph
from wafer.placement.place import Effort, place

CASES = GOLDEN / "compiler"


def graph(*channels, side=10, wlength=1):
    """A chain of 1 x 1 convolutions of one pixel: width 3 k', height c' + 1, ceil C/c' K/k'."""
    kernels = tuple(
        ContestKernel(f"k{i}", "conv", (Conv(1, 1, 1, 1, c, k),))
        for i, (c, k) in enumerate(channels)
    )
    edges = tuple((i, i + 1) for i in range(len(kernels) - 1))
    return ContestGraph("tiny", kernels, edges, side, side, 1, wlength, 0, 24576)


def test_two_kernels_by_hand():
    g = graph((2, 2), (2, 2))  # 3x2 takes 4 cycles, 3x3 or 6x2 take 2, 6x3 takes 1
    assert bounds.wire_bound(g, 4) == 2  # two of 2x3 touch with their longer sides
    assert bounds.wire_bound(g, 2) == 2
    assert bounds.wire_bound(g, 1) == 3
    assert bounds.wire_bound(g, 0.5) == np.inf
    assert 3 < bounds.score_bound(g, 100) <= 4
    assert bounds.score_bound(g, 3) == 3


def test_a_full_wafer_takes_squarer_shapes():
    g = graph((4, 2), (4, 2), side=7)  # one cycle: 6x5 only, and two of them do not fit 7x7
    assert bounds.wire_bound(g, 1) == np.inf
    assert bounds.wire_bound(dataclasses.replace(g, width=12, height=12), 1) == 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=6), st.randoms())
def test_counted_sides_never_exceed_the_line(lengths, random):
    sides = [bounds._Sides(1, 1.0, np.array([x]), np.array([x])) for x in lengths]
    counted = bounds._counted(sides, 60)
    for _ in range(20):
        line, room = 0, 60
        while fits := [x for x in lengths if x <= room]:
            x = random.choice(fits)
            line, room = line + counted[x], room - x
        assert line <= 60


def one_shape(rectangles):
    """A chain of kernels with one shape each, for the knapsack."""
    last = len(rectangles) - 1
    return [
        bounds._Sides(1, 0.5 if at in (0, last) else 1.0, np.array([min(r)]), np.array([max(r)]))
        for at, r in enumerate(rectangles)
    ]


def test_a_break_by_hand():
    strips = one_shape([(2, 6)] * 4)  # four of 6 x 2 in a 6 x 6 square do not fit one stack
    areas = [np.array([12])] * 4
    assert bounds._cheapest(strips, areas, 0) == 6
    assert bounds._cheapest(strips, areas, 0, 1) == 8  # one turns: 6 / 2 + 2 / 2 instead of 2
    assert bounds._cheapest(strips, areas, 0, 2) == 10


def test_paths():
    chain = graph((2, 2), (2, 2), (2, 2), (2, 2))
    assert bounds._paths(chain) == 1
    star = dataclasses.replace(chain, edges=((0, 1), (0, 2), (0, 3)))
    assert bounds._paths(star) == 2
    assert bounds._paths(dataclasses.replace(chain, edges=((0, 3), (3, 1), (1, 2)))) == 1
    assert bounds._paths(dataclasses.replace(chain, edges=())) == 4


def cut(x, y, width, height, parts, random):
    """A rectangle cut into at most so many."""
    wide = random.random() < 0.5 if min(width, height) > 1 else width > height
    if parts == 1 or max(width, height) == 1:
        return [(x, y, width, height)]
    first = random.randint(1, parts - 1)
    at = random.randint(1, (width if wide else height) - 1)
    if wide:
        rest = cut(x + at, y, width - at, height, parts - first, random)
        return cut(x, y, at, height, first, random) + rest
    rest = cut(x, y + at, width, height - at, parts - first, random)
    return cut(x, y, width, at, first, random) + rest


def shortest(far, random):
    """A short chain through all points: insertions and reversals until none helps."""
    order, length = random.sample(range(len(far)), len(far)), np.inf
    while (now := far[order[:-1], order[1:]].sum()) < length:
        length = now
        for i, j in itertools.combinations(range(len(far)), 2):
            for tried in (
                order[:i] + order[i : j + 1][::-1] + order[j + 1 :],
                order[:i] + order[i + 1 : j + 1] + [order[i]] + order[j + 1 :],
            ):
                if far[tried[:-1], tried[1:]].sum() < far[order[:-1], order[1:]].sum():
                    order = tried
    return order, length


@settings(max_examples=80, deadline=None)
@given(st.integers(4, 24), st.integers(2, 8), st.randoms())
def test_breaks_never_above_the_wires_of_a_full_square(side, parts, random):
    rectangles = np.array(cut(0, 0, side, side, parts, random))
    centres = rectangles[:, :2] + rectangles[:, 2:] / 2
    order, length = shortest(np.abs(centres[:, None] - centres).sum(-1), random)
    sizes = [tuple(rectangles[at, 2:].tolist()) for at in order]
    breaks = -(-sum(map(min, sizes)) // side) - 1
    areas = [np.array([w * h]) for w, h in sizes]
    assert bounds._cheapest(one_shape(sizes), areas, 0, max(0, breaks)) <= length


def boxes(kernel, cap, side):
    for c, k in itertools.product(range(1, kernel.parts[0].C + 1), range(1, kernel.parts[0].K + 1)):
        if -(-kernel.parts[0].C // c) * -(-kernel.parts[0].K // k) > cap:
            continue
        for w, h in ((3 * k, c + 1), (c + 1, 3 * k)):
            for x, y in itertools.product(range(side - w + 1), range(side - h + 1)):
                yield x, y, w, h


@pytest.mark.parametrize("channels", [((3, 2), (2, 2)), ((4, 2), (5, 1)), ((4, 2), (4, 2))])
@pytest.mark.parametrize("cap", [1, 2, 4])
def test_never_above_brute_force(channels, cap):
    g = graph(*channels, side=8)
    a, b = (np.array([*boxes(k, cap, 8)]).reshape(-1, 4) for k in g.kernels)
    a, b = a[:, None], b[None]
    free = (a[..., :2] + a[..., 2:] <= b[..., :2]) | (b[..., :2] + b[..., 2:] <= a[..., :2])
    far = np.abs(a[..., :2] + a[..., 2:] / 2 - b[..., :2] - b[..., 2:] / 2).sum(-1)
    least = np.where(free.any(-1), far, np.inf).min(initial=np.inf)
    assert bounds.wire_bound(g, cap) <= least


@pytest.mark.parametrize("wlength", [2, 20])
def test_never_above_a_placement(wlength):
    g = dataclasses.replace(graph((8, 6), (6, 8), (12, 4), (4, 9), side=30), wlength=wlength)
    best = place(g, effort=Effort(orders=10, moves=300, plans=2))
    bound = bounds.score_bound(g, best.score.total)
    assert 0.5 * best.score.total < bound <= best.score.total


@pytest.mark.parametrize(("case", "baseline"), [("A", 35832), ("M", 2226656)])
def test_the_goal_is_proven_out_of_reach(case, baseline):
    g = read_graph(CASES / f"{case}.kgraph")
    assert bounds.score_bound(g, baseline) > 0.95 * baseline


def test_a_full_wafer_needs_several_stacks():
    g = read_graph(CASES / "B.kgraph")  # the shorter sides add up to 1858 of 633 PEs: two breaks
    assert bounds.wire_bound(g, 62243) == 1868.5
    assert bounds.wire_bound(g, 62720) == 1119  # 1095 of 633: one
