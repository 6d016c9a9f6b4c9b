"""Padding that carries loss: BERT's token classifier against the vendor's formulas in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.base import Batch
from wafer.models.registry import parse_config

LENGTHS, ROOM = np.array([3, 1, 4]), 4
KEYS = {"vocab_size": 9, "hidden_size": 8, "num_heads": 2, "num_hidden_layers": 1}
KEYS |= {"filter_size": 6, "max_position_embeddings": 4, "num_labels": 3, "dropout_rate": 0.0}
WEIGHT = 0.7


def config(**keys):
    name = "bert-token-classifier"
    return parse_config({"name": name, **KEYS, "include_padding_in_loss": True, **keys})


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def dense(x, p):
    return x @ p["kernel"] + p["bias"]


def vendor_logits(params, ids):
    """All slots compute; keys are the tokens alone. ids [S], the first L of them tokens."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    count = int((ids != 0).sum())
    e, layer = p["embed"], p["layers_0"]
    x = e["token"]["embedding"][ids] + e["position"]["embedding"] + e["segment"]["embedding"][0]
    x = norm(x, e["norm"])
    q, k, v = (dense(x, layer["attn"][n]).reshape(-1, 2, 4) for n in ("query", "key", "value"))
    scores = np.einsum("qnh,knh->nqk", q, k[:count]) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("nqk,knh->qnh", weights, v[:count]).reshape(-1, 8)
    x = norm(x + dense(mixed, layer["attn"]["out"]), layer["norm1"])
    h = dense(x, layer["ffn"]["up"])
    h = h * 0.5 * (1 + np.vectorize(math.erf)(h / np.sqrt(2)))
    x = norm(x + dense(h, layer["ffn"]["down"]), layer["norm2"])
    return dense(x, p["classifier"])


def batch(seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, 9, (3, ROOM)) * (np.arange(ROOM) < LENGTHS[:, None])
    labels = rng.integers(0, 3, ids.shape)
    layout = vsl.padded_layout(jnp.asarray(LENGTHS), ROOM)
    flat = lambda x: jnp.asarray(x.reshape(-1), jnp.int32)
    return Batch(flat(ids), flat(labels), jnp.ones(ids.size), layout, {}), ids, labels


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_padded_slots_see_the_tokens_and_their_loss_is_divided_by_slots(weight):
    """The vendor: sum over all slots / B x weight / S."""
    model = models.build(config(loss_weight=weight))
    params = model.init(jax.random.key(1))
    data, ids, labels = batch()
    logits = np.stack([vendor_logits(params, row) for row in ids])
    out = model.apply(params, data)["logits"].reshape(3, ROOM, 3)
    assert out == pytest.approx(logits, abs=1e-5)
    nll = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    loss, _ = model.loss(params, data)
    expected = nll.sum() / 3 * (weight or 1.0) / ROOM
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_padding_takes_loss_and_its_embedding_no_gradient():
    model = models.build(config())
    params = model.init(jax.random.key(1))
    data, _, _ = batch()

    def loss(params):
        return model.loss(params, data)[0]

    embed = jax.jit(jax.grad(loss))(params)["embed"]
    assert not embed["token"]["embedding"][0].any()
    assert embed["position"]["embedding"][3].any()  # two of three padded
