"""Choose new masks for a group of parameters when its update is due."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from models.paths import named_leaves
from sparsity.algorithms import Algorithm, UpdateContext
from sparsity.filters import Filter
from sparsity.schedules import Schedule
from sparsity.state import SparseState
from sparsity.views import View

__all__ = ["Group", "first_indices", "first_targets", "named_key", "update_group"]

_Groups = Sequence[tuple[Filter, Algorithm]]


def named_key(key: Array, name: str) -> Array:
    """Derive a parameter's key from the run's; does not depend on other parameters."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def first_indices(groups: _Groups) -> Array:
    """[G, 2] list positions after the start: a level list due at step 0 has used its first."""
    used = [(int(a.dynamic and a.starts_sparse()) % a.sparsity.length, 0) for _, a in groups]
    return jnp.asarray(used, jnp.int32).reshape(len(groups), 2)


def first_targets(groups: _Groups) -> Array:
    """[G] levels in force after the start; 0 for a dynamic group that starts dense."""
    levels = [a.sparsity(0, 0) if a.starts_sparse() else jnp.float32(0) for _, a in groups]
    return jnp.clip(jnp.asarray(levels, jnp.float32).reshape(len(groups)), 0, 1)


def _walk(schedule: Schedule, index: Array) -> Array:
    return (index + 1) % schedule.length


class Group(NamedTuple):
    """A group of parameters that share an algorithm.

    algorithm: the rule
    number: the group's position
    names: its parameters
    view: its competition rows
    """

    algorithm: Algorithm
    number: int
    names: tuple[str, ...]
    view: View


def update_group(
    group: Group, sparse: SparseState, params: Any, grads: Mapping[str, Array], finite: Array
) -> SparseState:
    """Give a group's parameters new masks if its update schedule says so.

    Args:
        group: algorithm and parameters.
        sparse: the state, its step already advanced.
        params: parameter tree, pruned.
        grads: dense gradients by name.
        finite: [] bool, false blocks the update.

    Returns:
        The state with masks, list positions and targets of this group replaced.
    """
    algorithm, names = group.algorithm, group.names
    weights = _leaves(params, names)
    missing = [n for n in names if n not in grads] if algorithm.needs_gradient else []
    if missing:
        raise ValueError(
            f"{type(algorithm).__name__} needs the dense gradient of {missing[0]!r} at due"
            " steps: pass the gradients taken before masking to update(), or call it with"
            " topology=False when sparsifier.due(step) is false"
        )
    index = sparse.indices[group.number]
    level = jnp.clip(algorithm.sparsity(sparse.step, index[0]), 0, 1)
    drop = jnp.clip(algorithm.drop_fraction(sparse.step, index[1]), 0, 1)
    step_key = jax.random.fold_in(sparse.key, sparse.step)
    old = {name: sparse.masks[name] for name in names}

    def choose() -> dict[str, Array]:
        return {
            name: algorithm.update_mask(
                UpdateContext(
                    name=name,
                    weight=weights[name],
                    grad=grads.get(name),
                    mask=old[name],
                    sparsity=level,
                    drop_fraction=drop,
                    step=sparse.step,
                    key=named_key(step_key, name),
                    view=group.view,
                )
            )
            for name in names
        }

    due = finite & algorithm.update(sparse.step)
    new = jax.lax.cond(due, choose, lambda: old)
    walked = jnp.stack(
        [_walk(algorithm.sparsity, index[0]), _walk(algorithm.drop_fraction, index[1])]
    )
    return sparse._replace(
        masks={**sparse.masks, **new},
        indices=sparse.indices.at[group.number].set(jnp.where(due, walked, index)),
        targets=sparse.targets.at[group.number].set(
            jnp.where(due, level, sparse.targets[group.number])
        ),
    )


def _leaves(params: Any, names: Sequence[str]) -> dict[str, Array]:
    leaves = dict(named_leaves(params))
    return {name: leaves[name] for name in names}
