"""A decoder on PEs: a NumPy reference without a cache, the tokens of models.generate, cycles."""

import math

import jax
import numpy as np
import pytest
import yaml
from helpers.paths import ROOT

from wafer import models
from wafer.errors import WaferError
from wafer.hpc import decoder
from wafer.hpc.decoder import costs

SMALL = {
    "name": "gpt2",
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_heads": 4,
    "filter_size": 32,
    "max_position_embeddings": 24,
    "dropout_rate": 0.0,
}
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


def random_model(**changes):
    """A model and parameters that are large enough for every part to matter."""
    model = models.build(SMALL | changes)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    rng = np.random.default_rng(7)
    draw = lambda leaf: rng.normal(0, 0.4, leaf.shape).astype(np.float32)
    return model, jax.tree.map(draw, shapes)


def acts(name, x):
    erf = np.vectorize(math.erf)
    return {
        "gelu": lambda: x / 2 * (1 + erf(x / math.sqrt(2))),
        "gelu_new": lambda: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "squared_relu": lambda: np.maximum(x, 0) ** 2,
        "swiglu": lambda: x / (1 + np.exp(-x)),
    }[name]()


def turned(cfg, x):
    """Queries or keys [T, N, H] as complex numbers times their rotation."""
    size = cfg.rotary_features
    turn = cfg.rope_theta ** (-np.arange(0, size, 2) / size)
    rotation = np.exp(1j * np.arange(len(x))[:, None] * turn)[:, None]
    out = x.copy()
    inter = cfg.rotary_interleaved
    real, imaginary = (slice(0, size, 2), slice(1, size, 2)) if inter else (
        slice(size // 2), slice(size // 2, size)
    )  # fmt: skip
    whole = (x[..., real] + 1j * x[..., imaginary]) * rotation
    out[..., real], out[..., imaginary] = whole.real, whole.imag
    return out


def reference(cfg, params, tokens):
    """Scores [T, V] of all tokens, in double precision, from the whole text at once."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def dense(x, leaf):
        return x @ leaf["kernel"] + leaf.get("bias", 0)

    def norm(x, leaf):
        x = x - x.mean(-1, keepdims=True) * (cfg.norm_type != "rmsnorm")
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + cfg.layer_norm_epsilon)
        return x * leaf["scale"] + leaf.get("bias", 0)

    def attention(x, leaf):
        heads = [dense(x, leaf[n]).reshape(len(x), -1, cfg.head_dim) for n in ("query", "key")]
        if cfg.position_embedding_type == "rotary":
            heads = [turned(cfg, h) for h in heads]
        value = dense(x, leaf["value"]).reshape(len(x), -1, cfg.head_dim)
        q, k, v = (np.repeat(h, cfg.num_heads // h.shape[1], 1) for h in (*heads, value))
        scores = np.einsum("tnh,snh->nts", q, k) * cfg.attention_scale
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = shares / shares.sum(-1, keepdims=True)
        return dense(np.einsum("nts,snh->tnh", shares, v).reshape(len(x), -1), leaf["out"])

    def feed_forward(x, leaf):
        up = dense(x, leaf["up"])
        hidden = up * acts(cfg.nonlinearity, dense(x, leaf["gate"])) if cfg.gated else (
            acts(cfg.nonlinearity, up)
        )  # fmt: skip
        return dense(hidden, leaf["down"])

    table = params["embed"]["token"]["embedding"]
    x = table[tokens]
    if cfg.position_embedding_type == "learned":
        x = x + params["embed"]["position"]["embedding"][: len(x)]
    for k in range(cfg.num_hidden_layers):
        layer = params[f"layers_{k}"]
        x = x + attention(norm(x, layer["norm1"]), layer["attn"])
        x = x + feed_forward(norm(x, layer["norm2"]), layer["ffn"])
    x = norm(x, params["norm_f"])
    return x @ table.T if cfg.share_embedding_weights else dense(x, params["lm_head"])


def check_logits(model, params, prompt, decoded):
    """Against the reference, which reads the tokens that were written."""
    text = [*prompt, *decoded.tokens[:-1].tolist()]
    scores = reference(model.config, params, text)[len(prompt) - 1 :]
    assert decoded.logits.shape == scores.shape
    np.testing.assert_allclose(decoded.logits, scores, rtol=2e-4, atol=2e-4 * abs(scores).max())
    assert (decoded.tokens == decoded.logits.argmax(-1)).all()


def closed_form(sizes, prompt, count):
    reads = range(len(prompt) + count - 1)
    return [costs.cycles(sizes, at, writes=at >= len(prompt) - 1) for at in reads]


@pytest.mark.parametrize(("grid", "changes"), CASES)
def test_logits_and_cycles(grid, changes):
    model, params = random_model(**changes)
    prompt = [3, 1, 4, 1]
    decoded = decoder.generate(model, params, prompt, 4, grid=grid, positions=16)
    check_logits(model, params, prompt, decoded)
    sizes = decoder.sizes_of(model.config, grid, 16)
    np.testing.assert_allclose(closed_form(sizes, prompt, 4), decoded.cycles, rtol=0.05)


def test_tokens_of_generate_and_a_second_text():
    """The weights stay, the cache begins anew."""
    model, params = random_model()
    wafer = decoder.Decoder(model.config, params, (2, 2))
    prompts = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    expected = np.asarray(models.generate(model, params, prompts, 12))
    for prompt, tokens in zip(prompts, expected, strict=True):
        assert wafer.generate(prompt, 12).tokens.tolist() == tokens.tolist()


@pytest.mark.slow
def test_the_main_job_s_model():
    path = ROOT / "models" / "configs" / "gpt_pystdlib.yaml"
    section = yaml.safe_load(path.read_text(encoding="utf-8"))["model"]
    model, params = random_model(**section | {"initializer_range": 0.2})
    params = jax.tree.map(lambda leaf: leaf / 4, params)
    wafer = decoder.Decoder(model.config, params, (16, 16))
    prompt = [5, 6, 7, 8]
    decoded = wafer.generate(prompt, 40)
    expected = np.asarray(models.generate(model, params, prompt, 40))[0]
    assert decoded.tokens.tolist() == expected.tolist()
    check_logits(model, params, prompt, decoded)
    np.testing.assert_allclose(closed_form(wafer.sizes, prompt, 40), decoded.cycles, rtol=0.05)


def test_a_tie_goes_to_the_first_token():
    """Of four equal rows of the table, on PEs of different rows and columns."""
    model, params = random_model(vocab_size=16)
    params["embed"]["token"]["embedding"][:] = 0.3
    decoded = decoder.generate(model, params, [2], 1, grid=(2, 2), positions=4)
    assert decoded.tokens.tolist() == [0]


def test_sizes_by_hand():
    """16 features on 3 rows: 6, filled up to 8; 4 heads of 4 on 9 columns: two columns each."""
    model, _ = random_model()
    sizes = decoder.sizes_of(model.config, (3, 9), 20)
    assert (sizes.features, sizes.team, sizes.heads, sizes.part, sizes.here) == (8, 2, 1, 2, 4)
    assert (sizes.filter, sizes.vocab, sizes.slots, sizes.places) == (4, 8, 8, 3)
    layer = 4 * 8 + 9 * 12 + 5 * 8 + 9 * 4 + 5 * 8
    assert sizes.weights == 2 * layer + 2 * 8 + 9 * 8 + 3 * 8
    assert sizes.cache == 2 * 2 * 4 * 8
    reads = costs.counts(sizes, 7, writes=False)  # the eighth token: a PE of a column has three
    assert reads["element"] == 2 * (8 * (12 + 4) + (4 + 4) * 8 + 3 * 2 * 2)
    assert reads["hop"] == 2 * (7 * 1 + 2 * 4 + 1) + 4  # columns, rows, teams; the embedding


def test_errors():
    model, params = random_model()
    make = lambda **more: decoder.sizes_of(models.build(SMALL | more).config, (2, 2))
    cases = [
        (lambda: make(position_embedding_type="alibi"), r"model.position_embedding_type: 'alibi'"),
        (lambda: make(attention_sliding_window_length=4), r"sliding_window_length: 4; the program"),
        (lambda: make(hidden_size=64), r"grid: 2 x 2 PEs need .* take more PEs, or fewer pos"),
        (lambda: make(vocab_size=70_000), r"counts both with 16 bits"),
        (lambda: decoder.sizes_of(model.config, (0, 2)), r"grid: \(0, 2\); expected rows and"),
        (lambda: decoder.sizes_of(model.config, (2, 2), 25), r"positions: 25; the model has 1 to"),
        (lambda: decoder.generate(model, params, [], 1), r"expected at least one token"),
        (lambda: decoder.generate(model, params, [50], 1), r"prompt: token 50; the model has 0"),
        (lambda: decoder.generate(model, params, [1] * 20, 6), r"there is room for 24"),
    ]
    for call, message in cases:
        with pytest.raises(WaferError, match=message):
            call()
