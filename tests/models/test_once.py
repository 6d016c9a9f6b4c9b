"""Programs that run once, values that are computed once: the same numbers, and less work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.models import once
from wafer.models.once import computed_once, jit_once, known_options

LEVEL = "xla_backend_optimization_level"
KEY = jax.random.key(3)


def uniform(key, shape):
    return jax.random.uniform(key, shape)


@pytest.fixture
def fast(monkeypatch):
    """As in a run: XLA_FLAGS of the tests name a level for all programs."""
    monkeypatch.setenv("XLA_FLAGS", "")
    once._quick_options.cache_clear()
    yield jit_once(uniform, static_argnums=1)
    once._quick_options.cache_clear()


def test_the_result_is_that_of_jit(fast):
    want = np.asarray(jax.jit(uniform, static_argnums=1)(KEY, (17, 5)))
    np.testing.assert_array_equal(fast(KEY, (17, 5)), want)


def test_it_works_under_other_transformations(fast):
    keys = jax.random.split(KEY, 3)
    want = np.stack([fast(key, (4,)) for key in keys])
    np.testing.assert_array_equal(jax.vmap(lambda key: fast(key, (4,)))(keys), want)
    np.testing.assert_array_equal(jax.jit(lambda key: fast(key, (4,)))(keys[1]), want[1])
    np.testing.assert_array_equal(jax.jit(lambda: fast(keys[1], (4,)))(), want[1])
    assert jax.eval_shape(lambda key: fast(key, (4,)), KEY).shape == (4,)


def test_options_that_this_release_does_not_know_are_left_out():
    assert known_options({LEVEL: 1, "xla_of_another_year": 1}) == {LEVEL: 1}
    assert known_options({LEVEL: 1}) == {LEVEL: 1}
    assert known_options({"xla_of_another_year": 1}) == {}


def turned(computed):
    """Two readers of a cosine, as queries and keys are."""

    def turn(angle, q, k):
        cos = lambda: computed(jnp.cos, angle)[:, None, :]
        return jnp.sum(q * cos(), axis=0), jnp.cumsum(k * cos(), axis=1)

    return jax.jit(turn)


def test_a_value_that_several_operations_read_is_computed_once():
    angle = np.linspace(0, 50, 64 * 8, dtype=np.float32).reshape(64, 8)
    q, k = np.random.default_rng(0).normal(size=(2, 64, 4, 8)).astype(np.float32)
    plain, kept = turned(lambda fun, x: fun(x)), turned(computed_once)
    for got, want in zip(kept(angle, q, k), plain(angle, q, k), strict=True):
        np.testing.assert_array_equal(got, want)
    cosines = lambda program: program.lower(angle, q, k).compile().as_text().count(" cosine(")
    assert (cosines(plain), cosines(kept)) == (2, 1)


def test_a_value_computed_once_has_derivatives_and_batches():
    x = jnp.linspace(0, 3, 5)
    squares = lambda x: computed_once(lambda x: jnp.sin(x) ** 2, x).sum()
    np.testing.assert_allclose(jax.grad(squares)(x), jnp.sin(2 * x), rtol=1e-5)
    rows = jnp.stack([x, x + 1])
    np.testing.assert_array_equal(
        jax.vmap(lambda x: computed_once(jnp.cos, x))(rows), jnp.cos(rows)
    )
    assert jnp.isnan(computed_once(jnp.cos, x.at[0].set(jnp.nan))).all()
