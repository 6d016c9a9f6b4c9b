"""Programs that run once: fewer passes, and the rules of any jitted function."""

import jax
import numpy as np
import pytest

from models import once
from models.once import jit_once, known_options

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
