"""Gravity on PEs: forces by direct sums in double precision, orbits, energy, and cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import nbody
from wafer.hpc.nbody import pictures

SOFT = 0.05
LARGE = pytest.param(6, 5, 130, marks=pytest.mark.slow)
CASES = [(1, 1, 1), (1, 1, 9), (1, 2, 5), (3, 1, 8), (1, 5, 7), (2, 3, 20), (3, 3, 5), LARGE]


def cluster(count, seed=0):
    """Bodies at random, float32."""
    rng = np.random.default_rng(seed)
    places, velocities = rng.standard_normal((2, count, 3)).astype(np.float32)
    masses = rng.uniform(0.5, 1.5, count).astype(np.float32) / count
    return nbody.Bodies(places, 0.3 * velocities, masses)


def accelerations(places, masses):
    """[bodies, 3] float64, pair by pair."""
    total = np.zeros((len(masses), 3))
    for i, own in enumerate(places.astype(np.float64)):
        for other, mass in zip(places.astype(np.float64), masses, strict=True):
            away = other - own
            total[i] += float(mass) * away / (away @ away + SOFT**2) ** 1.5
    return total


def leapfrog(bodies, steps, dt):
    places, velocities = bodies.places.astype(np.float64), bodies.velocities.astype(np.float64)
    known = accelerations(places, bodies.masses)
    for _ in range(steps):
        velocities = velocities + known * dt / 2
        places = places + velocities * dt
        known = accelerations(places, bodies.masses)
        velocities = velocities + known * dt / 2
    return places, velocities


@pytest.mark.parametrize(("height", "width", "count"), CASES)
def test_forces_steps_and_cycles(height, width, count):
    bodies = cluster(count)
    states = nbody.run((height, width), bodies, 3, 0.02, softening=SOFT)
    forces = accelerations(bodies.places, bodies.masses)
    np.testing.assert_allclose(states.accelerations[0], forces, atol=2e-6 * np.abs(forces).max())
    places, velocities = leapfrog(bodies, 3, 0.02)
    np.testing.assert_allclose(states.places[-1], places, atol=2e-6)
    np.testing.assert_allclose(states.velocities[-1], velocities, atol=5e-6)
    for steps, spent in zip((0, 3), states.cycles, strict=True):
        assert nbody.cycles((height, width), count, steps) == pytest.approx(spent, rel=0.05)


def test_two_bodies_by_hand():
    """Three apart along x, no motion: 2 / 9 and 4 / 9 towards each other, but for the softening."""
    bodies = nbody.Bodies(np.array([[1.0, 0, 0], [4, 0, 0]]), np.zeros((2, 3)), np.array([4.0, 2]))
    states = nbody.run((1, 2), bodies, 1, 0.5, softening=1e-4)
    np.testing.assert_allclose(
        states.accelerations[0], [[2 / 9, 0, 0], [-4 / 9, 0, 0]], rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(states.places[1, :, 0], [1 + 1 / 36, 4 - 1 / 18], rtol=1e-6)


@pytest.mark.parametrize("distance", [1e-3, 0.7, 3.0, 1e4])
def test_one_over_the_root_at_many_scales(distance):
    """The guess and three steps of Newton's method are right to rounding."""
    places = np.linspace(1, 4, 16)[:, None] * distance * np.array([[1.0, 0, 0]])
    places[0] = 0
    masses = np.where(np.arange(16) == 0, distance**2, 0)
    bodies = nbody.Bodies(places, np.zeros((16, 3)), masses)
    states = nbody.run((1, 1), bodies, 0, 0.0, softening=1e-6)
    squares = places[1:, 0].astype(np.float32).astype(float) ** 2 + 1e-12
    expected = -(distance**2) * places[1:, 0] / squares**1.5
    np.testing.assert_allclose(states.accelerations[0, 1:, 0], expected, rtol=1e-6)


def test_an_orbit_closes():
    """A light body on a circle around a heavy one is back after 2 pi."""
    bodies = nbody.Bodies(
        np.array([[0.0, 0, 0], [1, 0, 0]]), np.array([[0.0, 0, 0], [0, 1, 0]]), np.array([1, 1e-6])
    )
    states = nbody.run((1, 2), bodies, 400, 2 * np.pi / 400, softening=1e-4, every=100)
    quarters = [[1, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [1, 0, 0]]
    np.testing.assert_allclose(states.places[:, 1], quarters, atol=2e-3)


def test_energy_and_momentum_stay():
    """Energy to the leapfrog's second order, momentum to rounding."""
    bodies = cluster(8)
    errors = []
    for steps in (50, 100):
        states = nbody.run((1, 4), bodies, steps, 1 / steps, softening=0.3)
        energies = nbody.energy(states, bodies.masses, 0.3)
        errors.append(abs(energies[-1] / energies[0] - 1))
        momenta = (bodies.masses[:, None] * states.velocities).sum(axis=1)
        np.testing.assert_allclose(momenta[0], momenta[-1], atol=2e-7)
    assert errors[0] < 4e-4
    assert 3 < errors[0] / errors[1] < 5


def test_energy_by_hand():
    """A half of 2 * 3^2, and -2 * 8 / 4 at three and the root of seven apart."""
    places = np.array([[[0.0, 0, 0], [3, 0, 0]]])
    velocities = np.array([[[0.0, 3, 0], [0, 0, 0]]])
    states = nbody.States(places, velocities, np.zeros((1, 2, 3)), np.zeros(1, int))
    assert nbody.energy(states, np.array([2, 8]), np.sqrt(7)).tolist() == [pytest.approx(5)]


def test_states_in_between_are_those_of_one_call():
    bodies = cluster(6)
    whole = nbody.run((1, 2), bodies, 5, 0.01, softening=SOFT)
    parts = nbody.run((1, 2), bodies, 5, 0.01, softening=SOFT, every=2)
    assert parts.places.shape == (4, 6, 3)
    np.testing.assert_array_equal(parts.places[[0, -1]], whole.places)
    np.testing.assert_array_equal(parts.velocities[[0, -1]], whole.velocities)


def test_picture():
    bodies = cluster(4)
    states = nbody.run((1, 1), bodies, 6, 0.01, softening=SOFT, every=2)
    ways, drift = pictures.draw(states, nbody.energy(states, bodies.masses, SOFT)).axes
    assert len(ways.lines) == 8
    assert drift.lines[0].get_ydata()[0] == 0


GOOD = cluster(3)
BAD = {
    r"bodies: places, velocities and masses of shapes \(2, 3\), \(3, 3\) and \(3,\); expected": {
        "bodies": GOOD._replace(places=GOOD.places[:2])
    },
    r"bodies: .* of shapes \(0, 3\), \(0, 3\) and \(0,\)": {
        "bodies": nbody.Bodies(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0))
    },
    "bodies: masses hold values that are not finite": {
        "bodies": GOOD._replace(masses=np.array([1, np.inf, 1]))
    },
    r"pes: \(0, 1\); expected at least one row": {"pes": (0, 1)},
    "steps: -1; expected 0 to 65,535": {"steps": -1},
    "every: -2; expected 1 or more steps": {"every": -2},
    "dt, softening: 0.1 and 0.0; expected a finite time, and a length": {"softening": 0.0},
    "dt, softening: nan and 0.1": {"dt": np.nan},
    r"bodies: 500 on a PE take 48,144 bytes; its memory holds 47,104: take": {
        "bodies": cluster(500)
    },
}


@pytest.mark.parametrize("message", BAD)
def test_errors(message):
    good = {"pes": (1, 1), "bodies": GOOD, "steps": 1, "dt": 0.1, "softening": 0.1}
    with pytest.raises(WaferError, match=message):
        nbody.run(**(good | BAD[message]))
