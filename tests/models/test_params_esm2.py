"""ESM-2's token dropout and its names; parity with transformers is in convert/test_parity.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.convert import config_from_hf
from wafer.models.families.encoder import EncoderEmbed
from wafer.models.layers.blocks import no_dropout
from wafer.models.registry import parse_config

ESM = {"name": "esm2", "vocab_size": 33, "hidden_size": 2, "num_heads": 1, "filter_size": 4}
ESM |= {"num_hidden_layers": 1, "max_position_embeddings": 8, "token_dropout": True}


def embedded(tokens, lengths, **keys):
    cfg = parse_config(ESM | keys)
    table = jnp.stack([jnp.arange(33.0), jnp.ones(33)], axis=1)
    layout = vsl.padded_layout(jnp.asarray(lengths), len(tokens) // len(lengths))
    ids = jnp.asarray(tokens)
    params = {"token": {"embedding": table}}
    return np.asarray(
        EncoderEmbed(cfg).apply({"params": params}, ids, layout, jnp.zeros_like(ids), no_dropout)
    )


def test_masked_tokens_embed_as_nothing_and_the_rest_is_scaled_to_88_percent():
    """x (1 - 0.12) / (1 - share of masked tokens), sequence by sequence."""
    x = embedded([5, 32, 7, 8, 32, 9, 1, 1], [4, 2])
    first, second = 0.88 / (1 - 1 / 4), 0.88 / (1 - 1 / 2)
    assert x[:4, 0] == pytest.approx([5 * first, 0, 7 * first, 8 * first])
    assert x[4:6, 0] == pytest.approx([0, 9 * second])
    plain = embedded([5, 32], [2], token_dropout=False)
    assert plain[:, 0].tolist() == [5, 32]


def test_a_final_norm_follows_the_layers():
    model = models.build(ESM)
    params = model.init(jax.random.key(0))
    assert params["norm_f"].keys() == {"scale", "bias"}
    assert "position" not in params["embed"]
    names = {"norm_f/scale", "layers_0/ffn/up/kernel"}
    assert {model.alias(name) for name in names} == {
        "model.bert_encoder.transformer_encoder.norm.weight",
        "model.bert_encoder.transformer_encoder.layers.0.ffn.ffn.0.linear_layer.weight",
    }


def test_esm_1b_has_learned_positions_after_the_pad_id():
    foreign = {"model_type": "esm", "position_embedding_type": "absolute", "pad_token_id": 1}
    section = config_from_hf(foreign | {"emb_layer_norm_before": True, "mask_token_id": 32})
    cfg = parse_config(section)
    assert (cfg.position_embedding_type, cfg.position_embedding_offset) == ("learned", 2)
    assert cfg.max_position_embeddings == 1024
    assert cfg.use_embedding_layer_norm


def packed(**keys):
    """One row of a protein of three tokens and one of two, and three slots of padding."""
    spans, places = np.array([[2, 1, 0, 1, 0, 0, 0, 0]]), np.array([[0, 1, 2, 0, 1, 0, 0, 0]])
    mask = np.array([[1, 1, 1, 1, 1, 0, 0, 0]])
    layout = vsl.layout_from_spans(spans, places, mask)
    tokens = jnp.asarray([5, 32, 7, 8, 9, 1, 1, 1])
    scored = {"masked_positions": jnp.asarray([1, 4]), "masked_labels": jnp.asarray([6, 9])}
    scored["masked_weights"] = jnp.ones(2)
    return models.Batch(tokens, tokens, jnp.asarray(mask[0], jnp.float32), layout, scored)


@pytest.mark.slow
def test_proteins_of_a_row_do_not_see_each_other_and_share_the_token_dropout():
    """Vendor: keys of one protein by span and position; 0.88 / (1 - masked of the row)."""
    cfg = parse_config(ESM)
    params = {"token": {"embedding": jnp.stack([jnp.arange(33.0), jnp.ones(33)], axis=1)}}
    data = packed()
    zeros = jnp.zeros(8, jnp.int32)
    own = {"params": params}
    x = np.asarray(EncoderEmbed(cfg).apply(own, data.tokens, data.layout, zeros, no_dropout))
    factor = 0.88 / (1 - 1 / 5)
    assert x[:5, 0].tolist() == pytest.approx([5 * factor, 0, 7 * factor, 8 * factor, 9 * factor])
    model = models.build(ESM | {"hidden_size": 8, "token_dropout": False})
    params = model.init(jax.random.key(0))
    logits = model.apply(params, data)["logits"]
    for ids, place, row in (([5, 32, 7], 1, 0), ([8, 9], 1, 1)):
        alone = vsl.padded_layout(jnp.asarray([len(ids)]), len(ids))
        tokens = jnp.asarray(ids)
        one = models.Batch(tokens, tokens, jnp.ones(len(ids)), alone, {})
        expected = model.apply(params, one)["logits"][place]
        np.testing.assert_allclose(logits[row], expected, rtol=1e-5, atol=1e-6)


def test_the_loss_of_packed_proteins_is_divided_by_rows():
    """Vendor: sum of the masked tokens' losses / rows x mlm_loss_weight."""
    model = models.build(ESM | {"hidden_size": 8, "mlm_loss_weight": 0.25})
    params, data = model.init(jax.random.key(0)), packed()
    log_p = jax.nn.log_softmax(model.apply(params, data)["logits"])
    expected = -0.25 * float(log_p[0, 6] + log_p[1, 9])
    assert float(model.loss(params, data)[0]) == pytest.approx(expected, rel=1e-5)
