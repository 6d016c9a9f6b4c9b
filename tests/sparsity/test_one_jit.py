"""Whole experiments in one jit: many seeds in one program are each seed's run by itself."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from wafer import sparsity

EVERY, STOP = {"update": {"freq": 3}}, {"stop": 4}
METHODS = {
    "static": {},
    "gmp": {"schedule": {"type": "cubic", "init": 0.25, "final": 0.75, "stop": 6}} | EVERY,
    "set": EVERY,
    "rigl": {**EVERY, "grown_moments": "mean"},
    "mest": EVERY,
    "acdc": {"update": {"freq": 2, "start": 2, "stop": 7}},
    "topkast": {"backward_sparsity": 0.25, **STOP},
    "sr-ste": STOP,
}
PATTERNS = {
    "whole": {},
    "2:4": {"pattern": "2:4"},
    "block": {"pattern": {"type": "block", "size": 4}},
    "fan_in": {"pattern": {"type": "constant_fan_in"}},
    "groups": {"balance_in_groups": 4},
}
STORABLE = {"static", "set", "rigl", "mest"}  # the others change their number of weights
SEEDS = 4  # one for each device


def section(method, pattern, compute):
    level = {} if "schedule" in METHODS[method] else {"sparsity": 0.5}
    common = {"algorithm": method, "compute": compute, "param_filter": "up"}
    return common | level | METHODS[method] | PATTERNS[pattern]


def experiment(rule, tx=None):
    """Return ``key -> (losses, masks)``: initialize, prune, and train for six steps."""
    tx = tx or optax.adam(1e-2)

    def run(key):
        draw = lambda i, *shape: jax.random.normal(jax.random.fold_in(key, i), shape)
        weights = {"up": draw(0, 16, 32) / 4, "bias": jnp.zeros(32)}
        sparse = rule.init(weights, jax.random.fold_in(key, 1))
        params, opt_state = rule.prune(weights, tx.init(weights), sparse)

        def step(carry, x, due):
            params, opt_state, sparse = carry

            def loss(ready):
                used = rule.attach(ready, sparse)
                return jnp.square(x @ used["up"] + used["bias"] - jnp.roll(x, 1, 0).sum()).mean()

            value, grads = jax.value_and_grad(loss)(rule.prepare(params, sparse, dense=due))
            grads, dense = rule.split(grads, sparse)
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            sparse, params, opt_state = rule.update(sparse, params, dense, opt_state, topology=due)
            return (params, opt_state, sparse), value

        due = [rule.due(t) for t in range(1, 7)]
        carry, losses = (params, opt_state, sparse), []
        for is_due, same in itertools.groupby(enumerate(draw(2, 6, 8, 16)), lambda x: due[x[0]]):
            xs = jnp.stack([x for _, x in same])
            carry, values = jax.lax.scan(lambda c, x, d=is_due: step(c, x, d), carry, xs)
            losses.append(values)
        return jnp.concatenate(losses), rule.masks(carry[2])

    return run


def over_devices(run):
    """Share the seeds among four devices, each of which runs its own."""
    mesh, spec = Mesh(np.array(jax.devices()), ("seeds",)), P("seeds")
    return jax.jit(
        jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    )


def sharded(run):
    """Let XLA share the seeds out."""
    seeds = NamedSharding(Mesh(np.array(jax.devices()), ("seeds",)), P("seeds"))
    return lambda keys: jax.jit(jax.vmap(run))(jax.device_put(keys, seeds))


WAYS = {
    "vmap": lambda run: jax.jit(jax.vmap(run)),
    "map": lambda run: jax.jit(lambda keys: jax.lax.map(run, keys)),
    "devices": over_devices,
    "sharded": sharded,
}
# One that stays, ones that grow at random and by gradients, one whose level moves, one that is
# dense in between, and one that prunes in the forward pass alone.
FIRST = {
    ("static", "2:4", "masked", "vmap"),
    ("static", "fan_in", "csr", "devices"),
    ("set", "groups", "masked", "map"),
    ("rigl", "whole", "masked", "sharded"),
    ("rigl", "whole", "csr", "vmap"),
    ("gmp", "whole", "masked", "map"),
    ("topkast", "block", "masked", "vmap"),
}
CASES = [
    case if case in FIRST else pytest.param(*case, marks=pytest.mark.slow)
    for case in itertools.product(METHODS, PATTERNS, ("masked", "csr"), WAYS)
    if (case[0] in STORABLE or case[2] == "masked") and case[:2] != ("gmp", "2:4")
]


@pytest.mark.parametrize(("method", "pattern", "compute", "way"), CASES)
def test_many_seeds_in_one_program_are_single_runs(method, pattern, compute, way):
    run = experiment(sparsity.configure(section(method, pattern, compute)))
    keys = jax.random.split(jax.random.key(0), SEEDS)
    losses, masks = WAYS[way](run)(keys)
    single = jax.jit(run)
    for i, key in enumerate(keys):
        expected, expected_masks = single(key)
        np.testing.assert_allclose(losses[i], expected, rtol=1e-6)
        jax.tree.map(np.testing.assert_array_equal, {"up": masks["up"][i]}, expected_masks)
    assert len({float(x) for x in losses[:, -1]}) == SEEDS


GRID = {
    "static": lambda level, _: {"algorithm": "static", "sparsity": level},
    "set": lambda level, drop: {
        "algorithm": "set", "sparsity": level, "drop_fraction": drop, **EVERY
    },
    "rigl": lambda level, drop: {
        "algorithm": "rigl", "sparsity": [level, 0.5], "drop_fraction": drop, **EVERY
    },
    "mest": lambda level, drop: {
        "algorithm": "mest", "sparsity": level, "init_method": "topk",
        "drop_fraction": {"type": "power", "init": drop, "beta": 0.9}, **EVERY,
    },
    "gmp": lambda level, _: {
        "algorithm": "gmp", **EVERY,
        "schedule": {"type": "cubic", "init": 0.1, "final": level, "stop": 5},
    },
    "gmp function": lambda level, drop: {
        "algorithm": "gmp", "schedule": lambda step: drop + level * step / 99, **EVERY
    },
    "gmp linear": lambda level, drop: {
        "algorithm": "gmp", "schedule": {"type": "linear", "init": drop, "slope": level / 9},
        **EVERY,
    },
}  # fmt: skip
LEVELS = np.float32([0.1, 0.5, 0.7, 0.8, 0.9, 0.95])  # 0.8 of 10 weights keeps 1: float32 decides
DROPS = np.float32([0.1, 0.2, 0.3, 0.3, 0.5, 1.0])


@pytest.mark.parametrize(
    "name", [n if n in ("rigl", "gmp") else pytest.param(n, marks=pytest.mark.slow) for n in GRID]
)
def test_a_grid_of_levels_in_one_program_is_runs_of_numbers(name):
    def run(key, level, drop):
        return experiment(sparsity.configure(GRID[name](level, drop) | {"param_filter": "up"}))(key)

    key = jax.random.key(3)
    losses, masks = jax.jit(jax.vmap(run, (None, 0, 0)))(key, LEVELS, DROPS)
    picked = range(6) if name == "gmp" else (3, 4)
    for i in picked:
        expected, mask = jax.jit(lambda key, i=i: run(key, float(LEVELS[i]), float(DROPS[i])))(key)
        np.testing.assert_array_equal(masks["up"][i], mask["up"])
        np.testing.assert_allclose(losses[i], expected, rtol=1e-6)
    if name in ("static", "set"):
        kept = np.trunc((np.float32(1) - LEVELS) * np.float32(16 * 32))
        np.testing.assert_array_equal(masks["up"].sum((1, 2)), kept)


def test_arrays_whose_numbers_are_known_are_numbers():
    """Csr and patterns take them, and counts are those of the number."""
    for level in (np.float32(0.8), np.float64(0.8), jnp.float32(0.8)):
        rule = sparsity.configure({"algorithm": "rigl", "sparsity": level, "compute": "csr"})
        sparse = rule.init({"up": jnp.ones((10, 1))}, jax.random.key(0))
        assert sparse.patterns["up"].nnz == 1
    with pytest.raises(sparsity.SparsityError, match=r"expected a number from 0 to 1, got 1\.5"):
        sparsity.configure({"algorithm": "set", "sparsity": jnp.float32(1.5)})


BLOCK = {"type": "block", "size": 4}
REFUSED = {
    "csr keeps a fixed number": {"algorithm": "rigl", "compute": "csr"},
    "every row of a pattern": {"algorithm": "set", "pattern": BLOCK},
    "this pattern has the level 0.5": {"algorithm": "static", "pattern": "2:4"},
    "every row": {"algorithm": "static", "balance_in_groups": 4},
    "layers share a known level": {"algorithm": "set", "budget": "erk"},
    "checkerboard has a fixed": {"algorithm": "static", "init_method": "checkerboard"},
    "SRSTE.level_may_be_traced": {"algorithm": "sr-ste", "stop": 4},
    "InBandStatic.level_may_be_traced": {"algorithm": "seeded"},
    "a traced array": {"algorithm": "acdc", "update": {"freq": 2, "start": 2, "stop": 7}},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_traced_level_is_refused_with_the_reason(why):
    with pytest.raises(sparsity.SparsityError, match=why):
        jax.eval_shape(lambda level: sparsity.configure({"sparsity": level} | REFUSED[why]), 0.5)


def test_auto_keeps_masks_of_a_traced_level():
    def stored(level):
        rule = sparsity.configure(
            {"algorithm": "rigl", "sparsity": level}, accepts=lambda name: True
        )
        return rule.init({"up": jnp.ones((64, 64))}, jax.random.key(0))

    assert jax.eval_shape(stored, 0.9).masks["up"].shape == (64, 64)
    assert stored(0.9).patterns
