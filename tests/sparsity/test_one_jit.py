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
