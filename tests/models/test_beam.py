"""Beam search against a search of all sequences, and against greedy text."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models
from wafer.models.generation.decode import empty_rows

CONFIG = {"name": "t5", "vocab_size": 8, "tgt_vocab_size": 8, "hidden_size": 16}
CONFIG |= {"attention_inner_dim": 16, "filter_size": 24, "num_hidden_layers": 1}
CONFIG |= {"decoder_num_hidden_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
SOURCE, LENGTHS, END = np.asarray([[1, 2, 3], [4, 5, 0]]), [3, 2], 1


@pytest.fixture(scope="module")
def seq2seq():
    model = models.build(CONFIG)
    params = model.init(jax.random.key(3))
    return model, jax.tree.map(lambda leaf: 3 * leaf, params)  # far from uniform


PAIRS = list(itertools.product(range(8), repeat=2))


@pytest.fixture(scope="module")
def chances(seq2seq):
    """For each row, [pair, position, token] log-probabilities of every pair, read whole."""
    read_whole = []
    for row, length in enumerate(LENGTHS):
        many = SOURCE[row : row + 1, :length].repeat(len(PAIRS), 0)
        lengths = np.full(len(PAIRS), length)
        step, params, start, _, cache = empty_rows(*seq2seq, many, lengths, 2)
        read = jnp.concatenate([start, jnp.asarray(PAIRS)[:, :-1]], 1)
        logits, _ = jax.jit(step)(params, read, jnp.full(len(PAIRS), 2), cache)
        read_whole.append(np.asarray(jax.nn.log_softmax(logits, -1)))
    return read_whole


def best_of_all(chances, penalty):
    """The best of all sequences of up to two tokens, and its score."""
    count, scores = 2, {}
    for sequence, chance in zip(PAIRS, chances, strict=True):
        end = sequence.index(END) + 1 if END in sequence else count
        total = sum(chance[i, token] for i, token in enumerate(sequence[:end]))
        scores[sequence[:end]] = total / end**penalty
    best = max(scores, key=scores.__getitem__)
    return [*best, *[END] * (count - len(best))], scores[best]


@pytest.mark.parametrize("penalty", [pytest.param(-1.0, marks=pytest.mark.slow), 0.0, 1.0, 3.0])
def test_enough_beams_find_the_best_of_all_sequences(seq2seq, chances, penalty):
    result = models.beam_search(
        *seq2seq, SOURCE, 2, num_beams=8, end_id=END, length_penalty=penalty, lengths=LENGTHS
    )
    for row in range(2):
        tokens, score = best_of_all(chances[row], penalty)
        assert result.tokens[row].tolist() == tokens
        assert result.scores[row] == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("penalty", [math.nan, math.inf, -math.inf])
def test_a_length_penalty_that_is_no_number_is_refused(seq2seq, penalty):
    with pytest.raises(
        ValueError, match=f"length_penalty: expected a finite number, got {penalty}"
    ):
        models.beam_search(*seq2seq, SOURCE, 2, num_beams=2, end_id=END, length_penalty=penalty)


@pytest.mark.slow
def test_one_beam_is_greedy_where_lengths_do_not_count(seq2seq):
    greedy = models.generate(*seq2seq, SOURCE, 6, lengths=LENGTHS, end_id=END)
    result = models.beam_search(
        *seq2seq, SOURCE, 6, num_beams=1, end_id=END, length_penalty=0.0, lengths=LENGTHS
    )
    np.testing.assert_array_equal(result.tokens, greedy)


def test_more_beams_are_never_worse_here_and_rows_are_independent(seq2seq):
    def search(beams, source=SOURCE, lengths=LENGTHS):
        return models.beam_search(
            *seq2seq, source, 6, num_beams=beams, end_id=END, length_penalty=0.0, lengths=lengths
        )

    scores = [search(beams).scores for beams in (1, 4)]
    assert (scores[1] >= scores[0] - 1e-5).all()
    alone = search(4, SOURCE[1:, :2], [2])
    np.testing.assert_array_equal(alone.tokens[0], search(4).tokens[1])


def test_what_is_refused(seq2seq):
    with pytest.raises(ValueError, match="num_beams: expected at least 1, got 0"):
        models.beam_search(*seq2seq, SOURCE, 3, num_beams=0, end_id=END)
    decoder = models.build({"name": "gpt2", "vocab_size": 9, "hidden_size": 8,
                            "num_hidden_layers": 1, "num_heads": 1, "filter_size": 8})  # fmt: skip
    with pytest.raises(ValueError, match="gpt2: beam search is for encoder-decoders"):
        models.beam_search(decoder, {}, SOURCE, 3, num_beams=2, end_id=END)
