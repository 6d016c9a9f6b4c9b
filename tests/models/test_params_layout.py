"""Keys of Qwen 3, OLMo 2 and Gemma 3: norms of queries, keys and outputs, layers with a window."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches import rows
from helpers.hf_parity import CHEAP, shaken

from wafer import models
from wafer.models.layers.attention import Attention
from wafer.models.layers.blocks import Block, Stream, no_attend, no_dropout
from wafer.models.layers.feed_forward import Experts
from wafer.models.registry import parse_config

SIZES = {"vocab_size": 16, "hidden_size": 8, "num_heads": 2, "filter_size": 8}
SIZES |= {"num_hidden_layers": 2, "max_position_embeddings": 8}
ONE = jnp.asarray([3])  # a position


def config(name, **keys):
    return parse_config({"name": name, **SIZES, **keys})


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_only_outputs_are_normalized(factor):
    """Attention is linear where the query is its output: a larger input adds the same."""
    cfg = config("olmo2", attention_qk_norm_layer=None, layer_norm_epsilon=1e-12)
    x = factor * jnp.arange(1.0, 9.0)[None]
    block = Block(cfg)
    params = block.init(jax.random.key(0), Stream(x), ONE, no_attend, no_dropout)["params"]
    assert params.keys() == {"attn", "norm1_post", "norm2_post", "ffn"}
    params["ffn"]["down"]["kernel"] *= 0
    added = block.apply({"params": params}, Stream(x), ONE, no_attend, no_dropout).x - x
    assert float(jnp.square(added).mean()) == pytest.approx(1.0, rel=1e-4)
    unit = x / factor
    once = block.apply({"params": params}, Stream(unit), ONE, no_attend, no_dropout).x - unit
    np.testing.assert_allclose(added, once, atol=2e-4)


@pytest.mark.parametrize(("whole", "shape", "axes"), [(True, (8,), (1, 2)), (False, (4,), 2)])
def test_queries_are_normalized_over_all_heads_or_each(whole, shape, axes):
    cfg = config("qwen3", position_embedding_type=None, attention_qk_norm_whole=whole)
    seen = {}

    def attend(q, k, v, **rules):
        seen.update(q=q, k=k, v=v)
        return q

    x = jnp.arange(1.0, 9.0)[None]
    params = Attention(cfg).init(jax.random.key(0), x, ONE, attend)["params"]
    assert params["query_norm"]["scale"].shape == params["key_norm"]["scale"].shape == shape
    Attention(cfg).apply({"params": params}, x, ONE, attend)
    for name in "qk":
        np.testing.assert_allclose(jnp.square(seen[name]).mean(axes), 1.0, rtol=1e-3)
    assert float(jnp.square(seen["v"]).mean()) < 0.5


def test_layers_with_a_window_by_hand():
    window = {"attention_sliding_window_length": 2, "num_hidden_layers": 7}
    gemma3 = config("gemma3_text", **window, full_attention_interval=3)
    assert gemma3.local_layers == [True, True, False, True, True, False, True]
    # of four tokens an average one sees 2.5 keys, with a window of two (1 + 2 + 2 + 2) / 4
    assert gemma3.attended_keys(4) == pytest.approx(5 * 1.75 + 2 * 2.5)
    gemma2 = config("gemma2", **window)
    assert gemma2.local_layers == [True, False, True, False, True, False, True]
    assert config("mistral", **window).local_layers == [True] * 7
    with pytest.raises(ValueError, match=r"full_attention_interval: cannot be combined with slid"):
        config("gemma2", full_attention_interval=2)
    with pytest.raises(ValueError, match=r"norm_outputs_only: cannot .* norm_first_sandwich and n"):
        config("gemma3_text", norm_outputs_only=True, norm_first=False)


@pytest.mark.parametrize(
    ("window", "local", "theta"), [(2, True, 9.0), (2, False, 5.0), (None, True, 5.0)]
)
def test_a_layer_with_a_window_rotates_by_its_own_base(window, local, theta):
    """As one whose only base that is, and without the scaling of the others."""
    keys = {"attention_sliding_window_length": window, "rope_theta": 5.0}
    own = config("gemma3_text", **keys, rope_theta_local=9.0, pos_scaling_factor=2.0)
    scale = 1.0 if theta == 9.0 else 2.0
    plain = config("gemma3_text", **keys | {"rope_theta": theta}, pos_scaling_factor=scale)
    plain = plain.model_copy(update={"rope_theta_local": None})
    x, at = jnp.ones((1, 8)), jnp.asarray([3])
    params = Attention(own).init(jax.random.key(0), x, at, no_attend)
    one, other = (Attention(cfg, local).apply(params, x, at, no_attend) for cfg in (own, plain))
    np.testing.assert_array_equal(one, other)


def test_weights_of_experts_are_probabilities_or_their_shares():
    parts = {"hidden_size": 4, "filter_size": 4, "nonlinearity": "relu", "use_bias": False}
    parts |= dict.fromkeys(("init_in", "init_out"), jax.nn.initializers.ones)
    x = jnp.ones((1, 4))
    shares, raw = (Experts(3, 2, parts, normalize=each) for each in (True, False))
    params = shares.init(jax.random.key(0), x)["params"]
    logits = jnp.log(jnp.asarray([0.5, 0.3, 0.2]))  # the router's, a quarter from each feature
    params["router"]["kernel"] = jnp.tile(logits / 4, (4, 1))
    expert = 16.0  # relu(4 ones) times 4 ones
    np.testing.assert_allclose(
        shares.apply({"params": params}, x)[0], np.full((1, 4), expert), rtol=1e-6
    )
    np.testing.assert_allclose(
        raw.apply({"params": params}, x)[0], np.full((1, 4), 0.8 * expert), rtol=1e-6
    )
    with pytest.raises(ValueError, match="null_expert_bias: read with normalize_top_k: true only"):
        config("mixtral", moe={"num_experts": 2, "null_expert_bias": 1.0, "normalize_top_k": False})


def test_gemma_3_with_plain_scales_is_written_for_hugging_face_and_computes_the_same(tmp_path):
    plain = dict.fromkeys(("norm_type", "attention_qk_norm_layer"), "rmsnorm")
    keys = {"attention_sliding_window_length": 3, "full_attention_interval": 2}
    keys |= {"rope_theta_local": 10.0, "pos_scaling_factor": 2.0, **plain}
    model = models.build({"name": "gemma3_text", **SIZES, **keys})
    params = shaken(model)
    models.to_hf(model, params, tmp_path)
    other, read = models.from_hf(tmp_path)
    assert other.config.norm_type == other.config.attention_qk_norm_layer == "rmsnorm-1p"
    assert other.config.rotary_interleaved is False
    batch = rows(jnp.arange(8))
    apply = lambda m, p: np.asarray(jax.jit(m.apply, compiler_options=CHEAP)(p, batch))
    ours = apply(model, params)
    np.testing.assert_allclose(apply(other, read), ours, atol=2e-6 * np.abs(ours).max())
