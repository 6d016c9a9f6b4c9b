"""Go on from a checkpoint: sentinel or dense, with the same section or an edited one."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jaxtyping import Array, PyTree

from models.errors import did_you_mean
from models.paths import named_leaves
from sparsity import sentinel
from sparsity.algorithms.magnitude import Static
from sparsity.state import SparseState, from_meta

if TYPE_CHECKING:
    from sparsity.sparsifier import Selected, Sparsifier

__all__ = ["resume"]

_LOG = logging.getLogger(__name__)


def resume(
    sparsifier: "Sparsifier",
    params: PyTree,
    opt_state: PyTree,
    key: Array,
    meta: Mapping[str, Any] | None = None,
) -> tuple[SparseState, Any, Any]:
    """Rebuild the sparse state from stored weights.

    A parameter with NaN keeps its mask in the 2.x dialects (an edited level is reached by a
    schedule only); in the 1.8 dialect its level is raised or lowered to the section's, and
    weights that come back start at 0, as do their moments. A parameter without NaN gets a first
    mask, as in a fresh run, unless ``meta`` says that it was sparse with nothing pruned yet.

    Args:
        sparsifier: from the section of this run.
        params: stored dense parameters, NaN at pruned positions.
        opt_state: stored optimizer state.
        key: consumed; used when ``meta`` holds none.
        meta: what ``to_meta`` returned when the checkpoint was written, or None.

    Returns:
        (sparse, params, opt_state), pruned to the masks.

    Raises:
        SentinelError: a parameter has NaN, but no filter takes it.
    """
    decoded = sentinel.decode(params, opt_state)
    selected = sparsifier.select(params)
    _require_covered(decoded.masks, selected)
    fresh = sparsifier.blank(key) if meta is None else from_meta(meta, len(sparsifier.groups))
    known = set() if meta is None else set(meta["parameters"])
    leaves = dict(named_leaves(decoded.params))
    masks: dict[str, Array] = {}
    for name, chosen in selected.items():
        context = sparsifier.init_context(chosen, leaves[name], fresh.key)
        if name in decoded.masks or name in known:
            saved = decoded.masks.get(name, jnp.ones(chosen.shape, bool))
            masks[name] = chosen.algorithm.resume_mask(context, saved)
            _warn_of_level(chosen, float(context.sparsity), masks[name])
        else:
            masks[name] = sparsifier.first_mask(chosen, context)
    sparse = sparsifier.store(fresh, masks, selected)
    return sparse, *sparsifier.prune(decoded.params, decoded.opt_state, sparse)


def _require_covered(masks: Mapping[str, Array], selected: Mapping[str, "Selected"]) -> None:
    for name in masks:
        if name not in selected:
            hint = did_you_mean(name, selected)
            raise sentinel.SentinelError(
                f"the checkpoint holds {name!r} sparse (NaN at pruned positions), but no filter of"
                f" the sparsity section takes it{hint}; widen param_filter, or finalize the"
                " checkpoint to go on with it dense"
            )


def _warn_of_level(chosen: "Selected", level: float, mask: Array) -> None:
    """Say so when a 2.x static section asks for another level than the checkpoint has."""
    if type(chosen.algorithm) is not Static or chosen.algorithm.init_method == "from_zeros":
        return
    actual = 1 - float(jnp.mean(mask, dtype=jnp.float32))
    if abs(actual - level) * mask.size > 2:  # rounding moves the count by one
        _LOG.warning(
            "sparsity: %s is %.1f %% sparse in the checkpoint and keeps its mask; the section asks"
            " for %.1f %%. To move the level between runs, use the 1.8 keys (add `seed`); to move"
            " it during a run, use gmp, set or rigl with a schedule.",
            chosen.name,
            100 * actual,
            100 * level,
        )
