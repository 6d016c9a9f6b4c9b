"""Train some parameters, leave the others alone: no moments, no decay, no share in the clipping."""

from collections.abc import Collection
from typing import Any

import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from models.paths import map_named, named_leaves, unflatten
from wafer.optim.rules import Declared

__all__ = ["train_only"]


def train_only(tx: optax.GradientTransformation, names: Collection[str]) -> Any:
    """Restrict an optimizer to the named parameters.

    Args:
        tx: sees only their gradients, parameters and shapes.
        names: '/'-joined names; any part of the tree may be updated alone.

    Returns:
        A transformation whose updates are 0 for all other parameters.
    """

    def part(tree: PyTree) -> Any:
        return unflatten({name: leaf for name, leaf in named_leaves(tree) if name in names})

    def init(params: PyTree) -> Any:
        return tx.init(part(params))

    inner = optax.with_extra_args_support(tx)

    def update(updates: PyTree, state: Any, params: PyTree = None, **extra: Any) -> tuple[Any, Any]:
        trained = None if params is None else part(params)
        own, state = inner.update(part(updates), state, trained, **extra)
        of_trained = dict(named_leaves(own))
        filled = map_named(lambda name, u: of_trained.get(name, jnp.zeros_like(u)), updates)
        return filled, state

    rest: Any = optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]
    if not isinstance(tx, Declared):
        return rest
    return Declared(rest, lambda name: tx.rule(name) if name in names else None)
