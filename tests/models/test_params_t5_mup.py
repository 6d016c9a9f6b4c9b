"""muP of T5 against the vendor's formulas: scales, initial values, learning rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches import rows

from wafer import models, vsl
from wafer.models.paths import named_leaves
from wafer.optim.groups import make_groups, with_mup_rates
from wafer.optim.sections import parse_optimizer
from wafer.vendor.runfile import read as translate

T5 = {"name": "t5", "src_vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
T5 |= {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 2, "dropout_rate": 0.0}
MUP = {"mup_base_d_model": 2, "mup_base_d_ff": 4, "embeddings_alpha": 3.0}
MUP |= {"encoder_attention_logits_alpha": 5.0, "decoder_attention_logits_alpha": 7.0}
MUP |= {"output_logits_alpha": 1.5}


def model_of(**keys):
    out = translate({"model": {**T5, **keys}})
    assert not out.problems
    return models.build(out.sections["model"])


def batch():
    tokens, lengths = np.arange(8).reshape(2, 4), jnp.array([3, 4])
    layout = vsl.padded_layout(lengths, 4)
    return rows(tokens, lengths, source_tokens=tokens.reshape(-1) + 2, source_layout=layout)


@pytest.mark.parametrize("head", [pytest.param(None, marks=pytest.mark.slow), 2])
def test_forward_is_that_of_a_plain_t5_with_the_scales_in_its_weights(head):
    """q.k x alpha / d_kv, and / width where heads keep their size; embeddings x alpha x d^1/2."""
    own = model_of(**MUP, mup_base_d_kv=head)
    params = own.init(jax.random.key(0))
    plain = model_of(share_embedding_weights=False)
    width = 8 / 2
    factor = {"encoder": 5.0 / 4, "decoder": 7.0 / 4}
    if head is None:
        factor = {side: value / width for side, value in factor.items()}

    def fold(path, leaf):
        name = "/".join(key.key for key in path)
        if "/query/" in name:
            return leaf * factor[name[:7]]
        return leaf * 3.0 * 8**0.5 if name == "embed/token/embedding" else leaf

    folded = jax.tree_util.tree_map_with_path(fold, params)
    table = params["embed"]["token"]["embedding"]
    folded["lm_head"] = {"kernel": table.T * 1.5 / width**0.5}
    expected = plain.apply(folded, batch())
    assert own.apply(params, batch()) == pytest.approx(np.asarray(expected), rel=1e-4, abs=1e-5)


def test_initial_values_and_scales_follow_from_the_widths():
    cfg = model_of(**MUP).config
    std = lambda part, half=cfg: half.init_of(part).std
    assert std("embedding") == pytest.approx(8**-0.5)
    assert std("head") == pytest.approx(8**-0.5)
    encoder, decoder = cfg.encoder_block, cfg.decoder_block
    assert std("query", encoder) == pytest.approx((8 * 4) ** -0.5)
    assert std("attention_out", encoder) == pytest.approx((8 * 2) ** -0.5)
    assert std("attention_out", decoder) == pytest.approx((8 * 4) ** -0.5)
    assert std("ffn_out", decoder) == pytest.approx((16 * 4) ** -0.5)
    assert cfg.logits_scale == pytest.approx(1.5 / 2)
    wide = model_of(**MUP, mup_base_d_kv=2, d_kv=8, scale_output_logits_by_d=True).config
    assert std("attention_out", wide.encoder_block) == pytest.approx((8 * 2) ** -0.5 * 0.5**0.5)
    assert wide.logits_scale == pytest.approx(1.5 / 4)
    roots = model_of(**MUP, scale_encoder_qk_dot_by_d=False).config
    assert roots.attention_scales == pytest.approx((5.0 / 2 / 4, 7.0 / 4 / 4))


@pytest.mark.parametrize(
    ("head", "qkv", "out"), [(None, 0.5, 0.5), (1, 0.25, 0.25), (2, 0.25, 0.5)]
)
def test_learning_rates_follow_from_the_widths(head, qkv, out):
    model = model_of(**MUP, mup_base_d_kv=head, share_embedding_weights=False)
    params = model.init(jax.random.key(0))
    names = [name for name, _ in named_leaves(params)]
    section = parse_optimizer({"optimizer_type": "SGD", "learning_rate": 0.1})
    groups = make_groups(with_mup_rates(section, model.config, names), alias=model.alias)

    def rate(name):
        return next((f for globs, f in groups.factors if groups.matches(name, globs)), 1.0)

    expected = {
        "embed/token/embedding": 0.5,
        "encoder_position/relative/embedding": 0.5,
        "lm_head/kernel": 0.5,
        "encoder_layers_0/attn/key/kernel": qkv,
        "decoder_layers_1/cross/value/kernel": qkv,
        "decoder_layers_0/cross/out/kernel": out,
        "encoder_layers_0/ffn/up/kernel": 0.25,
        "decoder_layers_0/ffn/down/kernel": 0.25,
        "encoder_layers_0/norm1/scale": 1.0,
    }
    assert {name: rate(name) for name in expected} == expected


def test_mup_of_t5_draws_its_own_values():
    out = translate({"model": {**T5, **MUP, "use_transformer_initialization": True}})
    assert "muP draws its own initial values" in out.problems[0].message
