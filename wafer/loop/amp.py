"""Loss scaling and clipping in a loop."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from wafer.loop.machine import current_backend
from wafer.loop.model import Gradients, backward
from wafer.loop.optim import Optimizer
from wafer.optim.optimizers import clip_factor
from wafer.optim.precision import LossScaler

__all__ = ["GradScaler", "clip_grad_norm_", "clip_grad_value_", "optimizer_step"]


class GradScaler:
    """The loss-scale automaton.

    Args:
        loss_scale: a constant, or 'dynamic'.
        init_scale: first dynamic scale.
        steps_per_increase: the scale doubles after more good steps than this.
        min_loss_scale: lower bound.
        max_loss_scale: upper bound.
        overflow_tolerance: share of overflowing steps above which the scale is halved.
    """

    def __init__(
        self,
        loss_scale: float | Literal["dynamic"] = 1.0,
        *,
        init_scale: float = 2.0**15,
        steps_per_increase: int = 2000,
        min_loss_scale: float = 2.0**-14,
        max_loss_scale: float = 2.0**15,
        overflow_tolerance: float = 0.0,
    ) -> None:
        if isinstance(loss_scale, str) and loss_scale != "dynamic":
            raise ValueError(f"GradScaler: loss_scale {loss_scale!r}, expected a number, 'dynamic'")
        dynamic = loss_scale == "dynamic"
        self._scaler = LossScaler(
            dynamic=dynamic,
            initial=float(init_scale if dynamic else loss_scale),
            steps_per_increase=steps_per_increase,
            smallest=min_loss_scale,
            largest=max_loss_scale,
            overflow_tolerance=overflow_tolerance,
        )
        self._backend = current_backend()
        self.slot = self._backend.register(self, "grad_scaler")
        self._unscaled = False
        self._finite: Array | bool = True

    def prepare(self) -> None:
        """Begin the automaton."""
        if self.slot not in self._backend.state:
            self._backend.state[self.slot] = self._scaler.init()

    @property
    def _state(self) -> Any:
        self.prepare()
        return self._backend.state[self.slot]

    def scale(self, loss: Array) -> Array:
        """Multiply ``loss`` [] by the scale."""
        self._unscaled = False
        return self._scaler.scale_loss(self._state, loss)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, once per step."""
        if not self._unscaled:
            gradients = Gradients(optimizer.model)
            gradients.kept = self._scaler.unscale(self._state, gradients.kept)
            self._finite = self._scaler.finite(gradients.kept)
            self._unscaled = True

    def step(self, optimizer: Optimizer) -> None:
        """Let the optimizer step, unless a dynamic scale made the gradients overflow."""
        self.unscale_(optimizer)
        optimizer.step(self._finite if self._scaler.dynamic else True)

    def update(self) -> None:
        """Move the scale."""
        self._backend.state[self.slot] = self._scaler.update(self._state, jnp.asarray(self._finite))
        self._unscaled = False

    @property
    def loss_scale(self) -> Array:
        """[] float32 scale in force."""
        return self._state.loss_scale

    def state_dict(self) -> dict[str, Any]:
        """The automaton's numbers."""
        return {name: value.item() for name, value in self._state._asdict().items()}

    def load_state_dict(self, tree: dict[str, Any]) -> None:
        """Go on from there."""
        old = self._state
        values = {name: jnp.asarray(tree[name], leaf.dtype) for name, leaf in old._asdict().items()}
        self._backend.state[self.slot] = old._replace(**values)


def clip_grad_norm_(optimizer: Optimizer, max_norm: float) -> Array:
    """Scale the gradients down to a global L2 norm of at most ``max_norm``; returns the norm."""
    gradients = Gradients(optimizer.model)
    norm = optax.tree.norm(gradients.kept)
    factor = clip_factor(norm, max_norm)
    gradients.kept = jax.tree.map(lambda g: g * factor.astype(g.dtype), gradients.kept)
    return norm


def clip_grad_value_(optimizer: Optimizer, max_value: float) -> None:
    """Clip every gradient to [-max_value, max_value]."""
    gradients = Gradients(optimizer.model)
    gradients.kept = jax.tree.map(lambda g: jnp.clip(g, -max_value, max_value), gradients.kept)


def optimizer_step(
    loss: Array,
    optimizer: Optimizer,
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> None:
    """Scale, differentiate, unscale, clip, step, move the scale, forget the gradients.

    Args:
        loss: [] float, computed from the optimizer's model.
        optimizer: of the model.
        grad_scaler: of the run.
        max_gradient_norm: norm of all gradients that they are scaled down to.
        max_gradient_value: bound of each element.

    Raises:
        ValueError: both ways of clipping, or a bound that is not positive.
    """
    if max_gradient_norm is not None and max_gradient_value is not None:
        raise ValueError("optimizer_step: max_gradient_norm excludes max_gradient_value; keep one")
    for name, bound in (("norm", max_gradient_norm), ("value", max_gradient_value)):
        if bound is not None and bound <= 0:
            raise ValueError(f"optimizer_step: max_gradient_{name} {bound}, expected more than 0")
    backward(grad_scaler.scale(loss))
    grad_scaler.unscale_(optimizer)
    if max_gradient_norm is not None:
        clip_grad_norm_(optimizer, max_gradient_norm)
    if max_gradient_value is not None:
        clip_grad_value_(optimizer, max_gradient_value)
    grad_scaler.step(optimizer)
    grad_scaler.update()
    optimizer.zero_grad()
