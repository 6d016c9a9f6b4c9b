"""A cache whose rows pass entries up."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc.mesh import kvshift

# Rows of PEs; entries, PEs of a row, words.
CASES = [
    (1, (3, 1, 4)),
    (2, (1, 1, 4)),
    (2, (6, 2, 3)),
    (3, (7, 2, 4)),
    (5, (23, 3, 2)),
    (7, (15, 1, 5)),
    (10, (25, 1, 40)),
    (12, (30, 2, 8)),
    (9, (4, 1, 6)),
]


@pytest.mark.parametrize(("height", "shape"), CASES)
def test_order_and_balance(height, shape):
    """From the top down entries are in order, and no row has two more than another."""
    entries = np.random.default_rng(height).standard_normal(shape).astype(np.float32)
    cache = kvshift.run(entries, height)
    np.testing.assert_array_equal(cache.entries, entries)
    count = len(entries)
    expected = [count // height + (row < count % height) for row in range(height)]
    assert cache.counts.tolist() == expected


@pytest.mark.parametrize(("height", "shape"), [case for case in CASES if case[1][0] > case[0]])
def test_cycles(height, shape):
    spent = kvshift.run(np.ones(shape), height).cycles
    assert kvshift.cycles(shape[0], height, shape[2]) == pytest.approx(spent, rel=0.05)


def test_an_entry_takes_as_long_in_a_taller_mesh():
    spent = [kvshift.run(np.ones((16, 1, 6)), height).cycles for height in (4, 8)]
    assert spent[0] == pytest.approx(spent[1], rel=0.05)


def test_capacity():
    assert kvshift.capacity(360, 382, shifts=False) == 382
    assert kvshift.capacity(360, 382) == 137520  # published: 137,548


def test_errors():
    with pytest.raises(WaferError, match=r"entries: shape \(2, 3\); expected \[entries, width"):
        kvshift.run(np.ones((2, 3)), 1)
    with pytest.raises(WaferError, match="height: 0; expected rows of PEs, at least 1"):
        kvshift.run(np.ones((2, 3, 1)), 0)
    with pytest.raises(WaferError, match="entries: 1000 of 9 words take 54,036 bytes of a PE"):
        kvshift.run(np.ones((1000, 1, 9)), 2)
