"""The lower bound on the contest's score: by hand, against brute force, against the placer."""

import dataclasses
import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from wafer.compiler import bounds
from wafer.compiler.contest import Graph, read_graph
from wafer.compiler.kernels import Conv, Kernel
from wafer.compiler.placement import Effort, place

CASES = pathlib.Path(__file__).parent / "golden" / "compiler"


def graph(*channels, side=10, wlength=1):
    """A chain of 1 x 1 convolutions of one pixel: width 3 k', height c' + 1, ceil C/c' K/k'."""
    kernels = tuple(
        Kernel(f"k{i}", "conv", (Conv(1, 1, 1, 1, c, k),)) for i, (c, k) in enumerate(channels)
    )
    edges = tuple((i, i + 1) for i in range(len(kernels) - 1))
    return Graph("tiny", kernels, edges, side, side, 1, wlength, 0, 24576)


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


def test_never_above_a_placement():
    g = dataclasses.replace(graph((8, 6), (6, 8), (12, 4), (4, 9), side=30), wlength=2)
    best = place(g, effort=Effort(orders=10, moves=300, plans=2))
    bound = bounds.score_bound(g, best.score.total)
    assert 0.5 * best.score.total < bound <= best.score.total


@pytest.mark.parametrize(("case", "baseline"), [("A", 35832), ("M", 2226656)])
def test_the_goal_is_proven_out_of_reach(case, baseline):
    g = read_graph(CASES / f"{case}.kgraph")
    assert bounds.score_bound(g, baseline) > 0.95 * baseline
