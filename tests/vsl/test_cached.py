"""One token against a key-value cache: the native call and a product in float64."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.vsl.attend import attention_as
from wafer.vsl.implementations.cached import attend_cached

CASES = [(1, 12, 12, 64, 64), (3, 8, 2, 33, 16), (2, 4, 1, 20, 80), (1, 1, 1, 1, 32)]
RULES = {"causal": True, "scale": 0.3, "softcap": None, "window": None, "sink_tokens": 0}


def arrays(rows, heads, key_heads, slots, width, dtype):
    rng = np.random.default_rng(slots)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)
    cache = tuple(draw(rows, key_heads, slots, width).astype(dtype) for _ in range(2))
    return draw(rows, heads, width), *(draw(rows, key_heads, width) for _ in range(2)), cache


@pytest.mark.native
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "key_heads", "slots", "width"), CASES)
def test_a_token_attends_to_what_came_before(rows, heads, key_heads, slots, width, dtype):
    q, k, v, cache = arrays(rows, heads, key_heads, slots, width, dtype)
    length = np.arange(rows, dtype=np.int32) * (slots // 2) % slots
    length[-1] = slots - 1
    at = {"length": jnp.asarray(length), "added": jnp.ones(rows, jnp.int32)}
    out, full = jax.jit(functools.partial(attend_cached, **RULES))(q, k, v, cache, **at)
    for new, old, token in zip(full, cache, (k, v), strict=True):
        expected = np.array(old)
        expected[np.arange(rows), :, length] = token.astype(dtype)
        np.testing.assert_array_equal(new, expected)
    keys, values = (np.repeat(np.asarray(x, np.float64), heads // key_heads, 1) for x in full)
    for row, count in enumerate(length + 1):
        scores = 0.3 * np.einsum("nh,nch->nc", np.asarray(q[row], np.float64), keys[row, :, :count])
        weights = np.exp(scores - scores.max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        expected = np.einsum("nc,nch->nh", weights, values[row, :, :count])
        np.testing.assert_allclose(out[row], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.native
def test_a_row_without_a_token_and_a_full_cache():
    q, k, v, cache = arrays(3, 2, 1, 4, 16, jnp.float32)
    at = {"length": jnp.array([1, 4, 2]), "added": jnp.array([0, 1, 1])}
    out, (keys, _) = attend_cached(q, k, v, cache, **at, **RULES)
    assert not np.any(out[0])
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[2]).all()
    expected = np.array(cache[0])
    expected[0, :, 1], expected[2, :, 2] = 0, k[2]
    np.testing.assert_array_equal(keys, expected)


@pytest.mark.native
def test_what_it_does_not_have_is_for_xla():
    q, k, _, cache = arrays(1, 2, 2, 4, 16, jnp.float32)
    at = dict.fromkeys(("length", "added"), jnp.ones(1, jnp.int32))
    ask = lambda q=q, k=k, cache=cache, **rules: attend_cached(
        q, k, k, cache, **at, **RULES | rules
    )
    assert ask() is not None
    for rule in ({"causal": False}, {"window": 2}, {"softcap": 5.0}, {"alibi_slopes": q[0, :, 0]}):
        assert ask(**rule) is None
    assert ask(q.astype(jnp.bfloat16)) is None
    narrow = tuple(x[..., :8] for x in cache)
    assert ask(q[..., :8], k[..., :8], narrow) is None
    with attention_as("blocks"):
        assert ask() is None


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "baseline"])
def test_other_instruction_sets(target):
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-k", "attends", __file__]
    env = os.environ | {"WAFER_NATIVE": target}
    process = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout
