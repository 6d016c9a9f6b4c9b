"""Waves on PEs: the same field in NumPy, energy, and cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import wave

WEIGHTS = np.array([-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560])
LARGE = pytest.param((11, 10, 7), marks=pytest.mark.slow)
CASES = [(1, 1, 1), (1, 1, 11), (1, 2, 5), (3, 1, 2), (1, 12, 3), (10, 1, 8), (3, 4, 9), LARGE]


def medium(shape):
    """A field and speeds, float32, no two cells alike."""
    rng = np.random.default_rng(sum(shape))
    field = rng.standard_normal(shape).astype(np.float32)
    return field, rng.uniform(0.1, 0.45, shape).astype(np.float32)


def neighbours(at, size):
    """Places within four of one, as their turns to send come: by the remainder modulo nine."""
    near = [k for k in range(size) if 0 < abs(k - at) <= 4]
    return sorted(near, key=lambda k: k % 9)


def in_single_precision(field, speed, steps):
    """Column by column, sums in the order of the program."""
    weights, change = WEIGHTS.astype(np.float32), np.zeros_like(field)
    height, width, cells = field.shape
    for _ in range(steps):
        wide = np.pad(field, ((0, 0), (0, 0), (4, 4)))
        total = field * (3 * weights[0])
        for away in range(1, 5):
            for first in (4 - away, 4 + away):
                total += wide[..., first : first + cells] * weights[away]
        for x in range(width):
            for other in neighbours(x, width):
                total[:, x] += field[:, other] * weights[abs(other - x)]
        for y in range(height):
            for other in neighbours(y, height):
                total[y] += field[other] * weights[abs(other - y)]
        change = change + total * (speed * speed)
        field = field + change
    return field


def second_derivative(field):
    """The sum over 25 points, float64, by matrices along each axis."""
    total = np.zeros(field.shape)
    for axis, size in enumerate(field.shape):
        away = np.abs(np.subtract.outer(np.arange(size), np.arange(size)))
        matrix = np.where(away <= 4, WEIGHTS[np.minimum(away, 4)], 0)
        total += np.moveaxis(np.tensordot(matrix, field, (1, axis)), 0, axis)
    return total


@pytest.mark.parametrize("shape", [(9, 1, 9), (1, 9, 9)])
def test_one_step_from_a_single_cell(shape):
    """By hand: what is 1 in the middle is speed squared times the weights around it."""
    middle = tuple(size // 2 for size in shape)
    field = np.zeros(shape, np.float32)
    field[middle] = 1
    after, _ = wave.run(field, np.full(shape, 0.25, np.float32), 1)
    side = [-1 / 560, 8 / 315, -1 / 5, 8 / 5]
    ray = np.array([*side, 16 - 3 * 205 / 72, *side[::-1]]) / 16
    expected = np.zeros_like(field)
    expected[middle[0], middle[1]] = ray
    expected[..., middle[2]] = ray.reshape(shape[:2])
    np.testing.assert_allclose(after, expected, rtol=1e-6)


@pytest.mark.parametrize("shape", CASES)
def test_bits_and_cycles(shape):
    field, speed = medium(shape)
    for steps in (1, 5):
        after, spent = wave.run(field, speed, steps)
        np.testing.assert_array_equal(after, in_single_precision(field, speed, steps))
        height, width, cells = shape
        assert wave.cycles(height, width, cells, steps) == spent


def test_a_field_of_many_steps_in_double_precision():
    field, speed = medium((2, 5, 6))
    now, change = field.astype(np.float64), np.zeros(field.shape)
    for _ in range(50):
        change = change + second_derivative(now) * speed.astype(np.float64) ** 2
        now = now + change
    after, _ = wave.run(field, speed, 50)
    np.testing.assert_allclose(after, now, atol=2e-5)


def test_energy_stays():
    """Of the leapfrog: the change's half square, and a field's product with the one before it."""
    field, speed = medium((2, 2, 6))

    def energy(steps):
        before, after = (wave.run(field, speed, n)[0].astype(float) for n in (steps, steps + 1))
        moving = (((after - before) / speed) ** 2).sum()
        return (moving - (after * second_derivative(before)).sum()) / 2

    assert energy(400) == pytest.approx(energy(1), rel=1e-5)


@pytest.mark.parametrize("cells", [1, 8, 100])
def test_a_step_takes_as_long_on_a_larger_grid(cells):
    """From 13 PEs along an axis on."""
    spent = [wave.run(np.ones((1, n, cells)), np.full((1, n, cells), 0.1), 4)[1] for n in (13, 17)]
    assert spent[0] == pytest.approx(spent[1], rel=0.02)
    assert wave.cycles(13, 13, cells, 4) == wave.cycles(90, 17, cells, 4)


def test_errors():
    field = np.ones((2, 2, 3))
    with pytest.raises(WaferError, match=r"field: shape \(2, 2\); expected \[height, width, "):
        wave.run(field[..., 0], field[..., 0], 1)
    with pytest.raises(
        WaferError, match=r"speed: shape \(2, 2, 2\); expected the field's, \(2, 2, 3\)"
    ):
        wave.run(field, field[..., :2], 1)
    with pytest.raises(
        WaferError, match=r"speed: 1.0 at row 0, column 0, cell 0; expected 0 to 0.45"
    ):
        wave.run(field, field, 1)
    with pytest.raises(WaferError, match="speed: nan at row 0"):
        wave.run(field, np.full(field.shape, np.nan), 1)
