"""Pruned positions on disk: NaN in a weight and in its moments; no mask is stored.

A weight is pruned where it is NaN (any NaN; payload bits do not survive a cast to bfloat16).
Everything else is bit-exact, in its own dtype.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from models.checkpoint.moments import in_weights_and_moments
from models.paths import named_leaves
from models.user.flags import with_nan

__all__ = ["clear", "mark", "masks_of"]


def masks_of(params: PyTree) -> dict[str, Array]:
    """Return parameter name -> bool mask, true where kept, of the parameters that hold a NaN."""
    masks: dict[str, Array] = {}
    for name, leaf in named_leaves(params):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            pruned = jnp.isnan(leaf)
            if pruned.any():
                masks[name] = ~pruned
    return masks


@with_nan()
def mark(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array]) -> tuple[Any, Any]:
    """Write NaN at pruned positions of weights and of their floating moments.

    Args:
        params: weights in the dtype they are stored in.
        opt_state: optimizer state.
        masks: parameter name -> mask of its shape, true where kept.

    Returns:
        (params, opt_state) to store.
    """
    return _fill(params, opt_state, masks, jnp.nan)


def clear(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array]) -> tuple[Any, Any]:
    """Undo ``mark``: write 0 at pruned positions."""
    return _fill(params, opt_state, masks, 0)


def _fill(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array], value: float) -> Any:
    def fill(name: str, leaf: Any) -> Any:
        if name not in masks or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(masks[name], leaf, jnp.asarray(value, leaf.dtype))

    return in_weights_and_moments(fill, params, opt_state)
