"""States of every structure: what a checkpoint's names give back with a template."""

import collections
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.checkpoint.tree import fill_template, to_tree
from wafer.models.checkpoint.writer import write_checkpoint
from wafer.models.errors import CheckpointError

Pair = collections.namedtuple("Pair", "left right")
WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def nnx_state():
    """Of a module with a list, dropout's random key and its count."""
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(3)
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=rngs) for _ in range(2)])
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

    return nnx.split(Net())[1]


STATES = {
    "nnx": nnx_state,
    "tuples": lambda: (Pair(WEIGHT, [WEIGHT + 1]), {"deep": (WEIGHT,)}),
    "keys": lambda: {
        "rbg": jax.random.key(1, impl="rbg"),
        "unsafe_rbg": jax.random.split(jax.random.key(1, impl="unsafe_rbg"), 3),
        "typed": jax.random.key(1),
        "old": jax.random.PRNGKey(1),
    },
}


@pytest.mark.parametrize("name", STATES)
def test_a_template_gives_a_state_its_structure_back(tmp_path, name):
    arrays = lambda x: isinstance(x, np.ndarray | jax.Array)
    state = jax.tree.map(lambda x: x if arrays(x) else None, STATES[name]())
    write_checkpoint(tmp_path / "1", {"state": state}, {})
    template = jax.eval_shape(lambda: {"state": state})
    back = load_checkpoint(tmp_path / "1", template)[0]["state"]
    assert jax.tree.structure(back) == jax.tree.structure(state)

    def same(one, other):
        assert one.dtype == other.dtype
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)

    jax.tree.map(same, state, back)


@pytest.mark.parametrize(
    "state",
    [{"a.b": WEIGHT, "a": {"b": WEIGHT}},
     {"a": WEIGHT, "a.b": WEIGHT}, {"a": {"b": {"c": WEIGHT}}, "a/b": WEIGHT}],
    ids=["dot", "folder", "deep folder"],
)  # fmt: skip
def test_names_that_are_one_in_the_files_are_refused(state):
    with pytest.raises(CheckpointError, match=r"names that a checkpoint cannot tell apart: a"):
        to_tree(state)


def test_a_key_of_another_generator_does_not_fit():
    stored = to_tree({"key": jax.random.key(1)})
    template = {"key": jax.random.key(1, impl="rbg")}
    with pytest.raises(CheckpointError, match=re.escape("key: shape (2,), the model needs ()")):
        fill_template(template, stored, "here")
