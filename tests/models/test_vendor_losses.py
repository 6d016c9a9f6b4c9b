"""Loss and gradients of small models against the vendor's formulas: every weight and scaling.

The oracle is NumPy: the loss of the logits, and its derivative by the logits, which goes back
through the model as a cotangent.
"""

import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.base import Batch
from wafer.models.layers.feed_forward import Experts
from wafer.models.losses import balance_loss, language_model_aux
from wafer.models.paths import named_leaves
from wafer.models.registry import parse_config, settings_of
from wafer.optim.groups import with_mup_rates
from wafer.optim.sections import parse_optimizer
from wafer.vendor.runfile import read as translate

LENGTHS, ROOM, V = np.array([4, 2, 3]), 4, 11
B, T = LENGTHS.size, LENGTHS.size * ROOM
SIZES = {"vocab_size": V, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
BERT = {**SIZES, "filter_size": 8, "max_position_embeddings": 4, "dropout_rate": 0.0}
BERT |= {"attention_dropout_rate": 0.0}
SEQ2SEQ = {"src_vocab_size": V, "d_model": 8, "d_kv": 4, "d_ff": 16, "num_heads": 2}
SEQ2SEQ |= {"encoder_num_hidden_layers": 1, "dropout_rate": 0.0}
LLAVA = {
    "name": "llava",
    "image_token_index": 10,
    "image_model": {
        **{k: v for k, v in BERT.items() if k not in {"vocab_size", "max_position_embeddings"}},
        "image_size": 4,
        "patch_size": 4,
        "num_hidden_layers": 2,
    },
    "text_model": {"name": "llama", **BERT},
}
RNG = np.random.default_rng(0)
INSIDE = (np.arange(ROOM) < LENGTHS[:, None]).reshape(-1)
TOKENS = RNG.integers(1, 10, T)
LABELS = RNG.integers(0, 3, T)
CHOSEN = (INSIDE & (RNG.random(T) < 0.7)).astype(float)
SENTENCES, CLASSES = np.array([0, 1, 1]), np.array([2, 0, 1])


def batch(weights=CHOSEN, tokens=TOKENS, **extras):
    layout = vsl.padded_layout(jnp.asarray(LENGTHS), ROOM)
    extras = {name: jnp.asarray(value) for name, value in extras.items()}
    ints = lambda x: jnp.asarray(x, jnp.int32)
    return Batch(ints(tokens), ints(LABELS), jnp.asarray(weights, jnp.float32), layout, extras)


def cross_entropy(logits, labels, weights, smoothing=0.0):
    """Weighted sum over rows [N, V] of logits, and its derivative by them."""
    logits = np.asarray(logits, np.float64)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    p = shifted / shifted.sum(-1, keepdims=True)
    target = np.eye(p.shape[-1])[labels] * (1 - smoothing) + smoothing / p.shape[-1]
    return -(weights[:, None] * target * np.log(p)).sum(), weights[:, None] * (p - target)


def compare(model, data, oracle, shapes):
    """Compare the loss and its derivative by the logits; ``oracle`` is logits -> both.

    With ``shapes`` None every gradient of the model, too: the oracle's goes back through it.
    """
    if shapes is None:
        compare_whole(model, data, oracle)
        return
    rng = np.random.default_rng(1)
    out = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    out = out.get("", out)

    def loss(out):
        aux = model.objective(out, data)
        return aux.loss_sum / aux.weight

    value, grads = jax.value_and_grad(loss)(out)
    expected, cotangent = oracle(out)
    assert float(value) == pytest.approx(expected, rel=1e-5)
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, grads, cotangent)


def compare_whole(model, data, oracle):
    """Compare the loss and every gradient; the oracle's goes back through the model."""
    params = model.init(jax.random.key(3))
    out, pull = jax.vjp(jax.jit(lambda p: model.apply(p, data)), params)
    loss, cotangent = oracle(out)
    if isinstance(out, dict):  # outputs that no loss reads
        cotangent = {name: np.zeros(leaf.shape) for name, leaf in out.items()} | cotangent
    (expected,) = pull(jax.tree.map(lambda d, like: jnp.asarray(d, like.dtype), cotangent, out))
    value, grads = jax.jit(jax.value_and_grad(lambda p: model.loss(p, data)[0]))(params)
    assert float(value) == pytest.approx(loss, rel=1e-5)
    for (name, ours), (_, theirs) in zip(named_leaves(grads), named_leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=name)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(grads)) > 1e-3


def options(**values):
    """Every combination, as keys; None leaves a key out. The last has them all."""
    rows = [dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())]
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


BERT_KEYS = [
    keys
    for keys in options(
        mlm_loss_weight=[None, 0.02],
        mlm_loss_scaling=[None, "batch_size", "num_masked"],
        nsp_loss_weight=[None, 0.5],
        label_smoothing=[None, 0.1],
        disable_nsp=[None, True],
    )
    if keys.get("mlm_loss_scaling") != "num_masked" or "mlm_loss_weight" not in keys
]  # the weight would not be read, and is refused
SEQ2SEQ_KEYS = options(
    lm_loss_weight=[None, 0.015],
    mlm_loss_scaling=[None, "batch_size", "num_masked", "precomputed_num_masked"],
    label_smoothing=[None, 0.1],
)
LLAVA_KEYS = options(
    loss_scaling=[None, "num_tokens", "batch_size"],
    loss_weight=[None, 0.5],
    label_smoothing=[None, 0.1],
)
# A weight is read where the loss is divided by rows; elsewhere it is refused.
LLAVA_KEYS = [
    k for k in LLAVA_KEYS if "loss_weight" not in k or k.get("loss_scaling") == "batch_size"
]
WEIGHTS = [(None, False), (0.05, False), pytest.param(0.05, True, marks=pytest.mark.slow)]
# Options with which all gradients of a model are compared.
WHOLE_BERT = {"mlm_loss_weight": 0.02, "nsp_loss_weight": 0.5, "label_smoothing": 0.1}
WHOLE_SEQ2SEQ = {"lm_loss_weight": 0.015, "label_smoothing": 0.1}
WHOLE_LLAVA = {"loss_scaling": "batch_size", "loss_weight": 0.5, "label_smoothing": 0.1}


def slow_where_whole(rows, whole):
    """Mark the options of a whole model: it is compiled twice."""
    return [pytest.param(row, marks=[pytest.mark.slow] * (row == whole)) for row in rows]


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("keys", slow_where_whole(BERT_KEYS, WHOLE_BERT), ids=str)
def test_bert_pretraining(keys, gathered):
    model = models.build({"name": "bert", **BERT, **keys})
    extras = {"segment_ids": np.zeros(T, np.int32), "next_sentence_label": SENTENCES}
    at = np.array([1, 4, 8, 0])  # the last slot is empty
    labels, weights = LABELS, CHOSEN
    if gathered:
        labels, weights = np.array([5, 1, 2, 0]), np.array([1.0, 1, 1, 0])
        extras |= {"masked_positions": at, "masked_labels": labels, "masked_weights": weights}

    def oracle(out):
        total, d = cross_entropy(out["logits"], labels, weights, keys.get("label_smoothing", 0.0))
        by_sequences = keys.get("mlm_loss_scaling") == "batch_size" or "mlm_loss_weight" in keys
        factor = keys.get("mlm_loss_weight", 1.0) / B if by_sequences else 1 / weights.sum()
        loss, back = total * factor, {"logits": d * factor}
        if "nsp" in out:
            nsp, d = cross_entropy(out["nsp"], SENTENCES, np.ones(B))
            share = keys.get("nsp_loss_weight", 1.0) / B
            loss, back = loss + nsp * share, back | {"nsp": d * share}
        return loss, back

    nsp = {} if "disable_nsp" in keys else {"nsp": (B, 2)}
    shapes = {"logits": (len(labels), V)} | nsp
    compare(model, batch(**extras), oracle, None if keys == WHOLE_BERT else shapes)


def seq2seq(name, **keys):
    return models.build(translate({"model": {"name": name, **SEQ2SEQ, **keys}}).sections["model"])


def seq2seq_batch():
    data = batch(source_tokens=TOKENS[::-1].astype(np.int32))
    layout = vsl.padded_layout(jnp.asarray(LENGTHS[::-1]), ROOM)
    return data._replace(extras=data.extras | {"source_layout": layout})


@pytest.mark.parametrize("keys", slow_where_whole(SEQ2SEQ_KEYS, WHOLE_SEQ2SEQ), ids=str)
@pytest.mark.parametrize("name", ["t5", "transformer"])
def test_sequence_to_sequence(name, keys):
    model, data = seq2seq(name, **keys), seq2seq_batch()
    scaling = keys.get("mlm_loss_scaling")
    by_sequences = scaling == "batch_size" or (scaling is None and "lm_loss_weight" in keys)

    def oracle(logits):
        total, d = cross_entropy(logits, LABELS, CHOSEN, keys.get("label_smoothing", 0.0))
        factor = keys.get("lm_loss_weight", 1.0) / B if by_sequences else 1 / CHOSEN.sum()
        return total * factor, d * factor

    whole = keys == WHOLE_SEQ2SEQ
    compare(model, data, oracle, None if whole else {"": (T, V)})


TRUTH, SCORED = np.array([1.0, 0, 0, 1, 0]), np.array([1.0, 1, 1, 1, 0])
SENTENCE_SLOTS = {"masked_positions": np.array([0, 2, 4, 8, 0]), "masked_labels": TRUTH}
TOKEN_LABELS = {"name": "bert-token-classifier", "num_labels": 3}
HEADS = {  # keys of the model, labels, weights, further arrays of the batch
    "tokens": (TOKEN_LABELS, LABELS, CHOSEN, {}),
    "padding": (TOKEN_LABELS | {"include_padding_in_loss": True}, LABELS, np.ones(T), {}),
    "sequences": (
        {"name": "bert-sequence-classifier", "num_labels": 3},
        *(CLASSES, np.ones(B), {"class_labels": CLASSES}),
    ),
    "summarization": (
        {"name": "bert-summarization"},
        *(TRUTH, SCORED, SENTENCE_SLOTS | {"masked_weights": SCORED}),
    ),
}


def binary_entropy(logits, truth, weights):
    """Weighted sum over logits [N], and its derivative by them."""
    p = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    total = -(weights * (truth * np.log(p) + (1 - truth) * np.log(1 - p))).sum()
    return total, weights * (p - truth)


@pytest.mark.parametrize(("weight", "whole"), WEIGHTS)
@pytest.mark.parametrize("head", HEADS)
def test_bert_heads(head, weight, whole):
    """``loss_weight``: sum / B x weight; without it the mean over labels."""
    keys, labels, weights, extras = HEADS[head]
    model = models.build({**BERT, **keys} | ({} if weight is None else {"loss_weight": weight}))
    entropy = binary_entropy if head == "summarization" else cross_entropy

    def oracle(out):
        total, d = entropy(out["logits"], labels, weights)
        by_sequences = head == "padding" or weight is not None
        factor = (weight or 1.0) / B if by_sequences else 1 / weights.sum()
        factor /= ROOM if head == "padding" else 1
        return total * factor, {"logits": d * factor}

    scored = weights if head == "padding" else CHOSEN
    data = batch(scored, segment_ids=np.zeros(T, np.int32), **extras)
    shape = (len(labels),) if head == "summarization" else (len(labels), 3)
    compare(model, data, oracle, None if whole else {"logits": shape})


@pytest.mark.parametrize("keys", slow_where_whole(LLAVA_KEYS, WHOLE_LLAVA), ids=str)
def test_llava(keys):
    model = models.build(LLAVA | {"text_model": LLAVA["text_model"] | keys})
    tokens = TOKENS.reshape(B, ROOM).copy()
    tokens[:, 1] = 10  # the image's only slot
    weights = CHOSEN * (tokens.reshape(-1) != 10)
    pixels = RNG.normal(size=(B, 3, 4, 4)).astype(np.float32)

    def oracle(logits):
        total, d = cross_entropy(logits, LABELS, weights, keys.get("label_smoothing", 0.0))
        by_sequences = keys.get("loss_scaling") == "batch_size"
        factor = keys.get("loss_weight", 1.0) / B if by_sequences else 1 / weights.sum()
        return total * factor, d * factor

    data = batch(weights, tokens.reshape(-1), pixel_values=pixels)
    compare(model, data, oracle, None if keys == WHOLE_LLAVA else {"": (T, V)})


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


@pytest.mark.parametrize(
    ("count", "k", "more", "nonlinearity"),
    [(3, 1, {"shared": 1, "null_bias": 1.1}, "relu"), (4, 2, {}, "swiglu")],
)
def test_experts_equal_a_loop_over_tokens(count, k, more, nonlinearity):
    """Vendor: out = sum_k p_k / (sum p + bias) f_k(x) + sum of shared f(x)."""
    parts = {"hidden_size": 4, "filter_size": 6, "nonlinearity": nonlinearity, "use_bias": False}
    parts |= {"init_in": nn.initializers.normal(1.0), "init_out": nn.initializers.normal(1.0)}
    experts = Experts(count, k, parts, **more)
    x = jnp.asarray(np.random.default_rng(4).normal(size=(5, 4)), jnp.float32)
    params = experts.init(jax.random.key(0), x)
    ours, routed = jax.jit(experts.apply)(params, x)
    own = jax.tree.map(np.asarray, params["params"])

    def run(name, row):
        up = row @ own[name]["up"]["kernel"]
        if nonlinearity == "swiglu":
            gate = row @ own[name]["gate"]["kernel"]
            return (up * gate / (1 + np.exp(-gate))) @ own[name]["down"]["kernel"]
        return np.maximum(up, 0) @ own[name]["down"]["kernel"]

    scores = np.exp(np.asarray(x) @ own["router"]["kernel"])
    probabilities = scores / scores.sum(-1, keepdims=True)
    for row, p, out in zip(np.asarray(x), probabilities, np.asarray(ours), strict=True):
        best = np.argsort(-p)[:k]
        expected = sum(p[e] * run(f"experts_{e}", row) for e in best)
        expected = expected / (p[best].sum() + more.get("null_bias", 0.0))
        expected = expected + (run("shared_experts_0", row) if more else 0)
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(routed[:, 1], probabilities, rtol=1e-5)
    np.testing.assert_allclose(routed[:, 0].sum(-1), k)


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
    cfg = parse_config(
        {"name": "gpt2", **BERT, "loss_scaling": "batch_size", "loss_weight": weight}
    )
    aux = language_model_aux(cfg, jnp.asarray(logits), data)
    expected = cross_entropy(logits, labels, np.ones(8))[0] / 2 * weight
    assert float(aux.loss_sum / aux.weight) == pytest.approx(expected, rel=1e-5)


def test_a_router_that_is_not_computed_is_refused_by_name():
    moe = {"num_experts": 4, "top_k": 1, "router_fp32": True, "routing_algorithm": "learned"}
    keys = {**BERT, "name": "mixtral", "rotary_dim": 2}
    out = translate({"model": {**keys, "moe": moe}})
    assert out.problems == []
    assert parse_config(out.sections["model"]).moe.top_k == 1
    (problem,) = translate({"model": {**keys, "moe": moe | {"routing_algorithm": "hash"}}}).problems
    assert problem.path == ("model", "moe", "routing_algorithm")
    assert problem.message.startswith("'hash': not computed here")


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
