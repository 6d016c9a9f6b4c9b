"""Static masks, and gradual magnitude pruning."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax.numpy as jnp
from jaxtyping import Array

from wafer.sparsity.algorithms.base import Algorithm, UpdateContext, refuse, register
from wafer.sparsity.kernels import topk_mask
from wafer.sparsity.schedules import (
    NEVER,
    Cycling,
    Every,
    UpdateSchedule,
    constant_level,
    is_constant,
    update_schedule,
)
from wafer.sparsity.schema import Place, SparsityError
from wafer.sparsity.selection import candidates_first, kept_count


@register("static")
class Static(Algorithm):
    """A mask chosen once."""

    level_may_be_traced: ClassVar[bool] = True

    update: UpdateSchedule = NEVER

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it; the level is a number below 1, and nothing follows it."""
        refuse(keys, ("update", "drop_fraction"), where, "static")
        key = "sparsity" if "sparsity" in keys else "schedule"
        level = constant_level(keys[key], (*where, key))
        return super().from_section({**keys, key: level}, where)


@register("gmp")
class GMP(Algorithm):
    """Gradual magnitude pruning: at each due step keep the largest weights (Zhu & Gupta 2017).

    A falling level brings positions back; pruned weights are all 0, so they return in index
    order, and never before an active weight, even one that is exactly 0.
    """

    level_may_be_traced: ClassVar[bool] = True

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it; a constant level, or a share to drop, is an error."""
        refuse(keys, ("drop_fraction",), where, "gmp")
        algorithm = super().from_section(keys, where)
        if is_constant(algorithm.sparsity):
            key = "sparsity" if "sparsity" in keys else "schedule"
            raise SparsityError(
                f"gmp needs a schedule, got the constant {keys[key]!r}; such as "
                "schedule: [0.3, 0.6, 0.9] with update: {steps: [100, 200, 300]}",
                (*where, key),
            )
        return algorithm

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Keep the largest absolute weights at the scheduled level."""
        size = ctx.view.rows(jnp.abs(ctx.weight).astype(jnp.float32))
        rows = candidates_first(size, ctx.view.rows(ctx.mask) > 0)
        keep = topk_mask(rows, kept_count(ctx.sparsity, rows.shape[-1]))
        return ctx.view.unrows(keep, ctx.weight.shape)


@register("acdc")
class ACDC(GMP):
    """Alternating compressed and decompressed phases (Peste et al. 2021, arXiv:2106.12379).

    Dense until ``update.start``; then every ``update.freq`` steps the largest weights become the
    mask, or all weights are trained again. The last change before ``update.stop`` compresses.
    """

    level_may_be_traced: ClassVar[bool] = False

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it from one level and the phases; all weights are kept at first."""
        refuse(keys, ("drop_fraction", "init_method"), where, "acdc")
        key = "sparsity" if "sparsity" in keys else "schedule"
        level = constant_level(keys[key], (*where, key))
        phases = update_schedule(keys.get("update"), (*where, "update"))
        if not isinstance(phases, Every) or phases.start < 1 or phases.stop is None:
            raise SparsityError(
                "acdc needs its phases, such as {freq: 100, start: 100, stop: "
                f"800}}, found {keys.get('update')!r}",
                (*where, "update"),
            )
        changes = -(-(phases.stop - phases.start) // phases.freq)
        if changes % 2 == 0:
            raise SparsityError(
                f"{changes} changes end on a dense phase; "
                f"stop: {phases.stop - phases.freq} ends on a sparse one",
                (*where, "update"),
            )
        cycle = Cycling((level.at(0), 0.0))
        kept = {name: value for name, value in keys.items() if name != key}
        return super().from_section({**kept, "sparsity": cycle, "update": phases}, where)
