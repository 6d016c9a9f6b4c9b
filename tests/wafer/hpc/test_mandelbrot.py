"""The Mandelbrot set on PEs: the counts of NumPy's single precision, and its cycles."""

import numpy as np
import pytest

from wafer.hpc import mandelbrot


def all_at_once(shape, corner, pixel, limit):
    """Steps of all pixels together, in float32, by the order of operations that the text has."""
    left, top, pixel = np.array([corner.real, corner.imag, pixel], np.float32)
    real = left + np.arange(shape[1], dtype=np.float32) * pixel
    imag = (top + np.arange(shape[0], dtype=np.float32) * pixel)[:, None]
    x, y = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    steps, within = np.zeros(shape, int), np.ones(shape, bool)
    for _ in range(limit):
        within &= x * x + y * y <= 4
        steps += within
        moved = x * x - y * y + real, (x + x) * y + imag
        x, y = (np.where(within, new, old) for new, old in zip(moved, (x, y), strict=True))
    return steps


@pytest.mark.parametrize(
    ("pes", "block", "limit"),
    [
        ((1, 1), (4, 4), 20),
        ((2, 3), (3, 5), 40),
        ((4, 4), (4, 4), 100),
        ((1, 1), (11, 16), 9),  # the largest whose loops are unrolled
        ((1, 1), (12, 16), 9),
        ((1, 1), (8, 17), 9),
        ((1, 1), (9, 17), 9),
    ],
)
def test_steps_and_cycles(pes, block, limit):
    shape = pes[0] * block[0], pes[1] * block[1]
    picture = {"corner": -2 - 1.25j, "pixel": 2.5 / shape[0], "limit": limit}
    steps, spent = mandelbrot.run(pes, block, **picture)
    np.testing.assert_array_equal(steps, all_at_once(shape, **picture))
    assert 1 == steps.min() < steps.max() == limit
    assert mandelbrot.cycles(steps, pes, limit) == spent


def test_hand_computed_points():
    """-2 stays, at the radius; from 1: 0, 1, 2, 5; from 4: 0, 4."""
    steps, _ = mandelbrot.run((1, 1), (1, 3), -2 + 0j, 3.0, 50)
    assert steps.tolist() == [[50, 3, 1]]
