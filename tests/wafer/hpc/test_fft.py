"""Transforms across PEs: beside numpy.fft in double precision, by hand, backwards, and cycles."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc import fft

CASES = [
    ((4,), (1, 1)),
    ((16,), (1, 2)),
    ((128,), (1, 5)),
    ((2, 2), (1, 1)),
    ((8, 8), (1, 3)),
    ((4, 16), (1, 4)),
    ((4, 4), (1, 7)),
    ((32, 8), (1, 8)),
    ((4, 4, 4), (1, 1)),
    ((2, 2, 2), (2, 2)),
    ((8, 4, 8), (3, 2)),
    ((2, 16, 4), (4, 1)),
    pytest.param((4096,), (1, 16), marks=pytest.mark.slow),
    pytest.param((64, 64), (1, 64), marks=pytest.mark.slow),
    pytest.param((16, 16, 16), (16, 16), marks=pytest.mark.slow),
    pytest.param((16, 32, 8), (5, 11), marks=pytest.mark.slow),
]


def noise(shape):
    rng = np.random.default_rng(sum(shape))
    return rng.standard_normal(shape) + 1j * rng.standard_normal(shape)


@pytest.mark.parametrize(("shape", "pes"), CASES)
def test_values_and_cycles(shape, pes):
    values = noise(shape)
    got, spent = fft.run(values, pes)
    want = np.fft.fftn(values)
    assert got.dtype == np.complex64
    assert abs(got - want).max() < 1e-6 * abs(want).max()
    assert fft.cycles(shape, pes) == pytest.approx(spent, rel=0.03)


@pytest.mark.parametrize(("shape", "pes"), [((32,), (1, 3)), ((4, 8), (1, 2)), ((2, 4, 8), (2, 3))])
def test_inverse_leads_back(shape, pes):
    values = noise(shape)
    there, spent = fft.run(values, pes)
    back, as_long = fft.run(there, pes, inverse=True)
    np.testing.assert_allclose(back, values, atol=1e-6)
    np.testing.assert_allclose(back, np.fft.ifftn(there), atol=1e-6)
    assert spent == as_long


def test_by_hand():
    """A unit at 1 of four: 1, -i, -1, i. Ones: their number, and nothing else."""
    got, _ = fft.run(np.array([0, 1, 0, 0]), (1, 2))
    np.testing.assert_allclose(got, [1, -1j, -1, 1j], atol=1e-7)
    got, _ = fft.run(np.ones((4, 2)), (1, 2))
    np.testing.assert_array_equal(got, [[8, 0]] + [[0, 0]] * 3)


def test_a_wave_and_its_energy():
    """A wave along the axes is one number; energies differ by the number of values."""
    first, second = np.arange(8)[:, None], np.arange(16)[None]
    wave = np.exp(2j * np.pi * (3 * first / 8 + 5 * second / 16))
    got, _ = fft.run(wave, (1, 4))
    assert np.unravel_index(abs(got).argmax(), got.shape) == (3, 5)
    assert abs(got[3, 5] - 128) < 1e-3
    values = noise((8, 16))
    got, _ = fft.run(values, (1, 4))
    assert np.linalg.norm(got) ** 2 == pytest.approx(128 * np.linalg.norm(values) ** 2, rel=1e-6)


def test_the_published_size_by_the_closed_form():
    """512 x 512 x 512 numbers on as many PEs as a plane has: steps, and two equal exchanges."""
    line = (12 + 7 * 7 + 2) * 256 + 8 * 222 + 141
    total = fft.cycles((512, 512, 512), (512, 512))
    exchange = (total - 3 * line) / 2
    longer = 1.68 * (512**2 - 5**2) + 507 * (24 - 0.9)  # from the sixth PE on
    assert exchange == pytest.approx(52 + 5 * 39 + longer, abs=1)


def test_errors():
    cases = [
        ((np.ones((2, 2, 2, 2)), (1, 1)), r"values: shape \(2, 2, 2, 2\); expected one, two or"),
        ((np.ones((6, 8)), (1, 1)), r"expected powers of two from 2 to 2,048, found 6"),
        ((np.ones(2), (1, 1)), r"expected powers of two from 4 to 4,194,304, found 2"),
        ((np.ones((4, 4)), (2, 2)), r"pes: 2 x 2; expected 1 row \(three axes take more\)"),
        ((np.ones((4, 4, 4)), (0, 2)), r"pes: 0 x 2; expected at least 1 row and at least 1"),
        ((np.ones((64, 64)), (1, 1)), r"pes: 1 x 1; each would need 98,\d+ bytes .* more PEs"),
        ((np.full((4, 4), np.nan), (1, 1)), r"values: some are not finite"),
    ]
    for arguments, message in cases:
        with pytest.raises(WaferError, match=message):
            fft.run(*arguments)
