"""Slicing plans: the table against brute force, plans that fit, the least cap, short wires."""

import itertools

import numpy as np
import pytest

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


def falling(rng, kernels, points):
    """Least height of each kernel for each width: nothing fits two columns."""
    curves = np.minimum.accumulate(rng.integers(1, points - 1, size=(kernels, points)), axis=1)
    curves[:, :2] = NEVER
    return curves.astype(np.int32)


def legal(plan, curves, width, height):
    """No overlap, inside, each kernel large enough."""
    painted = np.zeros((height, width), int)
    for leaf in leaves(plan):
        assert curves[leaf.i, leaf.width] <= leaf.height
        painted[leaf.y : leaf.y + leaf.height, leaf.x : leaf.x + leaf.width] += 1
    assert painted.max() == 1
    assert painted.sum() == sum(leaf.width * leaf.height for leaf in leaves(plan))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 1, 0, 1), (2, 2, 2, 2)])
def test_the_table_holds_the_least_sizes_of_slicing_plans(order):
    """Also where equal segments share a row."""
    curves = falling(np.random.default_rng(3), 4, 13)[list(order)]

    def fits(i, j, w, h):
        if j - i == 1:
            return curves[i, w] <= h
        return any(
            any(fits(i, m, x, h) and fits(m, j, w - x, h) for x in range(1, w))
            or any(fits(i, m, w, y) and fits(m, j, w, h - y) for y in range(1, h))
            for m in range(i + 1, j)
        )

    table = ShapeTable(curves)
    for i, j in ((0, 2), (1, 3), (0, 3)):
        row = table.row[i, j]
        for w, h in itertools.product(range(1, 9), repeat=2):
            assert (table.least_height[row, w] <= h) == fits(i, j, w, h), (i, j, w, h)
            assert (table.least_width[row, h] <= w) == fits(i, j, w, h), (i, j, w, h)


def test_repeated_layers_share_their_rows():
    layer = falling(np.random.default_rng(0), 3, 20)
    rows = [len(ShapeTable(np.tile(layer, (layers, 1))).least_height) for layers in (2, 4, 8)]
    # a segment is known by where it begins in a layer, and its length
    assert rows == [3 + 3 * (n - 3) + 2 + 1 for n in (6, 12, 24)]


def test_long_segments_try_fewer_cuts_and_their_plans_are_legal():
    curves = np.full((60, 121), NEVER, np.int32)
    for k in range(60):
        curves[k, 1:] = -(-(60 + k % 7) // np.arange(1, 121))
    table = ShapeTable(curves)
    assert table.fits(61, 65)  # 98 % full
    rng = np.random.default_rng(0)
    for beside_odds in (0.0, 0.5, 1.0):
        legal(table.sample(rng, Piece(0, 60, 0, 0, 61, 65), beside_odds), curves, 61, 65)


def test_the_least_cap_is_found_to_two_thousandths():
    work = np.array([900, 500, 700, 300, 650, 420, 810])

    def curves_at(cap):
        widths = np.arange(1, 41)
        curves = np.full((len(work), 41), NEVER, np.int32)
        curves[:, 1:] = np.ceil(work[:, None] * 100 / cap / widths)
        return curves

    bound = work.sum() * 100 / 40**2
    cap, table = least_cap(curves_at, bound, 1e6, 40, 40)
    assert bound <= cap <= 1.1 * bound
    assert table.fits(40, 40)
    assert not ShapeTable(curves_at(cap / 1.003)).fits(40, 40)
    assert least_cap(curves_at, bound, cap - 3, 40, 40) is None
    assert least_cap(curves_at, bound, bound / 2, 40, 40) is None
    high, _ = least_cap(curves_at, bound / 64, 1e6, 40, 40)  # far above the first cap tried
    assert high == pytest.approx(cap, rel=0.005)


def test_annealing_shortens_the_wires_inside_the_room():
    curves, rng = falling(np.random.default_rng(1), 9, 31), np.random.default_rng(0)
    table, at = ShapeTable(curves), np.arange(8)
    wires = Connections(at, at + 1)
    first, long = anneal(table, wires, (30, 60), rng, moves=0, draws=1)
    plan, short = anneal(table, wires, (30, 60), rng, moves=400, draws=1)
    assert short < long
    for piece, length in ((first, long), (plan, short)):
        placed = sorted(leaves(piece), key=lambda leaf: leaf.i)
        legal(piece, curves, 30, 60)
        centers = np.array([(p.x + p.width / 2, p.y + p.height / 2) for p in placed])
        assert np.abs(np.diff(centers, axis=0)).sum() == length


def test_the_order_follows_branches_and_refuses_cycles():
    assert topological_order(4, [(0, 1), (1, 2), (2, 3)]) == [0, 1, 2, 3]
    assert topological_order(5, [(0, 1), (1, 2), (0, 3), (2, 4), (3, 4)]) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match=r"kernels \[0, 1\] lie on a cycle"):
        topological_order(2, [(0, 1), (1, 0)])
