"""Free arrangement within windows, and annealed slicing trees, against brute force."""

import dataclasses
import functools
import itertools
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.paths import GOLDEN
from hypothesis import given, settings, strategies as st

from vsl.native.library import how_to_build
from wafer.placement import native, trees
from wafer.placement.blocks import NEVER, area_bound
from wafer.placement.contest import read_graph
from wafer.placement.order import chain
from wafer.placement.place import Effort, place
from wafer.placement.slicing import Piece, Table, leaves
from wafer.placement.wheels import drawn, wheels
from wafer.placement.windows import Windows

CASES = GOLDEN / "compiler"


def curves_of(kinds, limit=12, seed=3):
    rng = np.random.default_rng(seed)
    heights = np.minimum.accumulate(
        rng.integers(1, limit, size=(max(kinds) + 1, limit + 1)), axis=1
    )
    heights[:, :2] = NEVER
    return heights[list(kinds)].astype(np.int32)


def fits_somehow(curves):
    """Whether a set of kernels fits a box, over all slicing plans in any order."""

    @functools.cache
    def fits(members, w, h):
        if len(members) == 1:
            return curves[members[0], w] <= h
        for size in range(1, len(members)):
            for one in itertools.combinations(members, size):
                rest = tuple(k for k in members if k not in one)
                if any(fits(one, x, h) and fits(rest, w - x, h) for x in range(1, w)):
                    return True
                if any(fits(one, w, y) and fits(rest, w, h - y) for y in range(1, h)):
                    return True
        return False

    return fits


def legal(plan, curves, width, height):
    placed = leaves(plan)
    assert sorted(leaf.i for leaf in placed) == list(range(len(curves)))
    painted = np.zeros((height, width), int)
    for leaf in placed:
        assert curves[leaf.i, leaf.width] <= leaf.height
        painted[leaf.y : leaf.y + leaf.height, leaf.x : leaf.x + leaf.width] += 1
    assert painted.max() == 1
    assert painted.sum() == sum(leaf.width * leaf.height for leaf in placed)


def test_windows_equal_brute_force_over_all_orders():
    kinds = (0, 1, 0, 2)
    curves = curves_of(kinds)
    fits = fits_somehow(curves)
    table = Windows(curves, kinds, 4)
    assert table.window == 4
    for i, j in ((0, 2), (1, 4), (0, 4)):
        for w, h in itertools.product(range(1, 11), repeat=2):
            assert (table.heights[i, j, w] <= h) == fits(tuple(range(i, j)), w, h), (i, j, w, h)
            assert (table.widths[i, j, h] <= w) == fits(tuple(range(i, j)), w, h), (i, j, w, h)


def test_a_window_of_one_keeps_the_order():
    kinds = (0, 1, 0, 2, 3, 1)
    curves = curves_of(kinds, 20)
    plain = Table(curves)
    for table in (Windows(curves, kinds, 1), Windows(curves, kinds, 6, budget=0)):
        assert table.window == 1
        np.testing.assert_array_equal(table.heights[0, 1:], plain.heights[0, 1:])
        np.testing.assert_array_equal(table.widths[0, 1:], plain.widths[0, 1:])


def test_samples_of_windows_are_legal():
    kinds = (0, 1, 0, 2, 3, 1)
    curves, rng = curves_of(kinds, 20), np.random.default_rng(0)
    for window in (3, 6):
        table = Windows(curves, kinds, window)
        width = int(table.widths[0, 6, 20])
        for across in (0.0, 0.5, 1.0):
            box = Piece(0, 6, 2, 1, width, 20)
            plan = table.sample(rng, box, across)
            assert min(leaf.x for leaf in leaves(plan)) == 2
            moved = [Piece(p.i, p.j, p.x - 2, p.y - 1, p.width, p.height) for p in leaves(plan)]
            legal(Piece(0, 6, 0, 0, width, 20, tuple(moved)), curves, width, 20)


def contest(case):
    """Graph of a case, least heights within 2 % over the area bound, kinds, both in chain order."""
    g = read_graph(CASES / f"{case}.kgraph")
    order = chain(len(g.kernels), g.edges)
    seen = {}
    kinds = [seen.setdefault(g.kernels[k].parts, len(seen)) for k in order]
    cap = np.floor(1.02 * area_bound(g.kernels, g.width, g.height, g.memlimit))
    curves = [g.kernels[k].choices(cap, g.memlimit, 633).curve(633) for k in order]
    return np.stack(curves), kinds


def test_a_contest_case_fits_in_some_order_better_than_in_its_own():
    curves, kinds = contest("A")
    table = Windows(curves, kinds, 16)
    assert len(table._codes) == 2**4 * 3 * 3 * 4 * 6  # 4 single blocks, 2, 2, 3 and 5 equal ones
    assert table.heights[0, 16, 633] == 624 < Table(curves).heights[0, 16, 633]


@pytest.mark.slow
def test_no_slicing_plan_of_case_i_is_within_two_percent():
    table = Windows(*contest("I"), 25, budget=20_000_000)
    assert table.window == 25  # every order, every tree: the wafer is 633 high
    assert table.heights[0, 25, 633] == 634


@pytest.mark.slow
def test_a_wheel_of_case_i_is_within_two_percent():
    g = read_graph(CASES / "I.kgraph")
    lines = []
    placement = place(g, longest=1.02, effort=Effort(moves=1000, plans=1), say=lines.append)
    assert any("plans with a wheel do" in line for line in lines)
    assert placement.score.time <= 1.02 * 46584  # the published bound; the checker proved the rest


def pinwheel(strip=()):
    """Four of 3 x 2 and a single, which fill 5 x 5 in one way only, and what lies beside them."""
    brick, single = [NEVER] * 2 + [3] + [2] * 5, [NEVER] + [1] * 7
    curves = np.array([brick, brick, single, brick, brick, *strip], np.int32)
    return curves, [0, 0, 1, 0, 0, *(2 + i for i in range(len(strip)))]


@pytest.mark.parametrize("strip", [(), ([NEVER] * 5 + [2] * 3,)], ids=["alone", "strip"])
def test_wheels_fit_where_no_cuts_do(strip):
    curves, kinds = pinwheel(strip)
    n, height, rng = len(curves), 5 + 2 * len(strip), np.random.default_rng(0)
    table = Windows(curves, kinds, n)
    assert table.window == n
    assert table.heights[0, n, 5] > height
    fitting = wheels(table, 5, height)
    assert [wheel.sides for wheel in fitting] == [((3, 2), (2, 3), (3, 2), (2, 3))]
    assert wheels(table, 5, height - 1) == wheels(table, 5, height, limit=1) == []
    box = Piece(0, n, 0, 0, 5, height)
    kernels = [trees.leaf(at, curve) for at, curve in enumerate(curves)]
    edges = [(0, n - 1), (1, 2)]
    for seed in range(5):
        plan = drawn(table, fitting[0], box, rng)
        legal(plan, curves, 5, height)
        tree, room = trees.tree_of(plan, kernels), trees.Room(5, height, edges)
        legal(room.plan(tree), curves, 5, height)
        best, length = trees.optimise(tree, room, seed, 300, heat=(1.0, 0.1), price=20.0)
        assert best is not None
        assert length <= room.measure(tree)[0]
        assert room.measure(best) == (length, 0)
        legal(room.plan(best), curves, 5, height)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_moves_of_wheels_keep_every_kernel(seed):
    rng = random.Random(seed)
    curves, kernels = forest([rng.randrange(3) for _ in range(9)], 90)
    boxes = ((0, 0, 40, 20), (40, 0, 20, 40), (20, 40, 40, 20), (0, 20, 20, 40), (20, 20, 20, 20))
    arms = [trees.join(rng.random() < 0.5, kernels[i : i + 2]) for i in (0, 2, 4, 6)]
    tree = trees.wheel([*arms, kernels[8]], boxes)
    room = trees.Room(60, 60, [(0, 8)])
    assert tree.heights[60] == 60
    assert tree.heights[59] > 90
    for _ in range(25):
        change = rng.choice((trees._swapped, trees._moved, trees._turned))
        after = change(tree, list(trees._nodes(tree)), rng) or tree
        held = sorted(node.kernel for _, node in trees._nodes(after) if not node.parts)
        assert held == list(range(9)) == list(range(after.count))
        if room.measure(after)[1] == 0:
            legal(room.plan(after), curves, 60, 60)
            tree = after


def forest(kinds, limit=40, seed=3):
    curves = curves_of(kinds, limit, seed)
    return curves, [trees.leaf(at, curve) for at, curve in enumerate(curves)]


def test_a_tree_by_hand():
    wide = np.array([9, 9, 9, 3, 3, 3, 3, 3, 3])  # 3 x 3
    flat = np.array([9, 9, 4, 4, 2, 2, 2, 2, 2])  # 2 x 4 or 4 x 2
    a, b = trees.leaf(0, wide), trees.leaf(1, flat)
    assert a.widths.tolist() == [9, 9, 9, 3, 3, 3, 3, 3, 3]
    assert trees.join(True, (a, b)).heights.tolist() == [9, 9, 9, 9, 9, 4, 4, 3, 3]
    assert trees.join(False, (a, b)).heights.tolist() == [9, 9, 9, 7, 5, 5, 5, 5, 5]
    room = trees.Room(5, 4, [(0, 1)])
    assert room.measure(trees.join(True, (a, b))) == (2.5, 0)  # 3 and 2 wide, both 4 high
    assert room.measure(trees.join(False, (a, b))) == (2.5, 1)  # 5 high where 4 are
    with pytest.raises(ValueError, match="needs height 5, more than 4"):
        room.plan(trees.join(False, (a, b)))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32))
def test_moves_keep_every_kernel_and_the_curves(count, seed):
    rng = random.Random(seed)
    curves, kernels = forest([rng.randrange(3) for _ in range(count)], 90)
    tree = trees.join(True, kernels)
    for _ in range(25):
        change = rng.choice((trees._swapped, trees._moved, trees._turned))
        tree = change(tree, list(trees._nodes(tree)), rng) or tree
        held = sorted(node.kernel for _, node in trees._nodes(tree) if not node.parts)
        assert held == list(range(count)) == list(range(tree.count))
        for _, node in trees._nodes(tree):
            assert all(part.beside != node.beside for part in node.parts if part.parts)
    width = int(tree.widths[-1])
    if width <= 90:
        room = trees.Room(width, 90, [(i, i + 1) for i in range(count - 1)])
        plan = room.plan(tree)
        legal(plan, curves, width, 90)
        x, y = (
            [getattr(p, at) + getattr(p, side) / 2 for p in sorted(leaves(plan), key=lambda p: p.i)]
            for at, side in (("x", "width"), ("y", "height"))
        )
        wires = sum(abs(x[i] - x[i + 1]) + abs(y[i] - y[i + 1]) for i in range(count - 1))
        if int(tree.heights[width]) == 90:
            assert room.measure(tree) == (wires, 0)


def test_annealing_shortens_repeats_and_comes_back_inside():
    curves, kernels = forest((0, 1, 2, 0, 1, 2, 1, 0), 36)
    edges = [(i, (i + 3) % 8) for i in range(8)]
    long = trees.join(True, kernels)
    room = trees.Room(12, 12, edges)
    assert room.measure(long)[1] == 4  # too wide by so many PEs
    how = {"heat": (5.0, 0.3), "price": 20.0}
    best, length = trees.optimise(long, room, 0, 3000, **how)
    assert best is not None
    assert length <= 20 < room.measure(long)[0]
    assert room.measure(best) == (length, 0)
    legal(room.plan(best), curves, 12, 12)
    again = trees.optimise(best, room, 1, 500, **how)
    assert again[1] <= length
    assert trees.optimise(long, room, 0, 3000, **how)[1] == length
    tight = trees.Room(5, 5, edges)
    assert trees.optimise(long, tight, 0, 50, **how) == (None, np.inf)


def test_plans_become_trees():
    kinds = (0, 1, 0, 2, 3, 1)
    curves, kernels = forest(kinds, 20)
    table = Windows(curves, kinds, 6)
    width = int(table.widths[0, 6, 20])
    for seed in range(5):
        box = Piece(0, 6, 0, 0, width, 20)
        plan = table.sample(np.random.default_rng(seed), box)
        tree = trees.tree_of(plan, kernels)
        assert tree.count == 6
        assert tree.heights[width] <= 20
        legal(trees.Room(width, 20, []).plan(tree), curves, width, 20)


HEATS = native.Ladder(4.0, 0.3, 12.0)


def parts_of(tree):
    """A tree as nested tuples, to compare with."""
    return tree.kernel if not tree.parts else (tree.beside, *map(parts_of, tree.parts))


@pytest.mark.native
@settings(max_examples=40, deadline=None)
@given(st.integers(3, 14), st.integers(0, 2**32))
def test_tempered_trees_fit_and_measure_what_they_say(count, seed):
    rng = random.Random(seed)
    curves, kernels = forest([rng.randrange(4) for _ in range(count)], 90)
    edges = [(i, rng.randrange(count)) for i in range(count)]
    tree = kernels[0]
    for kernel in kernels[1:]:
        pair = (tree, kernel) if rng.random() < 0.5 else (kernel, tree)
        tree = trees.join(rng.random() < 0.5, pair)
    side = rng.randrange(20, 90)
    room = trees.Room(side, side, edges)
    ladder = native.Ladder(8.0, 0.5, 30.0, replicas=1 + seed % 4)
    best, length = native.temper(tree, room, seed, 20_000, ladder)
    again = native.temper(tree, room, seed, 20_000, ladder)
    assert again[1] == length
    if best is None:
        assert length == np.inf
        assert room.measure(tree)[1] > 0
        return
    assert parts_of(again[0]) == parts_of(best)
    assert room.measure(best) == (length, 0)
    legal(room.plan(best), curves, side, side)
    if room.measure(tree)[1] == 0:
        assert length <= room.measure(tree)[0]


@pytest.mark.native
def test_tempering_finds_the_only_plan_there_is():
    """Six kinds of one shape each, that fill 7 x 6 in one way but for mirrors and turned rows."""
    shapes = [(7, 1), (3, 2), (4, 2), (2, 3), (2, 3), (3, 3)]  # rows of height 1, 2 and 3
    curves = []
    for w, h in shapes:
        curve = np.full(12, NEVER)
        curve[w:] = h
        curves.append(curve)
    kernels = [trees.leaf(at, curve) for at, curve in enumerate(curves)]
    room = trees.Room(7, 6, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)])
    best, length = native.temper(trees.join(True, kernels), room, 0, 200_000, HEATS)
    assert best is not None
    assert length == least_of_rows()
    legal(room.plan(best), np.array(curves), 7, 6)


def least_of_rows():
    """Shortest chain over all orders of the three rows and of the kernels in each."""
    rows, least = [[(0, 7)], [(1, 3), (2, 4)], [(3, 2), (4, 2), (5, 3)]], np.inf
    heights = (1, 2, 3)
    for order in itertools.permutations(range(3)):
        for inside in itertools.product(*(itertools.permutations(row) for row in rows)):
            at, y = {}, 0.0
            for row in order:
                x = 0.0
                for kernel, width in inside[row]:
                    at[kernel] = (x + width / 2, y + heights[row] / 2)
                    x += width
                y += heights[row]
            far = [abs(at[i][0] - at[i + 1][0]) + abs(at[i][1] - at[i + 1][1]) for i in range(5)]
            least = min(least, sum(far))
    return least


PROGRAM = """
import numpy as np
from wafer.placement import native, trees
if not native.available():
    raise SystemExit("not available")
rng = np.random.default_rng(0)
curves = np.minimum.accumulate(rng.integers(5, 90, size=(8, 91)), axis=1)
tree = trees.join(True, [trees.leaf(at, curve) for at, curve in enumerate(curves)])
room = trees.Room(60, 60, [(i, (3 * i + 1) % 8) for i in range(8)])
best, length = native.temper(tree, room, 0, 20_000, native.Ladder(8.0, 0.5, 30.0))
print(native.target())
print(native._tokens(best), length)
"""


@pytest.mark.native
def test_tempering_is_the_same_on_every_instruction_set():
    said = []
    for target in ("1", "avx2", "baseline", "0"):
        command = [sys.executable, "-P", "-c", PROGRAM]
        env = os.environ | {"WAFER_NATIVE": target}
        said.append(subprocess.run(command, env=env, capture_output=True, text=True, check=False))
    assert said[0].returncode == 0, said[0].stderr
    targets, outcomes = zip(*(one.stdout.splitlines() for one in said[:3]), strict=True)
    assert targets[2] == "baseline"
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert "switched off by WAFER_NATIVE=0" in said[3].stderr
    assert "not available" in said[3].stderr


@pytest.mark.native
def test_what_tempering_cannot_take(monkeypatch):
    _, kernels = forest((0, 1, 2), 40)
    assert native.suits(trees.join(True, kernels))
    assert not native.suits(trees.join(True, kernels[:2]))
    boxes = ((0, 0, 9, 9), (9, 0, 9, 9), (18, 0, 9, 9))
    assert not native.suits(trees.wheel(kernels, boxes))
    with pytest.raises(ValueError, match="41 points, but 41 x 9 PEs"):
        native.temper(trees.join(True, kernels), trees.Room(41, 9, []), 0, 10, HEATS)
    with pytest.raises(ValueError, match="beyond the 3 kernels"):
        native.temper(trees.join(True, kernels), trees.Room(9, 9, [(0, 3)]), 0, 10, HEATS)
    monkeypatch.setattr("vsl.native.library._load", lambda library: None)
    with pytest.raises(RuntimeError, match=re.escape(how_to_build())):
        native.temper(trees.join(True, kernels), trees.Room(9, 9, []), 0, 10, HEATS)


@pytest.mark.native
def test_trees_wafers_and_ladders_that_cannot_be():
    _, kernels = forest((0, 1, 2), 40)
    tree, room = trees.join(True, kernels), trees.Room(9, 9, [])
    spoiled = lambda **fields: trees.join(
        True, [dataclasses.replace(kernels[0], **fields), *kernels[1:]]
    )
    for wrong in (spoiled(kernel=5), dataclasses.replace(tree, count=2)):
        with pytest.raises(ValueError, match="each once, without wheels"):
            native.temper(wrong, room, 0, 10, HEATS)
    for heights in (kernels[0].heights[::-1].copy(), kernels[0].heights * 0, np.full(41, 42)):
        with pytest.raises(ValueError, match="the curve of kernel 0 is to have 41 whole heights"):
            native.temper(spoiled(heights=heights), room, 0, 10, HEATS)
    for width, edges, message in ((0, [], "but 0 x 9 PEs"), (9, [(0, 1, 2)], "have two ends")):
        with pytest.raises(ValueError, match=message):
            native.temper(tree, trees.Room(width, 9, edges), 0, 10, HEATS)
    for ladder in (HEATS._replace(replicas=0), HEATS._replace(cold=0.0), HEATS._replace(price=-1)):
        with pytest.raises(ValueError, match="are to be positive and finite"):
            native.temper(tree, room, 0, 10, ladder)
    with pytest.raises(ValueError, match="-1 moves"):
        native.temper(tree, room, 0, -1, HEATS)
