"""Static, GMP, SET and RigL: each is a level schedule, an update schedule and scores.

Every algorithm works per parameter; a user's own one subclasses ``Algorithm`` (whole new masks)
or ``Dynamic`` (drop and grow scores), or passes score functions to ``Dynamic``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from sparsity.kernels import topk_mask
from sparsity.masks import InitMethod, init_mask
from sparsity.parse import schedule, update_schedule
from sparsity.schedules import NEVER, Constant, Every, Schedule, UpdateSchedule
from sparsity.selection import drop_count, kept_count
from sparsity.views import View

__all__ = ["GMP", "SET", "Algorithm", "Dynamic", "InitContext", "RigL", "Static", "UpdateContext"]


class InitContext(NamedTuple):
    """What an algorithm sees when it makes a parameter's first mask.

    name: '/'-path of the parameter
    position: its place in the list of all parameters (the 1.8 dialect seeds by it)
    weight: the parameter, any shape
    sparsity: [] float32 level in [0, 1]
    key: consumed; this parameter's own
    run_key: the state's key, the same for all parameters
    view: which positions compete
    """

    name: str
    position: int
    weight: Array
    sparsity: Array | float
    key: Array
    run_key: Array
    view: View


class UpdateContext(NamedTuple):
    """What an algorithm sees at a due step, after the optimizer step.

    name: '/'-path of the parameter
    weight: the parameter, 0 where pruned
    grad: dense gradient of this step, or None when the algorithm does not need it
    mask: bool, the pattern in force
    sparsity: [] float32 level to reach, in [0, 1]
    drop_fraction: [] float32 share of active weights to drop
    step: [] int32, optimizer steps taken
    key: consumed; differs per step and parameter
    view: which positions compete
    """

    name: str
    weight: Array
    grad: Array | None
    mask: Array
    sparsity: Array
    drop_fraction: Array
    step: Array
    key: Array
    view: View


_EVERY_STEP = Every(1)
_NO_DROP, _DROP = Constant(0.0), Constant(0.3)
ScoreFn = Callable[[UpdateContext], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Algorithm:
    """Base of all algorithms; hashable, holds no arrays.

    Schedules may be given as a section gives them: numbers, lists, dicts, functions.

    Attributes:
        sparsity: level schedule; 0.9 keeps a tenth.
        init_method: "random", "topk", "from_zeros", "checkerboard" or a function.
        update: when the topology changes, in optimizer steps taken.
        drop_fraction: share of active weights to drop at an update (``Dynamic`` only).
        out_groups: keep the same count in each of so many groups of output rows.
        in_groups: the same over inputs.
        compute: "auto", "masked" or "csr" storage of the weights.
        needs_gradient: whether scores read the dense gradient, which costs a dense product.
    """

    sparsity: Schedule
    init_method: InitMethod = "random"
    update: UpdateSchedule = NEVER
    drop_fraction: Schedule = _NO_DROP
    out_groups: int | None = None
    in_groups: int | None = None
    compute: str = "auto"
    needs_gradient: bool = False

    def __post_init__(self) -> None:
        """Turn what users write into schedules."""
        for key, parse in (
            ("sparsity", schedule),
            ("drop_fraction", schedule),
            ("update", update_schedule),
        ):
            object.__setattr__(self, key, parse(getattr(self, key), key))

    @property
    def dynamic(self) -> bool:
        """True when the topology can change after the start."""
        return self.update != NEVER

    def starts_sparse(self) -> bool:
        """False for a dynamic algorithm whose update schedule is not due at step 0."""
        return not self.dynamic or bool(self.update(0))

    def init_mask(self, ctx: InitContext) -> Array:
        """Return the parameter's first mask, true where kept."""
        return init_mask(self.init_method, ctx.weight, ctx.sparsity, ctx.key, ctx.view)

    def resume_mask(self, ctx: InitContext, saved: Array) -> Array:
        """Return the mask to go on with, given the one a checkpoint holds: as it is."""
        del ctx
        return saved

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Return the mask after a due step, true where kept."""
        return ctx.mask


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static(Algorithm):
    """A mask chosen once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class GMP(Algorithm):
    """Gradual magnitude pruning: at each due step keep the largest weights (Zhu & Gupta 2017).

    A falling level brings positions back; pruned weights are all 0, so they return in index
    order, and never before an active weight, even one that is exactly 0.
    """

    update: UpdateSchedule = _EVERY_STEP

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Keep the largest absolute weights at the scheduled level."""
        rows = ctx.view.rows(_active_first(jnp.abs(ctx.weight), ctx.mask))
        keep = topk_mask(rows, kept_count(ctx.sparsity, rows.shape[-1]))
        return ctx.view.unrows(keep, ctx.weight.shape)


def _active_first(scores: Array, mask: Array) -> Array:
    return jnp.where(mask, scores.astype(jnp.float32), -jnp.inf)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic(Algorithm):
    """Drop the lowest-scored active weights, grow the highest-scored of the rest.

    The count after an update is exactly that of the scheduled level. Positions just dropped may
    grow back at once and go on as they were; weights that were not active and their optimizer
    moments start at 0.

    Attributes:
        drop: scores of active positions, lowest dropped; absolute weights when None.
        grow: scores of all other positions, highest grown; subclasses define ``grow_scores``
            instead.
    """

    update: UpdateSchedule = _EVERY_STEP
    drop_fraction: Schedule = _DROP
    drop: ScoreFn | None = None
    grow: ScoreFn | None = None

    def drop_scores(self, ctx: UpdateContext) -> Array:
        """Score the active positions; the lowest are dropped."""
        return jnp.abs(ctx.weight) if self.drop is None else self.drop(ctx)

    def grow_scores(self, ctx: UpdateContext) -> Array:
        """Score the positions to grow; the highest are chosen."""
        if self.grow is None:
            raise TypeError(
                f"{type(self).__name__} has no grow scores: pass grow=fn(ctx) or override"
                " grow_scores"
            )
        return self.grow(ctx)

    @property
    def drops_smallest(self) -> bool:
        """True when an update drops by absolute weight, nothing of it redefined by the user."""
        mine = type(self)
        return (
            self.drop is None
            and mine.drop_scores is Dynamic.drop_scores
            and mine.update_mask is Dynamic.update_mask
        )

    def counts(self, ctx: UpdateContext, active: Array) -> tuple[Array, Array]:
        """How many active weights stay and how many positions grow, per row of the view.

        Args:
            ctx: levels and view.
            active: [] int32, active weights of the whole tensor.
        """
        size = ctx.view.row_length(ctx.weight.shape)
        keep = jnp.minimum(drop_count(ctx.drop_fraction, active, ctx.view.groups), size)
        return keep, jnp.maximum(kept_count(ctx.sparsity, size) - keep, 0)

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Drop, then grow, per row of the view."""
        view, shape = ctx.view, ctx.weight.shape
        keep, missing = self.counts(ctx, jnp.sum(ctx.mask, dtype=jnp.int32))
        # Only active positions may survive a drop. The vendor scores pruned ones as 0 too, so
        # that active weights that are exactly 0 (just regrown) lose to pruned positions.
        survivors = view.rows(_active_first(self.drop_scores(ctx), ctx.mask))
        kept = topk_mask(survivors, keep)
        candidates = view.rows(self.grow_scores(ctx).astype(jnp.float32))
        grown = topk_mask(jnp.where(kept, -jnp.inf, candidates), missing)
        return view.unrows(kept | grown, shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SET(Dynamic):
    """Sparse evolutionary training: grow at random (Mocanu et al. 2018)."""

    def grow_scores(self, ctx: UpdateContext) -> Array:
        """Score every position by a fresh uniform number."""
        if self.grow is not None:
            return self.grow(ctx)
        view, shape = ctx.view, ctx.weight.shape
        rows = jax.random.uniform(ctx.key, (view.groups, view.row_length(shape)))
        return view.unrows(rows, shape)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RigL(Dynamic):
    """Grow where the dense gradient is largest (Evci et al. 2020, arXiv:1911.11134)."""

    needs_gradient: bool = True

    def grow_scores(self, ctx: UpdateContext) -> Array:
        """Score every position by its absolute dense gradient."""
        if self.grow is not None:
            return self.grow(ctx)
        grad: Any = ctx.grad
        return jnp.abs(grad)
