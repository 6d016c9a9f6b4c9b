"""Normalization of an activation's rows: on a CPU one native pass each way, else XLA's program.

XLA reads a row from memory for each of its sums, and writes out what lies between. The native form
(``native/norm``) reads and writes a row once, and computes its statistics again for the gradient.
It has derivatives of any order: those beyond the first gradient are XLA's.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vsl.attend import may_be_native
from vsl.implementations.linear import compose, with_tangent
from vsl.layout import AnyArray
from vsl.native.kernels import LIBRARY

__all__ = ["normalize"]

_LEAST = 2**16  # numbers of x below which XLA's program takes no longer
_NARROWEST = 32  # features
_TYPES = (jnp.float32, jnp.bfloat16)


def normalize(
    x: Float[Array, "*rows D"],
    scale: Float[AnyArray, " features"] | None = None,
    bias: Float[AnyArray, " features"] | None = None,
    *,
    eps: float,
    centered: bool = True,
) -> Float[Array, "*rows D"]:
    """Normalize the last axis: LayerNorm, or RMSNorm (Zhang & Sennrich 2019) if not ``centered``.

    Args:
        x: [..., D] activations; statistics are float32 whatever they are.
        scale: [D] factor of the normalized numbers; None is 1.
        bias: [D] added last; None is 0.
        eps: added to the variance.
        centered: subtract the mean.

    Returns:
        [..., D] in the dtype of ``x``.

    Raises:
        ValueError: a scale or bias of another size.
    """
    for name, leaf in (("scale", scale), ("bias", bias)):
        if leaf is not None and leaf.shape != x.shape[-1:]:
            raise ValueError(
                f"normalize: {name} {leaf.shape}, x {x.shape}; expected one number per feature, "
                f"{x.shape[-1:]}"
            )
    large = x.size >= _LEAST and x.shape[-1] >= _NARROWEST and x.dtype in _TYPES
    if not (large and may_be_native() and LIBRARY.usable()):
        return _by_xla(x, scale, bias, eps=eps, centered=centered)
    features = (x.shape[-1],)
    ready = [
        jnp.full(features, fill, jnp.float32) if leaf is None else jnp.asarray(leaf, jnp.float32)
        for leaf, fill in ((scale, 1), (bias, 0))
    ]
    rows = x.reshape(-1, *features)
    return _NORM.bind(rows, *ready, eps=eps, centered=centered)[0].reshape(x.shape)


def _by_xla(
    x: Array, scale: AnyArray | None, bias: AnyArray | None, *, eps: float, centered: bool
) -> Array:
    y = x.astype(jnp.float32)
    if centered:
        y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + eps)
    y = y if scale is None else y * scale
    return (y if bias is None else y + bias).astype(x.dtype)


def _attributes(eps: float, centered: bool) -> dict[str, Any]:
    return {"eps": np.float32(eps), "centered": np.bool_(centered)}


def _forward(x: Array, scale: Array, bias: Array, **static: Any) -> list[Array]:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return [LIBRARY.call("wafer_norm_forward", result, x, scale, bias, **_attributes(**static))]


def _backward(dy: Array, x: Array, scale: Array, **static: Any) -> list[Array]:
    sums = jax.ShapeDtypeStruct(scale.shape, jnp.float32)
    results = (jax.ShapeDtypeStruct(x.shape, x.dtype), sums, sums)
    return list(LIBRARY.call("wafer_norm_backward", results, dy, x, scale, **_attributes(**static)))


def _at_zero_bias(x: Array, scale: Array, static: Any) -> tuple[Callable[..., Array], list[Array]]:
    return functools.partial(_by_xla, **static), [x, scale, jnp.zeros_like(scale)]


def _backward_by_xla(dy: Array, x: Array, scale: Array, **static: Any) -> list[Array]:
    function, point = _at_zero_bias(x, scale, static)
    return list(jax.vjp(function, *point)[1](dy))


def _tangent(*operands: Array, **static: Any) -> list[Array]:
    *tangents, x, scale, _ = operands
    function, point = _at_zero_bias(x, scale, static)
    return [jax.jvp(function, point, tangents)[1]]


def _tangent_t(dy: Any, *operands: Any, **static: Any) -> list[Any]:
    *_, x, scale, _ = operands
    return _GRADIENTS.bind(dy, x, scale, **static)


_GRADIENTS = compose("norm_gradients", _backward, _backward_by_xla)
_TANGENT = compose("norm_tangent", _tangent, _tangent, _tangent_t)
_NORM = with_tangent("norm", _forward, _TANGENT.bind, moving=3)
