"""Lookups on PEs: cross sections and histograms of NumPy, what balancing does, and cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import montecarlo
from wafer.hpc.montecarlo import pictures

LARGE = pytest.param(5, 6, 20, 5, marks=pytest.mark.slow)
CASES = [(1, 1, 30, 2), (1, 3, 8, 1), (7, 1, 12, 2), (2, 3, 8, 3), (3, 2, 8, 2), LARGE]


def material(nuclides, points=60, channels=5):
    """Random nuclides on grids of their own, between 0 and 1."""
    rng = np.random.default_rng(nuclides)
    grids = np.sort(rng.random((nuclides, points)).astype(np.float32), axis=1)
    grids[:, 0], grids[:, -1] = 0, 1
    sections = rng.random((nuclides, points, channels)).astype(np.float32)
    return montecarlo.Nuclides(grids, sections, rng.random(nuclides).astype(np.float32))


def particles(shape):
    return np.random.default_rng(sum(shape)).random(shape).astype(np.float32)


def macroscopic(nuclides, energies):
    """[particles, channels] by NumPy's interpolation, float64."""
    total = 0
    for grid, sections, density in zip(*nuclides, strict=True):
        of_nuclide = [np.interp(energies, grid, column) for column in sections.T]
        total = total + float(density) * np.stack(of_nuclide, axis=1)
    return total


@pytest.mark.parametrize(("height", "width", "count", "nuclides"), CASES)
def test_sections_and_cycles(height, width, count, nuclides):
    of_all = material(nuclides * width)
    energies = particles((height, width, count))
    tally = montecarlo.run(of_all, energies)
    found, sections = tally.by_energy()
    np.testing.assert_array_equal(found, np.sort(energies, axis=None))
    np.testing.assert_allclose(sections, macroscopic(of_all, found), rtol=2e-6)
    assert montecarlo.cycles(of_all, energies) == pytest.approx(tally.cycles, rel=0.05)


def test_three_lookups_by_hand():
    """Two nuclides, two cross sections; one energy at a point, one at the end of the grids."""
    grids = np.array([[0, 2, 4, 8], [0, 1, 4, 8]])
    sections = np.array([[[1, 10], [3, 20], [5, 30], [9, 0]], [[0, 1], [1, 1], [1, 4], [3, 8]]])
    nuclides = montecarlo.Nuclides(grids, sections, np.array([2, 10]))
    tally = montecarlo.run(nuclides, np.array([[[2.0], [8.0]], [[1.0], [5.0]]]))
    found, answers = tally.by_energy()
    assert found.tolist() == [1, 2, 5, 8]
    expected = [
        [2 * 2 + 10 * 1, 2 * 15 + 10 * 1],
        [2 * 3 + 10 * 1, 2 * 20 + 10 * 2],
        [2 * 6 + 10 * 1.5, 2 * 22.5 + 10 * 5],
        [2 * 9 + 10 * 3, 2 * 0 + 10 * 8],
    ]
    np.testing.assert_allclose(answers, expected, rtol=1e-6)


def test_rows_are_bands():
    """The histogram of energies over bands is NumPy's; bands share the grids' points evenly."""
    of_all, energies = material(2), particles((5, 2, 9))
    tally = montecarlo.run(of_all, energies)
    edges = np.quantile(of_all.grids, np.arange(1, 5) / 5, method="higher")
    edges = np.concatenate([[0], edges, [2]])
    expected, _ = np.histogram(energies, edges)
    by_row = [np.concatenate(row) for row in tally.energies]
    assert [row.size for row in by_row] == expected.tolist()
    for row, low, high in zip(by_row, edges[:-1], edges[1:], strict=True):
        assert ((low <= row) & (row < high)).all()


def test_balancing_spreads_what_one_pe_has():
    """By hand for a round: half of 8 go to the east. None is lost."""
    of_all, energies = material(5), particles((1, 5, 3))
    tally = montecarlo.run(of_all, energies, rounds=16)
    before, after = montecarlo.loads(of_all, energies, rounds=16)
    np.testing.assert_array_equal(tally.loads, after)
    assert before.sum() == after.sum() == energies.size
    one_round = montecarlo.problem.balance(np.array([[8, 0, 1]]), 1)
    assert [step.tolist() for step in one_round] == [[[8, 0, 1]], [[4, 4, 1]]]


def test_work_lasts_as_long_as_the_fullest_pe():
    """So balancing pays where every other column has all of a row's particles."""
    of_all = material(4)
    energies = np.where(np.arange(4)[:, None] % 2, 0.9, 0.1) * np.ones((2, 4, 6))
    spent = [montecarlo.run(of_all, energies, rounds=rounds).cycles for rounds in (0, 8)]
    assert spent[1] < 0.7 * spent[0]


def test_stochastic_interpolation_is_right_on_average():
    """One of two values each time; the upper one as often as the energy is near it."""
    grids, sections = np.array([[0.0, 0.25, 0.75, 1]]), np.array([[[5.0], [1], [2], [5]]])
    nuclides = montecarlo.Nuclides(grids, sections, np.array([10.0]))
    energies = np.full((1, 1, 400), 0.4)
    tally = montecarlo.run(nuclides, energies, stochastic=True)
    answers = tally.by_energy()[1]
    assert set(answers.ravel().tolist()) == {10, 20}
    assert answers.mean() == pytest.approx(13, abs=0.75)  # three deviations of the mean
    cycles = montecarlo.cycles(nuclides, energies, stochastic=True)
    assert cycles == pytest.approx(tally.cycles, rel=0.05)
    assert cycles < 0.8 * montecarlo.cycles(nuclides, energies)


def test_picture():
    of_all, energies = material(4), particles((2, 2, 5))
    tally = montecarlo.run(of_all, energies)
    figure = pictures.draw(tally, montecarlo.loads(of_all, energies)[0])
    over_energy, by_row, by_pe = figure.axes
    assert sum(line.get_xdata().size for line in over_energy.lines) == energies.size
    assert sum(bar.get_height() for bar in by_row.patches) == energies.size
    assert sum(bar.get_height() for bar in by_pe.patches) == 2 * 4


GOOD = material(2)
BAD = {
    r"energies: shape \(2, 2\); expected \[height, width, particles\]": (GOOD, np.ones((2, 2))),
    r"nuclides: grids of shape \(2, 60\) and sections of shape \(2, 59, 5\)": (
        GOOD._replace(sections=GOOD.sections[:, 1:]),
        np.ones((1, 1, 1)),
    ),
    r"densities of shape \(1,\); expected \[nuclides, points, channels\] and \[nuclides\]": (
        GOOD._replace(densities=GOOD.densities[:1]),
        np.ones((1, 1, 1)),
    ),
    "nuclides: 2 for 3 columns of PEs; expected a multiple": (GOOD, np.ones((1, 3, 1))),
    "the grid of nuclide 0 does not grow": (
        GOOD._replace(grids=GOOD.grids[:, ::-1]),
        np.ones((1, 1, 1)),
    ),
    "expected grids that begin at the same energy": (
        GOOD._replace(grids=GOOD.grids + np.array([[0], [1]])),
        np.ones((1, 1, 1)),
    ),
    "energies: 1.5 of particle 0 at row 1, column 0; expected 0.0 to 1.0": (
        GOOD,
        np.array([[[1.0]], [[1.5]]]),
    ),
    r"bytes of tables and 81,\d{3} of particles on a PE; its memory holds 47,104": (
        GOOD,
        np.ones((1, 1, 1193)),
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_errors(message):
    nuclides, energies = BAD[message]
    with pytest.raises(WaferError, match=message):
        montecarlo.run(nuclides, energies)
