"""No key of a ``sparsity`` section without effect."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.effects import legal_values

from wafer import sparsity
from wafer.sparsity.algorithms.base import ALGORITHMS
from wafer.sparsity.sections.config import PatternSection, section_of

PARAMS = {
    f"layers_{i}": {"kernel": np.random.default_rng(i).normal(size=shape).astype(np.float32)}
    for i, shape in enumerate(((8, 16), (16, 8), (8, 8)))
}
FREQ = {"freq": 2}
RISING = {"type": "linear", "init": 0.25, "slope": 0.01}
BASES = {  # algorithm -> its smallest section
    "static": {"sparsity": 0.5},
    "seeded": {"sparsity": 0.5, "seed": 1},
    "gmp": {"sparsity": RISING, "update": FREQ},
    "set": {"sparsity": 0.5, "update": FREQ},
    "rigl": {"sparsity": 0.5, "update": FREQ},
    "mest": {"sparsity": 0.5, "update": FREQ},
    "acdc": {"sparsity": 0.5, "update": {"freq": 2, "start": 2, "stop": 8}},
    "topkast": {"sparsity": 0.5, "stop": 4, "penalty": 0.5},
    "sr-ste": {"sparsity": 0.5, "stop": 4, "pattern": {"type": "n:m", "n": 2, "m": 4}},
}


def scores(ctx):
    """Scores of an algorithm, for ``drop`` and ``grow``."""
    return -jnp.abs(ctx.weight)


VALUES = {
    "sparsity": [0.75, {"type": "linear", "init": 0.5, "slope": 0.02}],
    "schedule": [],  # another spelling of sparsity
    "init_method": ["topk", "checkerboard"],
    "update": [{"freq": 3}, {"freq": 3, "start": 1, "stop": 7}],
    "drop_fraction": [0.6],
    "param_filter": ["layers_0*"],
    "balance_in_groups": [2],
    "balance_out_groups": [2],
    "pattern": [{"type": "n:m", "n": 2, "m": 4}, {"type": "block", "size": 4}],
    "budget": ["erk"],
    "dense_ends": [1],
    "compute": ["csr", "masked"],
    "drop": [scores],
    "grow": [scores],
    "grown_moments": ["mean"],
    "seed": [2],
}
PATTERN = {"type": "n:m", "n": 2, "m": 4}
PATTERNS = {
    "type": {"sparsity": 0.5, "pattern": {"type": "constant_fan_in"}},
    "n": {"pattern": PATTERN | {"n": 1}},
    "m": {"pattern": PATTERN | {"m": 8}},
    "axis": {"pattern": PATTERN | {"axis": "out"}},
    "size": {"sparsity": 0.5, "pattern": {"type": "block", "size": [2, 4]}},
}


def one_step(sparsifier, state, params):
    """What a training step does with masks: forward, gradients, update with its moments."""
    params, moments = sparsifier.prune(params, {"mu": params}, state)
    ready = sparsifier.prepare(params, state, dense=True)
    leaves = lambda r: jax.tree.leaves(sparsifier.attach(r, state))
    grads = jax.grad(lambda r: sum(jnp.sum(leaf**3) for leaf in leaves(r)), allow_int=True)(ready)
    kept, dense = sparsifier.split(grads, state)
    return kept, sparsifier.update(state, params, dense, moments)


def traced(section):
    """First masks, how they are stored, when and how they change; '' where it is refused."""
    try:
        sparsifier = sparsity.configure(section, params=PARAMS)
        state = sparsifier.init(PARAMS, jax.random.key(0))
        if state.patterns:  # weights are stored as csr
            return str(jax.tree.structure(state))
        closed = jax.make_jaxpr(functools.partial(one_step, sparsifier))(state, PARAMS)
    except ValueError:
        return ""
    arrays = [*jax.tree.leaves(state._replace(key=0)), *closed.consts]
    shown = [np.asarray(array).tolist() for array in arrays]
    due = [sparsifier.due(n) for n in range(1, 9)]
    text = f"{jax.tree.structure(state)}{shown}{closed.jaxpr}{due}"
    return re.sub("0x[0-9a-f]+", "", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_key_of_an_algorithm_does_something_or_is_refused(name):
    base = BASES[name]
    known, idle = traced(base | {"algorithm": name}), set()
    assert known
    for key, field in section_of(ALGORITHMS[name]).model_fields.items():
        values = VALUES[key] if key in VALUES else legal_values(field.annotation)
        tried = {traced(base | {"algorithm": name, key: value}) for value in values}
        if tried - {""} == {known}:
            idle.add(key)
    assert idle <= {"compute"}  # masked is what auto means where csr is refused


def test_every_key_of_a_pattern_does_something():
    assert PATTERNS.keys() == PatternSection.model_fields.keys()
    known = traced({"pattern": PATTERN})
    seen = {key: traced(section) for key, section in PATTERNS.items()}
    assert all(seen.values())
    assert len({known, *seen.values()}) == 1 + len(seen)
