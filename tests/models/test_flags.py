"""Models compute in their configured types, whatever the user's flags of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.flags import strict_flags

from wafer import models, vsl
from wafer.models.paths import named_leaves
from wafer.models.user.flags import own_flags
from wafer.sparsity.selection import topk_mask

SIZES = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_heads": 2}
SIZES |= {"filter_size": 32, "max_position_embeddings": 16}
T5 = {"name": "t5", "vocab_size": 32, "tgt_vocab_size": 32, "hidden_size": 16}
T5 |= {"attention_inner_dim": 16, "filter_size": 24, "num_heads": 2, "num_hidden_layers": 1}
T5 |= {"decoder_num_hidden_layers": 1}
slow = lambda *values: pytest.param(*values, marks=pytest.mark.slow)
DECODERS = ("gpt2", "bloom", "llama", "gemma2", "mixtral", "mpt", "falcon")


def section(name: str) -> dict:
    return T5 if name == "t5" else {"name": name, **SIZES}


def dtypes(tree) -> dict[str, str]:
    return {name: str(leaf.dtype) for name, leaf in named_leaves(tree)}


def assert_same(got, want) -> None:
    assert dtypes(got) == dtypes(want)
    for (name, a), (_, b) in zip(named_leaves(got), named_leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("name", [*DECODERS, "bert", "t5"])
def test_parameters_have_the_same_types_and_values(name, key):
    want = models.build(section(name)).init(key)
    with strict_flags():
        got = models.build(section(name)).init(key)
    assert_same(got, want)
    assert set(dtypes(got).values()) == {"float32"}


@pytest.mark.parametrize(
    ("name", "half"),
    [
        ("gpt2", True),
        ("mixtral", False),
        *(slow(name, half) for name in DECODERS for half in (False, True)),
    ],
)
def test_losses_and_gradients_are_the_same_inside_the_users_jit(name, half, key):
    model = models.build(section(name) | {"mixed_precision": half, "dropout_rate": 0.1})
    params = model.init(key)
    tokens = jnp.arange(16, dtype=jnp.int32)
    layout = vsl.padded_layout(jnp.asarray([5, 3], jnp.int32), 8)
    batch = models.Batch(tokens, tokens[::-1], layout.valid.astype(jnp.float32), layout)
    step = jax.value_and_grad(model.loss, has_aux=True)
    want = jax.jit(step)(params, batch, key)
    with strict_flags():
        assert_same(jax.jit(step)(params, batch, key), want)


@pytest.mark.parametrize("name", ["gpt2", "t5", slow("gemma2"), slow("mixtral")])
def test_tokens_are_the_same(name, key):
    model = models.build(section(name))
    params = model.init(key)
    options = {"temperature": 0.7, "repetition_penalty": 1.1, "top_p": 0.9, "key": key}

    def tokens():
        yield models.generate(model, params, [[1, 2, 3]], 6)
        blocks = models.generate_stream(model, params, [[1, 2, 3]], 6, block=2, **options)
        yield np.concatenate(list(blocks), axis=1)
        if name == "t5":
            yield models.beam_search(model, params, [[3, 4]], 4, num_beams=2, end_id=1).tokens
        else:
            yield models.speculate(model, params, (model, params), [[1, 2]], 5).tokens

    want = list(tokens())
    with strict_flags():
        got = list(tokens())
    assert [row.tolist() for row in got] == [row.tolist() for row in want]
    assert [row.dtype for row in got] == [row.dtype for row in want]


def test_the_callers_flags_are_back_after_a_call_and_between_blocks(key):
    model = models.build(section("gpt2"))
    params = model.init(key)
    with strict_flags():
        for _ in models.generate_stream(model, params, [[1, 2, 3]], 5, block=2):
            assert jnp.zeros(1).dtype == jnp.float64
        with own_flags():
            assert jnp.zeros(1).dtype == jnp.float32
        assert jnp.zeros(1).dtype == jnp.float64


@pytest.mark.parametrize("size", [9, 200])  # ranked by pairs, and by bits with ties
def test_libraries_below_compute_in_the_types_of_their_arguments(size):
    scores = jnp.asarray(np.random.default_rng(0).integers(0, 4, (3, size)), jnp.float32)
    want = topk_mask(scores, 5)
    with strict_flags():
        np.testing.assert_array_equal(topk_mask(scores, 5), want)
        wide = vsl.normalize(scores, jnp.ones(size), jnp.zeros(size), eps=1e-5)
    assert wide.dtype == jnp.float32
