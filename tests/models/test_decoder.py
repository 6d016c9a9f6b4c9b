"""The decoder bundle: stages, configuration errors, generation, muP, patterns, sparse kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.hf_parity import CHEAP, shaken

from wafer import models, vsl
from wafer.models.generation.decode import decode_step
from wafer.models.layers.attention import fixed_sparse_bias
from wafer.models.layers.basic import project
from wafer.models.layers.block_config import FixedSparse
from wafer.models.layers.caches import cached_attend, chunk_layout, init_cache
from wafer.models.names import MODELS
from wafer.models.paths import map_named

TINY = {"name": "gpt2", "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4}
TINY |= {"filter_size": 24, "max_position_embeddings": 32, "dropout_rate": 0.0}
GROUPED = {
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2},
}
VARIANTS = {
    "learned": {},
    "groups": {"name": "llama", **GROUPED, "attention_sliding_window_length": 4},
    "neox": {"name": "gpt-neox", "rotary_interleaved": False, "rotary_dim": 2},
    "relative": {"position_embedding_type": "relative", "scale_qk_dot_by_layer_idx": True},
    "sparse": {"fixed_sparse_attention": {"local_attn_ctx": 4, "vert_size": 1}},
    "cosine": {"attention_type": "scaled_cosine", "norm_first": False},
    "sandwich": {"norm_first_sandwich": True, "final_logit_softcapping": 3.0},
    "experts": {"name": "mixtral", "moe": {"num_experts": 4, "load_balancing_loss_coef": 0.1}},
    "qk_norm": {"attention_qk_norm_layer": "layernorm", "attention_logit_softcapping": 2.0},
    "two bases": {"name": "gemma3_text", "full_attention_interval": 2, "rope_theta_local": 10.0}
    | {"attention_sliding_window_length": 3},
}


DECODERS = [name for name, entry in MODELS.items() if entry.family == "decoder"]
QUICK = {"groups", "relative", "falcon-rw"}


def quick(fn):
    """Compile as cheaply as XLA can: these tests ask for arithmetic, not for speed."""
    return jax.jit(fn, compiler_options=CHEAP)


def tiny(**knobs):
    model = models.build(TINY | knobs)
    return model, shaken(model)


def rows(lengths=(9, 5), size=9, vocab=31):
    ids = np.random.default_rng(0).integers(0, vocab, (len(lengths), size))
    layout = vsl.padded_layout(jnp.asarray(lengths), size)
    labels = np.roll(ids, -1, axis=1).reshape(-1)
    weights = (layout.valid & (layout.positions < jnp.repeat(layout.lengths, size) - 1)) * 1.0
    return ids, models.Batch(jnp.asarray(ids.reshape(-1)), jnp.asarray(labels), weights, layout)


def scores(carry):
    return carry[0] if isinstance(carry, tuple) else carry


@pytest.mark.parametrize(
    "variant",
    [v if v in QUICK else pytest.param(v, marks=pytest.mark.slow) for v in (*VARIANTS, *DECODERS)],
)
def test_a_cached_step_equals_the_whole_sequence(variant):
    wide = {"name": variant, "hidden_size": 32, "filter_size": 48, "num_hidden_layers": 1}
    model, params = tiny(**VARIANTS.get(variant, wide))
    ids, batch = rows()
    full = np.asarray(scores(quick(model.apply)(params, batch))).reshape(2, 9, -1)

    cache = init_cache(model.config, 2, 12, 2)
    step = quick(lambda p, t, n, c: decode_step(model.config, p, t, n, c))
    parts = []
    for chunk in (ids[:, :3], ids[:, 3:6], ids[:, 6:9]):
        added = jnp.asarray([chunk.shape[1]] * 2)
        logits, cache = step(params, jnp.asarray(chunk), added, cache)
        parts.append(np.asarray(logits))
    cached = np.concatenate(parts, axis=1)
    top = 1.0 if variant in VARIANTS else np.abs(full).max()
    np.testing.assert_allclose(cached[0], full[0], atol=5e-6 * top)
    np.testing.assert_allclose(cached[1, :5], full[1, :5], atol=5e-6 * top)
    assert cache.length.tolist() == [9, 9]


def test_generation_follows_the_most_likely_token():
    model, params = tiny()
    ids, _ = rows()
    out = models.generate(model, params, ids, 4, lengths=[9, 5])
    apply = quick(model.apply)
    for row, length in ((0, 9), (1, 5)):
        text = [*ids[row, :length]]
        for token in out[row]:
            layout = vsl.layout_from_lengths(jnp.asarray([len(text)]), 16)
            tokens = jnp.asarray([*text, *[0] * (16 - len(text))])
            batch = models.Batch(tokens, tokens, jnp.zeros(16), layout)
            assert np.asarray(apply(params, batch))[len(text) - 1].argmax() == token
            text.append(token)
    key = jax.random.key(3)
    sampled = models.generate(model, params, ids, 4, temperature=1.0, top_k=1, key=key)
    np.testing.assert_array_equal(sampled[0], out[0])  # the best of one is the best
    with pytest.raises(ValueError, match="exceeds max_position_embeddings 32"):
        models.generate(model, params, ids, 24)
    with pytest.raises(ValueError, match="random key"):
        models.generate(model, params, ids, 1, temperature=0.5)
    with pytest.raises(ValueError, match=r"outside the vocabulary 0\.\.30"):
        models.generate(model, params, [31], 1)


def test_layers_share_one_compilation():
    model, params = tiny(name="llama", num_hidden_layers=4)
    _, batch = rows()
    compiled = {kind: quick(fn) for kind, (_, fn) in model.kinds.items()}
    carry = None
    for stage in model.stages:
        carry = compiled[stage.kind](model.stage_params(stage, params), carry, batch, None)
    assert {kind: fn._cache_size() for kind, fn in compiled.items()} == dict.fromkeys(compiled, 1)
    np.testing.assert_allclose(carry, quick(model.apply)(params, batch), atol=1e-5)


class Halved:
    """A stand-in for a sparse weight: knows its product only."""

    def __init__(self, kernel):
        self.kernel = kernel

    def project(self, x):
        return x @ self.kernel * 0.5


def test_a_kernel_may_be_any_object_with_project():
    model, params = tiny()
    _, batch = rows()

    def swap(name, leaf):
        if name.endswith("ffn/down/kernel"):
            return Halved(leaf)
        return leaf

    halved = map_named(
        lambda name, leaf: leaf * 0.5 if name.endswith("ffn/down/kernel") else leaf, params
    )
    got = quick(lambda p: model.apply(map_named(swap, p), batch))(params)
    np.testing.assert_allclose(got, quick(model.apply)(halved, batch), atol=1e-6)
    assert project(jnp.ones((1, 2)), jnp.ones((2, 3))).tolist() == [[2, 2, 2]]


def test_settings_as_yaml_reads_them():
    cfg = models.build(TINY | {"layer_norm_epsilon": "1e-6", "norm_type": "rmsnorm"}).config
    assert cfg.layer_norm_epsilon == 1e-6
    assert cfg.norm_type == "rmsnorm"
    assert hash(cfg) == hash(cfg.model_copy())


def test_derived_mup_equals_its_definition():
    base = {"mup_base_hidden_size": 8, "mup_base_filter_size": 6}
    cfg = models.build(TINY | base | {"output_logits_alpha": 3.0}).config
    assert cfg.attention_scale == 1 / 4  # 1/d with heads of 4
    assert cfg.logits_scale == 3.0 / 2
    assert cfg.init_of("attention").std == pytest.approx(0.02 * 2**-0.5)
    assert cfg.init_of("attention_out").std == pytest.approx(0.02 * 2**-0.5 / 2)
    assert cfg.init_of("ffn_out").std == pytest.approx(0.02 * 4**-0.5 / 2)
    assert cfg.init_of("embedding").std == 0.02
    explicit = models.build(TINY | {"scale_qk_dot_by_d": True, "output_logits_scale": 0.1}).config
    assert (explicit.attention_scale, explicit.logits_scale) == (1 / 4, 0.1)


def test_default_initialisers():
    model = models.build(TINY | {"hidden_size": 64, "filter_size": 256, "vocab_size": 500})
    params = model.init(jax.random.key(0))
    down = params["layers_0"]["ffn"]["down"]["kernel"]
    token = params["embed"]["token"]["embedding"]
    cut = 0.8796  # standard deviation of a unit normal cut at two sigma
    assert float(token.std()) == pytest.approx(0.02 * cut, rel=0.02)
    assert float(jnp.abs(token).max()) <= 0.04
    assert float(down.std()) == pytest.approx(0.02 / 2 * cut, rel=0.03)
    assert float(jnp.abs(params["layers_0"]["ffn"]["up"]["bias"]).max()) == 0
    other = model.init(jax.random.key(0))
    assert all(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a == b).all()), params, other)))


def test_half_precision_computes_in_half_and_keeps_parameters():
    _, batch = rows()
    model, params = tiny(mixed_precision=True, fp16_type="bfloat16")
    logits = quick(model.apply)(params, batch)
    assert logits.dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    exact = quick(tiny()[0].apply)(params, batch)
    np.testing.assert_allclose(logits.astype(jnp.float32), exact, atol=0.1)
    assert jax.eval_shape(model.loss, params, batch)[0].dtype == jnp.float32


def test_fixed_sparse_pattern_by_hand():
    # blocks of 4; head 0 sees column 3 of earlier blocks, head 1 column 2
    bias = fixed_sparse_bias(FixedSparse(local_attn_ctx=4, vert_size=1), 2)
    seen = np.asarray(bias(jnp.asarray([6]), jnp.arange(7)) == 0)
    assert seen[0, 0].tolist() == [False, False, False, True, True, True, True]
    assert seen[1, 0].tolist() == [False, False, True, False, True, True, True]


def test_loss_scaling_by_sequences():
    _, batch = rows()
    model, params = tiny(loss_scaling="batch_size", loss_weight=0.5)
    by_token = quick(tiny()[0].loss)(params, batch)[1]
    loss, aux = quick(model.loss)(params, batch)
    assert float(aux.weight) == 2
    np.testing.assert_allclose(loss, by_token.loss_sum * 0.5 / 2, rtol=1e-6)
    numbers = models.metric_values(aux.metrics)
    mean = float(by_token.loss_sum / by_token.weight)
    assert numbers["perplexity"] == pytest.approx(np.exp(mean), rel=1e-5)
    assert 0 <= numbers["accuracy"] <= 1


def test_padding_content_does_not_matter():
    _, batch = rows()
    model, params = tiny(name="bloom")
    tokens = jnp.where(batch.layout.valid, batch.tokens, 10**6)
    loss = quick(model.loss)
    a = loss(params, batch)[0]
    b = loss(params, batch._replace(tokens=tokens))[0]
    assert float(a) == float(b)


def write(values, length, added, new):
    """Outputs and values behind a chunk [S, K, 1] of one row, whose scores are all 0."""
    seen = []
    length, zeros = jnp.array([length]), jnp.zeros_like(new)
    layout = chunk_layout(length, jnp.array([added]), len(new))
    attend = cached_attend(jnp.zeros_like(values), values, length, layout, seen)
    return attend(zeros, zeros, new, causal=True)[..., 0], seen[0][1]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_chunk_is_written_behind_the_filled_slots(dtype):
    """By hand: two heads, five slots. Slots of padding and of rejected tokens are set to 0."""
    new = jnp.array([[1.0, 10], [2, 20], [3, 30]])[..., None]
    _, values = write(jnp.zeros((1, 2, 5, 1), dtype), 1, 3, new)
    assert values[0, :, :, 0].tolist() == [[0, 1, 2, 3, 0], [0, 10, 20, 30, 0]]
    assert values.dtype == dtype

    rejected = values.at[:, :, 2:4].set(jnp.nan)
    out, values = write(rejected, 2, 1, new.at[1:].set(jnp.nan))
    assert values[0, :, :, 0].tolist() == [[0, 1, 1, 0, 0], [0, 10, 10, 0, 0]]
    np.testing.assert_allclose(out, [[2 / 3, 20 / 3], [0, 0], [0, 0]], rtol=1e-6)  # means of 3

    _, values = write(values, 3, 3, new)  # the last one is past the capacity
    assert values[0, :, :, 0].tolist() == [[0, 1, 1, 1, 2], [0, 10, 10, 10, 20]]
