"""The placement contest of tests/bench: costs by hand, files, the scorer, the compiler's placer."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from bench.contest import (
    Arguments,
    ContestGraph,
    ContestKernel,
    Conv,
    Placed,
    cblock,
    dblock,
    fill,
    read_graph,
    score,
    unmatched,
    write_placement,
)
from helpers.paths import GOLDEN

from wafer.compiler.slicing_floorplan import NEVER, Piece
from wafer.errors import DataError

CASES = GOLDEN / "compiler"
SMALL = ContestKernel("k1", "conv", (Conv(4, 6, 3, 3, 8, 10, 2),))


def conv(name, C, K, side=4):
    return ContestKernel(name, "conv", (Conv(side, side, 1, 1, C, K),))


def time_of(kernel, a):
    """Cycles per sample, as the contest's statement has them: those of the slowest part."""
    parts = zip(kernel.parts, a.c, a.k, strict=True)
    share = lambda size, count: math.ceil(size / count)
    return max(
        share(p.H, a.h) * share(p.W, a.w) * share(p.C, c) * share(p.K, k) * p.R * p.S / p.T**2
        for p, c, k in parts
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


@pytest.mark.parametrize("kernel", [SMALL, dblock("d", 3, 3, 8)], ids=["conv", "dblock"])
@pytest.mark.parametrize(("cap", "memory"), [(40, 24576), (20, 60)])
def test_curves_equal_brute_force(kernel, cap, memory):
    best, first = np.full(31, NEVER), kernel.parts[0]
    for h, w in itertools.product(range(1, first.H + 1), range(1, first.W + 1)):
        columns = [range(1, min(p.C, 30 // (h * w) - 1) + 1) for p in kernel.parts]
        rows = [range(1, min(p.K, 10) + 1) for p in kernel.parts]
        for c, k in itertools.product(itertools.product(*columns), itertools.product(*rows)):
            a = Arguments(h, w, c, k)
            width, height = kernel.size(a)
            if max(width, height) > 30 or time_of(kernel, a) > cap or memory_of(kernel, a) > memory:
                continue
            best[width] = min(best[width], height)
            best[height] = min(best[height], width)
    curve = kernel.choices(cap, memory, 30).curve(30)
    np.testing.assert_array_equal(curve, np.minimum.accumulate(best))


def test_all_stored_cases_are_read():
    assert sum(len(read_graph(path).kernels) >= 16 for path in CASES.glob("*.kgraph")) == 14


def test_arguments_of_boxes_are_written_and_scored(tmp_path):
    g = graph(3)
    boxes = [Piece(at, at + 1, 13 * at, 0, 12, 40) for at in range(3)]
    placed = fill(g, 60, boxes)
    for box, at, kernel in zip(boxes, placed.values(), g.kernels, strict=True):
        width, height = at.size(kernel)
        assert box.x <= at.x <= at.x + width <= box.x + box.width
        assert 0 <= at.y <= at.y + height <= 40
    assert score(g, placed).time <= 60
    path = tmp_path / "tiny.out"
    write_placement(path, g, placed)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("k0 = conv( 4 4 1 1 4 6 1 1 ")
    for kernel, run, spot in zip(g.kernels, lines[::2], lines[1::2], strict=True):
        at = placed[kernel.name]
        a = at.arguments
        assert run.startswith(f"{kernel.name} = ")
        assert run.endswith(f" {' '.join(map(str, (a.h, a.w, *a.c, *a.k)))} )")
        assert spot == f"{kernel.name} : place({at.x} {at.y} R{90 * at.rotated})"


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
    found = score(g, good)
    assert found.wire == 5 + 0.5
    assert found.time == max(16 * 1 * 3, 16 * 2 * 4)
    assert found.adapters == 1  # k' = 2 against c' = 3
    assert found.total == 128 + 5.5 + 1
    move = lambda **change: good | {"k1": dataclasses.replace(good["k1"], **change)}
    for message, case, placed in (
        ("k0 and k1 overlap", g, move(x=5)),
        (r"k1: 4x6 at \(37, 0\) leaves the 40x40", g, move(x=37)),
        ("k1 is not placed", g, {"k0": good["k0"]}),
        ("words per PE, limit 20", dataclasses.replace(g, memlimit=20), good),
        ("must be at least 1", g, move(arguments=Arguments(0, 1, (3,), (2,)))),
    ):
        with pytest.raises(ValueError, match=message):
            score(case, placed)


def test_errors_name_the_place(tmp_path):
    text = (CASES / "K.kgraph").read_text()
    path = tmp_path / "bad.kgraph"
    path.write_text(text.replace("memlimit=24576", ""))
    with pytest.raises(DataError, match="lacks whole numbers for memlimit"):
        read_graph(path)
    path.write_text(text.replace("cblock[1] f=128", "pool[1] f=128"))
    with pytest.raises(DataError, match=r"bad.kgraph:\d+: kernel 'pool'"):
        read_graph(path)
