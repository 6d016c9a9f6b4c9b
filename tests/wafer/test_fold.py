"""``wafer finalize --fold_lora`` of adapters on a base that is sparse."""

import jax
import numpy as np
import pytest
from helpers.runs import TINY

import wafer
from wafer import models
from wafer.commands.checkpoints.finalize import fold_lora
from wafer.models.checkpoint.writer import write_params
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves

MODEL = TINY | {"lora_params": {"r": 2, "alpha": 4, "target_modules": ["ffn/up"]}}
KERNEL = "layers_0/ffn/up/kernel"
PRUNED = [KERNEL, "layers_0/attn/query/kernel"]


def test_adapters_do_not_fill_pruned_weights(tmp_path):
    """Refused; of a finalized base the same outputs come back, dense, and the line says so."""
    leaves = dict(named_leaves(models.build(MODEL).init(jax.random.key(0))))
    leaves = {name: np.array(leaf) for name, leaf in leaves.items()}
    leaves["layers_0/ffn/up/lora_up"] += 1
    other = leaves["layers_0/attn/query/kernel"]
    leaves[KERNEL][:4] = other[0] = np.nan
    write_params(tmp_path / "sparse", MODEL, list(leaves), leaves.items(), PRUNED)
    with pytest.raises(CheckpointError, match=r"would fill 64 pruned weights of 1 kernels"):
        fold_lora(tmp_path / "sparse", tmp_path / "folded")
    assert not (tmp_path / "folded").exists()
    wafer.finalize(tmp_path / "sparse", tmp_path / "dense")
    lines = fold_lora(tmp_path / "dense", tmp_path / "folded")
    assert any("64 weights that were 0 are not 0 now" in line for line in lines)
    folded = dict(named_leaves(wafer.load(tmp_path / "folded")[1]))
    base = np.nan_to_num(leaves[KERNEL])
    update = 2 * leaves["layers_0/ffn/up/lora_down"] @ leaves["layers_0/ffn/up/lora_up"]
    np.testing.assert_allclose(folded[KERNEL], base + update, rtol=1e-5)


def test_pruned_weights_beside_the_adapters_are_no_reason_to_refuse(tmp_path):
    leaves = dict(named_leaves(models.build(MODEL).init(jax.random.key(0))))
    leaves = {name: np.array(leaf) for name, leaf in leaves.items()}
    leaves["layers_0/attn/query/kernel"][0] = np.nan
    write_params(tmp_path / "sparse", MODEL, list(leaves), leaves.items(), PRUNED)
    fold_lora(tmp_path / "sparse", tmp_path / "folded")
    assert not wafer.load(tmp_path / "folded")[1]["layers_0"]["attn"]["query"]["kernel"][0].any()
