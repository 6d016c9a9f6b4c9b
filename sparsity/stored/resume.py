"""Restore a sparse state from a checkpoint, with the section it was written by or another."""

import collections
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.models.errors import did_you_mean
from wafer.models.paths import former_names, named_leaves
from wafer.models.sections import LARGEST_INT
from wafer.sparsity.algorithms.base import Algorithm, InitContext
from wafer.sparsity.algorithms.magnitude import Static
from wafer.sparsity.schema import listed
from wafer.sparsity.selected import Selected
from wafer.sparsity.sparsifier import Sparsifier
from wafer.sparsity.state import SparseState, advanced, from_meta, read_meta
from wafer.sparsity.stored import sentinel

_LOG = logging.getLogger(__name__)


_ADVICE = {  # whether updates move the level -> how it moves
    False: "To move the level between runs, write algorithm: seeded; to move it during a "
    "run, use gmp, set or rigl with a schedule",
    True: "The next updates of the topology move it there",
}


class Origin(NamedTuple):
    """Where the mask of a restored parameter came from."""

    stored: bool  #: whether the checkpoint held the mask; else it is new, or there is none
    size: int  #: weights of the parameter
    pruned: int  #: of them
    lost: int  #: pruned weights that the checkpoint held with a value other than 0
    #: weights that the section's level prunes; ``pruned`` where it says nothing of this mask
    asked: int
    follows: bool = False  #: whether updates of the topology will move the mask to that level


def resume(
    sparsifier: Sparsifier,
    params: PyTree,
    opt_state: PyTree,
    key: Array,
    meta: Mapping[str, object] | None = None,
    *,
    trains: bool = True,
    report: Callable[[Mapping[str, Origin]], object] | None = None,
) -> tuple[SparseState, PyTree, PyTree]:
    """Rebuild the sparse state from stored weights.

    A parameter with NaN keeps its mask (an edited level is reached by a schedule only);
    ``InBandStatic`` raises or lowers its level to the section's, and weights that come back start
    at 0, as do their moments. A parameter without NaN gets a first mask, as in a fresh run, unless
    ``meta`` says that it was sparse with nothing pruned yet.

    Weights that are not trained are computed with as they are stored: a parameter with NaN keeps
    its mask, one without NaN gets none, and no filter needs to take either.

    Args:
        sparsifier: from the section of this run.
        params: stored dense parameters, NaN at pruned positions.
        opt_state: stored optimizer state.
        key: consumed; used when ``meta`` holds none.
        meta: what ``to_meta`` returned when the checkpoint was written, or None.
        trains: False for a run that only evaluates: no new mask, no change of a stored one.
        report: called with name -> origin of the mask of every parameter that a filter takes;
            None logs a warning where stored masks have another level than the section.

    Returns:
        (sparse, params, opt_state), pruned to the masks.

    Raises:
        SentinelError: a parameter of a run that trains has NaN, but no filter takes it; or
            ``meta`` says that its weights are pruned, and no weight is NaN.
        CheckpointError: ``meta`` is not what ``to_meta`` returns.
    """
    decoded = sentinel.decode(params, opt_state)
    fresh = sparsifier.blank(key) if meta is None else from_meta(meta, len(sparsifier.groups))
    renamed = {old: name for name, old in former_names(params).items()}
    recorded = () if meta is None else read_meta(meta).parameters
    known = {renamed.get(old, old) for old in recorded}
    selected = sparsifier.select(params, stored={*known, *decoded.masks})
    if trains:
        _require_groups(decoded.masks, selected)
        _tell_former_default(sparsifier, selected)
    leaves = dict(named_leaves(decoded.params))
    if trains and meta is not None and not decoded.masks:
        kept = {name: leaves[name] for name in selected if name in known}
        _require_marks(read_meta(meta).targets, sparsifier, selected, kept)
    masks: dict[str, Array] = {}
    origins: dict[str, Origin] = {}
    edited = False
    for name, chosen in selected.items():
        context = sparsifier.init_context(chosen, leaves[name], fresh.key)
        stored = decoded.masks.get(name)
        if stored is None and name in known:
            stored = jnp.ones(chosen.shape, bool)
        mask = stored
        if trains:
            algorithm = chosen.algorithm
            mask = (
                sparsifier.first_mask(chosen, context)
                if stored is None
                else algorithm.resume_mask(context, stored)
            )
            edited |= stored is not None and bool(jnp.any(mask != stored))
        origins[name] = _origin(chosen, context, mask, fresh, stored=stored is not None)
        # Zeros are evaluated without a mask; under one, this algorithm might compute otherwise.
        if mask is not None and (trains or name in known):
            masks[name] = mask
    if report is not None:
        report(origins)
    elif trains:
        _tell_levels(origins, decoded.masks, edited=edited)
    sparse = sparsifier.store(advanced(fresh, edited), masks, selected)
    return sparse, *sparsifier.prune(decoded.params, decoded.opt_state, sparse)


def _origin(
    chosen: Selected, context: InitContext, mask: Array | None, sparse: SparseState, *, stored: bool
) -> Origin:
    size = context.weight.size
    if mask is None:
        return Origin(stored, size, 0, 0, 0)
    pruned = int(jnp.sum(~mask))
    lost = int(jnp.count_nonzero(jnp.where(mask, 0, context.weight)))
    algorithm, step = chosen.algorithm, int(sparse.step)
    if algorithm.dynamic:
        index = int(sparse.indices[chosen.group, 0])
        level = _level_in_force(algorithm, step, index, pruned=pruned > 0)
        follows = algorithm.update.due_between(step + 1, LARGEST_INT)
        return Origin(stored, size, pruned, lost, round(size * level), follows)
    asked = round(size * float(context.sparsity)) if _is_fixed(algorithm) else pruned
    return Origin(stored, size, pruned, lost, asked)


def _level_in_force(algorithm: Algorithm, step: int, index: int, *, pruned: bool) -> float:
    """Return the level that a section's updates have put, or will first put, into force.

    Args:
        algorithm: dynamic.
        step: steps taken.
        index: the next position in a list of levels.
        pruned: the mask prunes something; if not, the level before the first update is 0.
    """
    past = algorithm.update.due_steps(1, step + 1)
    past = past[-1:] if isinstance(past, Sequence) else collections.deque(past, maxlen=1)
    if past or algorithm.starts_sparse():
        last = past[-1] if past else 0
        level = algorithm.sparsity.at(last, (index - 1) % algorithm.sparsity.length)
    else:
        first = next(iter(algorithm.update.due_steps(step + 1, LARGEST_INT)), None)
        level = algorithm.sparsity.at(first, index) if pruned and first is not None else 0.0
    return min(max(level, 0.0), 1.0)


def unmet_level(origins: Iterable[Origin]) -> str:
    """Compare the level of stored masks with the one that the section has in force.

    Returns:
        What differs and how the level moves; "" where half a percent of the weights or less
        does: budgets and rounding move some.
    """
    lines, kept = [], [origin for origin in origins if origin.stored]
    for follows, advice in _ADVICE.items():
        some = [origin for origin in kept if origin.follows == follows]
        size, pruned, asked = (
            sum(getattr(origin, field) for origin in some) for field in ("size", "pruned", "asked")
        )
        if abs(pruned - asked) > size // 200:
            found = f"{pruned / size:.1%} pruned, the section asks for {asked / size:.1%}"
            lines.append(f"{found}. {advice}")
    return "; ".join(lines)


def _tell_levels(
    origins: Mapping[str, Origin], stored: Mapping[str, Array], *, edited: bool
) -> None:
    """Log that the level of stored masks is not the section's, or was not."""
    if change := unmet_level(origins.values()):
        _LOG.warning("sparsity: the checkpoint's masks are kept: %s", change)
    if edited:
        size = sum(origins[name].size for name in stored)
        before = sum(int(jnp.sum(~mask)) for mask in stored.values())
        after = sum(origins[name].pruned for name in stored)
        _LOG.warning(
            "sparsity: the checkpoint's masks are changed to the section's level: %.1f%% pruned, "
            "now %.1f%%", 100 * before / size, 100 * after / size,
        )  # fmt: skip


def _require_groups(masks: Mapping[str, Array], selected: Mapping[str, Selected]) -> None:
    for name in masks:
        if name not in selected:
            hint = did_you_mean(name, selected)
            raise sentinel.SentinelError(
                f"the checkpoint holds {name!r} sparse (NaN at pruned positions), but no filter of"
                f" the sparsity section takes it{hint}; widen param_filter, or finalize the"
                " checkpoint to go on with it dense"
            )


def _require_marks(
    levels: Sequence[float],
    sparsifier: Sparsifier,
    selected: Mapping[str, Selected],
    leaves: Mapping[str, Array],
) -> None:
    """Refuse weights that were stored without their masks: as a loop has them, or decoded.

    Args:
        levels: recorded, one for each group of the section that was in force.
        sparsifier: of today's section.
        selected: its parameters.
        leaves: name -> weight of those that the record lists; none holds NaN.
    """
    of_groups = len(levels) == len(sparsifier.groups)
    least = min((level for level in levels if level > 0), default=0.0)
    for name, leaf in leaves.items():
        chosen = selected[name]
        level = levels[chosen.group] if of_groups else least
        zeros = int(np.count_nonzero(np.asarray(leaf) == 0))
        # Without zeros nothing may have been pruned: from_zeros, or a rule of the user's.
        named = isinstance(chosen.algorithm.init_method, str)
        sure = of_groups and named and _is_fixed(chosen.algorithm)
        if level > 0 and (sure or 0 < round(level * leaf.size) <= 2 * zeros):
            raise sentinel.SentinelError(
                f"resume: the record has a level of {level:.3g}, but no weight is NaN (first: "
                f"{name}, {zeros / leaf.size:.1%} zeros), so that the masks are lost; expected NaN "
                "where weights are pruned. Store what `encode` returns: params, opt_state = "
                "sparsity.encode(params, opt_state, sparse); or draw new masks: resume without "
                "the record"
            )


def _is_fixed(algorithm: Algorithm) -> bool:
    """Whether the algorithm prunes the section's level once, whatever the weights are."""
    return type(algorithm) is Static and algorithm.init_method != "from_zeros"


def _tell_former_default(sparsifier: Sparsifier, selected: Mapping[str, Selected]) -> None:
    """Name the weights that keep masks which the default filter would not make today."""
    ranks = {name: len(chosen.shape) for name, chosen in selected.items()}
    former = [name for name, rank in ranks.items() if sparsifier.group_of(name, rank) is None]
    if former:
        _LOG.warning(
            "sparsity: the checkpoint's masks of %s are kept; the default filter leaves such "
            "weights dense now. To select the same weights anew, set param_filter: %s",
            listed(former),
            json.dumps(list(dict.fromkeys(re.sub(r"\d+", "*", name) for name in selected))),
        )
