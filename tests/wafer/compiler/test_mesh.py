"""A decoder on one mesh: what a PE has, and cycles and tokens of the example that runs it."""

import jax
import numpy as np
import pytest
import yaml
from helpers.examples import runtime, script
from helpers.paths import ROOT

from wafer import models
from wafer.compiler.decode.mesh import mesh_parts, token_cycles

SMALL = {"name": "gpt2", "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2}
SMALL |= {"num_heads": 4, "filter_size": 32, "max_position_embeddings": 24, "dropout_rate": 0.0}
TURNING = {"position_embedding_type": "rotary", "rotary_dim": 4, "nonlinearity": "squared_relu"}
LLAMA = {
    "name": "llama",
    "attention_module": "multiquery_attention",
    "extra_attention_params": {"num_kv_groups": 2},
}
OWN_HEAD = {"share_embedding_weights": False, "use_bias_in_output": True}
SLOW = pytest.mark.slow
# Grids of one PE, of lines, with fewer columns than heads and with more, that divide nothing.
CASES = [
    ((1, 1), {}),
    ((3, 3), {}),
    ((1, 5), OWN_HEAD),
    ((5, 1), TURNING),
    ((3, 5), TURNING | {"rotary_interleaved": False, "num_heads": 2}),
    ((2, 4), LLAMA | {"filter_size": 20}),
    pytest.param(
        (4, 7), {"nonlinearity": "gelu_new", "num_heads": 3, "hidden_size": 24}, marks=SLOW
    ),
    pytest.param((3, 9), LLAMA | {"rotary_dim": 2}, marks=SLOW),
]


def random_model(scale=0.4, **changes):
    """A model and parameters that are large enough for every part to matter."""
    model = models.build(SMALL | changes)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(7)
    return model, jax.tree.map(lambda leaf: rng.normal(0, scale, leaf.shape).astype("f"), shapes)


def check(model, params, grid, prompt, count, positions):
    """Scores as the example's reference, cycles as the closed form; returns the tokens."""
    example, parts = script("decoder"), mesh_parts(model.config, grid, positions)
    p = parts._asdict()
    packed = example.pack(p, model.config, params)
    assert packed.shape[2] == parts.weight_words
    tokens, scores, cycles = example.run(runtime("decoder", **p), p, prompt, count, packed)
    text = [*prompt, *tokens[:-1].tolist()]
    expected = example.reference(p, model.config, params, text)[len(prompt) - 1 :]
    limit = 2e-4 * abs(expected).max()
    np.testing.assert_allclose(scores[:, : expected.shape[1]], expected, rtol=2e-4, atol=limit)
    np.testing.assert_array_equal(tokens, scores.argmax(-1))
    closed = [token_cycles(parts, at) for at in range(len(prompt) - 1, len(text))]
    np.testing.assert_allclose(closed, cycles[len(prompt) - 1 :], rtol=0.05)
    return tokens


@pytest.mark.parametrize(("grid", "changes"), CASES)
def test_the_example_on_small_models(grid, changes):
    check(*random_model(**changes), grid, [3, 1, 4, 1], 4, 16)


@pytest.mark.parametrize(
    ("grid", "scale", "config"),
    [((2, 2), 0.4, None), pytest.param((16, 16), 0.1, "gpt_pystdlib.yaml", marks=SLOW)],
)
def test_tokens_of_generate(grid, scale, config):
    section = {}
    if config is not None:
        path = ROOT / "models" / "configs" / config
        section = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    model, params = random_model(scale, **section)
    tokens = check(model, params, grid, prompt := [3, 1, 4, 1, 5], 12, 24)
    np.testing.assert_array_equal(tokens, models.generate(model, params, prompt, 12)[0])


def test_a_tie_goes_to_the_first_token():
    """Of four equal rows of the table, on PEs of different rows and columns."""
    model, params = random_model(vocab_size=16)
    params["embed"]["token"]["embedding"][:] = 0.3
    example, p = script("decoder"), mesh_parts(model.config, (2, 2), 4)._asdict()
    packed = example.pack(p, model.config, params)
    assert example.run(runtime("decoder", **p), p, [2], 1, packed)[0].tolist() == [0]


def test_parts_by_hand():
    """16 features on 3 rows: 6, filled up to 8; 4 heads of 4 on 9 columns: two columns each."""
    model, _ = random_model()
    parts = mesh_parts(model.config, (3, 9), 20)
    assert (parts.features, parts.team, parts.heads, parts.part, parts.here) == (8, 2, 1, 2, 4)
    assert (parts.filter, parts.vocab, parts.slots) == (4, 8, 8)
    layer = 4 * 8 + 9 * 12 + 5 * 8 + 9 * 4 + 5 * 8
    assert parts.weight_words == 2 * layer + 2 * 8 + 9 * 8 + 3 * 8
    assert parts.cache_words == 2 * 2 * 4 * 8


@pytest.mark.parametrize(
    "changes",
    [
        {"position_embedding_type": "alibi"},
        {"attention_sliding_window_length": 4},
        {"hidden_size": 64},  # more than the memory of 2 x 2 PEs
        {"vocab_size": 70_000},  # more than 16 bits count
    ],
)
def test_models_that_the_program_does_not_do(changes):
    assert mesh_parts(models.build(SMALL | changes).config, (2, 2), 24) is None
