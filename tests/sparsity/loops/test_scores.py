"""Scores of a user's method: infinite, NaN, or read from a gradient that was not asked for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.sparse_loop import start

from wafer import sparsity

PARAMS = {"w": jax.random.normal(jax.random.key(0), (16, 12))}
GRADS = {"w": jax.random.normal(jax.random.key(1), (16, 12))}
PATTERNS = {
    "whole": {"sparsity": 0.75},
    "two_of_four": {"pattern": {"type": "n:m", "n": 2, "m": 4}},
    "block": {"sparsity": 0.75, "pattern": {"type": "block", "size": 4}},
}
COMPUTES = ["masked", "csr"]


def updated(pattern, compute, *, jit=False, base=sparsity.RigL, **scores):
    """Masks before and after an update, and the dense weight after it."""
    methods = {f"{name}_scores": lambda _, ctx, fn=fn: fn(ctx) for name, fn in scores.items()}
    section = {"algorithm": type("Scored", (base,), methods), "update": {"freq": 1}}
    section |= {**PATTERNS[pattern], "drop_fraction": 0.5, "compute": compute}
    rule, sparse, params, _ = start(section | {"param_filter": "w"}, PARAMS, seed=2)
    update = jax.jit(rule.update) if jit else rule.update
    new, params, _ = update(sparse, params, GRADS, ())
    return rule.masks(sparse)["w"], rule.masks(new)["w"], rule.expand(params, (), new)[0]["w"]


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_scores_of_minus_infinity_lose_no_weight(pattern, compute):
    lowest = lambda ctx: jnp.full(ctx.weight.shape, -jnp.inf)
    for scores in ({"grow": lowest}, {"drop": lowest}, {"grow": lowest, "drop": lowest}):
        before, after, _ = updated(pattern, compute, **scores)
        assert int(after.sum()) == int(before.sum())
        # Half may be dropped, of 3 blocks two, and only active ones stay.
        assert int((after & before).sum()) >= int(before.sum()) // (3 if pattern == "block" else 2)


@pytest.mark.parametrize("compute", COMPUTES)
def test_minus_infinity_grows_last(compute):
    allowed = jnp.zeros((16, 12), bool).at[:, :8].set(True)
    grow = lambda ctx: jnp.where(allowed, jnp.abs(ctx.grad), -jnp.inf)
    before, after, _ = updated("whole", compute, grow=grow)
    size = jnp.where(before, jnp.abs(PARAMS["w"]), -1).ravel()
    kept = np.zeros(192, bool)
    kept[np.argsort(-size)[:24]] = True  # of 48
    score = np.where(kept | ~np.asarray(allowed).ravel(), -1, np.abs(GRADS["w"]).ravel())
    kept[np.argsort(-score)[:24]] = True
    np.testing.assert_array_equal(np.asarray(after).ravel(), kept)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("pattern", ["whole", "two_of_four"])
@pytest.mark.parametrize("which", ["grow", "drop"])
def test_nan_scores_are_an_error_or_nan_weights(which, pattern, compute):
    scores = {which: lambda ctx: jnp.where(ctx.mask, jnp.nan, 1.0)}
    with pytest.raises(ValueError, match=r"'w': scores of its weights are NaN"):
        updated(pattern, compute, **scores)
    _, mask, weight = updated(pattern, compute, jit=True, **scores)
    np.testing.assert_array_equal(jnp.isnan(weight), mask)


@pytest.mark.parametrize("compute", COMPUTES)
def test_nan_drop_scores_of_pruned_weights_are_not_read(compute):
    drop = lambda ctx: jnp.where(ctx.mask, jnp.abs(ctx.weight), jnp.nan)
    plain, same = updated("whole", compute), updated("whole", compute, drop=drop)
    jax.tree.map(np.testing.assert_array_equal, plain, same)


@pytest.mark.parametrize("compute", COMPUTES)
def test_a_gradient_that_was_not_asked_for_is_an_error(compute):
    with pytest.raises(ValueError, match=r"'w': the method reads ctx.grad, but.*needs_gradient"):
        updated("whole", compute, base=sparsity.Dynamic, grow=lambda ctx: jnp.abs(ctx.grad))


def kept_gradients(compute, algorithm, level=0.75, *, jit=False, grads=GRADS):
    """Weights after three steps of which each is due, given gradients of kept weights alone."""
    section = {"algorithm": algorithm, "update": {"freq": 1}, "compute": compute}
    section |= {"schedule" if isinstance(level, dict) else "sparsity": level}
    params = dict.fromkeys(grads, PARAMS["w"])
    rule, sparse, params, _ = start(section | {"param_filter": ["w", "v"]}, params, seed=2)
    step = jax.jit(rule.update) if jit else rule.update
    for _ in range(3):
        masks = rule.masks(sparse)
        kept = {name: jnp.where(masks[name], leaf, 0) for name, leaf in grads.items()}
        sparse, params, _ = step(sparse, params, kept, ())
    return rule.expand(params, (), sparse)[0]


class Saliency(sparsity.RigL):
    """Grow by |weight at the start| * |gradient|."""

    def grow_scores(self, ctx):
        return jnp.abs(PARAMS["w"] * ctx.grad)


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("algorithm", ["rigl", Saliency])
def test_gradients_of_kept_weights_alone_are_an_error_or_nan(algorithm, compute):
    several = {"w": GRADS["w"], "v": GRADS["w"] + 1}
    for grads in (GRADS, several):
        with pytest.raises(ValueError, match=r"are 0 at all pruned positions .*dense=True"):
            kept_gradients(compute, algorithm, grads=grads)
        after = kept_gradients(compute, algorithm, grads=grads, jit=True)
        for leaf in after.values():
            assert jnp.isnan(leaf).any()


@pytest.mark.parametrize("compute", COMPUTES)
def test_gradients_that_growth_does_not_read_may_be_of_kept_weights(compute):
    assert jnp.isfinite(kept_gradients(compute, "mest")["w"]).all()
    assert jnp.isfinite(
        kept_gradients(compute, "rigl", grads={"w": jnp.zeros((16, 12))})["w"]
    ).all()


@pytest.mark.parametrize("jit", [False, True])
def test_dead_inputs_may_be_pruned_first(jit):
    """A level that rises prunes weights of inputs that are always 0, which have no gradient."""
    section = {"algorithm": "rigl", "schedule": [0.125, 0.25, 0.5], "update": {"freq": 1}}
    section |= {"param_filter": "w", "compute": "masked", "init_method": "topk"}
    dead = jnp.arange(16)[:, None] < 8
    params = {"w": jnp.where(dead, 1e-3, 1) * PARAMS["w"]}
    grads = {"w": jnp.where(dead, 0, GRADS["w"])}
    rule, sparse, params, _ = start(section, params)
    update = jax.jit(rule.update) if jit else rule.update
    for _ in range(2):
        sparse, params, _ = update(sparse, params, grads, ())
        assert jnp.isfinite(params["w"]).all()


def test_gradients_of_another_shape_are_named():
    section = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 1}, "compute": "csr"}
    rule, sparse, params, _ = start(section | {"param_filter": "w"}, PARAMS, seed=2)
    with pytest.raises(ValueError, match=r"gradient of 'w' has shape \(48,\); expected \(16, 12\)"):
        rule.update(sparse, params, params, ())


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("method", ["topk", "random", "from_zeros"])
def test_nan_weights_get_no_first_mask(method, compute):
    section = {"sparsity": 0.5, "init_method": method, "compute": compute, "param_filter": "w"}
    params = {"w": PARAMS["w"].at[3, 5].set(jnp.nan), "dense": jnp.full(3, jnp.nan)}
    with pytest.raises(ValueError, match=r"sparsity\.init: weights of w are NaN.*resume"):
        sparsity.configure(section).init(params, jax.random.key(0))
    sparsity.configure(section).init(params | PARAMS, jax.random.key(0))


@pytest.mark.parametrize("compute", COMPUTES)
@pytest.mark.parametrize("jit", [False, True])
def test_a_topology_that_never_changes_is_logged(jit, compute, caplog):
    section = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 3}, "compute": compute}
    rule = sparsity.configure(section | {"param_filter": "w"})
    step = lambda sparse, params: rule.update(sparse, params, None, (), topology=False)[:2]
    step = jax.jit(step) if jit else step

    def steps(rule, number):
        sparse = rule.init(PARAMS, jax.random.key(2))
        params, _ = rule.prune(PARAMS, (), sparse)
        for _ in range(number):
            sparse, params = step(sparse, params)
        return sparse, params

    rule.masks(steps(rule, 2)[0])  # none was due
    assert not caplog.messages
    sparse, params = steps(rule, 3)
    caplog.clear()
    rule.masks(sparse)
    rule.expand(params, (), sparse)
    assert ["never changed in 3 steps" in line for line in caplog.messages] == [True, True]
    caplog.clear()
    due, *_ = rule.update(steps(rule, 2)[0], params, GRADS, ())
    rule.masks(due)
    rule.masks(sparse._replace(generation=None))  # stored before there were counts
    assert not caplog.messages
