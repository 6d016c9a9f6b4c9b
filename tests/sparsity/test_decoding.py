"""Generation with kept weights only says, token for token, what the dense weights say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models
from wafer.models.paths import map_named, named_leaves
from wafer.sparsity import decoding
from wafer.sparsity.kernels import DecodeTable, DecodeWeight

pytestmark = pytest.mark.native
SIZES = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 2}
FAMILIES = {
    "gpt2": {"filter_size": 72, "max_position_embeddings": 64},
    "llama": {"filter_size": 40, "max_position_embeddings": 64},
    "gptj": {"filter_size": 64, "max_position_embeddings": 64},
}


def pruned(name, leaf, level=0.7):
    """NaN at a share of every kernel, as a checkpoint has them."""
    if not name.endswith("/kernel") or name.startswith("lm_head"):
        return np.asarray(leaf)
    rng = np.random.default_rng(leaf.size)
    return np.where(rng.random(leaf.shape) < level, np.nan, 5 * np.asarray(leaf))


def trees(name):
    """(model, stored tree with NaN, dense tree with 0)."""
    model = models.build({"name": name, **SIZES, **FAMILIES[name]})
    stored = map_named(pruned, model.init(jax.random.key(3)))
    return model, stored, jax.tree.map(lambda leaf: jnp.asarray(np.nan_to_num(leaf)), stored)


@pytest.mark.parametrize(
    ("family", "rows"),
    [("gpt2", 1), *(pytest.param(name, 3, marks=pytest.mark.slow) for name in ("llama", "gptj"))],
)
def test_greedy_tokens_are_those_of_dense_weights(family, rows):
    model, stored, dense = trees(family)
    converted = decoding.convert(model, named_leaves(stored))
    heads = "lm_head/kernel" in dict(named_leaves(stored))
    assert converted.sparse == converted.kernels - heads > 0
    assert converted.zeros == pytest.approx(0.7, abs=0.03)
    prompt = np.random.default_rng(0).integers(0, 61, (rows, 7))
    expected = models.generate(model, dense, prompt, 24)
    tokens = models.generate(model, converted.params, prompt, 24)
    np.testing.assert_array_equal(tokens, expected)


def rounded(leaf, dtype, axis):
    """What ``dtype`` holds of a weight, with scales along ``axis`` where it is int8."""
    if dtype == jnp.bfloat16:
        return leaf.astype(jnp.bfloat16).astype(jnp.float32)
    scales = abs(leaf).max(axis, keepdims=True) / 127
    return jnp.round(leaf / jnp.where(scales == 0, 1, scales)) * scales


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_other_weights_are_the_rounded_ones(dtype):
    model, stored, dense = trees("gpt2")
    axes = {"kernel": 0, "embedding": 1}
    table = "embed/token/embedding"
    cut = lambda name: name.endswith("/kernel") or name == table
    expected = map_named(
        lambda name, leaf: rounded(leaf, dtype, axes[name.split("/")[-1]]) if cut(name) else leaf,
        dense,
    )
    converted = decoding.convert(model, named_leaves(stored), dtype)
    prompt = np.array([5, 9, 2])
    tokens = models.generate(model, converted.params, prompt, 24)
    np.testing.assert_array_equal(tokens, models.generate(model, expected, prompt, 24))


def test_what_is_read_in_a_step():
    model, stored, dense = trees("gpt2")
    converted = decoding.convert(model, named_leaves(stored))
    leaves = converted.params["layers_0"]["attn"]["query"]
    assert isinstance(leaves["kernel"], DecodeWeight)
    assert isinstance(converted.params["embed"]["token"]["embedding"], DecodeTable)
    kernels = [leaf for name, leaf in named_leaves(dense) if name.endswith("/kernel")]
    kept = sum(np.count_nonzero(leaf) + 32 for leaf in kernels)
    masks = sum(-(-leaf.shape[0] // 64) * 4 * leaf.shape[1] for leaf in kernels)
    pointers = sum(leaf.shape[1] + 1 for leaf in kernels)
    assert converted.nbytes == 4 * kept + 2 * masks + 4 * pointers + 4 * 61 * 32


def test_a_model_that_is_not_pruned_stays_as_it_is():
    model, _, dense = trees("gpt2")
    converted = decoding.convert(model, named_leaves(dense))
    assert converted.sparse == 6  # zeros are pruned weights as NaN are
    full = jax.tree.map(jnp.ones_like, dense)
    converted = decoding.convert(model, named_leaves(full))
    assert converted.sparse == converted.kernels == 0
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(converted.params))


def test_what_cannot_decode_so_is_named(monkeypatch):
    model, _, _ = trees("gpt2")
    assert decoding.problem(model) is None
    lora = {"lora_params": {"r": 2, "target_modules": ["query"]}}
    adapted = models.build({"name": "gpt2", **SIZES, **FAMILIES["gpt2"], **lora})
    assert "adapters" in str(decoding.problem(adapted))
    monkeypatch.setattr("wafer.sparsity.kernels.native.usable", lambda: False)
    assert "native kernels are not there" in str(decoding.problem(model))
