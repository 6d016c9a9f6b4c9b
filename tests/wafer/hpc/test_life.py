"""The game of life on PEs: the same cells as shifted sums in NumPy, and its cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import life

LARGE = pytest.param((12, 12), marks=pytest.mark.slow)


def by_shifts(cells, generations):
    """The rule, on neighbours counted by eight shifts of a padded grid."""
    height, width = cells.shape
    for _ in range(generations):
        wide = np.pad(cells, 1)
        shifted = [wide[y : y + height, x : x + width] for y in range(3) for x in range(3)]
        neighbours = sum(shifted) - cells
        cells = ((neighbours == 3) | ((neighbours == 2) & (cells == 1))).astype(int)
    return cells


def test_a_blinker_turns():
    cells = np.zeros((5, 5), int)
    cells[2, 1:4] = 1
    turned, _ = life.run(cells, 1)
    np.testing.assert_array_equal(turned, cells.T)


def test_a_glider_moves_one_cell_in_four_generations():
    cells = np.zeros((7, 6), int)
    cells[:3, :3] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
    moved, _ = life.run(cells, 4)
    np.testing.assert_array_equal(moved, np.roll(cells, (1, 1), axis=(0, 1)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (5, 1), (3, 3), (4, 9), LARGE])
def test_cells_and_cycles(shape):
    cells = np.random.default_rng(sum(shape)).integers(0, 2, shape)
    for generations in (4, 30):
        after, spent = life.run(cells, generations)
        np.testing.assert_array_equal(after, by_shifts(cells, generations))
        assert life.cycles(shape[0], shape[1], generations) == pytest.approx(spent, rel=0.05)


def test_a_cell_is_0_or_1():
    with pytest.raises(WaferError, match=r"cells: 2 at row 1, column 0; a cell is 0 \(dead\)"):
        life.run(np.array([[0, 1], [2, 0]]), 1)
