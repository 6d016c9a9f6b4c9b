"""Drop and grow: SET and RigL, and the base of a user's own scores.

``register`` makes a class a dataclass: its annotated attributes become arguments and section keys.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from wafer.sparsity.algorithms.base import Algorithm, UpdateContext, register
from wafer.sparsity.kernels import topk_mask
from wafer.sparsity.schedules import ConstantValue, ValueSchedule
from wafer.sparsity.selection import candidates_first, kept_count, survivor_count

_DROP = ConstantValue(0.3)
ScoreFn = Callable[[UpdateContext], Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dynamic(Algorithm):
    """Drop the lowest-scored active weights, grow the highest-scored of the rest.

    An update keeps exactly as many weights as the scheduled level, or as survive the drop if
    these are more. Positions just dropped may grow back at once and go on as they were; weights
    that were not active start at 0.

    Attributes:
        drop: scores of active positions, lowest dropped; absolute weights when None.
        grow: scores of all other positions, highest grown; subclasses define ``grow_scores``
            instead.
        grown_moments: where optimizer moments of weights that were not active start: "zero", or
            "mean", at the mean of those that stay (a second moment of 0 makes the first steps of
            Adam, whose bias is long corrected, several times too long).
    """

    level_may_be_traced: ClassVar[bool] = True
    drop_fraction: ValueSchedule = _DROP
    drop: ScoreFn | None = None
    grow: ScoreFn | None = None
    grown_moments: Literal["zero", "mean"] = "zero"

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
        rule = type(self)
        return (
            self.drop is None
            and rule.drop_scores is Dynamic.drop_scores
            and rule.update_mask is Dynamic.update_mask
        )

    def counts(self, ctx: UpdateContext, active: Array) -> tuple[Array, Array]:
        """Return how many active weights stay and how many positions grow, in each row of the view.

        Args:
            ctx: levels and view.
            active: [] int32, active weights of the whole tensor.

        Returns:
            [] int32 each, the same for all rows. A row with fewer active weights than are to stay
            makes up for it by growing.
        """
        shape = ctx.weight.shape
        size, rows = ctx.view.row_length(shape), ctx.view.groups(shape)
        cells = active // ctx.view.cell
        keep = jnp.minimum(survivor_count(ctx.drop_fraction, cells, rows), size)
        return keep, jnp.maximum(kept_count(ctx.sparsity, size) - keep, 0)

    def level_after(self, level: float, before: float, drop: float) -> float:
        """Return the level that an update reaches: no more is dropped than the share to drop.

        Args:
            level: the scheduled one.
            before: in force before the update.
            drop: share of active weights to drop.
        """
        has_own_rule = type(self).update_mask is not Dynamic.update_mask
        return level if has_own_rule else min(level, 1 - (1 - drop) * (1 - before))

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Drop, then grow, per row of the view."""
        return self.choose(ctx, self.drop_scores(ctx), self.grow_scores(ctx))

    def choose(self, ctx: UpdateContext, drop_scores: Array, grow_scores: Array) -> Array:
        """Return the mask that scores give, with exact counts.

        Args:
            ctx: levels, view and the mask in force.
            drop_scores: [...] of active positions, lowest dropped.
            grow_scores: [...] of all others, highest grown.
        """
        view, shape = ctx.view, ctx.weight.shape
        active = jnp.sum(ctx.mask, dtype=jnp.int32) if ctx.active is None else ctx.active
        quota, missing = self.counts(ctx, active)
        # Only active positions may survive. In Cerebras's reference pruned ones, which
        # score 0, may take the place of active weights that are exactly 0 (just regrown).
        candidates = view.rows(ctx.mask) > 0
        stay = jnp.minimum(quota, jnp.sum(candidates, axis=1, dtype=jnp.int32))
        drop, grow = (view.rows(x.astype(jnp.float32)) for x in (drop_scores, grow_scores))
        kept = topk_mask(candidates_first(drop, candidates), stay)
        grown = topk_mask(candidates_first(grow, ~kept), quota + missing - stay)
        return view.unrows(kept | grown, shape)


@register("set")
class SET(Dynamic):
    """Sparse evolutionary training: grow at random (Mocanu et al. 2018)."""

    def grow_scores(self, ctx: UpdateContext) -> Array:
        """Score every position by a fresh uniform number."""
        if self.grow is not None:
            return self.grow(ctx)
        view, shape = ctx.view, ctx.weight.shape
        rows = jax.random.uniform(ctx.key, (view.groups(shape), view.row_length(shape)))
        return view.unrows(rows, shape)


@register("mest")
class MEST(SET):
    """Drop by |weight| + rate * |gradient|, grow at random (Yuan et al. 2021, arXiv:2110.14032).

    Attributes:
        gradient_rate: the paper's lambda.
    """

    needs_gradient: bool = True
    gradient_rate: float = 0.01

    def drop_scores(self, ctx: UpdateContext) -> Array:
        """Score active weights by what they are and how they move."""
        if self.drop is not None:
            return self.drop(ctx)
        grad: Any = ctx.grad
        return jnp.abs(ctx.weight) + self.gradient_rate * jnp.abs(grad)


@register("rigl")
class RigL(Dynamic):
    """Grow where the dense gradient is largest (Evci et al. 2020, arXiv:1911.11134)."""

    needs_gradient: bool = True

    def grow_scores(self, ctx: UpdateContext) -> Array:
        """Score every position by its absolute dense gradient."""
        if self.grow is not None:
            return self.grow(ctx)
        grad: Any = ctx.grad
        return jnp.abs(grad)
