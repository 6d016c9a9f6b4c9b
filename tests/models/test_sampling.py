"""The next token: each filter by hand, and rows that end, stop or are read in blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models
from wafer.models.generation import decode as generation
from wafer.models.generation.sampling import Sampling, best_token, check_sampling, next_token

SHARES = jnp.log(jnp.asarray([[0.5, 0.3, 0.15, 0.05]]))
CONFIG = {"name": "gpt2", "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1}
CONFIG |= {"num_heads": 2, "filter_size": 32, "max_position_embeddings": 64}
CONFIG |= {"initializer_range": 1.0}


def test_the_best_token_is_the_first_of_equal_ones_as_argmax_has_it():
    rng = np.random.default_rng(0)
    scores = np.float32(rng.integers(0, 4, (3, 40, 9)))
    scores[0, 0], scores[0, 1, 5], scores[1, 2] = -np.inf, np.nan, [0.0, -0.0] + [-1.0] * 7
    best = best_token(jnp.asarray(scores))
    assert best.dtype == jnp.int32
    np.testing.assert_array_equal(best, scores.argmax(-1))


def test_a_draw_is_that_of_jax():
    scores = jax.random.normal(jax.random.key(1), (5, 77))
    for key in jax.random.split(jax.random.key(2), 20):
        best = scores - scores.max(-1, keepdims=True)
        own = next_token(scores, None, Sampling(temperature=1.0), key)
        np.testing.assert_array_equal(own, jax.random.categorical(key, best))


def drawn(sampling, scores=SHARES, seen=None):
    """Which tokens come up in 400 draws."""
    keys = jax.random.split(jax.random.key(0), 400)
    tokens = jax.vmap(lambda key: next_token(scores, seen, sampling, key))(keys)
    return sorted(set(tokens[:, 0].tolist()))


@pytest.mark.parametrize(
    ("options", "stay"),
    [
        ({}, [0, 1, 2, 3]),
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.6}, [0, 1]),  # the token that passes the limit stays, as in transformers
        ({"top_p": 0.81}, [0, 1, 2]),
        ({"top_p": 1e-6}, [0]),
        ({"min_p": 0.25}, [0, 1, 2]),
        ({"min_p": 0.5}, [0, 1]),
        ({"top_k": 3, "top_p": 0.6}, [0, 1]),  # of 0.526, 0.316, 0.158
        ({"temperature": 0.5, "min_p": 0.2}, [0, 1]),  # squares: 0.25, 0.09, 0.0225
    ],
)
def test_tokens_that_stay_by_hand(options, stay):
    assert drawn(Sampling(**{"temperature": 1.0} | options)) == stay


@pytest.mark.parametrize("temperature", [1e-3, 1e-39, 1e-300])
def test_a_temperature_near_0_takes_the_likeliest(temperature):
    assert drawn(Sampling(temperature=temperature)) == [0]
    assert drawn(Sampling(temperature=temperature), -SHARES) == [3]


def test_order_of_the_vocabulary_does_not_matter_to_top_p():
    assert drawn(Sampling(temperature=1.0, top_p=0.6), SHARES[:, ::-1]) == [2, 3]


def test_a_penalty_divides_positive_scores_and_multiplies_negative_ones():
    scores = jnp.asarray([[3.0, 2.0, -1.0], [-1.0, -1.5, -9.0]])
    seen = jnp.asarray([[True, False, True], [True, False, False]])
    key = jax.random.key(0)
    greedy = Sampling(repetition_penalty=2.0)
    assert next_token(scores, seen, greedy, key).tolist() == [1, 1]  # 1.5, 2, -2; -2, -1.5, -9
    assert next_token(scores, None, Sampling(), key).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"top_p": 0.0}, "top_p: expected above 0 and at most 1, got 0.0"),
        ({"top_p": float("nan")}, "top_p: expected above 0"),
        ({"min_p": 1.5}, "min_p: expected from 0 to 1, got 1.5"),
        ({"top_k": 0}, "top_k: expected at least 1, got 0"),
        ({"top_k": 2.5}, "top_k: expected at least 1, got 2.5"),
        ({"temperature": -1.0}, "temperature: expected 0 or more"),
        ({"temperature": -1e-4}, "temperature: expected 0 or more"),
        ({"temperature": float("nan")}, "temperature: expected 0 or more, got nan"),
        ({"temperature": float("inf")}, "temperature: expected 0 or more, got inf"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: expected above 0"),
    ],
)
def test_numbers_out_of_range(option, expected):
    with pytest.raises(ValueError, match=expected):
        check_sampling(Sampling(**option))


@pytest.fixture(scope="module")
def decoder():
    model = models.build(CONFIG)
    return model, model.init(jax.random.key(1))


PROMPTS = np.asarray([[1, 2, 3, 4, 5], [6, 7, 0, 0, 0]])


def test_rows_end_and_the_rest_goes_on(decoder):
    options = {"lengths": [5, 2], "temperature": 1.0, "key": jax.random.key(2)}
    free = models.generate(*decoder, PROMPTS, 12, **options)
    end = int(free[0, 3])
    ended = models.generate(*decoder, PROMPTS, 12, end_id=end, **options)
    for one, whole in zip(ended.tolist(), free.tolist(), strict=True):
        stop = whole.index(end) + 1 if end in whole else 12
        assert one == whole[:stop] + [end] * (12 - stop)
    blocks = list(models.generate_stream(*decoder, PROMPTS[:1], 12, end_id=end, block=3,
                                         temperature=1.0, key=jax.random.key(2)))  # fmt: skip
    assert sum(block.shape[1] for block in blocks) < 12  # nothing more is computed


def test_a_row_ends_at_any_of_several_tokens(decoder):
    free = models.generate(*decoder, PROMPTS, 12, lengths=[5, 2])
    ends = [int(free[0, 7]), int(free[0, 4]), int(free[1, 5])]
    ended = models.generate(*decoder, PROMPTS, 12, lengths=[5, 2], end_id=ends)
    for one, whole in zip(ended.tolist(), free.tolist(), strict=True):
        stop = min(whole.index(end) for end in ends if end in whole) + 1
        assert one == whole[:stop] + [ends[0]] * (12 - stop)
    guessed = models.speculate(*decoder, decoder, PROMPTS, 12, lengths=[5, 2], end_id=ends)
    np.testing.assert_array_equal(guessed.tokens, ended)


@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_blocks_have_no_influence(decoder, block):
    options = {"lengths": [5, 2], "temperature": 0.7, "top_p": 0.9, "key": jax.random.key(3)}
    whole = models.generate(*decoder, PROMPTS, 12, **options)
    blocks = list(models.generate_stream(*decoder, PROMPTS, 12, block=block, **options))
    assert max(part.shape[1] for part in blocks) <= block
    np.testing.assert_array_equal(np.concatenate(blocks, 1), whole)


def test_a_row_of_a_batch_is_the_row_alone(decoder):
    together = models.generate(*decoder, PROMPTS, 8, lengths=[5, 2], repetition_penalty=1.4)
    for row, length in zip(range(2), (5, 2), strict=True):
        alone = models.generate(*decoder, PROMPTS[row, :length], 8, repetition_penalty=1.4)
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_great_penalty_never_repeats_the_prompt_or_itself(decoder):
    tokens = models.generate(*decoder, PROMPTS[0], 8, repetition_penalty=1e6)[0].tolist()
    assert len({*tokens, *PROMPTS[0].tolist()}) == 8 + 5


def test_a_prompt_in_blocks_is_the_prompt(decoder, monkeypatch):
    prompt = np.asarray(jax.random.randint(jax.random.key(4), (3, 40), 0, 31))
    lengths = [40, 17, 32]
    whole = models.generate(*decoder, prompt, 9, lengths=lengths)
    monkeypatch.setattr(generation, "_PROMPT_BLOCK", 16)
    generation._begin.clear_cache()
    try:
        np.testing.assert_array_equal(models.generate(*decoder, prompt, 9, lengths=lengths), whole)
    finally:
        generation._begin.clear_cache()


def test_a_step_takes_the_cache_over_and_leaves_the_tokens(decoder):
    blocks = models.generate_stream(*decoder, PROMPTS, 9, lengths=[5, 2], block=2)
    first = next(blocks)
    kept = first.copy()
    cache = blocks.gi_frame.f_locals["state"].cache
    next(blocks)
    assert all(array.is_deleted() for array in cache.keys + cache.values)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.slow
def test_a_cache_of_bfloat16_holds_the_rounded_keys_and_values(decoder):
    model, params = decoder
    begin = lambda dtype: (
        generation.begin_rows(model, params, PROMPTS, np.asarray([5, 2]), 3, dtype=dtype)[2].cache
    )
    whole, half = begin("float32"), begin("bfloat16")
    first = lambda cache: np.asarray(cache.keys[0].astype("float32"))  # no rounding before it
    np.testing.assert_array_equal(first(half), whole.keys[0].astype("bfloat16").astype("float32"))
    for one, two in zip(whole.keys + whole.values, half.keys + half.values, strict=True):
        assert two.dtype == jnp.dtype("bfloat16")
        np.testing.assert_allclose(two.astype("float32"), one, rtol=2**-6, atol=2**-8)
    with pytest.raises(ValueError, match="cache_dtype: expected float32 or bfloat16, got float16"):
        models.generate(model, params, [1], 2, cache_dtype="float16")


def test_errors_come_before_the_first_token(decoder):
    with pytest.raises(ValueError, match="block: expected at least 1, got 0"):
        models.generate_stream(*decoder, [1], 3, block=0)
    with pytest.raises(ValueError, match="top_p: expected above 0"):
        models.generate_stream(*decoder, [1], 3, top_p=2.0)


@pytest.mark.parametrize(
    ("k", "end_id", "noise"),
    [
        (1, None, 0.0),
        pytest.param(6, None, 0.0, marks=pytest.mark.slow),
        pytest.param(6, 4, 0.1, marks=pytest.mark.slow),
        pytest.param(6, None, 0.1, marks=pytest.mark.slow),
        (6, None, 3.0),
        pytest.param(6, 4, 3.0, marks=pytest.mark.slow),
    ],
)
def test_a_draft_never_changes_the_text(decoder, k, end_id, noise):
    model, params = decoder
    keys = jax.random.split(jax.random.key(6), len(jax.tree.leaves(params)))
    keys = jax.tree.unflatten(jax.tree.structure(params), list(keys))
    drafted = jax.tree.map(lambda p, key: p + noise * jax.random.normal(key, p.shape), params, keys)
    options = {"lengths": [5, 2], "end_id": end_id}
    greedy = models.generate(model, params, PROMPTS, 14, **options)
    result = models.speculate(
        model, params, (model, drafted), PROMPTS, 14, draft_tokens=k, **options
    )
    np.testing.assert_array_equal(result.tokens, greedy)
    if noise == 0 and end_id is None:
        assert result.accepted == 1
        assert result.passes == -(-13 // (k + 1))  # the first token comes with the prompt
    if noise == 3:
        assert result.accepted < 0.5


def test_drafts_that_do_not_fit(decoder):
    model, params = decoder
    other = models.build(CONFIG | {"vocab_size": 30})
    with pytest.raises(ValueError, match="the draft has 30 tokens and the model 31"):
        models.speculate(model, params, (other, other.init(jax.random.key(0))), [[1]], 3)
    with pytest.raises(ValueError, match="draft_tokens: expected 1 to 15, got 0"):
        models.speculate(model, params, decoder, [[1]], 3, draft_tokens=0)
    short = models.build(CONFIG | {"max_position_embeddings": 4})
    with pytest.raises(ValueError, match="exceeds max_position_embeddings 4"):
        models.speculate(model, params, (short, short.init(jax.random.key(0))), [[1]], 9)
