"""Weight initialisers by the names run files use, and the standard deviations muP scales."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.nn import initializers as jinit
from jaxtyping import Array

from wafer.models.errors import did_you_mean
from wafer.models.schema import Initializer

InitFn = Callable[[Array, tuple[int, ...]], Array]


def truncated_normal(mean: float, std: float, low: float, high: float) -> InitFn:
    """Normal(mean, std) cut to the absolute range [low, high], like torch's trunc_normal_."""

    def init(key: Array, shape: tuple[int, ...]) -> Array:
        if std == 0:
            return jnp.full(shape, mean, jnp.float32)
        unit = jax.random.truncated_normal(key, (low - mean) / std, (high - mean) / std, shape)
        return (mean + std * unit).astype(jnp.float32)

    return init


def _scaling(scale: float, mode: str, distribution: str) -> InitFn:
    fn = jinit.variance_scaling(scale, mode, distribution)  # pyright: ignore[reportArgumentType]
    return lambda key, shape: fn(key, shape, jnp.float32)


_BUILDERS: dict[str, Callable[[Initializer], InitFn]] = {
    "constant": lambda s: lambda key, shape: jnp.full(shape, s.val, jnp.float32),
    "zeros": lambda s: lambda key, shape: jnp.zeros(shape, jnp.float32),
    "ones": lambda s: lambda key, shape: jnp.ones(shape, jnp.float32),
    "normal": lambda s: (
        lambda key, shape: s.mean + s.std * jax.random.normal(key, shape, jnp.float32)
    ),
    "truncated_normal": lambda s: truncated_normal(
        s.mean,
        s.std,
        s.mean - 2 * s.std if s.a is None else s.a,
        s.mean + 2 * s.std if s.b is None else s.b,
    ),
    "uniform": lambda s: (
        lambda key, shape: jax.random.uniform(
            key, shape, jnp.float32, s.a or 0.0, 1.0 if s.b is None else s.b
        )
    ),
    "xavier_uniform": lambda s: _scaling(s.gain**2, "fan_avg", "uniform"),
    "xavier_normal": lambda s: _scaling(s.gain**2, "fan_avg", "normal"),
    "glorot_uniform": lambda s: _scaling(1.0, "fan_avg", "uniform"),
    "glorot_normal": lambda s: _scaling(1.0, "fan_avg", "normal"),
    "kaiming_uniform": lambda s: _scaling(2.0, s.mode, "uniform"),
    "kaiming_normal": lambda s: _scaling(2.0, s.mode, "normal"),
    "lecun_uniform": lambda s: _scaling(1.0, "fan_in", "uniform"),
    "lecun_normal": lambda s: _scaling(1.0, "fan_in", "normal"),
    "variance_scaling": lambda s: _scaling(s.scale, s.mode, s.distribution),
}


def make_initializer(spec: Initializer) -> InitFn:
    """Turn a specification into ``(key, shape) -> float32 array``.

    Raises:
        ValueError: unknown name; the message lists the known ones.
    """
    builder = _BUILDERS.get(spec.name.lower())
    if builder is None:
        hint = did_you_mean(spec.name, _BUILDERS)
        raise ValueError(f"initializer {spec.name!r} is unknown{hint}; known: {sorted(_BUILDERS)}")
    return builder(spec)


def scaled(spec: Initializer, factor: float) -> Initializer:
    """Multiply the spread of a (truncated) normal; other distributions pass unchanged.

    Only normal initialisers scale, for muP and for residual outputs.
    """
    if factor == 1.0 or spec.name.lower() not in {"normal", "truncated_normal"}:
        return spec
    bounds = {k: getattr(spec, k) * factor for k in ("a", "b") if getattr(spec, k) is not None}
    return spec.model_copy(update={"std": spec.std * factor, **bounds})
