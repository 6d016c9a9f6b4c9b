"""What weight streaming and pipelines are built of: kept products."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from wafer.engines.stagewise import residuals

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
