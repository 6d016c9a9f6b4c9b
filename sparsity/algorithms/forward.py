"""Masks of the forward pass: the weights stay dense until ``stop`` and are pruned there.

The model computes with the largest weights; gradients reach more of them, so that a weight that is
left out now can come back. Storage is dense until then: these methods save no memory while they
explore.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from wafer.sparsity.algorithms.base import Algorithm, UpdateContext, refuse, register
from wafer.sparsity.algorithms.masks import magnitude_mask
from wafer.sparsity.schedules import UpdateSchedule, UpdateSteps, is_constant
from wafer.sparsity.schema import Place, SparsityError
from wafer.sparsity.views import CompetitionRows


@jax.custom_vjp
def _through(
    weight: Float[Array, "..."], used: Bool[Array, "..."], learns: Array, decay: Array
) -> Float[Array, "..."]:
    """Compute with ``used`` weights; gradients reach those that learn, plus decay * weight."""
    del learns, decay
    return jnp.where(used, weight, 0)


def _backward(kept: PyTree, gradient: Array) -> tuple[Array, None, None, None]:
    weight, learns, decay = kept
    total = gradient + (decay * weight).astype(gradient.dtype)
    return jnp.where(learns, total, 0), None, None, None


_through.defvjp(lambda w, used, *kept: (jnp.where(used, w, 0), (w, *kept)), _backward)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Explores(Algorithm):
    """Dense until ``stop``, where the largest weights become the mask for good."""

    stop: int  #: step at which exploration ends
    penalty: float = 0.0  #: strength of the decay of weights, see the methods

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it; the level is a number, and ``stop`` says when the mask is fixed."""
        name = cls.__name__.lower()
        refuse(keys, ("update", "drop_fraction", "init_method"), where, name)
        if keys["stop"] < 1:
            raise SparsityError(f"expected a step from 1, got {keys['stop']}", (*where, "stop"))
        if keys.get("penalty", 0.0) < 0:
            raise SparsityError(f"must not be negative, got {keys['penalty']}", (*where, "penalty"))
        if keys.get("compute") == "csr":
            raise SparsityError(f"{name} explores dense weights; use masked", (*where, "compute"))
        update: UpdateSchedule = UpdateSteps((keys["stop"],))
        algorithm = super().from_section({**keys, "update": update}, where)
        if not is_constant(algorithm.sparsity):
            raise SparsityError(f"{name} takes one level, not a schedule", where)
        return algorithm

    def update_mask(self, ctx: UpdateContext) -> Array:
        """Keep the largest weights."""
        return magnitude_mask(ctx.weight, ctx.sparsity, ctx.view)

    @property
    def learning(self) -> float:
        """Share of the weights that gradients reach until ``stop``."""
        return 1.0

    def shares(self, levels: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Until ``stop`` more weights learn than compute."""
        explores = steps <= self.stop
        computes = np.where(explores, 1 - self.sparsity.at(0), 1 - levels)
        return computes, np.where(explores, self.learning, 1 - levels)


@register("topkast")
class TopKAST(_Explores):
    """Top-KAST (Jayakumar et al. 2020, arXiv:2106.03517).

    The largest weights compute (A), a larger set learns (B); ``penalty`` is the exploration
    regularisation: L2 on A, and on the rest of B divided by A's density.

    Attributes:
        backward_sparsity: level of B, below that of A.
    """

    backward_sparsity: float = 0.0

    @classmethod
    def from_section(cls, keys: Mapping[str, Any], where: Place) -> Self:
        """Build it; B must hold A."""
        algorithm = super().from_section(keys, where)
        level = algorithm.sparsity.at(0)
        if not 0 <= algorithm.backward_sparsity <= level:
            raise SparsityError(
                f"expected from 0 to the level {level:g}, got {algorithm.backward_sparsity}",
                (*where, "backward_sparsity"),
            )
        return algorithm

    @property
    def learning(self) -> float:
        """The share of B."""
        return 1 - self.backward_sparsity

    def forward(self, weight: Array, view: CompetitionRows) -> Array:
        """Compute with A, learn on B."""
        level = self.sparsity(0)
        fixed = jax.lax.stop_gradient(weight)
        used = magnitude_mask(fixed, level, view)
        learns = magnitude_mask(fixed, self.backward_sparsity, view)
        decay = jnp.where(used, self.penalty, self.penalty / (1 - level))
        return _through(weight, used, learns, decay)


@register("sr-ste")
class SRSTE(_Explores):
    """Sparse-refined straight-through estimator (Zhou et al. 2021, arXiv:2102.04010).

    Made for n:m patterns; every weight learns, and ``penalty`` decays those that do not compute.
    """

    penalty: float = 2e-4

    def forward(self, weight: Array, view: CompetitionRows) -> Array:
        """Compute with the largest weights, learn on all."""
        used = magnitude_mask(jax.lax.stop_gradient(weight), self.sparsity(0), view)
        decay = jnp.where(used, 0.0, self.penalty)
        return _through(weight, used, jnp.ones_like(used), decay)
