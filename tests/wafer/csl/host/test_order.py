"""Where items lie in the host's arrays: hand-computed places, and the rules as sums."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from wafer.csl.host.errors import HostError
from wafer.csl.host.order import MemcpyOrder, places

ROW, COL = MemcpyOrder.ROW_MAJOR, MemcpyOrder.COL_MAJOR


@pytest.mark.parametrize(
    ("order", "along", "expected"),
    [
        (ROW, "x", [[[0, 1]] * 3, [[2, 3]] * 3]),
        (COL, "x", [[[0, 2]] * 3, [[1, 3]] * 3]),
        (ROW, "y", [[[0, 1], [2, 3], [4, 5]]] * 2),
        (COL, "y", [[[0, 3], [1, 4], [2, 5]]] * 2),
    ],
)
def test_shared_along_an_axis(order, along, expected):
    """Three columns, two rows, two items: all of a row, or of a column, read the same places."""
    np.testing.assert_array_equal(places(order, 3, 2, 2, along), expected)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_rules_and_round_trip(width, height, items):
    y, x, e = np.indices((height, width, items))
    rows, columns = places(ROW, width, height, items), places(COL, width, height, items)
    np.testing.assert_array_equal(rows, (y * width + x) * items + e)
    np.testing.assert_array_equal(columns, y + height * (x + width * e))
    data = np.random.default_rng(0).integers(0, 99, (height, width, items))
    for where in (rows, columns):
        flat = np.full(data.size, -1)
        flat[where] = data
        np.testing.assert_array_equal(flat[where], data)
        assert (flat >= 0).all()


def test_nothing_to_move():
    with pytest.raises(HostError, match=r"3 x 0 PEs with 2 item\(s\) each: all must be positive"):
        places(ROW, 3, 0, 2)
