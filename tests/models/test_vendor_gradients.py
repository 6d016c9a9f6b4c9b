"""Loss and gradients of small models against the vendor's formulas: every weight and scaling.

The oracle is NumPy: the loss of the logits, and its derivative by the logits, which goes back
through the model as a cotangent.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.base import Batch
from wafer.models.paths import named_leaves
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


@pytest.mark.parametrize("keys", slow_where_whole(SEQ2SEQ_KEYS, WHOLE_SEQ2SEQ), ids=str)
@pytest.mark.parametrize("name", ["t5", "transformer"])
def test_sequence_to_sequence(name, keys):
    model = models.build(translate({"model": {"name": name, **SEQ2SEQ, **keys}}).sections["model"])
    layout = vsl.padded_layout(jnp.asarray(LENGTHS[::-1]), ROOM)
    data = batch(source_tokens=TOKENS[::-1].astype(np.int32))
    data = data._replace(extras=data.extras | {"source_layout": layout})
    scaling = keys.get("mlm_loss_scaling")
    by_sequences = scaling == "batch_size" or (scaling is None and "lm_loss_weight" in keys)

    def oracle(logits):
        total, d = cross_entropy(logits, LABELS, CHOSEN, keys.get("label_smoothing", 0.0))
        factor = keys.get("lm_loss_weight", 1.0) / B if by_sequences else 1 / CHOSEN.sum()
        return total * factor, d * factor

    whole = keys == WHOLE_SEQ2SEQ
    compare(model, data, oracle, None if whole else {"": (T, V)})


@pytest.mark.parametrize(("weight", "whole"), WEIGHTS)
@pytest.mark.parametrize("padded", [False, True])
def test_named_entities(weight, whole, padded):
    keys = {} if weight is None else {"loss_weight": weight}
    keys |= {"include_padding_in_loss": True} if padded else {}
    model = models.build({"name": "bert-token-classifier", **BERT, "num_labels": 3, **keys})
    weights = np.ones(T) if padded else CHOSEN

    def oracle(out):
        total, d = cross_entropy(out["logits"], LABELS, weights)
        by_sequences = padded or weight is not None
        factor = (weight or 1.0) / B if by_sequences else 1 / weights.sum()
        factor /= ROOM if padded else 1
        return total * factor, {"logits": d * factor}

    data = batch(weights, segment_ids=np.zeros(T, np.int32))
    compare(model, data, oracle, {"logits": (T, 3)} if not whole else None)


@pytest.mark.parametrize(("weight", "whole"), WEIGHTS)
def test_sequences_with_classes(weight, whole):
    keys = {} if weight is None else {"loss_weight": weight}
    model = models.build({"name": "bert-sequence-classifier", **BERT, "num_labels": 3, **keys})

    def oracle(out):
        total, d = cross_entropy(out["logits"], CLASSES, np.ones(B))
        factor = (weight or 1.0) / B
        return total * factor, {"logits": d * factor}

    data = batch(class_labels=CLASSES, segment_ids=np.zeros(T, np.int32))
    compare(model, data, oracle, {"logits": (B, 3)} if not whole else None)


@pytest.mark.parametrize(("weight", "whole"), WEIGHTS)
def test_summarization(weight, whole):
    keys = {} if weight is None else {"loss_weight": weight}
    model = models.build({"name": "bert-summarization", **BERT, **keys})
    truth, weights = np.array([1.0, 0, 0, 1, 0]), np.array([1.0, 1, 1, 1, 0])
    at = np.array([0, 2, 4, 8, 0])

    def oracle(out):
        p = 1 / (1 + np.exp(-np.asarray(out["logits"], np.float64)))
        total = -(weights * (truth * np.log(p) + (1 - truth) * np.log(1 - p))).sum()
        factor = 1 / weights.sum() if weight is None else weight / B
        return total * factor, {"logits": weights * (p - truth) * factor}

    extras = {"masked_positions": at, "masked_labels": truth, "masked_weights": weights}
    data = batch(**extras, segment_ids=np.zeros(T, np.int32))
    compare(model, data, oracle, {"logits": (5,)} if not whole else None)


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
