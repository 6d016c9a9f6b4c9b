"""The placement contest: formulas by hand, files, the checker, the tables against brute force."""

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest
from helpers.paths import GOLDEN

from wafer.errors import DataError
from wafer.placement.blocks import (
    NEVER,
    Arguments,
    ContestKernel,
    Conv,
    area_bound,
    cblock,
    dblock,
    steps,
)
from wafer.placement.check import check, unmatched
from wafer.placement.contest import (
    ContestGraph,
    Placed,
    read_graph,
    write_placement,
)
from wafer.placement.order import chain
from wafer.placement.place import LIMITS, Effort, fastest, place
from wafer.placement.rows import Snakes
from wafer.placement.slicing import Piece, Table, leaves, mirror

CASES = GOLDEN / "compiler"
SMALL = ContestKernel("k1", "conv", (Conv(4, 6, 3, 3, 8, 10, 2),))
QUICK = Effort(orders=4, moves=300, plans=2, rows=3, stacked=2)


def conv(name, C, K, side=4):
    return ContestKernel(name, "conv", (Conv(side, side, 1, 1, C, K),))


def time_of(kernel, a):
    """Cycles per sample, as the contest's statement has them: those of the slowest part."""
    return max(
        math.ceil(p.H / a.h)
        * math.ceil(p.W / a.w)
        * math.ceil(p.C / c)
        * math.ceil(p.K / k)
        * p.R
        * p.S
        / p.T**2
        for p, c, k in zip(kernel.parts, a.c, a.k, strict=True)
    )


def memory_of(kernel, a):
    """Words of a PE, likewise: shares are not rounded up."""
    return max(
        p.K / k * (p.C / c * p.R * p.S + (p.W + p.S - 1) / a.w * (p.H + p.R - 1) / a.h)
        for p, c, k in zip(kernel.parts, a.c, a.k, strict=True)
    )


def graph(count=4, side=40, adapter=1):
    kernels = tuple(conv(f"k{i}", 4 + 2 * i, 6 + 2 * i) for i in range(count))
    edges = tuple((i, i + 1) for i in range(count - 1))
    return ContestGraph("tiny", kernels, edges, side, side, 1, 1, adapter, 24576)


def test_a_convolution_by_hand():
    a = Arguments(2, 4, (3,), (5,))
    assert SMALL.size(a) == (15, 2 * 4 * (3 + 1))
    assert (
        time_of(SMALL, a) == 2 * 2 * 3 * 2 * 9 / 4
    )  # ceil(4/2) ceil(6/4) ceil(8/3) ceil(10/5) R S / T^2
    assert memory_of(SMALL, a) == 2 * (8 / 3 * 9 + 8 / 4 * (6 / 2))  # 2 filters, pixels with halo


def test_blocks_are_their_parts():
    block = cblock("b", 14, 14, 64)
    assert [(p.H, p.R, p.C, p.K, p.T) for p in block.parts] == [
        (14, 1, 32, 16, 1),
        (14, 3, 16, 16, 2),
        (7, 1, 16, 64, 1),
        (14, 1, 32, 64, 2),
    ]
    a = Arguments(7, 2, (1, 2, 3, 1), (4, 1, 2, 3))
    assert block.size(a) == (30, 14 * 4)
    assert time_of(block, a) == max(
        2 * 7 * 32 * 4, 2 * 7 * 8 * 16 * 9 / 4, 4 * 6 * 32, 2 * 7 * 32 * 22 / 4
    )
    assert len(dblock("d", 7, 7, 64).parts) == 3


def test_steps_are_the_splits_that_differ():
    assert steps(10).tolist() == [1, 2, 3, 4, 5, 10]


@pytest.mark.parametrize("kernel", [SMALL, dblock("d", 3, 3, 8)], ids=["conv", "dblock"])
@pytest.mark.parametrize(("cap", "memory"), [(40, 24576), (20, 60)])
def test_curves_equal_brute_force(kernel, cap, memory):
    best = np.full(31, NEVER)
    one = (
        [range(1, p.C + 1) for p in kernel.parts],
        [range(1, min(p.K, 10) + 1) for p in kernel.parts],
    )
    for h, w in itertools.product(range(1, kernel.parts[0].H + 1), range(1, kernel.parts[0].W + 1)):
        if 2 * h * w > 30:
            continue
        for c in itertools.product(*(r[: 30 // (h * w) - 1] for r in one[0])):
            for k in itertools.product(*one[1]):
                a = Arguments(h, w, c, k)
                width, height = kernel.size(a)
                if (
                    max(width, height) > 30
                    or time_of(kernel, a) > cap
                    or memory_of(kernel, a) > memory
                ):
                    continue
                best[width] = min(best[width], height)
                best[height] = min(best[height], width)
    curve = kernel.choices(cap, memory, 30).curve(30)
    np.testing.assert_array_equal(curve, np.minimum.accumulate(best))


@pytest.mark.parametrize(("case", "published"), [("A", 33148), ("I", 46584), ("N", 1019)])
def test_area_bounds(case, published):
    g = read_graph(CASES / f"{case}.kgraph")
    bound = area_bound(g.kernels, g.width, g.height, g.memlimit)
    assert published <= bound <= published * 1.0002 + 1  # found on whole caps, memory rounded up


def test_all_stored_cases_are_read():
    counts = {}
    for path in CASES.glob("*.kgraph"):
        g = read_graph(path)
        assert sorted(chain(len(g.kernels), g.edges)) == list(range(len(g.kernels)))
        counts[path.stem] = len(g.kernels)
    assert counts["A"] == 16
    assert counts["G"] == 100
    assert len(counts) == 14


def test_tables_hold_the_least_sizes_of_slicing_plans():
    rng = np.random.default_rng(3)
    curves = np.minimum.accumulate(rng.integers(1, 12, size=(4, 13)), axis=1)
    curves[:, :2] = NEVER

    def fits(i, j, w, h):
        if j - i == 1:
            return curves[i, w] <= h
        return any(
            any(fits(i, m, x, h) and fits(m, j, w - x, h) for x in range(1, w))
            or any(fits(i, m, w, y) and fits(m, j, w, h - y) for y in range(1, h))
            for m in range(i + 1, j)
        )

    # a kernel can always be wider than it must: the curve falls with the width
    table = Table(curves.astype(np.int32))
    for i, j in ((0, 2), (1, 3), (0, 3)):
        for w, h in itertools.product(range(1, 9), repeat=2):
            assert (table.heights[i, j, w] <= h) == fits(i, j, w, h), (i, j, w, h)
            assert (table.widths[i, j, h] <= w) == fits(i, j, w, h), (i, j, w, h)


def legal(plan, curves, width, height):
    """No overlap, inside, each kernel large enough."""
    painted = np.zeros((height, width), int)
    for leaf in leaves(plan):
        assert curves[leaf.i, leaf.width] <= leaf.height
        painted[leaf.y : leaf.y + leaf.height, leaf.x : leaf.x + leaf.width] += 1
    assert painted.max() == 1
    assert painted.sum() == sum(leaf.width * leaf.height for leaf in leaves(plan))


def test_samples_mirrors_and_snakes_are_legal():
    g = graph(6)
    curves = np.stack([k.choices(60, 24576, 40).curve(40) for k in g.kernels])
    table, rng = Table(curves), np.random.default_rng(0)
    box = Piece(0, 6, 0, 0, 40, 40)
    assert table.fits(40, 40)
    for across in (0.0, 0.5, 1.0):
        plan = table.sample(rng, box, across)
        legal(plan, curves, 40, 40)
        assert mirror(mirror(plan, box, True), box, True) == plan
        legal(mirror(plan, box, False), curves, 40, 40)
    for stacked, column in ((3, 3), (None, 4)):
        snakes = Snakes(table, 40, rows=3, stacked=stacked, column=column)
        sizes = [(r, s) for r, s in np.argwhere(snakes.least <= 40) if r]
        assert sizes
        for r, s in sizes:
            legal(snakes.plan(int(r), int(s), 40), curves, 40, 40)
    few = Snakes(table, 40, rows=3, stacked=2, column=4).least.min(1)
    assert (snakes.least[:, 0] <= few).all()


def test_placement_is_legal_repeatable_and_near_the_bound(tmp_path):
    g = graph()
    lines = []
    best = place(g, seed=1, effort=QUICK, say=lines.append)
    again = place(g, seed=1, effort=QUICK)
    assert best.placed == again.placed
    assert lines
    assert best.score == check(g, best.placed)
    assert best.score.time >= best.bound
    slow = place(dataclasses.replace(g, wlength=0, wadapter=0), effort=QUICK, longest=3.0)
    assert slow.score.time <= 3.0 * best.bound

    path = tmp_path / "tiny.out"
    write_placement(path, g, best.placed)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("k0 = conv( 4 4 1 1 4 6 1 1 ")
    for kernel, run, spot in zip(g.kernels, lines[::2], lines[1::2], strict=True):
        at = best.placed[kernel.name]
        a = at.arguments
        assert run.startswith(f"{kernel.name} = ")
        assert run.endswith(f" {' '.join(map(str, (a.h, a.w, *a.c, *a.k)))} )")
        assert spot == f"{kernel.name} : place({at.x} {at.y} R{90 * at.rotated})"


@pytest.mark.slow
def test_the_fastest_placement_that_is_good_enough():
    g = graph(adapter=0)
    lines = []
    quick = fastest(g, 1e6, effort=QUICK, say=lines.append)
    for limit in (*LIMITS, None):
        with contextlib.suppress(ValueError):  # nothing fits within the first limits
            assert quick.placed == place(g, longest=limit, effort=QUICK).placed
            break
    best = fastest(g, 1.0, effort=QUICK, say=lines.append)  # nothing is: the least score counts
    assert f"within {LIMITS[0]} times the area bound no score of 1 exists" in lines
    assert best.score.total <= quick.score.total
    between = fastest(g, best.score.total, effort=QUICK)
    assert between.score.total <= best.score.total


def test_unmatched_arguments():
    a, b = conv("a", 4, 8), conv("b", 8, 4)
    one = Placed(Arguments(2, 2, (4,), (8,)), 0, 0, False)
    assert unmatched(a, one, b, Placed(Arguments(2, 2, (8,), (1,)), 0, 0, False)) == 0
    assert unmatched(a, one, b, Placed(Arguments(1, 2, (4,), (8,)), 0, 0, True)) == 2


def test_the_checker_finds_what_is_wrong():
    g = graph(2)
    good = {
        "k0": Placed(Arguments(1, 1, (4,), (2,)), 0, 0, False),  # 6 wide, 5 high
        "k1": Placed(Arguments(1, 1, (3,), (2,)), 6, 0, True),  # 4 wide, 6 high
    }
    score = check(g, good)
    assert score.wire == 5 + 0.5
    assert score.time == max(16 * 1 * 3, 16 * 2 * 4)
    assert score.adapters == 1  # k' = 2 against c' = 3
    assert score.total == 128 + 5.5 + 1
    move = lambda **change: good | {"k1": dataclasses.replace(good["k1"], **change)}
    with pytest.raises(ValueError, match="k0 and k1 overlap"):
        check(g, move(x=5))
    with pytest.raises(ValueError, match=r"k1: 4x6 at \(37, 0\) leaves the 40x40"):
        check(g, move(x=37))
    with pytest.raises(ValueError, match="k1 is not placed"):
        check(g, {"k0": good["k0"]})
    with pytest.raises(ValueError, match="words per PE, limit 20"):
        check(dataclasses.replace(g, memlimit=20), good)
    with pytest.raises(ValueError, match="must be at least 1"):
        check(g, move(arguments=Arguments(0, 1, (3,), (2,))))


def test_errors_name_the_place(tmp_path):
    text = (CASES / "K.kgraph").read_text()
    path = tmp_path / "bad.kgraph"
    path.write_text(text.replace("memlimit=24576", ""))
    with pytest.raises(DataError, match="lacks whole numbers for memlimit"):
        read_graph(path)
    path.write_text(text.replace("cblock[1] f=128", "pool[1] f=128"))
    with pytest.raises(DataError, match=r"bad.kgraph:\d+: kernel 'pool'"):
        read_graph(path)
    with pytest.raises(ValueError, match=r"\[0, 1\] lie on a circle"):
        chain(2, [(0, 1), (1, 0)])
    with pytest.raises(ValueError, match=r"no plan within 0.5 times"):
        place(graph(3), longest=0.5, effort=QUICK)
