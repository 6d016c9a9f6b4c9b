"""Init and update under ``jax.jit``: every algorithm with every pattern, a weight for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.sparsity import ALGORITHMS, configure

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
    "seeded": {},
    "gmp": {"schedule": [0.25, 0.5], "update": {"freq": 1, "stop": 2}},
    "acdc": {"update": {"freq": 1, "start": 1, "stop": 2}},
    "topkast": EXPLORES,
    "sr-ste": EXPLORES,
}


ALL = ["static", "seeded", "gmp", "acdc", "set", "mest", "rigl", "topkast", "sr-ste"]
STORABLE = ["static", "set", "mest", "rigl"]  # the others change their number of weights
CASES = [*((name, "masked") for name in ALL), *((name, "csr") for name in STORABLE)]
# One that stays, one that grows, one with a schedule, one with a second mask.
FIRST = {("static", "masked"), ("rigl", "csr"), ("gmp", "masked"), ("sr-ste", "masked")}


@pytest.mark.parametrize(
    ("algorithm", "compute"),
    [case if case in FIRST else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_init_and_update_under_jit(algorithm, compute):
    keys = KEYS.get(algorithm, {"update": {"freq": 1}})
    level = {} if "schedule" in keys else {"sparsity": 0.5}
    common = {"algorithm": algorithm, "compute": compute, **level, **keys}
    section = [{"param_filter": name, **common, **pattern} for name, pattern in PATTERNS.items()]
    params = {n: jax.random.normal(jax.random.key(i), (16, 16)) for i, n in enumerate(PATTERNS)}
    sparsifier = configure(section, params=params)
    state = jax.jit(sparsifier.init)(params, jax.random.key(0))
    assert (len(state.masks), len(state.patterns)) == ((0, 7) if compute == "csr" else (7, 0))
    eager = sparsifier.masks(sparsifier.init(params, jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, sparsifier.masks(state), eager)
    params, _ = sparsifier.prune(params, (), state)
    dense = sparsifier.expand(params, (), state)[0]
    grads = {name: jnp.cos(weight * 7) for name, weight in dense.items()}
    before = sparsifier.masks(state)
    state, params, _ = jax.jit(sparsifier.update)(state, params, grads, ())
    masks = sparsifier.masks(state)
    assert {name: float(mask.mean()) for name, mask in masks.items()} == dict.fromkeys(
        PATTERNS, 0.5
    )
    for name, weight in sparsifier.expand(params, (), state)[0].items():
        assert not np.any(np.where(masks[name], 0, weight))
        grows = algorithm in {"set", "mest", "rigl"}
        assert grows == bool((masks[name] != before[name]).any()) or algorithm not in STORABLE


def test_every_algorithm_is_tried():
    ours = {n for n, a in ALGORITHMS.items() if a.__module__.startswith("wafer.sparsity.")}
    assert ours == {*ALL}
