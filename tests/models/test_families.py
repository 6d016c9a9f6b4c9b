"""Families beside the plain decoder: DPR's towers, later knobs, costs by hand, cached steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.batches import packed, trained
from helpers.hf_parity import CHEAP, shaken

from wafer import models, vsl
from wafer.models.generation.seq2seq import decode_target, encode_source
from wafer.models.layers.positions import RopeScaling, rotate, yarn_factor, yarn_frequencies
from wafer.models.names import MODELS

TINY = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_heads": 4}
TINY |= {"filter_size": 48, "max_position_embeddings": 32, "dropout_rate": 0.0}
SEQ2SEQ = [name for name, entry in MODELS.items() if entry.family == "seq2seq"]


def quick(fn, **options):
    """Compile as cheaply as XLA can: these tests ask for arithmetic, not for speed."""
    return jax.jit(fn, compiler_options=CHEAP, **options)


def rows(lengths, size):
    ids = np.random.default_rng(0).integers(1, 31, (len(lengths), size))
    return ids, vsl.padded_layout(jnp.asarray(lengths), size)


def _marked(names, fast):
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", _marked(SEQ2SEQ, {"t5"}))
def test_every_encoder_decoder_scores_alike_with_and_without_cache(name):
    model = models.build(TINY | {"name": name})
    cfg, params = model.config, shaken(model)
    source, source_layout = rows([7, 4], 8)
    target, layout = rows([6, 6], 6)
    flat = jnp.asarray(target.reshape(-1))
    extras = {"source_tokens": jnp.asarray(source.reshape(-1)), "source_layout": source_layout}
    batch = models.Batch(flat, flat, jnp.ones(12), layout, extras)
    full = np.asarray(quick(model.apply)(params, batch)).reshape(2, 6, -1)
    encode = quick(lambda p, t, n: encode_source(cfg, p, t, n, 6))
    cache = encode(params, jnp.asarray(source), jnp.asarray([7, 4]))
    step = quick(lambda p, t, n, c: decode_target(cfg, p, t, n, c))
    parts = []
    for chunk in (target[:, :2], target[:, 2:4], target[:, 4:]):
        logits, cache = step(params, jnp.asarray(chunk), jnp.asarray([2, 2]), cache)
        parts.append(np.asarray(logits))
    top = 5e-6 * np.abs(full).max()
    np.testing.assert_allclose(np.concatenate(parts, axis=1), full, atol=top)


def test_yarn_equals_transformers():
    """Recorded from transformers 5.23: context 64, factor 4, 16 rotated features, base 10,000."""
    recorded = [
        1.0,
        0.23717081546783447,
        0.04999999701976776,
        0.007905694656074047,
        0.0024999999441206455,
        0.0007905694656074047,
        0.0002500000118743628,
        7.905694656074047e-05,
    ]
    rule = RopeScaling(original_max_position_embeddings=64)
    np.testing.assert_allclose(yarn_frequencies(16, 10000.0, 4.0, rule), recorded, rtol=3e-7)
    assert yarn_factor(4.0, rule) == pytest.approx(1.138629436111989)
    assert yarn_factor(1.0, rule) == 1.0
    assert yarn_factor(4.0, RopeScaling(attention_factor=0.7)) == 0.7
    x = jnp.ones((1, 1, 4))
    turned = rotate(x, jnp.asarray([0]), np.ones(1, np.float32), interleaved=True, gain=2.0)
    assert turned[0, 0].tolist() == [2.0, 2.0, 1.0, 1.0]  # the rest is not rotated, nor scaled


def towers(**knobs):
    return models.build({"name": "dpr", "q_encoder": TINY, "ctx_encoder": TINY, **knobs})


def pairs(contexts=(4, 3, 2, 5), **extras):
    size = sum(contexts)
    context = {
        "context_tokens": jnp.arange(11, 11 + size) % 31,
        "context_layout": vsl.layout_from_lengths(jnp.asarray(contexts), size),
        **extras,
    }
    return packed(range(3, 11), [3, 5], **context)


@pytest.mark.slow
def test_dpr_compares_every_question_with_every_context():
    model = towers(softmax_temperature=2.0, scale_similarity=True)
    params = shaken(model)
    embeddings = quick(model.apply)(params, pairs())
    assert embeddings.question.shape == (2, 32)
    assert embeddings.context.shape == (4, 32)
    scores = np.asarray(embeddings.question @ embeddings.context.T) / (2.0 * 32**0.5)
    chance = scores - np.log(np.exp(scores).sum(1, keepdims=True))

    def loss(embeddings=embeddings, **extras):
        aux = model.objective(embeddings, pairs(**extras))
        return float(aux.loss_sum / aux.weight)

    # a positive, then a hard negative, per question: labels 0 and 2
    expected = -(chance[0, 0] + chance[1, 2]) / 2
    assert loss() == pytest.approx(expected, rel=1e-5)
    other = -(chance[0, 3] + chance[1, 1]) / 2
    assert loss(positives=jnp.asarray([3, 1])) == pytest.approx(other, rel=1e-5)
    # an empty context row is nobody's negative
    own = jnp.asarray([0, 2])
    fewer = embeddings._replace(context=embeddings.context[:3])
    without = loss(fewer, contexts=(4, 3, 7), positives=own)
    assert loss(contexts=(4, 3, 7, 0), positives=own) == pytest.approx(without, rel=1e-6)
    with pytest.raises(ValueError, match="1 contexts for 2 questions"):
        loss(embeddings._replace(context=embeddings.context[:1]))


@pytest.mark.slow
def test_dpr_learns_to_find_the_context_of_a_question():
    model = towers()
    params = model.init(jax.random.key(0))
    assert {name.split("_")[0] for name in params} == {"question", "context"}
    assert model.alias("question_layers_0/attn/query/kernel") == (
        "model.question_encoder.bert_encoder.transformer_encoder.layers.0.self_attn."
        "proj_q_dense_layer.weight"
    )

    _, losses, values = trained(model, params, pairs(), optax.adam(1e-2), 30)
    assert losses[-1] < 0.1 * losses[0]
    assert values["accuracy"] == 1


SMALL = {"vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 1, "num_heads": 2}
SMALL |= {"filter_size": 8}
TWO_GROUPS = {
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 1},
}
ATTENTION, FFN, GATED, HEAD = 4 * 4 * 4, 2 * 4 * 8, 3 * 4 * 8, 10 * 4
# name -> (settings, kernel elements, keys seen by a query, summed over layers), 3 tokens long
COSTS = {
    "gptj": (SMALL | {"rotary_dim": 2}, ATTENTION + FFN + HEAD, 2),
    "llama": (SMALL | TWO_GROUPS, 2 * 16 + 2 * 8 + GATED + HEAD, 2),
    "bert": (SMALL, ATTENTION + FFN + 16 + 16 + 8, 3),  # masked-LM dense, pooler, next sentence
    "bert-q&a": (SMALL, ATTENTION + FFN + 8, 3),
    "t5": (SMALL, 3 * ATTENTION + 2 * FFN + HEAD, 3 + 2 + 3),
    "dpr": ({"q_encoder": SMALL, "ctx_encoder": SMALL}, 2 * (ATTENTION + FFN), 3 + 3),
    "fc_mnist": ({"input_size": 6, "hidden_size": 4, "depth": 2, "num_classes": 3}, 52, 0),
    "llava": (
        {
            "image_model": {k: v for k, v in SMALL.items() if k != "vocab_size"}
            | {"image_size": 4, "patch_size": 2},
            "text_model": SMALL,
            "image_feature_select_layer_idx": -1,
        },
        # patches, tower, projector, decoder
        12 * 4 + ATTENTION + FFN + 2 * 16 + ATTENTION + GATED + HEAD,
        5 + 2,
    ),
}


@pytest.mark.parametrize("name", COSTS)
def test_cost_of_a_token_by_hand(name):
    settings, kernels, keys = COSTS[name]
    model = models.build({"name": name, **settings})
    expected = 2 * kernels + 4 * 4 * keys  # q.k and probabilities.v over 4 features
    assert models.flops_per_token(model, 3, training=False) == expected
