"""Cost formulas against the cycles of the fabric's own kernels."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from wafer.compiler.costs import Setting, choices_of, matmul_cycles, tile_cycles
from wafer.compiler.dense_kernel import dense_cost
from wafer.compiler.graph import Kernel, Product
from wafer.fabric import cycles, simulate
from wafer.fabric.library import gemv, streamed_sparse_layer, summa
from wafer.fabric.library.collectives import start_clock
from wafer.fabric.library.kernel_programs import gemv_program
from wafer.fabric.library.kernels import tile_matmul_cycles
from wafer.spec import WSE2


def kernel(kind="matmul", *, T=1, K=64, N=48, bits=32, **more):
    product = Product(1, T, K, N)
    given = {"name": "k", "kind": kind, "layer": "k", "products": (product,), "lanes": 0}
    given |= {"half_lanes": 0, "elements": T * N, "weights": K * N, "names": ("k/kernel",)}
    given |= {"inputs": T * K, "outputs": T * N, "stashed": T * K * bits // 8, "bits": bits}
    return Kernel(**(given | {"needs_dx": True, "needs_dw": True} | more))


def at(choices, rows, columns):
    """The choice of that split."""
    matches = np.flatnonzero((choices.rows == rows) & (choices.columns == columns))
    assert len(matches) == 1
    return int(matches[0])


@pytest.mark.parametrize(("height", "width"), [(4, 8), (6, 4), (12, 16)])
def test_a_vector_through_a_matmul_takes_gemvs_cycles(height, width):
    """Exact: the same broadcast, turns and chain."""
    K, N = 64, 48
    choices = choices_of(kernel(K=K, N=N), Setting(train=False))
    tiles = jnp.zeros((height, width, N // height, K // width))
    x = jnp.zeros((height, width, K // width))
    _, clock = gemv(tiles, x, start_clock(height, width), algorithm="chain")
    assert choices.forward[at(choices, height, width)] == clock.max()


def test_gemvs_cycles_are_those_of_its_program_on_the_engine():
    """Within 2 cycles of the machine."""
    height, width, m, n = 2, 3, 8, 4
    choices = choices_of(kernel(K=n * width, N=m * height), Setting(train=False))
    values = {"a": np.ones((height, width, m * n), np.float32)}
    values["x"] = np.ones((height, width, n), np.float32)
    result = simulate(gemv_program(height, width, m, n), values)
    predicted = choices.forward[at(choices, height, width)]
    assert abs(int(cycles(result)) - int(predicted)) <= 2


def test_chunks_of_vectors_take_summas_cycles():
    """Within 1 %: a step of SUMMA is a chunk of m vectors through a tile of k x n."""
    size, m, k, n = 8, 14, 14, 14
    a, b = jnp.zeros((size, size, m, k)), jnp.zeros((size, size, k, n))
    _, clock = summa(a, b, start_clock(size, size))
    steps, _ = matmul_cycles((size * m, k, n), np.asarray([m]), 1)
    arrived = m * k + k * n + 2 * (size - 1 + 5)
    assert steps[0] + arrived == pytest.approx(int(clock.max()), rel=0.01)
    assert tile_cycles(np.asarray(m), k, n, 1) == tile_matmul_cycles(m, k, n)


def test_kept_weights_take_the_streamed_layers_cycles():
    """Within 7 %: its turn has no loop around it (16 cycles where a loop has 44)."""
    height, F, D, T = 4, 3, 8, 512
    rng = np.random.default_rng(0)
    mask = rng.random((height, F, D)) < 0.25
    weight, x = jnp.zeros((height, F, D)), jnp.zeros((height, 1, F, T))
    _, clock = streamed_sparse_layer(weight, mask, x, start_clock(height, 1))
    own = int(mask.sum(axis=(1, 2)).max())
    density = own / (F * D)
    cycles, _ = matmul_cycles((T, F, D), np.asarray([T]), 1, np.asarray([density]))
    reduce = D * T + 6 * (height - 1)
    assert cycles[0] == pytest.approx(int(clock.max()) - reduce, rel=0.07)


def test_dense_nets_take_the_trainable_kernels_cost():
    setting = Setting(dense=True, micro=4, batch=8, after=2, state_bytes=0)
    layer = kernel(K=64, N=48, needs_dx=False)
    choices = choices_of(layer, setting)
    cost = dense_cost(64, 48, 6, 8, batch=4, input_gradient=False, stages_after=2)
    row = at(choices, 6, 8)
    assert choices.forward[row] == -(-cost.forward // 4)
    assert choices.forward[row] + choices.backward[row] == pytest.approx(cost.period / 4, abs=2)
    assert choices.update[row] == -(-cost.update // 8)


@pytest.mark.parametrize("T", [1, 128])
def test_pruned_weights_take_no_cycles(T):
    setting = Setting(batch=4)
    dense = choices_of(kernel(T=T, K=256, N=256, bits=16), setting)
    sparse = choices_of(kernel(T=T, K=256, N=256, bits=16, density=0.1), setting)
    row, same = at(dense, 16, 16), at(sparse, 16, 16)
    if T > 1:
        assert sparse.cycles[same] < 0.25 * dense.cycles[row]  # the fullest of 256 tiles keeps 19 %
    assert sparse.sram[same] < dense.sram[row]


def test_more_pes_are_never_slower_and_never_need_more_memory():
    attention = kernel("attention", T=64, K=16, N=64, weights=0, needs_dw=False)
    second = Product(2, 16, 64, 64)
    heads = dataclasses.replace(attention.products[0], groups=2)
    attention = dataclasses.replace(attention, products=(heads, second))
    for one in (kernel(T=64), attention, kernel("norm", T=64, products=(), lanes=9000)):
        choices = choices_of(one, Setting())
        small = at(choices, int(choices.rows.min()), int(choices.columns.min()))
        assert choices.cycles[small] >= choices.cycles.max() * 0.99
        assert choices.sram[small] == choices.sram.max()


def test_memory_counts_weights_state_and_waiting_activations():
    """One PE: 4 KiB of code; master, gradient and 8 bytes of moments per weight; 3 stashes."""
    choices = choices_of(kernel(T=2, K=8, N=4), Setting(waiting=3, state_bytes=8.0))
    buffers = 2 * (8 + 4) * 2 * 4  # two vectors, in and out, twice
    assert choices.sram[at(choices, 1, 1)] == 4096 + 32 * (4 + 4 + 8) + 3 * 2 * 8 * 4 + buffers


def test_simd_and_packing_of_16_bit():
    wide, narrow = (choices_of(kernel(T=64, bits=b), Setting()) for b in (32, 16))
    row = at(wide, 8, 8)
    k, n = 8, 6
    assert wide.forward[row] - narrow.forward[row] >= k * n * (64 - 64 // WSE2.simd_16bit)
