"""Static masks that numpy draws on the host; their level may be edited between runs.

Each weight is masked by numpy with the seed ``base + index of the parameter``. Starting from a
checkpoint, positions that were pruned score below all live ones: a higher level prunes more of
the live weights and none comes back; a lower level keeps all live ones and lets pruned ones come
back at random, at 0.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from pydantic import NonNegativeInt

from wafer.sparsity.algorithms.base import InitContext, register
from wafer.sparsity.algorithms.magnitude import Static
from wafer.sparsity.schema import Place, SparsityError
from wafer.sparsity.views import CompetitionRows

_METHODS = ("random", "topk", "from_zeros")


@register("seeded")
class InBandStatic(Static):
    """A mask drawn from a seed and the parameter's number."""

    level_may_be_traced: ClassVar[bool] = False
    seed: NonNegativeInt | None = None  #: base seed; None draws it from the run's key

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it; the first mask is one of three kinds."""
        if (method := keys.get("init_method", "random")) not in _METHODS:
            message = f"{method!r}: seeded takes one of {', '.join(_METHODS)}"
            raise SparsityError(message, (*where, "init_method"))
        return super().from_section(keys, where)

    def init_mask(self, ctx: InitContext) -> Array:
        """Mask a dense weight."""
        return self._mask(ctx, jnp.zeros(ctx.weight.shape, bool))

    def resume_mask(self, ctx: InitContext, saved: Array) -> Array:
        """Raise or lower the level of a weight whose mask a checkpoint holds."""
        return self._mask(ctx, ~saved)

    def _mask(self, ctx: InitContext, pruned: Array) -> Array:
        method, level = str(self.init_method), self.sparsity.at(0)
        seed = jnp.uint32(self.seed or 0)
        if self.seed is None:
            seed = jax.random.bits(jax.random.fold_in(ctx.run_key, 18), dtype=jnp.uint32)

        def on_host(weight: np.ndarray, pruned: np.ndarray, seed: np.ndarray) -> np.ndarray:
            rng = np.random.default_rng(int(seed) + ctx.position)
            return inband_mask(
                np.asarray(weight),
                np.asarray(pruned),
                rng,
                sparsity=level,
                method=method,
                view=ctx.view,
            )

        shape = jax.ShapeDtypeStruct(ctx.weight.shape, jnp.bool_)
        return jax.pure_callback(on_host, shape, ctx.weight, pruned, seed)


def inband_mask(
    weight: np.ndarray,
    pruned: np.ndarray,
    rng: np.random.Generator,
    *,
    sparsity: float,
    method: str,
    view: CompetitionRows,
) -> np.ndarray:
    """Choose which positions of a weight are kept.

    Args:
        weight: values; read for "topk" and "from_zeros" only.
        pruned: bool, positions without a value so far.
        rng: consumed.
        sparsity: level; n weights keep ``n - round_half_even(sparsity * n)``.
        method: "random", "topk" or "from_zeros".
        view: the rows among which weights compete.

    Returns:
        bool array of the weight's shape.
    """
    if method == "from_zeros":
        return ~pruned & (weight != 0)
    # Random numbers are drawn for weights stored as [out, in].
    stored, live = view.to_oi(weight), ~view.to_oi(pruned)
    if method == "random":
        dtype = np.float64 if stored.dtype == np.float64 else np.float32
        score = rng.random(stored.shape, dtype)
        score = np.where(live, score, -score)
    else:
        score = np.abs(stored.astype(np.float64 if stored.dtype == np.float64 else np.float32))
        score[~live] = -rng.random(int((~live).sum()), score.dtype)
    rows = view.rows(view.from_oi(score, weight.shape))
    n = rows.shape[1]
    keep = n - int(np.round(sparsity * n))
    order = np.argsort(-rows, axis=1, kind="stable")[:, :keep]  # lowest index first among equals
    chosen = np.zeros(rows.shape, bool)
    np.put_along_axis(chosen, order, True, axis=1)
    return np.asarray(view.unrows(jnp.asarray(chosen), weight.shape))
