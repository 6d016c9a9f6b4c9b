"""The published kernels against NumPy in float64, with their cycle formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import fabric
from wafer.fabric import library as kernels
from wafer.fabric.library.collectives import all_reduce, start_clock
from wafer.fabric.library.stencils import COEFFICIENTS
from wafer.spec import WSE2

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def whole(tiles):
    """[H, W, m, n] tiles to the [H m, W n] matrix."""
    h, w, m, n = tiles.shape
    return np.asarray(tiles, np.float64).transpose(0, 2, 1, 3).reshape(h * m, w * n)


def test_gemv_value_cycles_and_gradient():
    a, x = normal(3, 4, 5, 6), np.broadcast_to(normal(1, 4, 6), (3, 4, 6))
    y, clock = jax.jit(kernels.gemv, static_argnames="algorithm")(
        a, x, start_clock(3, 4), algorithm="chain"
    )
    want = whole(a) @ np.asarray(x[0], np.float64).reshape(-1)
    np.testing.assert_allclose(np.asarray(y)[:, 0].reshape(-1), want, rtol=2e-5, atol=1e-5)
    # row 2, the last to get x: 6 + 2 + 5; 6 fmacs of 5; chain of 5 words over 4 PEs
    assert int(clock[2, 0]) == (6 + 2 + 5) + 6 * (1 + 5 + 43) + 5 + 6 * 3


@pytest.mark.parametrize("gemm", [kernels.summa, kernels.cannon])
def test_gemm(gemm):
    a, b = normal(3, 3, 4, 5), normal(3, 3, 5, 2)
    c, clock = jax.jit(gemm)(a, b, start_clock(3, 3))
    np.testing.assert_allclose(whole(c), whole(a) @ whole(b), rtol=2e-5, atol=2e-5)
    assert int(clock.min()) >= 3 * 5 * 2 * (1 + 4 + 43)
    with pytest.raises(fabric.FabricError, match=r"expected \[P, P, m, k\]"):
        gemm(a, b[:2], start_clock(3, 3))


def test_sparse_matvec_pays_for_kept_entries_only():
    h, w, m, n, most = 2, 3, 4, 5, 7
    counts = RNG.integers(0, most + 1, (h, w))
    rows, cols = RNG.integers(0, m, (h, w, most)), RNG.integers(0, n, (h, w, most))
    values, x = normal(h, w, most), np.broadcast_to(normal(1, w, n), (h, w, n))
    y, clock = kernels.sparse_matvec((values, rows, cols, counts), x, m, start_clock(h, w))
    dense = np.zeros((h, w, m, n))
    for i, j in np.ndindex(h, w):
        for e in range(counts[i, j]):
            dense[i, j, rows[i, j, e], cols[i, j, e]] += values[i, j, e]
    want = whole(dense) @ np.asarray(x[0], np.float64).reshape(-1)
    np.testing.assert_allclose(np.asarray(y)[:, 0].reshape(-1), want, rtol=1e-5, atol=1e-5)
    _, empty = kernels.sparse_matvec((values, rows, cols, 0 * counts), x, m, start_clock(h, w))
    assert int(empty.max()) < int(clock.max())


def test_streamed_sparse_layer():
    h, w, f, d, t = 3, 2, 4, 5, 3
    weight, x = normal(h, f, d), normal(h, w, f, t)
    mask = RNG.random((h, f, d)) < 0.3
    y, clock = kernels.streamed_sparse_layer(weight, mask, x, start_clock(h, w))
    want = np.einsum("hfd,hwft->wdt", weight * mask, x, dtype=np.float64)
    np.testing.assert_allclose(y[0], want, rtol=1e-5, atol=1e-5)
    cost = lambda mask: int(
        kernels.streamed_sparse_layer(weight, mask, x, start_clock(h, w))[1].max()
    )
    one = np.zeros_like(mask)
    one[:, 0, 0] = True
    # each kept weight costs one fmacs over the tokens, a pruned one nothing
    two = one.copy()
    two[:, 1, 1] = True
    assert cost(two) - cost(one) == 1 + t + 15
    grads = jax.grad(lambda w: kernels.streamed_sparse_layer(w, mask, x, clock)[0].sum())(weight)
    assert not np.asarray(grads)[~mask].any()


def test_tile_low_rank():
    u, v, x = normal(2, 3, 4, 2), normal(2, 3, 2, 5), np.broadcast_to(normal(1, 3, 5), (2, 3, 5))
    y, clock = kernels.tlr_matvec(u, v, x, start_clock(2, 3))
    want = whole(np.einsum("hwmr,hwrn->hwmn", u, v)) @ np.asarray(x[0], np.float64).reshape(-1)
    np.testing.assert_allclose(np.asarray(y)[:, 0].reshape(-1), want, rtol=1e-4, atol=1e-5)
    assert int(clock.max()) >= 5 * (1 + 2 + 43) + 2 * (1 + 4 + 43)


def test_wave_step_of_25_points():
    u, before = normal(6, 7, 5), normal(6, 7, 5)
    speed = np.full_like(u, 0.1)
    got, clock = jax.jit(kernels.wave_step)(u, before, speed, start_clock(6, 7))
    r, wide = 4, np.pad(u.astype(np.float64), 4)
    laplace = 3 * COEFFICIENTS[0] * u.astype(np.float64)
    for k in range(1, 5):
        for axis in range(3):
            for sign in (-k, k):
                index = [slice(r, -r)] * 3
                index[axis] = slice(r + sign, r + sign + u.shape[axis])
                laplace += COEFFICIENTS[k] * wide[tuple(index)]
    np.testing.assert_allclose(got, 2 * u - before + 0.1 * laplace, rtol=1e-4, atol=1e-4)
    assert int(clock.max()) >= 27 * 5


def operator(c, x):
    """The 7-point operator on whole arrays."""
    p = np.pad(x, 1)
    mid = slice(1, -1)
    near = [x, p[:-2, mid, mid], p[mid, 2:, mid], p[2:, mid, mid], p[mid, :-2, mid]]
    near += [p[mid, mid, :-2], p[mid, mid, 2:]]
    return sum(ci * ni for ci, ni in zip(c, near, strict=True))


def test_bicgstab_on_seven_points():
    shape = (4, 5, 6)
    c = -0.1 * RNG.random((7, *shape))
    c[0] = 1.0
    b = RNG.standard_normal(shape)
    ax, _ = kernels.seven_point(
        jnp.asarray(c, jnp.float32), jnp.asarray(b, jnp.float32), start_clock(4, 5)
    )
    np.testing.assert_allclose(ax, operator(c, b), rtol=1e-4, atol=1e-5)
    solve = jax.jit(kernels.bicgstab, static_argnums=2)
    x, residual, clock = solve(c.astype(np.float32), b.astype(np.float32), 8, start_clock(4, 5))
    np.testing.assert_allclose(operator(c, np.asarray(x, np.float64)), b, atol=1e-4)
    assert float(residual) < 1e-8
    _, _, short = solve(c.astype(np.float32), b.astype(np.float32), 4, start_clock(4, 5))
    # cycles per iteration are constant up to who waits for whom
    assert 1.8 < int(clock.max()) / int(short.max()) < 2.1


def test_cross_section_lookup():
    h, w, nuclides, points, channels, batch = 2, 3, 2, 17, 5, 4
    grid = np.sort(RNG.random((h, w, nuclides, points)).astype(np.float32), axis=-1)
    tables, density = normal(h, w, nuclides, points, channels), normal(h, w, nuclides)
    energy = np.broadcast_to(RNG.random((h, 1, batch)).astype(np.float32), (h, w, batch))
    energy = np.clip(energy, grid.min(-1).max(), grid.max(-1).min())
    got, clock = kernels.cross_section_lookup(grid, tables, density, energy, start_clock(h, w))
    want = np.zeros((h, batch, channels))
    for i, j, k, r in np.ndindex(h, w, nuclides, channels):
        micro = np.interp(energy[i, j], grid[i, j, k], tables[i, j, k, :, r])
        want[i, :, r] += density[i, j, k] * micro
    np.testing.assert_allclose(np.asarray(got)[:, 0], want, rtol=2e-3, atol=1e-3)
    assert int(clock.max()) >= batch * nuclides * (10 * 5 + 12)


def bicgstab_cycles(cells, all_reduce_cycles, bits=32):
    """Cycles of one iteration at a PE far from the edges, to within the links' latency.

    In the mixed precision of the paper a wavelet has two elements of 16 bits, and vector operations
    go at the SIMD rate.
    """
    words = -(-cells * bits // 32)
    vector = -(-cells // (WSE2.simd_16bit if bits == 16 else 1)) + WSE2.op_launch
    operator = 4 * (2 * words + 1) + 7 * vector
    return 2 * operator + 4 * (vector + all_reduce_cycles) + 6 * vector


def wave_cycles(cells):
    """Cycles of ``wave_step`` at a PE far from the edges, to within the links' latency.

    A shift over h hops takes ``max(2, h) Z``, h streams sharing every link; then 27 operations.
    """
    shifts = 4 * sum(max(2, hops) for hops in range(1, 5))
    return shifts * cells + 27 * (cells + WSE2.op_launch)


def test_the_wave_formula_follows_its_clock():
    """Both to within the links' latency: 4 shifts of up to 4 hops, 3 cycles a hop."""
    u = np.ones((12, 12, 50), np.float32)
    _, clock = kernels.wave_step(u, u, u, start_clock(12, 12))
    assert abs(int(clock[6, 6]) - wave_cycles(50)) < 16 * 12


def test_bicgstab_formula_follows_its_clock():
    c, b = np.ones((7, 6, 6, 400), np.float32), np.ones((6, 6, 400), np.float32)
    clocks = [kernels.bicgstab(c, b, n, start_clock(6, 6))[2] for n in (2, 3)]
    step = int(clocks[1].max()) - int(clocks[0].max())
    _, once = all_reduce(np.ones((6, 6, 1), np.float32), start_clock(6, 6), axes="xy")
    assert abs(step / bicgstab_cycles(400, int(once.max())) - 1) < 0.02
