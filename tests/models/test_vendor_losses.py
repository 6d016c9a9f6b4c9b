"""Losses of the vendor's fine-tuning and pre-training heads against its formulas in NumPy."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.base import Batch
from wafer.models.families.encoder_heads import encoder_aux
from wafer.models.layers.feed_forward import Experts
from wafer.models.losses import balance_loss, language_model_aux
from wafer.models.registry import parse_config, settings_of
from wafer.optim.groups import with_mup_rates
from wafer.optim.sections import parse_optimizer
from wafer.vendor.runfile import read

SIZES = {"vocab_size": 11, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
BERT = {**SIZES, "filter_size": 8, "max_position_embeddings": 4}
LENGTHS, ROOM = np.array([4, 2, 3]), 4
T, B = LENGTHS.size * ROOM, LENGTHS.size


def batch(**extras):
    rng = np.random.default_rng(0)
    inside = (np.arange(ROOM)[None] < LENGTHS[:, None]).reshape(-1)
    weights = (inside & (rng.random(T) < 0.7)).astype(np.float32)
    labels = rng.integers(0, 3, T).astype(np.int32)
    layout = vsl.padded_layout(jnp.asarray(LENGTHS), ROOM)
    return Batch(jnp.zeros(T, jnp.int32), jnp.asarray(labels), jnp.asarray(weights), layout, extras)


def nll(logits, labels):
    logits = np.asarray(logits, np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[:, None], -1)[:, 0]


def loss(cfg, out, data):
    aux = encoder_aux(cfg, out, data)
    return float(aux.loss_sum / aux.weight)


def config(name, **keys):
    return parse_config({"name": name, **BERT, **keys})


@pytest.mark.parametrize("weight", [None, 0.02, 10.0])
@pytest.mark.parametrize("scaling", [None, "batch_size"])
def test_masked_tokens_are_summed_over_sequences_times_the_weight(weight, scaling):
    """``mlm_loss_weight``: sum / B x weight + NSP; without either key the mean of masked tokens."""
    keys = {"mlm_loss_weight": weight, "mlm_loss_scaling": scaling}
    cfg = config("bert", **{key: value for key, value in keys.items() if value is not None})
    rng = np.random.default_rng(1)
    out = {
        "logits": jnp.asarray(rng.normal(size=(T, 11))),
        "nsp": jnp.asarray(rng.normal(size=(B, 2))),
    }
    sentences = np.array([0, 1, 1])
    data = batch(next_sentence_label=jnp.asarray(sentences))
    weights, per_token = np.asarray(data.weights), nll(out["logits"], np.asarray(data.labels))
    masked = (per_token * weights).sum()
    by_sequences = weight is not None or scaling is not None
    scaled = masked / B * (weight or 1.0) if by_sequences else masked / weights.sum()
    expected = scaled + nll(out["nsp"], sentences).mean()
    assert loss(cfg, out, data) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weight", [None, 0.0539])
@pytest.mark.parametrize("head", ["token", "sequence", "summarization"])
def test_labels_are_summed_over_sequences_times_the_weight(head, weight):
    """``loss_weight``: sum / B x weight; without it the mean over labels."""
    names = {"token": "bert-token-classifier", "sequence": "bert-sequence-classifier"}
    keys = {} if head == "summarization" else {"num_labels": 3}
    keys |= {} if weight is None else {"loss_weight": weight}
    cfg = config(names.get(head, "bert-summarization"), **keys)
    rng = np.random.default_rng(2)
    if head == "token":
        data = batch()
        out = {"logits": jnp.asarray(rng.normal(size=(T, 3)))}
        per, weights = nll(out["logits"], np.asarray(data.labels)), np.asarray(data.weights)
    elif head == "sequence":
        classes = np.array([2, 0, 1])
        data = batch(class_labels=jnp.asarray(classes))
        out = {"logits": jnp.asarray(rng.normal(size=(B, 3)))}
        per, weights = nll(out["logits"], classes), np.ones(B)
    else:
        truth, weights = np.array([1.0, 0.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0, 0.0])
        data = batch(masked_labels=jnp.asarray(truth), masked_weights=jnp.asarray(weights))
        scores = rng.normal(size=5)
        out = {"logits": jnp.asarray(scores)}
        p = 1 / (1 + np.exp(-scores))
        per = -(truth * np.log(p) + (1 - truth) * np.log(1 - p))
    total = (per * weights).sum()
    expected = total / weights.sum() if weight is None else total / B * weight
    assert loss(cfg, out, data) == pytest.approx(expected, rel=1e-5)


def test_a_weight_that_would_not_be_read_is_refused():
    with pytest.raises(ValueError, match=r"mlm_loss_weight: .*num_masked"):
        config("bert", mlm_loss_weight=0.02, mlm_loss_scaling="num_masked")


T5 = {"src_vocab_size": 11, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
T5 |= {"encoder_num_hidden_layers": 1, "dropout_rate": 0.0}


def seq2seq(name, **keys):
    section = read({"model": {"name": name, **T5, **keys}}).sections["model"]
    return models.build(section)


def seq2seq_batch():
    layout = vsl.padded_layout(jnp.asarray(LENGTHS), ROOM)
    tokens = jnp.asarray(np.random.default_rng(3).integers(0, 11, T), jnp.int32)
    extras = {"source_tokens": tokens, "source_layout": layout}
    return batch()._replace(tokens=tokens[::-1], extras=extras)


@pytest.mark.parametrize(
    ("keys", "by_sequences", "weight"),
    [
        ({}, False, 1.0),
        ({"lm_loss_weight": 0.015}, True, 0.015),
        ({"lm_loss_weight": 0.015, "mlm_loss_scaling": "precomputed_num_masked"}, False, 1.0),
        ({"mlm_loss_scaling": "num_masked"}, False, 1.0),
        ({"mlm_loss_scaling": "batch_size"}, True, 1.0),
    ],
)
def test_t5_scales_its_loss_as_the_file_says(keys, by_sequences, weight):
    model, data = seq2seq("t5", **keys), seq2seq_batch()
    params = model.init(jax.random.key(0))
    logits = jax.jit(model.apply)(params, data)
    total = (nll(logits, np.asarray(data.labels)) * np.asarray(data.weights)).sum()
    expected = total / B * weight if by_sequences else total / np.asarray(data.weights).sum()
    assert float(jax.jit(model.loss)(params, data)[0]) == pytest.approx(expected, rel=1e-5)


def test_t5_norm_rows_and_initial_values_are_the_vendors():
    model = seq2seq("t5", extra_ids=5, use_t5_layer_norm=False)
    assert (model.config.vocab_size, model.config.norm_type) == (16, "layernorm")
    wide = seq2seq("t5", d_model=64, d_kv=32, d_ff=256, extra_ids=2000)
    params = wide.init(jax.random.key(0))
    layer = params["encoder_layers_0"]
    stds = {
        "embed": (params["embed"]["token"]["embedding"], 1.0),
        "query": (layer["attn"]["query"]["kernel"], (64 * 32) ** -0.5),
        "key": (layer["attn"]["key"]["kernel"], 64**-0.5),
        "up": (layer["ffn"]["up"]["kernel"], 64**-0.5),
        "down": (layer["ffn"]["down"]["kernel"], 256**-0.5),
    }
    for name, (values, std) in stds.items():
        assert float(jnp.std(values)) == pytest.approx(std, rel=0.05), name


@pytest.mark.parametrize(
    ("name", "tied"),
    [
        ("t5", True),
        ("transformer", False),
        pytest.param("t5", False, marks=pytest.mark.slow),
        pytest.param("transformer", True, marks=pytest.mark.slow),
    ],
)
def test_logits_are_scaled_only_where_weights_are_shared(name, tied):
    model, data = seq2seq(name, share_embedding_weights=tied), seq2seq_batch()
    params = model.init(jax.random.key(0))
    plain = models.build(settings_of(model.config) | {"scale_logits": False})
    factor = 8**-0.5 if tied else 1.0
    ours, unscaled = (jax.jit(m.apply)(params, data) for m in (model, plain))
    np.testing.assert_allclose(ours, unscaled * factor, rtol=1e-4, atol=1e-6)


def test_the_transformer_ends_both_stacks_with_a_norm_and_embeds_without_a_scale():
    keys = {"use_transformer_initialization": True, "position_embedding_type": "fixed"}
    model = seq2seq("transformer", use_pre_encoder_decoder_layer_norm=False, **keys)
    cfg = model.config
    assert (cfg.norm_first, cfg.norms_ends, cfg.scale_embedding) == (False, True, False)
    assert cfg.attention_type == "scaled_dot_product"
    params = model.init(jax.random.key(0))
    assert {"encoder_norm_f", "decoder_norm_f"} <= set(params)
    # Post-LN: the last norm of each stack is doubled; scaled by 2 it doubles the logits.
    data = seq2seq_batch()
    doubled = params | {"decoder_norm_f": jax.tree.map(lambda x: 2 * x, params["decoder_norm_f"])}
    apply = jax.jit(model.apply)
    np.testing.assert_allclose(apply(doubled, data), 2 * apply(params, data), rtol=1e-4, atol=1e-6)
    bound = float(jnp.abs(params["encoder_layers_0"]["ffn"]["up"]["kernel"]).max())
    assert 0.8 < bound / (6 / (8 + 16)) ** 0.5 <= 1  # Xavier's


@pytest.mark.slow
def test_dropouts_outside_the_layers_follow_their_keys():
    data = seq2seq_batch()

    def differs(**keys):
        model = seq2seq("t5", **{**keys, "dropout_rate": 0.5})
        params = model.init(jax.random.key(0))
        return model.apply(params, data, jax.random.key(1))

    base = differs()
    for keys in ({"relu_dropout_rate": 0.0}, {"use_dropout_outside_residual_path": False}):
        assert not np.allclose(base, differs(**keys)), keys
    assert not np.allclose(base, differs(use_pre_encoder_decoder_dropout=True))


def test_shared_experts_take_every_token_and_the_null_expert_takes_a_share():
    """Vendor: out = sum_k p_k / (sum p + bias) f_k(x) + sum of shared f(x); k = 1 of 3 experts."""
    parts = {"hidden_size": 4, "filter_size": 6, "nonlinearity": "relu", "use_bias": False}
    parts |= {"init_in": nn.initializers.normal(1.0), "init_out": nn.initializers.normal(1.0)}
    experts = Experts(3, 1, parts, shared=1, null_bias=1.1)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(5, 4)), jnp.float32)
    params = experts.init(jax.random.key(0), x)
    ours, _ = jax.jit(experts.apply)(params, x)
    own = jax.tree.map(np.asarray, params["params"])
    run = lambda name, row: (
        np.maximum(row @ own[name]["up"]["kernel"], 0) @ own[name]["down"]["kernel"]
    )
    for row, out in zip(np.asarray(x), np.asarray(ours), strict=True):
        scores = row @ own["router"]["kernel"]
        p = np.exp(scores) / np.exp(scores).sum()
        e = int(p.argmax())
        expected = p[e] / (p[e] + 1.1) * run(f"experts_{e}", row) + run("shared_experts_0", row)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def _balance(probabilities, chosen, weights):
    """Vendor's ``LoadBalancingLoss`` in NumPy: [L, B, S, E] twice, mask [B, S]."""
    mask = np.asarray(weights, np.float64)[None, :, :, None]
    mean = lambda x: ((x * mask).sum(2) / mask.sum(2)).mean(0)
    experts = probabilities.shape[-1]
    return experts**2 * (mean(chosen) * mean(probabilities)).mean()


@pytest.mark.parametrize("packed", [False, True])
def test_the_balance_of_experts_averages_layers_tokens_and_rows(packed):
    """Vendor: E^2 mean over rows and experts of (mean share) x (mean probability) of the layers."""
    layers, experts, k = 3, 4, 2
    rng = np.random.default_rng(8)
    scores = rng.normal(size=(layers, B, ROOM, experts))
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    chosen = (np.argsort(np.argsort(-p, -1), -1) < k).astype(np.float64)
    data = batch()
    data = data._replace(weights=jnp.asarray(data.layout.valid, jnp.float32))
    if packed:  # rows of two documents: still B rows
        spans = np.array([[1, 0, 1, 0]] * B)
        places = np.array([[0, 1, 0, 1]] * B)
        mask = rng.integers(0, 2, (B, ROOM)) | (np.arange(ROOM) == 1)
        layout = vsl.layout_from_spans(spans, places, jnp.asarray(mask))
        data = data._replace(layout=layout, weights=jnp.asarray(mask.reshape(-1), jnp.float32))
    routed = np.stack([chosen, p], axis=-2).sum(0).reshape(T, 2, experts)
    ours = float(balance_loss(jnp.asarray(routed, jnp.float32), data, layers))
    expected = _balance(p, chosen, np.asarray(data.weights).reshape(B, ROOM))
    assert ours == pytest.approx(expected, rel=1e-5)
    even = np.stack([np.full((T, experts), k / experts), np.full((T, experts), 1 / experts)], 1)
    assert float(balance_loss(jnp.asarray(even, jnp.float32), data, 1)) == pytest.approx(k)
    stripped = vsl.layout_from_lengths(jnp.asarray(LENGTHS), 16)  # 7 slots of slack
    inside = np.arange(ROOM)[None] < LENGTHS[:, None]
    flat = lambda x, fill: np.concatenate([x.reshape(T, -1)[inside.ravel()], np.full((7, 1), fill)])
    if not packed:
        weights = jnp.asarray(flat(np.asarray(data.weights), 0.0)[:, 0])
        slots = np.full((16, 2, experts), np.nan, np.float32)
        slots[:9] = routed[inside.ravel()]
        short = data._replace(weights=weights, layout=stripped)
        assert float(balance_loss(jnp.asarray(slots), short, layers)) == pytest.approx(
            expected, rel=1e-5
        )


def test_a_model_with_experts_adds_the_balance_times_its_factor():
    """Two layers, top 1 of 2 experts with equal scores: E sum(share x probability) = 1."""
    keys = {**BERT, "name": "mixtral", "rotary_dim": 2, "num_hidden_layers": 2}
    moe = {"num_experts": 2, "top_k": 1}
    plain = models.build(keys | {"moe": moe})
    added = models.build(keys | {"moe": moe | {"load_balancing_loss_coef": 0.25}})
    params = plain.init(jax.random.key(0))
    for i in range(2):  # equal scores: both experts are equally probable
        router = params[f"layers_{i}"]["moe"]["router"]
        router["kernel"] = jnp.zeros_like(router["kernel"])
    data = batch()
    difference = jax.jit(lambda p: added.loss(p, data)[0] - plain.loss(p, data)[0])(params)
    assert float(difference) == pytest.approx(0.25, rel=1e-4)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_packed_rows_are_divided_by_rows_not_documents(weight):
    """Vendor: sum / labels.shape[0] x weight; two rows of 2 and 3 documents are two rows."""
    spans = np.array([[1, 0, 1, 0], [0, 1, 0, 0]])
    places = np.array([[0, 1, 0, 1], [0, 0, 1, 0]])
    layout = vsl.layout_from_spans(spans, places, np.ones((2, 4), np.int32))
    assert int((layout.lengths > 0).sum()) == 5
    logits = np.random.default_rng(9).normal(size=(8, 5))
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    data = Batch(jnp.zeros(8, jnp.int32), jnp.asarray(labels), jnp.ones(8), layout)
    cfg = config("gpt2", loss_scaling="batch_size", loss_weight=weight)
    aux = language_model_aux(cfg, jnp.asarray(logits), data)
    expected = nll(logits, labels).sum() / 2 * weight
    assert float(aux.loss_sum / aux.weight) == pytest.approx(expected, rel=1e-5)


def test_a_weight_of_the_loss_needs_the_scaling_that_reads_it():
    with pytest.raises(ValueError, match="loss_scaling: batch_size"):
        config("gpt2", loss_weight=0.5)
    assert config("gpt2", loss_weight=0.5, loss_scaling="batch_size").loss_weight == 0.5


def test_a_router_that_is_not_computed_is_refused_by_name():
    moe = {"num_experts": 4, "top_k": 1, "router_fp32": True, "routing_algorithm": "learned"}
    keys = {**BERT, "name": "mixtral", "rotary_dim": 2}
    out = read({"model": {**keys, "moe": moe}})
    assert out.problems == []
    assert parse_config(out.sections["model"]).moe.top_k == 1
    (problem,) = read({"model": {**keys, "moe": moe | {"routing_algorithm": "hash"}}}).problems
    assert problem.path == ("model", "moe", "routing_algorithm")
    assert problem.message.startswith("'hash': not computed here")
    with pytest.raises(ValueError, match="top_k: 5 of 4 experts"):
        parse_config({**keys, "moe": {"num_experts": 4, "top_k": 5}})


def test_mup_of_bert_scales_logits_of_both_heads_and_divides_rates():
    """Vendor: logits x output_logits_alpha x base / width; pooler and layers learn slower."""
    keys = {"output_logits_alpha": 2.0, "mup_base_hidden_size": 2, "mup_base_filter_size": 4}
    mup = models.build({"name": "bert", **BERT, **keys, "attention_logits_alpha": 1.0})
    plain = models.build({"name": "bert", **BERT, "scale_qk_dot_by_d": True})
    params = plain.init(jax.random.key(0))
    data = batch(segment_ids=jnp.zeros(T, jnp.int32))
    ours, unscaled = (jax.jit(m.apply)(params, data) for m in (mup, plain))
    for name in ("logits", "nsp"):
        np.testing.assert_allclose(ours[name], unscaled[name] * 2.0 * 2 / 8, rtol=1e-5, atol=1e-7)
    section = parse_optimizer({"optimizer_type": "SGD", "learning_rate": 0.1})
    rates = dict(with_mup_rates(section, mup.config, ["pooler/kernel"]).adjust_learning_rate)
    assert rates == {"pooler/kernel": 0.25}


def test_the_embeddings_scale_of_an_encoder_acts_before_the_norm():
    keys = {"name": "bert", **BERT, "use_embedding_layer_norm": False, "num_hidden_layers": 1}
    data = batch(segment_ids=jnp.zeros(T, jnp.int32))
    one, two = (models.build(keys | {"embeddings_scale": scale}) for scale in (1.0, 2.0))
    params = one.init(jax.random.key(0))
    embed = lambda model, tree: (
        model.kinds["embed"][1]({"embed": tree["embed"]}, None, data, None).x
    )
    np.testing.assert_allclose(embed(two, params), 2 * embed(one, params), rtol=1e-6)
