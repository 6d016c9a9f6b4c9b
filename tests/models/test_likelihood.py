"""Log-likelihoods of continuations, against one padded row at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.generation import likelihood

TINY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 2}
TINY |= {"filter_size": 32, "max_position_embeddings": 12}


def built(name, **keys):
    model = models.build({"name": name} | TINY | keys)
    params = jax.tree.map(lambda leaf: 3 * leaf, model.init(jax.random.key(0)))
    return model, params


@functools.partial(jax.jit, static_argnames="model")
def scores_of(model, params, tokens, length):
    """Log-softmax of a row of 12 slots."""
    layout = vsl.padded_layout(length[None], 12)
    logits = model.apply(params, models.Batch(tokens, tokens, jnp.ones(12), layout))
    return jax.nn.log_softmax(logits[0] if isinstance(logits, tuple) else logits)


def one(model, params, context, continuation):
    """The sum over the continuation of a row of its own, and the likeliest tokens there."""
    tokens = [*context, *continuation][:-1]
    filled = jnp.asarray(tokens + [0] * (12 - len(tokens)), jnp.int32)
    scores = np.asarray(scores_of(model, params, filled, jnp.asarray(len(tokens))))
    scores = scores[len(tokens) - len(continuation) : len(tokens)]
    return scores[range(len(continuation)), continuation].sum(), scores.argmax(-1)


@pytest.mark.parametrize(
    ("name", "keys"), [("gpt2", {}), ("mixtral", {"share_embedding_weights": True})]
)
def test_packed_sequences_score_as_each_alone(name, keys):
    model, params = built(name, **keys)
    draw = np.random.default_rng(0)
    requests = [
        tuple(draw.integers(0, 32, size).tolist() for size in draw.integers(1, 6, 2))
        for _ in range(300)
    ]
    requests += [([5, 7], [token]) for token in range(8)]  # one input, eight continuations
    context, _ = requests[0]
    requests.append((context, [int(one(model, params, context, [0])[1][0])]))
    found = likelihood.log_likelihoods(model, params, requests, 12)
    for (context, continuation), result in zip(requests, found, strict=True):
        expected, best = one(model, params, context, continuation)
        assert result.logprob == pytest.approx(expected, abs=2e-5)
        assert result.greedy == (best.tolist() == continuation)
    assert found[-1].greedy


def test_a_long_context_loses_its_first_tokens():
    model, params = built("gpt2")
    context, continuation = [*range(20)], [3, 4, 5]
    (cut,) = likelihood.log_likelihoods(model, params, [(context, continuation)], 12)
    expected, _ = one(model, params, context[-10:], continuation)
    assert cut.logprob == pytest.approx(expected, abs=2e-5)


def test_equal_inputs_are_computed_once():
    """Contexts of 9 tokens with two answers each, of one and of two tokens."""
    requests = [([*range(i, i + 9)], [answer]) for i in range(4) for answer in (1, 2)]
    requests.append(([*range(9)], [1, 2]))
    readers = likelihood._readers(requests, 12)
    streams = list(likelihood._streams(readers, 4096))
    (stream, scored), *rest = streams
    assert not rest
    assert sorted(stream.lengths[stream.lengths > 0]) == [9, 9, 9, 9, 10]
    assert len(scored) == len(requests)
    assert sum(count for _, count in scored) == 10
    assert len(stream.tokens) == len(stream.labels) == 128


@pytest.mark.parametrize("request_", [([], [1]), ([1], []), ([1], [2] * 13)])
def test_what_has_no_likelihood_is_refused(request_):
    model, params = built("gpt2")
    with pytest.raises(ValueError, match=r"request 0 has .* expected 1 or more, and 1 to 12"):
        likelihood.log_likelihoods(model, params, [request_], 12)


@pytest.mark.parametrize("request_", [([32], [1]), ([1], [2, 32]), ([-1], [1])])
def test_ids_outside_the_vocabulary_are_refused(request_):
    """Else the nearest row of a table would be read, which gives a plausible number."""
    model, params = built("gpt2")
    with pytest.raises(ValueError, match=r"request 1 has an id outside the vocabulary 0\.\.31"):
        likelihood.log_likelihoods(model, params, [([1], [2]), request_], 12)


def test_other_models_are_refused():
    model = models.build({"name": "bert"} | TINY)
    with pytest.raises(ValueError, match="bert: expected a decoder with a language-model head"):
        likelihood.log_likelihoods(model, {}, [([1], [2])], 12)
