"""Train some parameters, or some elements of them: no moments, no decay, no share in clipping."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from wafer.models.factored.adapters import ADAPTER_LEAVES
from wafer.models.paths import map_named, named_leaves, unflatten
from wafer.optim.rules import WithParamRules

_DEVIATIONS = 2.25
_TRANSPOSED = ("kernel", *ADAPTER_LEAVES)  # [in, out]; outliers are those of [out, in]


def train_only(
    tx: optax.GradientTransformation, names: Collection[str]
) -> optax.GradientTransformation:
    """Restrict an optimizer to the named parameters.

    Args:
        tx: sees only their gradients, parameters and shapes.
        names: '/'-joined names; any part of the tree may be updated alone.

    Returns:
        A transformation whose updates are 0 for all other parameters.
    """

    def part(tree: PyTree) -> dict[str, PyTree]:
        return unflatten({name: leaf for name, leaf in named_leaves(tree) if name in names})

    def init(params: PyTree) -> PyTree:
        return tx.init(part(params))

    inner = optax.with_extra_args_support(tx)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, PyTree]:
        trained = None if params is None else part(params)
        own, state = inner.update(part(updates), state, trained, **extra)
        of_trained = dict(named_leaves(own))
        filled = map_named(lambda name, u: of_trained.get(name, jnp.zeros_like(u)), updates)
        return filled, state

    restricted: Any = optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]
    if not isinstance(tx, WithParamRules):
        return restricted
    return WithParamRules(restricted, lambda name: tx.rule(name) if name in names else None)


class SelectiveGradState(NamedTuple):
    """State of an optimizer that trains outliers."""

    mask: PyTree  #: selected parameters, bool: which elements train
    inner: Any  #: the optimizer's state


def outliers(name: str, weight: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Mark the elements of a weight that ``selective_grad`` trains.

    Args:
        name: its parameter name, which says which axis the outputs are.
        weight: [in, out] of a kernel; of others the first axis counts as outputs.

    Returns:
        The shape of ``weight``: whether an element's magnitude is at least 2.25 standard
        deviations (n - 1) of the magnitudes over the outputs.
    """
    size = jnp.abs(weight)
    axis = weight.ndim - 1 if name.endswith(_TRANSPOSED) else 0
    return size >= _DEVIATIONS * jnp.std(size, axis, ddof=1, keepdims=True)


def train_outliers(
    tx: optax.GradientTransformation, selects: Callable[[str, int], bool]
) -> optax.GradientTransformationExtraArgs:
    """Restrict an optimizer to the outliers of selected parameters, drawn by ``init``.

    Args:
        tx: sees gradients and weights of 0 at all other elements of these parameters.
        selects: (name, rank) -> whether a parameter is restricted.

    Returns:
        A transformation whose updates are 0 at the other elements.
    """
    inner = optax.with_extra_args_support(tx)

    def init(params: PyTree) -> SelectiveGradState:
        chosen = {n: w for n, w in named_leaves(params) if selects(n, len(w.shape))}
        mask = unflatten(
            {name: outliers(name, jnp.asarray(weight)) for name, weight in chosen.items()}
        )
        return SelectiveGradState(mask, tx.init(params))

    def update(
        updates: PyTree, state: SelectiveGradState, params: PyTree = None, **extra: object
    ) -> tuple[PyTree, SelectiveGradState]:
        masks = dict(named_leaves(state.mask))

        def only(name: str, x: Array) -> Array:
            return jnp.where(masks[name], x, 0) if name in masks else x

        trained = None if params is None else map_named(only, params)
        own, state_of_tx = inner.update(map_named(only, updates), state.inner, trained, **extra)
        return map_named(only, own), SelectiveGradState(state.mask, state_of_tx)

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]
