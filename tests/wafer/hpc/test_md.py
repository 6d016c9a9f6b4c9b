"""Molecular dynamics on PEs: forces of a direct sum, energy, motion, cycles, errors."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import md

MASS = 180.94788 * 1.0364269e-4
# Finnis and Sinclair's tantalum once more, by itself.
D, A, C, C0, C1, C2 = 4.076980, 2.591061, 4.20, 1.2157373, 0.0271471, -0.1217350
# Cells of the crystal, and PEs for each: a row, a column, an odd grid, with PEs that have no atom.
CRYSTALS = [
    ((4, 1, 1), (1, 2)),
    ((1, 3, 1), (2, 1)),
    ((2, 1, 1), (1, 3)),
    ((2, 2, 1), (2, 1)),
    pytest.param((3, 3, 1), (1, 3), marks=pytest.mark.slow),
    pytest.param((3, 2, 2), (2, 2), marks=pytest.mark.slow),
    pytest.param((5, 5, 3), (3, 2), marks=pytest.mark.slow),
    pytest.param((4, 4, 6), (4, 3), marks=pytest.mark.slow),
]


def crystal(cells, block, shaken=0.05):
    """Positions, velocities, PEs, reach."""
    rng = np.random.default_rng(sum(cells))
    positions = md.lattice(cells)
    pes = md.assign(positions, block)
    reach = md.reach_of(positions, pes, 4.6)
    positions += rng.normal(0, shaken, positions.shape)
    return positions, rng.normal(0, 2, positions.shape), pes, reach


def between(positions):
    """Vectors from each atom to each, and distances; of an atom to itself far."""
    apart = positions[None] - positions[:, None]
    distance = np.sqrt((apart**2).sum(axis=2))
    np.fill_diagonal(distance, 99)
    return apart, distance


def directly(positions):
    """Forces and energies by sums over all pairs, float64."""
    apart, r = between(positions)
    near, bound = r < D, r < C
    rho = np.where(near, (r - D) ** 2, 0).sum(axis=1)
    inner = C0 + C1 * r + C2 * r * r
    pair = np.where(bound, (r - C) ** 2 * inner, 0)
    pull = np.where(bound, 2 * (r - C) * inner + (r - C) ** 2 * (C1 + 2 * C2 * r), 0)
    bend = -A / (2 * np.sqrt(np.maximum(rho, 1e-9)))
    pull = pull + (bend[:, None] + bend) * np.where(near, 2 * (r - D), 0)
    forces = ((pull / r)[..., None] * apart).sum(axis=1)
    return forces, -A * np.sqrt(rho) + pair.sum(axis=1) / 2


def total(motion):
    moving = (motion.velocities.astype(float) ** 2).sum() * MASS / 2
    return moving + motion.energies.astype(float).sum()


@pytest.mark.parametrize(("cells", "block"), CRYSTALS)
def test_forces_and_energies_are_those_of_a_direct_sum(cells, block):
    positions, velocities, pes, reach = crystal(cells, block)
    motion = md.run(positions, velocities, 0, pes=pes, reach=reach)
    forces, energies = directly(positions.astype(np.float32).astype(float))
    np.testing.assert_allclose(motion.forces, forces, rtol=1e-5, atol=3e-5)
    np.testing.assert_allclose(motion.energies, energies, atol=1e-5)
    np.testing.assert_array_equal(motion.positions, positions.astype(np.float32))
    np.testing.assert_allclose(motion.forces.sum(axis=0), 0, atol=1e-4)
    np.testing.assert_array_equal(motion.velocities, velocities.astype(np.float32))


def test_two_atoms_by_hand():
    """3 Angstrom apart: each has the density (3 - d)^2 of the other."""
    positions = np.array([[0.0, 0, 0], [3, 0, 0]])
    motion = md.run(positions, 0 * positions, 0, pes=np.array([[0, 1]]), reach=1)
    density = (3 - D) ** 2  # 1.16
    pair = 1.2**2 * (C0 + 3 * C1 + 9 * C2)
    slope = -2 * 1.2 * (C0 + 3 * C1 + 9 * C2) + 1.2**2 * (C1 + 6 * C2)
    slope += 2 * -A / (2 * np.sqrt(density)) * 2 * (3 - D)
    np.testing.assert_allclose(motion.energies, -A * np.sqrt(density) + pair / 2, rtol=1e-6)
    np.testing.assert_allclose(motion.forces, [[slope, 0, 0], [-slope, 0, 0]], rtol=1e-5)


def test_the_potential_is_tantalum():
    """Bound by 8.10 eV an atom, at the least for the cell of 3.3058 Angstrom."""

    def energy(side):
        positions = md.lattice((5, 5, 5), side)
        middle = ((positions - positions.mean(axis=0)) ** 2).sum(axis=1).argmin()
        return directly(positions)[1][middle]

    assert energy(3.3058) == pytest.approx(-8.10, abs=1e-4)
    assert energy(3.3058) < min(energy(3.28), energy(3.33))


def test_motion_is_that_of_leapfrog_in_double_precision():
    positions, velocities, pes, reach = crystal((2, 2, 1), (2, 1))
    motion = md.run(positions, velocities, 50, pes=pes, reach=reach, step=0.002)
    x, v = positions.copy(), velocities.copy()
    for _ in range(50):
        v = v + 0.001 / MASS * directly(x)[0]
        x = x + 0.002 * v
        v = v + 0.001 / MASS * directly(x)[0]
    assert abs(x - positions).max() > 0.1
    np.testing.assert_allclose(motion.positions, x, atol=2e-4)
    np.testing.assert_allclose(motion.velocities, v, atol=2e-3)


def test_energy_stays_to_the_square_of_the_step():
    """After 0.1 ps; a half of the step leaves a quarter of the error."""
    positions, velocities, pes, reach = crystal((2, 2, 1), (2, 1), shaken=0.15)
    start = (velocities**2).sum() * MASS / 2 + directly(positions)[1].sum()
    errors = []
    for step, steps in ((0.01, 10), (0.005, 20)):
        motion = md.run(positions, velocities, steps, pes=pes, reach=reach, step=step)
        errors.append(total(motion) - start)
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.25)
    assert abs(errors[1]) < 1e-3 * abs(start)


@pytest.mark.parametrize(("cells", "block"), CRYSTALS)
def test_cycles(cells, block):
    positions, velocities, pes, reach = crystal(cells, block, shaken=0.01)
    near = int((between(positions)[1] < 4.2).sum(axis=1).max())
    for steps in (1, 4):
        spent = md.run(positions, velocities, steps, pes=pes, reach=reach).cycles
        assert md.cycles(*pes.shape, reach, near, steps) == pytest.approx(spent, rel=0.05)


def test_assigned_and_spread():
    positions = md.lattice((2, 1, 2))
    pes = md.assign(positions, (2, 2))
    assert pes.shape == (2, 4)
    # in a square: corners first (they have less y), by z, then centres
    np.testing.assert_array_equal(pes, [[0, 1, 2, 3], [4, 5, 6, 7]])
    assert md.reach_of(positions, pes, 3.0) == 3
    assert md.reach_of(positions, pes, 1.0) == 0
    assert md.reach_of(np.array([[0.0, 0, 0], [9, 0, 0]]), np.array([[0, -1, 1]]), 9.5) == 2


def test_picture():
    positions = md.lattice((5, 5, 6))
    pes = md.assign(positions, (4, 3))
    assert md.reach_of(positions, pes, 4.4) == 4
    middle = ((positions - positions.mean(axis=0)) ** 2).sum(axis=1).argmin()
    drawn = md.neighbourhood(positions, pes, 4, middle)
    assert drawn.axes[1].get_title() == "PEs: 80 candidates, 14 neighbours"


def test_errors():
    positions, velocities, pes, reach = crystal((2, 2, 1), (2, 1))
    good = {"pes": pes, "reach": reach}
    cases = [
        (positions[:, :2], velocities, good, r"positions: shape \(8, 2\); expected \[atoms, 3\]"),
        (positions, velocities[1:], good, r"velocities: shape \(7, 3\); expected the positions'"),
        (positions * np.nan, velocities, good, r"positions: holds values that are no numbers"),
        (positions, velocities, good | {"pes": pes[1:]}, r"each of the 8 atoms once and -1"),
        (positions, velocities, good | {"reach": 5}, r"reach: 5; expected 1 to 4 PEs"),
        (positions, velocities, good | {"reach": 1}, r"reach: 1, but at the begin atoms within 4"),
        (positions, velocities, good | {"mass": 0.0}, r"mass: 0.0; expected a positive number"),
    ]
    for x, v, options, message in cases:
        with pytest.raises(WaferError, match=message):
            md.run(x, v, 1, **options)
    with pytest.raises(WaferError, match=r"reach: 2, but after 1 steps atoms within 4.2"):
        md.run(positions, np.where(np.arange(8)[:, None] == 0, [0, 2e3, 0], 0), 1, **good)
    with pytest.raises(WaferError, match=r"2 atoms in a square of 3.3058 Angstrom, and 1 x 1 PEs"):
        md.assign(positions, (1, 1))
