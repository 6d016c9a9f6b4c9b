"""EBERT's embedding of two inputs: by hand, states against shares, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.batches import packed

from wafer import models, vsl
from wafer.models.families.encoder import EncoderEmbed
from wafer.models.layers.blocks import no_dropout
from wafer.models.paths import named_leaves

TINY = {"name": "ebert", "vocab_size": 9, "epigenetic_vocab_size": 3, "hidden_size": 8}
TINY |= {"num_hidden_layers": 1, "num_heads": 2, "filter_size": 16, "max_position_embeddings": 8}
TINY |= {"dropout_rate": 0.0}


def batch(**extras):
    return packed([2, 7, 3, 2, 3, 0], [3, 2], **extras)


def test_embedding_by_hand():
    """token + position + the mean of the states' rows, weighted by their shares."""
    size = {"vocab_size": 2, "epigenetic_vocab_size": 3, "hidden_size": 2, "num_heads": 1}
    cfg = models.build(TINY | size | {"use_embedding_layer_norm": False}).config
    params = {
        "token": {"embedding": jnp.asarray([[1.0, 2.0], [3.0, 4.0]])},
        "position": {"embedding": jnp.asarray([[10.0, 0.0], [0.0, 20.0], *[[0.0, 0.0]] * 6])},
        "epigenetic": {"embedding": jnp.asarray([[100.0, 0.0], [0.0, 400.0], [800.0, 800.0]])},
    }
    shares = jnp.asarray([[0.25, 0.75, 0.0], [0.0, 0.0, 0.5]])
    ids, at = jnp.asarray([1, 0]), jnp.asarray([0, 1])
    layout = vsl.layout_from_lengths(jnp.asarray([2]), 2)
    x = EncoderEmbed(cfg).apply({"params": params}, ids, layout, at, no_dropout, shares)
    expected = [[3 + 10 + 25, 4 + 300], [1 + 400, 2 + 20 + 400]]
    np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-6)


def test_a_state_is_the_whole_share_and_an_unknown_one_is_none():
    model = models.build(TINY)
    params = model.init(jax.random.key(0))
    states = [0, 2, -1, 1, 1, 0]
    shares = np.eye(3)[states]
    shares[2] = 0
    apply = jax.jit(model.apply)
    logits = [
        apply(params, batch(epigenetic=given))["logits"]
        for given in (np.asarray(states), shares.astype(np.float32))
    ]
    np.testing.assert_array_equal(*logits)
    other = apply(params, batch(epigenetic=[0, 2, 0, 1, 1, 0]))["logits"]
    assert float(jnp.abs(other - logits[0])[:3].max()) > 0  # position 2 and its sequence
    np.testing.assert_array_equal(other[3:5], logits[0][3:5])  # and no other sequence


def test_parameters_are_berts_and_one_table():
    def shapes(model):
        leaves = named_leaves(jax.eval_shape(model.init, jax.random.key(0)))
        return {name: leaf.shape for name, leaf in leaves}

    bert = models.build(
        {k: v for k, v in TINY.items() if k != "epigenetic_vocab_size"}
        | {"name": "bert", "head": "mlm", "num_segments": None}
    )
    model = models.build(TINY)
    assert shapes(model) == shapes(bert) | {"embed/epigenetic/embedding": (3, 8)}
    alias = "model.bert_encoder.embedding_layer.epigenetic_embeddings.weight"
    assert model.alias("embed/epigenetic/embedding") == alias


@pytest.mark.parametrize(
    ("extras", "shown"),
    [({}, "None"), ({"epigenetic": np.zeros((6, 2))}, r"\(6, 2\)")],
    ids=["none", "another width"],
)
def test_a_batch_without_its_second_input_is_refused(extras, shown):
    model = models.build(TINY)
    params = jax.eval_shape(model.init, jax.random.key(0))
    message = rf"ebert: extras\['epigenetic'\] is {shown}; expected .* \[T, 3\]"
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda p: model.apply(p, batch(**extras)), params)


def test_only_heads_whose_rows_have_a_second_input():
    assert models.build(TINY).config.tasks == ("epigenetic_mlm",)
    assert models.build(TINY | {"head": "none"}).config.tasks == ()
