"""A state as named arrays, and named arrays in the structure of a state."""

import collections
import contextlib
import logging
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from wafer.models.errors import CheckpointError, did_you_mean, first_lines
from wafer.models.paths import former_names, map_named, named_leaves, unflatten

_LOG = logging.getLogger(__name__)


def to_tree(state: PyTree) -> dict[str, PyTree]:
    """Turn any state (NamedTuples, tuples, dicts) into a nested dict of host arrays by name.

    Arrays in parts over several processes stay as they are.
    Random keys become their words, [..., 2] uint32 or as many as their generator has.

    Raises:
        CheckpointError: names that would be one in the files, where '/' and '.' join their parts.
    """
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, state)
    leaves = named_leaves(plain)
    paths = [tuple(name.replace(".", "/").split("/")) for name, _ in leaves]
    times = collections.Counter(paths)
    folders = {path[:i] for path in times for i in range(len(path))}
    if twice := [
        name
        for (name, _), path in zip(leaves, paths, strict=True)
        if times[path] > 1 or path in folders
    ]:
        raise CheckpointError(
            f"the state has names that a checkpoint cannot tell apart: {', '.join(twice[:8])}; "
            "expected keys without '/' and '.', or other ones"
        )
    here = jax.device_get({name: leaf for name, leaf in leaves if not is_spread(leaf)})
    return unflatten({name: np.asarray(here[name]) if name in here else x for name, x in leaves})


def _is_key(leaf: PyTree) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float32), jax.dtypes.prng_key)


def on_host(tree: PyTree) -> PyTree:
    """Return arrays as numpy, random keys as they are; each process gets all of every array.

    Every process must call it: parts that others hold travel, one array after another.
    """

    def host(leaf: PyTree) -> PyTree:
        if is_spread(leaf):
            leaf = multihost_utils.process_allgather(leaf, tiled=True)
        return leaf if _is_key(leaf) else np.asarray(leaf)

    return jax.tree.map(host, tree)


def is_spread(leaf: PyTree) -> bool:
    """Whether an array is in parts of which other processes hold some."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_replicated:
        return False
    return not leaf.is_fully_addressable


def fill_template(
    template: PyTree,
    stored: Mapping[str, PyTree],
    source: str,
    prefix: str = "",
    *,
    strict: bool = True,
    optional: Callable[[str], bool] = lambda name: False,
) -> PyTree:
    """Put stored arrays into the structure of a template, name by name.

    Args:
        template: the state a fresh run would start with: arrays, or their shapes and dtypes.
        stored: nested dict as ``to_tree`` made it.
        source: the checkpoint's path, for errors.
        prefix: put before the names in errors.
        strict: False keeps the template's value where nothing of its shape is stored.
        optional: names that need not be stored.

    Raises:
        CheckpointError: lists every name that is missing or has another shape.
    """
    have = dict(named_leaves(stored))
    have = {new: have[old] for new, old in former_names(template).items() if old in have} | have
    problems: list[str] = []
    initialized: list[str] = []

    def take(name: str, leaf: PyTree) -> PyTree:
        if name not in have:
            if not strict or optional(name):
                initialized.append(name)
            else:
                problems.append(f"{prefix}{name}: not in the checkpoint{did_you_mean(name, have)}")
            return leaf
        value = have[name]
        if _is_key(leaf):  # unless the number of words is another generator's
            with contextlib.suppress(TypeError, ValueError):
                value = jax.random.wrap_key_data(jnp.asarray(value), impl=leaf.dtype)
        if np.shape(value) != np.shape(leaf) and not strict:
            initialized.append(f"{name} (stored {np.shape(value)}, needed {np.shape(leaf)})")
            return leaf
        if np.shape(value) != np.shape(leaf):
            problems.append(
                f"{prefix}{name}: shape {np.shape(value)}, the model needs {np.shape(leaf)}"
            )
            return leaf
        return value if _is_key(leaf) else np.asarray(value).astype(getattr(leaf, "dtype", None))

    filled = map_named(take, template)
    if problems:
        raise CheckpointError(
            f"{source} does not fit this configuration:\n  {first_lines(problems)}\n"
            "Use the params file the checkpoint was trained with, load only the model with "
            "--load_checkpoint_states model, or keep what does not fit as it is initialized (a "
            "new head) with --disable_strict_checkpoint_loading."
        )
    if initialized:
        shown = ", ".join(initialized[:12]) + (", ..." if len(initialized) > 12 else "")
        _LOG.info("Not taken from the checkpoint, kept as initialized: %s", shown)
    return filled
