"""Init and update under ``jax.jit``: every algorithm with every pattern, a weight for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sparsity import ALGORITHMS, configure

PATTERNS = {
    "whole": {},
    "two_of_four": {"pattern": {"type": "n:m", "n": 2, "m": 4}},
    "two_of_four_out": {"pattern": {"type": "n:m", "n": 2, "m": 4, "axis": "out"}},
    "block": {"pattern": {"type": "block", "size": 4}},
    "fan_in": {"pattern": {"type": "constant_fan_in"}},
    "groups_in": {"balance_in_groups": 4},
    "groups_out": {"balance_out_groups": 4},
}
EXPLORES = {"stop": 1}
KEYS = {
    "static": {},
    "gmp": {"schedule": [0.25, 0.5], "update": {"freq": 1, "stop": 2}},
    "acdc": {"update": {"freq": 1, "start": 1, "stop": 2}},
    "topkast": EXPLORES,
    "sr-ste": EXPLORES,
}


@pytest.mark.parametrize(
    "algorithm", ["static", "gmp", "acdc", "set", "mest", "rigl", "topkast", "sr-ste"]
)
def test_init_and_update_under_jit(algorithm):
    keys = KEYS.get(algorithm, {"update": {"freq": 1}})
    level = {} if "schedule" in keys else {"sparsity": 0.5}
    section = [
        {"algorithm": algorithm, "param_filter": name, **level, **keys, **pattern}
        for name, pattern in PATTERNS.items()
    ]
    params = {n: jax.random.normal(jax.random.key(i), (16, 16)) for i, n in enumerate(PATTERNS)}
    sparsifier = configure(section, params=params)
    state = jax.jit(sparsifier.init)(params, jax.random.key(0))
    eager = sparsifier.init(params, jax.random.key(0))
    for name in PATTERNS:
        np.testing.assert_array_equal(state.masks[name], eager.masks[name])
    params, _ = sparsifier.prune(params, (), state)
    grads = {name: jnp.cos(weight * 7) for name, weight in params.items()}
    state, params, _ = jax.jit(sparsifier.update)(state, params, grads, ())
    assert {name: float(mask.mean()) for name, mask in state.masks.items()} == dict.fromkeys(
        PATTERNS, 0.5
    )


def test_every_algorithm_is_tried():
    tried = {"static", "gmp", "acdc", "set", "mest", "rigl", "topkast", "sr-ste"}
    assert {n for n, a in ALGORITHMS.items() if a.__module__.startswith("sparsity.")} == tried
