"""Products of matrices on a square mesh of PEs."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc.mesh import gemm

# PEs of a row; rows, inner size and columns of the product; type and largest error. Constants are
# read off runs of 1 to 6 PEs.
SINGLE, HALF = (np.float32, 1e-5), (np.float16, 0.05)
CASES = [
    (1, (3, 5, 6), HALF),
    (2, (4, 4, 8), SINGLE),
    (3, (7, 8, 10), HALF),
    (4, (4, 16, 16), SINGLE),
    (5, (12, 7, 41), HALF),
    (2, (26, 2, 8), SINGLE),  # more rows than a loop that is unrolled has
    pytest.param(6, (13, 12, 30), SINGLE, marks=pytest.mark.slow),
    pytest.param(7, (21, 14, 28), HALF, marks=pytest.mark.slow),
]


def medium(shape):
    rng = np.random.default_rng(sum(shape))
    rows, inner, columns = shape
    return rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))


@pytest.mark.parametrize(("size", "shape", "precision"), CASES)
def test_product_and_cycles(size, shape, precision):
    dtype, limit = precision
    a, b = medium(shape)
    c, spent = gemm.run(a, b, size, dtype=dtype)
    np.testing.assert_allclose(c, a @ b, atol=limit, rtol=0)
    assert gemm.cycles(size, shape, dtype=dtype) == pytest.approx(spent, rel=0.03)


def test_by_hand():
    """Ones and a permutation: columns change places."""
    a = np.arange(16.0).reshape(4, 4)
    c, _ = gemm.run(a, np.eye(4)[[2, 0, 3, 1]], 4)
    np.testing.assert_array_equal(c, a[:, [1, 3, 0, 2]])


@pytest.mark.parametrize("size", range(2, 12))
def test_rings_have_no_long_links(size):
    spots = np.arange(size)
    ring = gemm.line(spots, size)
    assert sorted(ring) == spots.tolist()
    np.testing.assert_array_equal(gemm.place(ring, size), spots)
    assert abs(ring - np.roll(ring, -1)).max() <= 2


def test_words_and_products_take_turns():
    """Four more numbers of A: 4 x (16 + 7) cycles of products, and twice 4 + 64 words."""
    steps = []
    for inner in (4, 8):
        a, b = np.ones((6, 6 * inner)), np.ones((6 * inner, 96))
        spent = [gemm.run(a[:n, : n * inner], b[: n * inner, : 16 * n], n)[1] for n in (2, 3)]
        steps.append(spent[1] - spent[0])
    assert steps[1] - steps[0] == pytest.approx(4 * 23 + 2 * 68, abs=1)


def test_errors():
    a, b = medium((4, 3, 5))
    cases = [
        ((a, b[:2], 2), {}, r"a: shape \(4, 3\), b: shape \(2, 5\); expected \[rows, inner\]"),
        ((a[0], b, 2), {}, r"a: shape \(3,\)"),
        ((a, b, 0), {}, "size: 0; expected PEs of a row of the mesh, at least 1"),
        ((a, b * np.nan, 2), {}, "b: holds values that are not finite in float32"),
        ((a, b, 2), {"dtype": "float64"}, "dtype: float64; expected float32 or float16"),
    ]
    for arguments, options, message in cases:
        with pytest.raises(WaferError, match=message):
            gemm.run(*arguments, **options)
