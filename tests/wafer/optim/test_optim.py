"""Optimizers against the vendor's trajectories, torch's where the vendor is wrong, and by hand."""

import functools
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.paths import GOLDEN

from wafer import models
from wafer.config import OPTIMIZERS, parse_optimizer
from wafer.errors import ConfigError
from wafer.models.paths import named_leaves
from wafer.optim.chain import learning_rates, make_optimizer
from wafer.optim.groups import make_groups
from wafer.optim.optimizers import AverageState, clip_factor

VECTORS = GOLDEN / "optim"
VENDOR = np.load(VECTORS / "optimizers.npz")
TORCH = np.load(VECTORS / "torch.npz")
MASK = np.asarray(VENDOR["w0"]) > 0
SETTINGS = json.loads((VECTORS / "meta.json").read_text())["optimizers"]


def section(name, **keys):
    """The YAML section of a golden case: 'RMSprop_centered' -> RMSprop and its settings."""
    settings = dict(SETTINGS.get(name, {"lr": 0.1})) | keys
    settings["learning_rate"] = settings.pop("lr", None) or settings["learning_rate"]
    return {"optimizer_type": name.split("_")[0], **settings}


def scan_steps(tx, params, gradients):
    """Parameters after every step, stacked, and the last state."""

    def step(carry, grads):
        updates, state = tx.update(grads, carry[1], carry[0])
        params = optax.apply_updates(carry[0], updates)
        return (params, state), params

    (_, state), history = jax.lax.scan(step, (params, tx.init(params)), gradients)
    return history, state


@functools.cache
def trajectories():
    """Every golden case over six steps, beside a masked matrix and its kept values: one compile."""
    w, gw = VENDOR["w0"], VENDOR["gw"]
    params = {"w": w, "b": VENDOR["b0"], "masked": np.where(MASK, w, 0), "kept": w[MASK]}
    grads = {"w": gw, "b": VENDOR["gb"], "masked": np.where(MASK, gw, 0), "kept": gw[:, MASK]}
    optimizers = {name: make_optimizer(section(name)) for name in SETTINGS}
    every = jax.jit(lambda p, g: {n: scan_steps(tx, p, g) for n, tx in optimizers.items()})
    return every(params, grads)


def run(tx, params, gradients):
    stacked = jax.tree.map(lambda *g: np.stack(g), *gradients)
    return jax.jit(functools.partial(scan_steps, tx))(params, stacked)


def steps(tx, params, gradients):
    """Like ``run``, not compiled: quicker for the few operations of SGD."""
    state, history = tx.init(params), []
    for grads in gradients:
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        history.append(params)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *history), state


def after(gradients, size=1, compiled=True, **keys):
    """A weight that begins at 0, after each of the gradients."""
    tx, go = make_optimizer(section(**keys)), run if compiled else steps
    history, state = go(tx, {"w": jnp.zeros(size)}, [{"w": jnp.full(size, g)} for g in gradients])
    return history["w"][:, 0], state


def one_step(keys, params, grads, **kwargs):
    go = steps if keys["optimizer_type"] == "SGD" else run
    history, state = go(make_optimizer(keys, params, **kwargs), params, [grads])
    return jax.tree.map(lambda h: h[0], history), state


@pytest.mark.parametrize("name", [n for n in SETTINGS if n != "NAdam"])
def test_equals_the_vendor_for_six_steps(name):
    ours, _ = trajectories()[name]
    for leaf in "wb":
        np.testing.assert_allclose(ours[leaf], VENDOR[f"{name}.{leaf}"], rtol=1e-6, atol=6e-7)


def test_vendor_bug_nadam_counts_a_momentum_twice():
    ours, _ = trajectories()["NAdam"]
    for leaf in "wb":
        np.testing.assert_allclose(ours[leaf], TORCH[f"NAdam.{leaf}"], rtol=1e-6, atol=6e-7)
    assert np.abs(ours["w"] - VENDOR["NAdam.w"]).max() > 1e-5


def test_adamw_adds_eps_before_the_bias_correction():
    # g = 1e-6: m = 1e-7, √v = √1e-3 · 1e-6; after one step the correction is √1e-3 / 1e-1.
    m, root = 1e-7, 1e-3**0.5 * 1e-6
    expected = -1.0 * m / (root + 1e-6) * 1e-3**0.5 / 1e-1
    moved, _ = after([1e-6], name="AdamW", lr=1.0, weight_decay=0)
    assert float(moved[0]) == pytest.approx(expected, rel=1e-5)
    torch_order = -1.0 * 1e-6 / (1e-6 + 1e-6)
    assert abs(expected - torch_order) > 0.1


def test_lamb_caps_the_weight_norm_at_ten():
    # All moments equal: u = 0.1 g / (√1e-3 |g| + eps) has length 2 · 3.162; ‖w‖ = 100 counts as 10.
    params, grads = {"w": jnp.full(4, 50.0)}, {"w": jnp.ones(4)}
    moved, _ = one_step(section("Lamb", lr=1.0, weight_decay=0), params, grads)
    np.testing.assert_allclose(moved["w"], 50.0 - 10.0 / 2.0, rtol=1e-6)


SGD = {"name": "SGD", "lr": 1.0, "weight_decay": 0}
BY_HAND = [  # keys, gradients, the weight after each of them
    (SGD | {"momentum": 0.5, "dampening": 0.25}, 2, [-0.75, -0.75 - (0.5 * 0.75 + 0.75)]),
    (SGD | {"momentum": 0, "maximize": True}, 1, [1.0]),
    ({"name": "Adagrad", "lr": 1.0, "lr_decay": 1.0, "eps": 0.0}, 2, [-1, -1 - 1 / (2 * 2**0.5)]),
]


@pytest.mark.parametrize(("keys", "count", "expected"), BY_HAND)
def test_steps_by_hand(keys, count, expected):
    """Dampening in the first step, too; a rate that decays."""
    np.testing.assert_allclose(after([1.0] * count, **keys)[0], expected, rtol=1e-6)


def test_asgd_averages_from_t0_on():
    moved, state = after([1.0] * 5, name="ASGD", lr=1.0, lambd=0.0, t0=2)
    assert moved.tolist() == [-1, -2, -3, -4, -5]
    is_average = lambda s: isinstance(s, AverageState)
    (average,) = [s for s in jax.tree.leaves(state, is_leaf=is_average) if is_average(s)]
    assert float(average.average["w"][0]) == -4.5  # steps 4 and 5: 1 / max(1, (t - 1) - t0)


def test_rprop_first_step_is_the_learning_rate_of_the_group():
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    keys = section("Rprop", lr=0.5, adjust_learning_rate={"b": 0.1})
    moved, _ = one_step(keys, params, {"a": jnp.full(1, 9.0), "b": jnp.full(1, -9.0)})
    np.testing.assert_allclose([moved["a"][0], moved["b"][0]], [-0.5, 0.05], rtol=1e-6)


# ---------------------------------------------------------------- sparse weights


@pytest.mark.parametrize("name", [n for n, c in OPTIMIZERS.items() if not c.needs_dense])
def test_kept_values_alone_move_as_in_the_masked_matrix(name):
    history, state = trajectories()[name]
    np.testing.assert_allclose(history["kept"], history["masked"][:, MASK], rtol=1e-5, atol=1e-7)
    shapes = {leaf.shape for leaf in jax.tree.leaves(state)}
    assert shapes <= {(), (1,), (6, 4), (4,), (MASK.sum(),)}  # no state but of parameters' shapes


def test_every_optimizer_has_a_golden_trajectory_and_adafactor_needs_dense_matrices():
    assert {name.split("_")[0] for name in SETTINGS} == set(OPTIMIZERS)
    assert [n for n, c in OPTIMIZERS.items() if c.needs_dense] == ["Adafactor"]


# ---------------------------------------------------------------- groups

PARAMS = {
    "embed": {"token": {"embedding": jnp.ones(2)}},
    "layers_0": {
        "attn": {"query": {"kernel": jnp.ones(2), "bias": jnp.ones(2)}},
        "norm": {"scale": jnp.ones(2)},
        "ffn": {"in": {"kernel": jnp.ones(2)}, "out": {"kernel": jnp.ones(2)}},
    },
}
LAYER = "model.transformer_decoder.layers.0"
ALIASES = {
    "embed/token/embedding": "model.embedding_layer.word_embeddings.weight",
    "layers_0/attn/query/kernel": f"{LAYER}.self_attn.proj_q_dense_layer.weight",
    "layers_0/attn/query/bias": f"{LAYER}.self_attn.proj_q_dense_layer.bias",
    "layers_0/norm/scale": f"{LAYER}.norm1.weight",
    "layers_0/ffn/in/kernel": f"{LAYER}.ffn.ffn.0.linear_layer.weight",
    "layers_0/ffn/out/kernel": f"{LAYER}.ffn.ffn.1.linear_layer.weight",
}


def moved(keys, params=PARAMS, grad=1.0):
    """How far each parameter moves in one step, by vendor-aware name."""
    grads = jax.tree.map(lambda w: jnp.full_like(w, grad), params)
    leaves = named_leaves(one_step(keys, params, grads, alias=ALIASES.get)[0])
    return {name: round(1.0 - float(leaf[0]), 6) for name, leaf in leaves}


def test_biases_and_norms_do_not_decay_and_embeddings_do():
    by = moved(section("SGD", lr=1.0, momentum=0, weight_decay=0.5), grad=0.0)
    still = {"layers_0/attn/query/bias", "layers_0/norm/scale"}
    assert by == {name: 0 if name in still else 0.5 for name in ALIASES}


def test_mup_groups_scale_the_learning_rate():
    factors = {"decoder_attention": 0.5, "decoder_output_ffn": 0.25, "embedding": 2}
    by = moved(section("SGD", lr=1.0, momentum=0, weight_decay=0, adjust_learning_rate=factors))
    assert by == {
        "embed/token/embedding": 2,
        "layers_0/attn/query/kernel": 0.5,
        "layers_0/attn/query/bias": 1,
        "layers_0/norm/scale": 1,
        "layers_0/ffn/in/kernel": 1,
        "layers_0/ffn/out/kernel": 0.25,
    }


def test_decoder_kernel_is_all_kernels_and_the_factor_scales_the_decay():
    keys = section("AdamW", lr=0.1, weight_decay=1.0, adjust_learning_rate={"decoder_kernel": 0.5})
    by = moved(keys, grad=0.0)
    assert by["layers_0/attn/query/kernel"] == by["layers_0/ffn/in/kernel"] == 0.05
    assert by["embed/token/embedding"] == 0.1


def test_globs_match_our_names_and_the_first_match_wins():
    factors = {"layers_0/ffn/in/*": 0.1, "*ffn*": 0.2}
    by = moved(section("SGD", lr=1.0, momentum=0, weight_decay=0, adjust_learning_rate=factors))
    assert (by["layers_0/ffn/in/kernel"], by["layers_0/ffn/out/kernel"]) == (0.1, 0.2)


def test_tags_have_schedules_and_factors_of_their_own():
    keys = {
        "optimizer_type": "SGD",
        "params": [{"params": "*attn*", "tag": "attn"}],
        "adjust_learning_rate": {"attn": 0.5},
        "learning_rate": [
            {"scheduler": "Constant", "learning_rate": 1.0},
            {"scheduler": "Constant", "learning_rate": 4.0, "param_group_tags": ["attn"]},
        ],
    }
    by = moved(keys)
    assert by["layers_0/attn/query/kernel"] == by["layers_0/attn/query/bias"] == 2.0
    assert by["layers_0/ffn/in/kernel"] == 1.0


def test_one_layer_alone_moves_as_in_the_whole_tree():
    keys = section("AdamW", lr=0.1, weight_decay=0.1, adjust_learning_rate={"layers_0/attn/*": 0.5})
    grads = jax.tree.map(lambda w: w * 0.3, PARAMS)
    whole, _ = one_step(keys, PARAMS, grads)
    part = {"layers_0": PARAMS["layers_0"]}
    alone, _ = one_step(keys, part, {"layers_0": grads["layers_0"]})
    jax.tree.map(np.testing.assert_array_equal, alone["layers_0"], whole["layers_0"])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"adjust_learning_rate": {"decoder_kernal": 0.5}}, "did you mean 'decoder_kernel'?"),
        ({"adjust_learning_rate": {"*nothing*": 0.5}}, "learning_rate.*nothing*: matches no"),
        ({"params": [{"params": "x*", "tag": "t"}]}, "params[0].params: 'x*' matches no parameter"),
    ],
)
def test_groups_that_match_nothing_are_errors(keys, message):
    with pytest.raises(ConfigError) as caught:
        make_optimizer(section("SGD", lr=1.0, **keys), PARAMS, ALIASES.get)
    assert message in str(caught.value)


# ---------------------------------------------------------------- rates, decay, clipping


LINEAR = {"initial_learning_rate": 0.0, "end_learning_rate": 1.0}


def test_learning_rate_in_force_is_readable_and_starts_at_value_zero():
    schedule = LINEAR | {"scheduler": "Linear", "total_iters": 4}
    tx = optax.chain(make_optimizer(section("AdamW", lr=schedule)), optax.identity())
    params = {"w": jnp.ones(2)}
    state, rates = tx.init(params), []
    for _ in range(3):
        updates, state = tx.update(params, state, params)
        rates.append(float(learning_rates(state)[0]))
        if not rates[-1]:
            assert not np.any(updates["w"])  # a warm-up from 0: the first update is a no-op
    assert rates == [0, 0.25, 0.5]


def test_learning_rates_of_a_foreign_state():
    with pytest.raises(ValueError, match="not of make_optimizer"):
        learning_rates(optax.adam(1e-3).init({"w": jnp.ones(1)}))


def test_weight_decay_follows_its_own_schedule():
    decay = LINEAR | {"scheduler": "LinearWD", "total_iters": 2}
    tx = make_optimizer(section("SGD", lr=1.0, momentum=0, weight_decay=decay))
    history, _ = steps(tx, {"w": jnp.ones(1)}, [{"w": jnp.zeros(1)}] * 3)
    assert history["w"][:, 0].tolist() == [1.0, 0.5, 0.0]


def test_clips_by_the_global_norm_as_torch_does():
    grads = {"a": jnp.full(1, 3.0), "b": jnp.full(1, 4.0)}
    zeros = jax.tree.map(jnp.zeros_like, grads)
    keys = section(**SGD, momentum=0, max_gradient_norm=1.0)
    moved, _ = one_step(keys, zeros, grads)
    norm = 5.0 + 1e-6
    np.testing.assert_allclose([moved["a"][0], moved["b"][0]], [-3 / norm, -4 / norm], rtol=1e-6)
    assert float(clip_factor(jnp.float32(0.5), 1.0)) == 1.0  # short gradients stay


def test_clips_by_value_and_streaming_may_clip_itself():
    keys = section("SGD", lr=1.0, momentum=0, weight_decay=0, max_gradient_value=0.5)
    grads, zeros = {"a": jnp.array([3.0, -0.2])}, {"a": jnp.zeros(2)}
    clipped, _ = one_step(keys, zeros, grads)
    np.testing.assert_allclose(clipped["a"], [-0.5, 0.2])
    unclipped, _ = one_step(keys, zeros, grads, clip=False)
    np.testing.assert_allclose(unclipped["a"], [-3.0, 0.2])


@pytest.mark.parametrize("name", ["gpt2", "btlm"])
def test_rules_fit_the_names_of_real_models(name):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_heads": 2, "filter_size": 16}
    model = models.build({"name": name, "vocab_size": 32, **sizes})
    factors = {"embedding": 2, "decoder_attention": 3, "decoder_input_ffn": 4}
    cfg = parse_optimizer(section("SGD", adjust_learning_rate=factors | {"decoder_output_ffn": 5}))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    groups = make_groups(cfg, shapes, model.alias)  # raises where a muP group matches nothing
    matrices = {name for name, leaf in named_leaves(shapes) if leaf.ndim == 2}
    decayed = {name for name, _ in named_leaves(shapes) if groups.decays(name)}
    assert decayed == matrices  # embeddings included; biases, norms and ALiBi slopes are not
    assert {groups.factor(name) for name in matrices} == {2, 3, 4, 5}


def test_sections_and_schedules_are_read_without_jax():
    """Formulas stand with their keys, but take their array library as an argument."""
    code = (
        "import sys, wafer.config, numpy as np\n"
        "from wafer.optim.sections import parse_optimizer\n"
        "rate = {'scheduler': 'Linear', 'initial_learning_rate': 0, 'end_learning_rate': 1,"
        " 'total_iters': 4}\n"
        "cfg = parse_optimizer({'optimizer_type': 'adamw', 'learning_rate': rate})\n"
        "assert cfg.learning_rate[0].value(np.float32(1), np) == 0.25\n"
        "sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
