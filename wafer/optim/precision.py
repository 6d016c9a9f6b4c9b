"""Loss scaling: the automaton that keeps float16 gradients finite.

A step whose gradients are not finite must leave weights, optimizer state, learning-rate step and
sparsity step as they were; only the scale changes. ``keep_if_finite`` is that rule.
"""

import dataclasses
import logging
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree as Tree

from wafer.errors import ConfigError, Problem
from wafer.optim.sections import MIN_LOSS_SCALE, Optimizer

_LOG = logging.getLogger(__name__)
_LARGEST = 2.0**15


class LossScaleState(NamedTuple):
    """State of the automaton."""

    loss_scale: Float[Array, ""]  #: [] float32
    steps_since_rescale: Int[Array, ""]  #: [] int32
    overflows_since_rescale: Int[Array, ""]  #: [] int32
    num_skipped_steps: Int[Array, ""]  #: [] int32 since the start of training


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossScaler:
    """Loss scaling, constant or dynamic."""

    dynamic: bool = False  #: adapt the scale; else it stays at ``initial`` and no step is skipped
    initial: float = 1.0  #: scale of the first step
    steps_per_increase: int = 2000  #: the scale doubles when more good steps than this have passed
    smallest: float = MIN_LOSS_SCALE  #: lower bound
    largest: float = _LARGEST  #: upper bound
    overflow_tolerance: float = 0.0  #: share of overflowing steps above which the scale is halved

    def init(self) -> LossScaleState:
        """Return the state before the first step."""
        # One buffer each: a step that donates its state must not donate one of them twice.
        counters = (jnp.zeros((), jnp.int32) for _ in range(3))
        return LossScaleState(jnp.float32(self.initial), *counters)

    def scale_loss(self, state: LossScaleState, loss: Array) -> Array:
        """Multiply the loss, in float32 so that the product itself cannot overflow."""
        return loss.astype(jnp.float32) * state.loss_scale

    def unscale(self, state: LossScaleState, grads: Tree) -> Tree:
        """Divide gradients by the scale; half-precision ones become float32."""
        return jax.tree.map(lambda g: g.astype(jnp.float32) / state.loss_scale, grads)

    def finite(self, grads: Tree) -> Bool[Array, ""]:
        """Whether the global L2 norm of the unscaled gradients is a number below infinity."""
        norm = optax.tree.norm(jax.tree.map(lambda g: g.astype(jnp.float32), grads))
        return jnp.isfinite(norm)

    def update(self, state: LossScaleState, finite: Array) -> LossScaleState:
        """Advance by one step.

        Args:
            state: the automaton's.
            finite: whether the step's gradients were finite.
        """
        if not self.dynamic:
            return state
        scale, steps, overflows, skipped = state
        steps = steps + 1
        overflows = overflows + jnp.where(finite, 0, 1)
        halve = overflows > self.overflow_tolerance * steps
        scale = jnp.where(halve, scale / 2, scale)
        steps, overflows = jnp.where(halve, 0, steps), jnp.where(halve, 0, overflows)
        double = steps > self.steps_per_increase
        scale = jnp.where(double, scale * 2, scale)
        steps, overflows = jnp.where(double, 0, steps), jnp.where(double, 0, overflows)
        scale = jnp.maximum(jnp.minimum(scale, self.largest), self.smallest)
        return LossScaleState(scale, steps, overflows, skipped + jnp.where(finite, 0, 1))


def keep_if_finite(finite: Array, new: Tree, old: Tree) -> Tree:
    """Take the new state of a good step, the old one of a step that overflowed."""
    return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)


def make_scaler(cfg: Optimizer | None, dtype: jax.typing.DTypeLike) -> LossScaler:
    """Build the loss scaler of a run.

    'dynamic' acts in float16 only: bfloat16 has float32's range, so the scale stays 1.

    Args:
        cfg: the ``optimizer`` section; None for a run that does not train.
        dtype: what the model computes in.

    Raises:
        ConfigError: the initial scale lies outside its bounds.
    """
    if cfg is None or cfg.loss_scaling_factor is None:
        return LossScaler()
    if cfg.loss_scaling_factor != "dynamic":
        return LossScaler(initial=cfg.loss_scaling_factor)
    if dtype != jnp.float16:
        computes = jnp.dtype(dtype).name
        _LOG.info("loss_scaling_factor: dynamic acts in float16; in %s the scale is 1", computes)
        return LossScaler()
    smallest = cfg.min_loss_scale or MIN_LOSS_SCALE
    largest = cfg.max_loss_scale or _LARGEST
    initial = cfg.initial_loss_scale or min(_LARGEST, largest)
    if not smallest <= initial <= largest:
        message = f"{initial}: expected between the bounds {smallest} and {largest}"
        raise ConfigError([Problem(("optimizer", "initial_loss_scale"), message)])
    return LossScaler(
        dynamic=True,
        initial=initial,
        steps_per_increase=cfg.steps_per_increase,
        smallest=smallest,
        largest=largest,
    )
