"""Tokens per second by closed forms: against counts by hand and simulated products."""

import numpy as np
import pytest

from wafer.errors import WaferError
from wafer.hpc.mesh import gemm, gemv, llama, tree

SMALL = llama.Model(width=32, hidden=64, heads=4, kv_heads=2, head=8, layers=2)


def test_parts_of_a_layer_by_hand():
    """On 4 x 4 PEs: 8 numbers of the residual, 16 of the hidden part, 4 of keys, 8 tokens."""
    parts = llama.decode_layer(SMALL, 4, 32)
    keys = 2 * gemv.product_cycles(8, 8, np.float16)
    asked = gemv.product_cycles(8, 8, np.float16)
    assert parts["q, k, v"] == asked + keys + tree.cycles(4, 16)
    assert parts["down"] == gemv.product_cycles(16, 8, np.float16) + tree.cycles(4, 8) + 10 + 2
    assert parts["scores"] == gemv.product_cycles(8, 8, np.float16) + tree.cycles(2, 16)
    product = gemm.block_cycles(4, 8, 8, 8, np.float16)
    assert llama.prefill_layer(SMALL, 4, 32)["q, k, v"] == 3 * product


@pytest.mark.parametrize("size", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_products_and_sums_are_those_simulated(size):
    """The feed-forward part of a small layer, product by product."""
    rng = np.random.default_rng(size)
    spent = 0
    for rows, columns in ((8, 16), (8, 16), (16, 8)):
        shape = (rows * size, columns * size)
        x, matrix = rng.standard_normal(shape[0]), rng.standard_normal(shape)
        spent += gemv.run(x, matrix, (size, size), dtype=np.float16)[1]
    small = llama.Model(8 * size, 16 * size, 1, 1, 8 * size, 1)
    parts = llama.decode_layer(small, size, 8 * size)
    closed = parts["gate, up"] + parts["down"] + tree.cycles(size, 16) * 2 - tree.cycles(size, 32)
    assert closed == pytest.approx(spent, rel=0.05)


def test_what_the_wafer_holds():
    assert llama.meshes(360) == 4
    assert llama.layers_of_a_mesh(llama.LLAMA3_8B, 360) == 9
    assert llama.cache_tokens(llama.LLAMA3_8B, 360) == 360 * llama.cache_tokens(
        llama.LLAMA3_8B, 360, shifts=False
    )
    with pytest.raises(WaferError, match=r"size: 660 x 660 PEs hold 27 of the model's 32 layers"):
        llama.cache_tokens(llama.LLAMA3_8B, 660)


def test_the_last_matrix_takes_its_time():
    without = llama.LLAMA3_8B._replace(vocabulary=0)
    rates = [llama.decode_rate(model, 540, 4096) for model in (llama.LLAMA3_8B, without)]
    assert 0.98 < rates[0] / rates[1] < 1
