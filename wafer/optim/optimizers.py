"""Gradient transformations where optax has none with the same arithmetic.

Each returns the direction to be multiplied by -learning_rate, so they chain with optax's own.
eps is added before the bias correction (TensorFlow's order), which torch and optax do after it.
States are NamedTuples of trees shaped like the parameters: they work leaf by leaf on
dense arrays and on the kept values of sparse weights alike. Names: g gradient, m and v first and
second moment, w parameter, t = 1, 2, ... the step.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree as Tree

from wafer.models.paths import map_named


class MomentState(NamedTuple):
    """State of the Adam family."""

    step: Int[Array, ""]  #: [] int32 finished steps
    exp_avg: Tree  #: like params, m
    exp_avg_sq: Tree  #: like params, v


class AmsgradState(NamedTuple):
    """State of the Adam family with AMSGrad."""

    moments: MomentState  #: m and v
    max_exp_avg_sq: Tree  #: like params, the largest v so far


class NadamState(NamedTuple):
    """State of NAdam."""

    moments: MomentState  #: m and v
    mu_product: Float[Array, ""]  #: [] float32 product of the momenta μ so far


class SumState(NamedTuple):
    """sum_of_squares: like params."""

    sum_of_squares: Tree


class StepSizeState(NamedTuple):
    """State of Rprop."""

    step_sizes: Tree  #: like params
    previous: Tree  #: like params, the last gradients; 0 where the sign had just changed


class AverageState(NamedTuple):
    """Averaged parameters of ASGD."""

    step: Int[Array, ""]  #: [] int32 finished steps
    average: Tree  #: like params; all steps before ``t0`` count as the start


def _zeros(params: Tree) -> Tree:
    return jax.tree.map(jnp.zeros_like, params)


def _init_moments(params: Tree) -> MomentState:
    return MomentState(jnp.int32(0), _zeros(params), _zeros(params))


def _moments(grads: Tree, state: MomentState, b1: float, b2: float) -> MomentState:
    return MomentState(
        step=state.step + 1,
        exp_avg=jax.tree.map(lambda g, m: b1 * m + (1 - b1) * g, grads, state.exp_avg),
        exp_avg_sq=jax.tree.map(lambda g, v: b2 * v + (1 - b2) * g * g, grads, state.exp_avg_sq),
    )


def scale_by_adam(
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-6,
    *,
    correct_bias: bool = True,
    amsgrad: bool = False,
) -> optax.GradientTransformation:
    """Adam with eps added to √v before the bias correction; without correction for Lamb.

    Args:
        b1: rate of m.
        b2: rate of v.
        eps: added to √v.
        correct_bias: multiply by √(1 - b2^t) / (1 - b1^t).
        amsgrad: divide by the largest v so far.
    """

    def init(params: Tree) -> MomentState | AmsgradState:
        state = _init_moments(params)
        return AmsgradState(state, _zeros(params)) if amsgrad else state

    def direction(state: MomentState, second: Tree) -> Tree:
        scale = jnp.float32(1)
        if correct_bias:
            t = state.step.astype(jnp.float32)
            scale = jnp.sqrt(1 - jnp.float32(b2) ** t) / (1 - jnp.float32(b1) ** t)
        return jax.tree.map(
            lambda m, v: (scale * m / (jnp.sqrt(v) + eps)).astype(m.dtype), state.exp_avg, second
        )

    def update(
        grads: Tree, state: Any, params: Tree = None
    ) -> tuple[Tree, MomentState | AmsgradState]:
        del params
        if not amsgrad:
            state = _moments(grads, state, b1, b2)
            return direction(state, state.exp_avg_sq), state
        moments = _moments(grads, state.moments, b1, b2)
        largest = jax.tree.map(jnp.maximum, state.max_exp_avg_sq, moments.exp_avg_sq)
        return direction(moments, largest), AmsgradState(moments, largest)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def scale_by_radam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6
) -> optax.GradientTransformation:
    """Adam with rectified variance (Liu et al. 2020): plain momentum until ρ_t > 5."""
    rho_inf = 2 / (1 - b2) - 1
    log = -math.log(b2)

    def length(t: Array) -> Array:
        """ρ_t = ρ_inf - 2 t b2^t / (1 - b2^t), without the cancellation at small t."""
        x = t * log
        series = x / 2 - x**2 / 12 + x**4 / 720
        rest = jnp.where(x < 0.2, series, 1 - x / jnp.expm1(jnp.maximum(x, 0.2)))
        return (rho_inf - 2 / log) + 2 / log * rest

    def update(grads: Tree, state: MomentState, params: Tree = None) -> tuple[Tree, MomentState]:
        del params
        state = _moments(grads, state, b1, b2)
        t = state.step.astype(jnp.float32)
        decay = jnp.float32(b2) ** t
        rho = length(t)
        safe = jnp.maximum(rho, 5.0)
        rectify = jnp.sqrt(
            (safe - 4) * (safe - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * safe)
        )
        correction = 1 - jnp.float32(b1) ** t

        def leaf(m: Array, v: Array) -> Array:
            adaptive = rectify * jnp.sqrt(1 - decay) / (jnp.sqrt(v) + eps)
            return m / correction * jnp.where(rho > 5, adaptive, 1)

        return jax.tree.map(leaf, state.exp_avg, state.exp_avg_sq), state

    return optax.GradientTransformation(_init_moments, update)  # pyright: ignore[reportArgumentType]


def scale_by_nadam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, momentum_decay: float = 4e-3
) -> optax.GradientTransformation:
    """Adam with Nesterov momentum (Dozat 2016), momentum μ_t = b1 (1 - 0.96^(t decay) / 2)."""

    def momentum(t: Array) -> Array:
        return b1 * (1 - 0.5 * jnp.float32(0.96) ** (t * momentum_decay))

    def init(params: Tree) -> NadamState:
        return NadamState(_init_moments(params), jnp.float32(1))

    def update(grads: Tree, state: NadamState, params: Tree = None) -> tuple[Tree, NadamState]:
        del params
        moments = _moments(grads, state.moments, b1, b2)
        t = moments.step.astype(jnp.float32)
        mu, following = momentum(t), momentum(t + 1)
        product = state.mu_product * mu
        by_gradient, by_moment = (1 - mu) / (1 - product), following / (1 - product * following)
        correction = 1 - jnp.float32(b2) ** t

        def leaf(g: Array, m: Array, v: Array) -> Array:
            return (by_gradient * g + by_moment * m) / (jnp.sqrt(v / correction) + eps)

        updates = jax.tree.map(leaf, grads, moments.exp_avg, moments.exp_avg_sq)
        return updates, NadamState(moments, product)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def scale_by_adagrad(initial: float = 0.0, eps: float = 1e-6) -> optax.GradientTransformation:
    """Divide by the root of the sum of squares, eps outside the root."""

    def init(params: Tree) -> SumState:
        return SumState(jax.tree.map(lambda w: jnp.full_like(w, initial), params))

    def update(grads: Tree, state: SumState, params: Tree = None) -> tuple[Tree, SumState]:
        del params
        sums = jax.tree.map(lambda g, s: s + g * g, grads, state.sum_of_squares)
        return jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + eps), grads, sums), SumState(sums)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def scale_by_rprop(
    first: Callable[[str], float],
    etas: tuple[float, float] = (0.5, 1.2),
    bounds: tuple[float, float] = (1e-6, 50.0),
) -> optax.GradientTransformation:
    """Move every element by its own step size against the sign of its gradient.

    Optax's function of this name applies the step of one update earlier.

    Args:
        first: parameter name -> first step size.
        etas: factors of the step size when the sign changed and when it stayed.
        bounds: smallest and largest step size.
    """

    def init(params: Tree) -> StepSizeState:
        sizes = map_named(lambda name, w: jnp.full_like(w, first(name)), params)
        return StepSizeState(sizes, _zeros(params))

    def update(
        grads: Tree, state: StepSizeState, params: Tree = None
    ) -> tuple[Tree, StepSizeState]:
        del params

        def resize(g: Array, last: Array, size: Array) -> Array:
            agree = g * last
            factor = jnp.where(agree > 0, etas[1], jnp.where(agree < 0, etas[0], 1.0))
            return jnp.clip(size * factor, *bounds).astype(size.dtype)

        sizes = jax.tree.map(resize, grads, state.previous, state.step_sizes)
        kept = jax.tree.map(lambda g, last: jnp.where(g * last < 0, 0, g), grads, state.previous)
        updates = jax.tree.map(lambda g, size: jnp.sign(g) * size, kept, sizes)
        return updates, StepSizeState(sizes, kept)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def scale_by_trust_ratio(largest_norm: float = 10.0) -> optax.GradientTransformation:
    """Lamb (You et al. 2020): multiply each tensor's update by min(‖w‖, 10) / ‖update‖.

    The norms are of whole tensors; pruned weights are 0 and add nothing, so the kept values of
    a sparse weight give the same ratio.
    """

    def leaf(u: Array, w: Array) -> Array:
        size = jnp.minimum(jnp.linalg.norm(w.ravel()), largest_norm)
        length = jnp.linalg.norm(u.ravel())
        ratio = size / jnp.where(length > 0, length, 1)
        return u * jnp.where((size > 0) & (length > 0), ratio, 1)

    return optax.stateless(lambda updates, params: jax.tree.map(leaf, updates, params))


def track_average(t0: float) -> optax.GradientTransformation:
    """Keep ASGD's averaged parameters in the state; the last transformation of a chain.

    Until step ``t0`` the average is the parameter itself, then the mean of all later ones
    (Polyak and Juditsky 1992).
    """

    def init(params: Tree) -> AverageState:
        return AverageState(jnp.int32(0), jax.tree.map(jnp.array, params))  # a copy: donated apart

    def update(
        updates: Tree, state: AverageState, params: Tree = None
    ) -> tuple[Tree, AverageState]:
        weight = 1 / jnp.maximum(1, state.step.astype(jnp.float32) - t0)
        average = jax.tree.map(
            lambda a, w, u: a + (w + u - a) * weight, state.average, params, updates
        )
        return updates, AverageState(state.step + 1, average)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType]


def clip_factor(norm: Array, max_norm: float) -> Array:
    """Factor for all gradients so that their global L2 norm is at most ``max_norm``.

    Torch's rule, max_norm / (norm + 1e-6) and never above 1. A weight-streaming run calls it
    when all layers' squared norms are known.
    """
    return jnp.minimum(max_norm / (norm + 1e-6), 1.0)


def clip_by_norm(max_norm: float) -> optax.GradientTransformationExtraArgs:
    """Clip by the global L2 norm of all gradients together.

    ``update`` takes ``global_norm=``: the norm, where it is given a part of the gradients only
    (the one layer a weight-streaming run updates).
    """

    def update(
        grads: Tree,
        state: Tree,
        params: Tree = None,
        *,
        global_norm: Array | None = None,
        **extra: object,
    ) -> tuple[Tree, Tree]:
        del params, extra
        norm = optax.tree.norm(grads) if global_norm is None else global_norm
        factor = clip_factor(norm, max_norm)
        return jax.tree.map(lambda g: (g * factor).astype(g.dtype), grads), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)  # pyright: ignore[reportArgumentType]
