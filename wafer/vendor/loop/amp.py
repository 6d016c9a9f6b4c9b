"""Loss scaling, clipping and the half type in a loop."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import jax.numpy as jnp
import optax
from jaxtyping import Array

from wafer.loop.elsewhere import explain
from wafer.loop.machine import PRECISION, current_backend
from wafer.loop.optim import Optimizer
from wafer.loop.tracing.model import Gradients, backward, model_of
from wafer.models.paths import map_named, named_leaves
from wafer.optim.optimizers import clip_factor
from wafer.optim.precision import LossScaler, LossScaleState

_HALF_TYPES = {"float16": jnp.float16, "bfloat16": jnp.bfloat16}


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
        self.automaton = LossScaler(
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
            self._backend.state[self.slot] = self.automaton.init()

    @property
    def _state(self) -> LossScaleState:
        self.prepare()
        return self._backend.state[self.slot]

    def scale(self, loss: Array) -> Array:
        """Multiply ``loss`` [] by the scale."""
        self._unscaled = False
        return self.automaton.scale_loss(self._state, loss)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, once per step."""
        if not self._unscaled:
            gradients = Gradients(optimizer.model)
            gradients.kept = self.automaton.unscale(self._state, gradients.kept)
            self._finite = self.automaton.finite(gradients.kept)
            self._unscaled = True

    def step(self, optimizer: Optimizer) -> None:
        """Let the optimizer step, unless a dynamic scale made the gradients overflow."""
        self.unscale_(optimizer)
        optimizer.step(finite=self._finite if self.automaton.dynamic else True)

    def update(self) -> None:
        """Move the scale."""
        self._backend.state[self.slot] = self.automaton.update(
            self._state, jnp.asarray(self._finite)
        )
        self._unscaled = False

    @property
    def loss_scale(self) -> Array:
        """[] float32 scale in force."""
        return self._state.loss_scale

    def state_dict(self) -> dict[str, int | float]:
        """The automaton's numbers."""
        return {name: value.item() for name, value in self._state._asdict().items()}

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Go on from there."""
        old = self._state
        values = {name: jnp.asarray(tree[name], leaf.dtype) for name, leaf in old._asdict().items()}
        self._backend.state[self.slot] = old._replace(**values)


def clip_grad_norm_(params: object, max_norm: float | None) -> Array:
    """Scale gradients down to a global L2 norm of at most ``max_norm``.

    Args:
        params: an optimizer, ``model.parameters()``, or a list of what it yields.
        max_norm: the bound; None leaves the gradients as they are.

    Returns:
        [] float32 norm before.
    """
    gradients, is_clipped = _clipped(params)
    norm = optax.tree.norm([g for name, g in named_leaves(gradients.kept) if is_clipped(name)])
    if max_norm is not None:
        factor = clip_factor(norm, max_norm)
        scale = lambda name, g: g * factor.astype(g.dtype) if is_clipped(name) else g
        gradients.kept = map_named(scale, gradients.kept)
    return norm


def clip_grad_value_(params: object, max_value: float) -> None:
    """Clip every gradient to [-max_value, max_value]."""
    gradients, is_clipped = _clipped(params)
    clip = lambda name, g: jnp.clip(g, -max_value, max_value) if is_clipped(name) else g
    gradients.kept = map_named(clip, gradients.kept)


def _clipped(params: object) -> tuple[Gradients, Callable[[str], bool]]:
    """Return the gradients, and which of them belong to the parameters."""
    params = params.model.parameters() if isinstance(params, Optimizer) else params
    model, listed = model_of(params)
    names = None if listed is None else {parameter.name for parameter in listed}
    return Gradients(model), lambda name: names is None or name in names


def optimizer_step(
    loss: Array,
    optimizer: Optimizer,
    grad_scaler: GradScaler,
    max_gradient_norm: float | None = None,
    max_gradient_value: float | None = None,
) -> Array:
    """Scale, differentiate, unscale, clip, step, move the scale, forget the gradients.

    Args:
        loss: [] float, computed from the optimizer's model.
        optimizer: of the model.
        grad_scaler: of the run.
        max_gradient_norm: norm of all gradients that they are scaled down to.
        max_gradient_value: bound of each element.

    Returns:
        [] float32 norm of the gradients before they are clipped.

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
    norm = clip_grad_norm_(optimizer, max_gradient_norm)
    if max_gradient_value is not None:
        clip_grad_value_(optimizer, max_gradient_value)
    grad_scaler.step(optimizer)
    grad_scaler.update()
    optimizer.zero_grad()
    return norm


def set_half_dtype(value: object) -> type:
    """Choose the half type of ``autocast``: 'float16' (the first) or 'bfloat16', or a dtype.

    Raises:
        ValueError: another type; cbfloat16 is the vendor's hardware's own.
    """
    name = str(getattr(value, "__name__", getattr(value, "name", value))).rpartition(".")[2]
    if name not in _HALF_TYPES:
        hint = "; use bfloat16" if name == "cbfloat16" else ""
        raise ValueError(f"set_half_dtype: {value!r}, expected float16 or bfloat16{hint}")
    PRECISION["half"] = _HALF_TYPES[name]
    return PRECISION["half"]


def use_bfloat16(value: bool = True) -> None:
    """Choose bfloat16 or float16 as the half type, as release 1.8 did."""
    set_half_dtype("bfloat16" if value else "float16")


def get_half_dtype() -> type:
    """Return the half type."""
    return PRECISION["half"]


def get_half_dtype_str() -> str:
    """Return the half type's name."""
    return jnp.dtype(PRECISION["half"]).name


def enable_mixed_precision(enable: bool = True, dtype: object = None) -> None:
    """Say whether the run is of mixed precision, for ``get_floating_point_dtype``."""
    if dtype is not None:
        set_half_dtype(dtype)
    PRECISION["mixed"] = bool(enable)


def mixed_precision() -> bool:
    """Whether ``enable_mixed_precision`` was called."""
    return PRECISION["mixed"]


def get_floating_point_dtype() -> type:
    """Return the half type in a run of mixed precision, otherwise float32."""
    return PRECISION["half"] if PRECISION["mixed"] else jnp.float32


def get_floating_point_dtype_str() -> str:
    """Return that type's name."""
    return jnp.dtype(get_floating_point_dtype()).name


def is_cbfloat16_tensor(array: object) -> bool:
    """Whether an array [...] is of the vendor's cbfloat16: none is, here."""
    del array
    return False


@contextlib.contextmanager
def autocast(enabled: bool = True) -> Iterator[None]:
    """Let compiled models compute in the half type until the end of the block.

    Parameters stay float32, and so do the outputs.
    """
    backend = current_backend()
    backend.autocast_depth += enabled
    try:
        yield
    finally:
        backend.autocast_depth -= enabled


@contextlib.contextmanager
def disable_casts() -> Iterator[None]:
    """Let compiled models compute in float32 until the end of the block."""
    backend = current_backend()
    depth, backend.autocast_depth = backend.autocast_depth, 0
    try:
        yield
    finally:
        backend.autocast_depth = depth


__getattr__ = functools.partial(explain, __name__)
