"""Layers, positions, losses and initialisers against hand-computed values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer import models, vsl
from wafer.models.families.encoder_heads import segment_log_softmax
from wafer.models.layers.basic import ACTIVATIONS, GATED, Norm, activation
from wafer.models.layers.initializers import make_initializer, scaled
from wafer.models.layers.positions import RopeScaling, rotary_frequencies, rotate, sinusoids
from wafer.models.losses import cross_entropy, token_aux
from wafer.models.schema import Initializer


def test_norms_by_hand():
    x = jnp.asarray([[1.0, 3.0]])
    scale, bias = jnp.asarray([2.0, 2.0]), jnp.asarray([1.0, 1.0])
    tree = {"params": {"scale": scale, "bias": bias}}
    np.testing.assert_allclose(Norm("layernorm", 0.0).apply(tree, x), [[-1.0, 3.0]])
    rms = Norm("rmsnorm", 0.0).apply(tree, x)
    np.testing.assert_allclose(rms, [[2 / math.sqrt(5), 6 / math.sqrt(5)]], rtol=1e-6)
    plain = Norm("nonparametric-layernorm", 3.0).apply({}, x)
    np.testing.assert_allclose(plain, [[-0.5, 0.5]])
    shifted = Norm("rmsnorm-1p", 0.0).apply({"params": {"scale": jnp.asarray([0.5, -1.0])}}, x)
    np.testing.assert_allclose(shifted, [[1.5 / math.sqrt(5), 0.0]], rtol=1e-6)
    start = Norm("rmsnorm-1p", 0.0).init(jax.random.key(0), x)
    assert start["params"]["scale"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "at_one"),
    [
        ("relu", 1.0),
        ("leaky_relu", 1.0),
        ("silu", 1 / (1 + math.exp(-1))),
        ("gelu", 0.5 * (1 + math.erf(math.sqrt(0.5)))),
        ("gelu_new", 0.8411919906082768),
        ("quick_gelu", 1 / (1 + math.exp(-1.702))),
        ("squared_gelu", (0.5 * (1 + math.erf(math.sqrt(0.5)))) ** 2),
        ("squared_relu", 1.0),
        ("mish", math.tanh(math.log1p(math.e))),
        ("linear", 1.0),
        ("swiglu", 1 / (1 + math.exp(-1))),
    ],
)
def test_activations_at_one(name, at_one):
    assert float(activation(name)(jnp.asarray(1.0))) == pytest.approx(at_one, rel=1e-6)


def test_every_activation_is_finite_and_gates_name_one():
    x = jnp.linspace(-20, 20, 9)
    for fn in ACTIVATIONS.values():
        assert bool(jnp.isfinite(fn(x)).all())
    assert set(GATED.values()) <= set(ACTIVATIONS)
    assert float(activation("leaky_relu")(jnp.asarray(-1.0))) == pytest.approx(-0.01)
    assert activation(None)(3) == 3


def test_gelu_keeps_nothing_for_its_backward_pass_but_its_input():
    gelu = activation("gelu")
    x = jnp.linspace(-4.0, 4.0, 33)
    _, pull = jax.vjp(gelu, x)
    kept = [leaf.shape for leaf in jax.tree.leaves(pull) if leaf.shape]
    assert kept == [x.shape]


def _gelu_by_formula(x, new):
    """(First, second derivative) in float64: of x Phi(x), or with tanh in place of erf."""
    if not new:
        cdf = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])
        pdf = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return cdf + x * pdf, pdf * (2 - x**2)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    d, dd = math.sqrt(2 / math.pi) * np.array([1 + 3 * 0.044715 * x**2, 6 * 0.044715 * x])
    tanh, sech2 = np.tanh(inner), 1 / np.cosh(inner) ** 2
    return (0.5 * (1 + tanh + x * sech2 * d), sech2 * d + 0.5 * x * sech2 * (dd - 2 * tanh * d * d))


@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
def test_derivatives_of_gelu_by_its_formula(name):
    first = jax.grad(lambda x: activation(name)(x).sum())
    second = jax.grad(lambda x: first(x).sum())
    x = np.linspace(-9, 9, 721)
    slope, curvature = _gelu_by_formula(x, name == "gelu_new")
    single = jnp.asarray(x, jnp.float32)
    np.testing.assert_allclose(jax.jit(first)(single), slope, atol=4e-7)
    near = np.abs(x) < 3  # tanh near 1 has no digits left for the second derivative
    np.testing.assert_allclose(jax.jit(second)(single[near]), curvature[near], atol=2e-6)
    half = first(single.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), slope, atol=1 / 128)
    with jax.enable_x64(True):
        np.testing.assert_allclose(first(jnp.asarray(x)), slope, atol=1e-13)


def test_rotary_pairs_by_hand():
    frequencies = rotary_frequencies(4, 100.0)
    np.testing.assert_allclose(frequencies, [1.0, 0.1], rtol=1e-6)
    x = jnp.asarray([[[1.0, 0.0, 0.0, 0.0, 7.0]]])
    position = jnp.asarray([2])
    c, s = math.cos(2.0), math.sin(2.0)
    pairs = rotate(x, position, frequencies, interleaved=True)
    np.testing.assert_allclose(pairs[0, 0], [c, s, 0, 0, 7], atol=1e-6)
    halves = rotate(x, position, frequencies, interleaved=False)
    np.testing.assert_allclose(halves[0, 0], [c, 0, s, 0, 7], atol=1e-6)


def test_llama3_interpolation_by_its_three_bands():
    rule = RopeScaling(
        low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
    )
    plain = rotary_frequencies(16, 10000.0)
    scaled_ = rotary_frequencies(16, 10000.0, 8.0, rule)
    wavelength = 2 * math.pi / plain
    np.testing.assert_allclose(scaled_[wavelength < 16], plain[wavelength < 16])
    np.testing.assert_allclose(scaled_[wavelength > 64], plain[wavelength > 64] / 8)
    middle = (wavelength > 16) & (wavelength < 64)
    assert ((scaled_ < plain) & (scaled_ > plain / 8))[middle].all()
    assert middle.any()
    np.testing.assert_allclose(rotary_frequencies(16, 10000.0, 2.0), plain / 2)


def test_sinusoids_have_sines_first():
    table = sinusoids(3, 4)
    np.testing.assert_allclose(table[1], [math.sin(1), math.sin(0.01), math.cos(1), math.cos(0.01)])


def test_cross_entropy_by_hand():
    logits = jnp.asarray([[0.0, math.log(3.0)]])
    assert float(cross_entropy(logits, jnp.asarray([1]))[0]) == pytest.approx(-math.log(0.75))
    smooth = cross_entropy(logits, jnp.asarray([1]), 0.2)
    by_hand = -0.9 * math.log(0.75) - 0.1 * math.log(0.25)
    assert float(smooth[0]) == pytest.approx(by_hand, rel=1e-6)


def test_unweighted_tokens_do_not_count_even_when_nan():
    logits = jnp.asarray([[0.0, 0.0], [jnp.nan, 0.0]])
    aux = token_aux(logits, jnp.asarray([0, -100]), jnp.asarray([1.0, 0.0]))
    assert float(aux.loss_sum) == pytest.approx(math.log(2))
    assert float(aux.weight) == 1
    values = models.metric_values(aux.metrics)
    assert values["perplexity"] == pytest.approx(2.0)


def test_accuracy_counts_the_first_of_the_best():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.integers(0, 3, (4, 16, 5)), jnp.float32)  # many ties
    labels = jnp.asarray(rng.integers(-1, 6, (4, 16)))  # two are none of them
    aux = token_aux(logits, labels, jnp.ones((4, 16)))
    best = np.argmax(np.asarray(logits), -1) == np.asarray(labels)
    assert 0 < best.sum() == float(aux.metrics["accuracy_sum"]) < (logits.max(-1) > 0).sum()
    lost = token_aux(jnp.full((1, 5), jnp.nan), jnp.asarray([0]), jnp.ones(1))
    assert float(lost.metrics["accuracy_sum"]) == 0


def test_segment_softmax_normalises_each_sequence():
    layout = vsl.layout_from_lengths(jnp.asarray([2, 3]), 6)
    scores = jnp.asarray([0.0, 0.0, 1e4, 1e4, 1e4, 5.0])
    out = segment_log_softmax(scores, layout)
    np.testing.assert_allclose(jnp.exp(out), [0.5, 0.5, 1 / 3, 1 / 3, 1 / 3, 0], rtol=1e-6)


def test_initialisers_draw_what_they_say():
    key, shape = jax.random.key(0), (200, 300)
    normal = make_initializer(Initializer(name="normal", std=0.5))(key, shape)
    assert float(normal.std()) == pytest.approx(0.5, rel=0.02)
    cut = make_initializer(Initializer(name="truncated_normal", std=0.5, a=-0.5, b=0.5))(key, shape)
    assert float(jnp.abs(cut).max()) <= 0.5
    xavier = make_initializer(Initializer(name="xavier_uniform"))(key, shape)
    assert float(jnp.abs(xavier).max()) == pytest.approx(math.sqrt(6 / 500), rel=0.01)
    constant = make_initializer(Initializer(name="constant", val=3.0))(key, (2,))
    assert constant.tolist() == [3.0, 3.0]
    assert scaled(Initializer(name="normal", std=0.5), 0.5).std == 0.25
    assert scaled(Initializer(name="xavier_uniform"), 0.5) == Initializer(name="xavier_uniform")
    with pytest.raises(ValueError, match="did you mean 'normal'"):
        make_initializer(Initializer(name="norml"))
