"""Pruned positions on disk: NaN in a weight and in its moments; no mask is stored.

A weight is pruned where it is NaN (any NaN; payload bits do not survive a cast to bfloat16).
Everything else is bit-exact, in its own dtype.
"""

from collections.abc import Collection, Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.models.checkpoint.layout import PRUNED, SPARSITY, ContentError, is_of_run
from wafer.models.checkpoint.moments import in_weights_and_moments
from wafer.models.paths import dense_word, named_leaves
from wafer.models.user.flags import with_nan


def prunable(record: Mapping[str, object]) -> frozenset[str] | None:
    """Return the parameters that are pruned, by a checkpoint's record.

    Returns:
        None where the record does not say it: see ``check_weight``.
    """
    sparse = record.get(SPARSITY) or ({"parameters": record[PRUNED]} if PRUNED in record else None)
    if sparse is not None:
        names = sparse.get("parameters") if isinstance(sparse, Mapping) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None  # an edited one is refused when it is read
        return frozenset(names)
    return frozenset() if is_of_run(record) else None


def check_weight(
    source: object, name: str, value: np.ndarray, pruned: Collection[str] | None
) -> np.ndarray:
    """Return a stored weight whose numbers a model can compute with.

    Args:
        source: of the weight, for errors.
        name: of the parameter.
        value: [...] as stored, of any dtype.
        pruned: the parameters that may hold NaN; None is all without a ``dense_word``.

    Raises:
        ContentError: an infinity, or a NaN that marks no pruned weight.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating) or np.isfinite(value).all():
        return value
    wrong = np.isinf(value)
    if _has_marks(name, pruned) and not wrong.any():
        return value
    wrong = wrong if wrong.any() else np.isnan(value)
    first = np.unravel_index(int(wrong.argmax()), value.shape)
    summary = f"{int(wrong.sum())} of {value.size:,}: {value[first]} at {[int(i) for i in first]}"
    by_hand = pruned is None and not np.isinf(value).any()
    hint = "; where `wafer prune` pruned it on purpose, prune its source again" if by_hand else ""
    raise ContentError(
        f"{source}: weights {name} are no numbers where nothing is pruned ({summary}); take an "
        f"earlier checkpoint{hint}"
    )


def check_moment(
    source: object, name: str, weight: str, value: np.ndarray, pruned: Collection[str] | None
) -> None:
    """Refuse a moment, or a statistic of another shape, with a NaN that marks no pruned weight.

    Args:
        source: of the array, for errors.
        name: of the array.
        weight: name of the parameter that it belongs to.
        value: [...] as stored, of any dtype.
        pruned: as ``check_weight``.

    Raises:
        ContentError: there is one.
    """
    if not jnp.issubdtype(value.dtype, jnp.floating) or _has_marks(weight, pruned):
        return
    wrong = int(np.isnan(value).sum())
    if wrong:
        raise ContentError(
            f"{source}: {name} is NaN where nothing is pruned ({wrong} of {value.size:,}); take an "
            "earlier checkpoint"
        )


def _has_marks(name: str, pruned: Collection[str] | None) -> bool:
    return not dense_word(name) if pruned is None else name in pruned


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
def mark(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array]) -> tuple[PyTree, PyTree]:
    """Write NaN at pruned positions of weights and of their floating moments.

    Args:
        params: weights in the dtype they are stored in.
        opt_state: optimizer state.
        masks: parameter name -> mask of its shape, true where kept.

    Returns:
        (params, opt_state) to store.
    """
    return _fill(params, opt_state, masks, jnp.nan)


def clear(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array]) -> tuple[PyTree, PyTree]:
    """Undo ``mark``: write 0 at pruned positions."""
    return _fill(params, opt_state, masks, 0)


def _fill(params: PyTree, opt_state: PyTree, masks: Mapping[str, Array], value: float) -> PyTree:
    def fill(name: str, leaf: PyTree) -> PyTree:
        if name not in masks or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(masks[name], leaf, jnp.asarray(value, leaf.dtype))

    return in_weights_and_moments(fill, params, opt_state)
