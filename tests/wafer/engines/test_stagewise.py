"""What weight streaming and pipelines are built of: programs by declared rules, kept products."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import yaml
from helpers.recipes import RECIPES, shrink

from wafer import sparsity
from wafer.config import OPTIMIZERS, parse_config
from wafer.engines.stagewise import residuals
from wafer.engines.stagewise.branches import TOPOLOGY_ALONE, cut_part, describe
from wafer.experiment import Experiment
from wafer.optim.chain import make_optimizer
from wafer.sparsity.kernels import SparseWeight, pattern_from_mask

# --- programs by declared rules -------------------------------------------------------------


def described(params, tx):
    parts = {name: cut_part(name, params, TOPOLOGY_ALONE) for name in params}
    return [describe(name, part, sparsity.configure(None), tx) for name, part in parts.items()]


def text(branch, tx, extra):
    """The update of a branch, written out: the oracle that declared rules are held against."""
    params = {branch.name: branch.shapes.params}
    update = lambda grads, state, params, extra: tx.update(grads, state, params, **extra)
    return str(jax.make_jaxpr(update)(params, jax.eval_shape(tx.init, params), params, extra))


def assert_rules_are_the_programs(branches, tx, **extra):
    """Two branches share a program exactly where it is the same; returns the number of programs."""
    texts = {branch.name: text(branch, tx, extra) for branch in branches}
    for a, b in itertools.combinations(branches, 2):
        if a.layer == b.layer:
            assert (a.rules == b.rules) == (texts[a.name] == texts[b.name]), (a.name, b.name)
        else:
            assert a.rules != b.rules
    return len({branch.rules for branch in branches})


@pytest.mark.parametrize("recipe", sorted(path.stem for path in RECIPES.glob("*.yaml")))
def test_equal_rules_are_equal_programs_in_every_recipe(recipe, tmp_path):
    sizes = {"num_hidden_layers": 3, "max_position_embeddings": 128}
    path = shrink(recipe, tmp_path, tmp_path, model=sizes)
    experiment = Experiment.from_config(parse_config(yaml.safe_load(path.read_text())))
    branches = described(experiment.shapes, experiment.tx)
    norm = jax.ShapeDtypeStruct((), np.float32)
    count = assert_rules_are_the_programs(branches, experiment.tx, global_norm=norm)
    has_more = recipe == "mixture_of_experts" or recipe.startswith("gptj")  # an untied head
    assert count == (4 if has_more else 3)


def test_updates_share_a_program_only_where_every_rule_is_the_same():
    """Schedules by tag, rate factors, weights that do not decay; every optimizer we have."""
    layer = {"up": {"kernel": jnp.ones((2, 3))}, "norm": {"scale": jnp.ones(3)}}
    params = {f"layers_{i}": layer for i in range(5)}
    shared = {
        "params": [
            {"params": "layers_1/*", "tag": "slow"},
            {"params": "layers_2/*", "tag": "lean"},
        ],
        "learning_rate": [
            {"scheduler": "Constant", "learning_rate": 0.1},
            {"scheduler": "Constant", "learning_rate": 0.2, "param_group_tags": ["slow"]},
        ],
        "adjust_learning_rate": {"layers_3/up/*": 0.5},
    }
    decays = {
        "weight_decay": [
            {"scheduler": "Constant", "learning_rate": 0.1},
            {"scheduler": "Constant", "learning_rate": 0.2, "param_group_tags": ["lean"]},
        ]
    }
    for name, sections in itertools.product(OPTIMIZERS, (shared, shared | decays)):
        tx = make_optimizer({"optimizer_type": name, **sections}, params)
        assert_rules_are_the_programs(described(params, tx), tx)


def test_a_foreign_optimizer_has_a_program_for_each_branch():
    params = {f"layers_{i}": {"kernel": jnp.ones((2, 3))} for i in range(3)}
    ours = make_optimizer({"optimizer_type": "SGD", "learning_rate": 0.1}, params)
    for tx, programs in ((ours, 1), (optax.chain(ours, optax.identity()), 3), (optax.sgd(0.1), 3)):
        branches = described(params, tx)
        assert len({branch.layer for branch in branches}) == 1
        assert len({branch.rules for branch in branches}) == programs


# --- kept products --------------------------------------------------------------------------

WEIGHTS = {"in": jnp.full((4, 8), 0.1), "out": jnp.full((8, 4), -0.2)}
CARRY = {"x": jnp.linspace(-1, 1, 12).reshape(3, 4), "position": jnp.arange(3)}


def stage(weights, carry, rest):
    """Two products with a function between them, and an integer that passes through."""
    hidden = jnp.tanh(carry["x"] @ weights["in"]) * rest
    return {"x": carry["x"] + hidden @ weights["out"], "position": carry["position"] + 1}


def direct(weights, x, rest):
    return stage(weights, CARRY | {"x": x}, rest)["x"]


def test_a_pullback_made_from_kept_products_is_that_of_the_whole_stage():
    rest = jnp.float32(0.7)
    cotangent = jnp.cos(CARRY["x"])
    want, pullback = jax.vjp(functools.partial(direct, rest=rest), WEIGHTS, CARRY["x"])
    wanted = pullback(cotangent)
    after, kept = jax.jit(functools.partial(residuals.run, stage))(WEIGHTS, CARRY, rest)
    np.testing.assert_allclose(after["x"], want, rtol=1e-6)
    np.testing.assert_array_equal(after["position"], CARRY["position"] + 1)
    for keep in (kept, None):
        back = jax.jit(functools.partial(residuals.pull_back, stage))
        got = back(WEIGHTS, CARRY, rest, [cotangent], kept=keep)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), got[0], wanted[0])
        np.testing.assert_allclose(got[1][0], wanted[1], rtol=1e-5)


def test_products_are_kept_and_weights_never_are():
    _, kept = jax.eval_shape(functools.partial(residuals.run, stage), WEIGHTS, CARRY, 0.7)
    assert [leaf.shape for leaf in jax.tree.leaves(kept)] == [(3, 8)]  # x @ in; the other is unread


def sparse_stage(weights, carry, patterns):
    """A sparse product, a function, and two sparse products at once."""
    first, *others = (
        SparseWeight(values=values, pattern=pattern)
        for values, pattern in zip(weights, patterns, strict=True)
    )
    hidden = jnp.tanh(carry["x"] @ first)
    left, right = others[0].project_all(hidden, others, [None, None])
    return {"x": jnp.sin(left) * jnp.cos(right)}


@pytest.mark.native
def test_sparse_products_are_kept_as_dense_ones_are():
    masks = [np.arange(k * n).reshape(k, n) % 3 == 0 for k, n in ((4, 8), (8, 5), (8, 5))]
    patterns = [pattern_from_mask(mask, int(mask.sum())) for mask in masks]
    values = [jnp.linspace(-1, 1, int(mask.sum())) for mask in masks]
    carry = {"x": CARRY["x"]}
    after, kept = residuals.run(sparse_stage, values, carry, patterns)
    shapes = [leaf.shape for leaf in jax.tree.leaves(kept) if leaf.size]  # biases are empty
    assert sorted(shapes) == [(3, 5), (3, 5), (3, 8)]
    again, back = (
        residuals.pull_back(sparse_stage, values, carry, patterns, [after["x"]], kept=keep)
        for keep in (None, kept)
    )
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), back, again)


def test_a_kept_product_is_not_computed_again():
    back = functools.partial(residuals.pull_back, stage)
    _, kept = residuals.run(stage, WEIGHTS, CARRY, 0.7)
    products = {}
    for name, keep in (("kept", kept), ("again", None)):
        program = jax.jit(back).lower(WEIGHTS, CARRY, 0.7, [CARRY["x"]], kept=keep).compile()
        products[name] = program.as_text().count(" dot(")
    assert products["kept"] == products["again"] - 1


def test_the_last_stages_are_kept_first():
    assert residuals.fitting([4, 1, 3, 2], 6) == [False, True, True, True]
    assert residuals.fitting([1, 5, 1], 5) == [False, False, True]
    assert residuals.fitting([1, 1], 0) == [False, False]
    assert residuals.fitting([], 3) == []
