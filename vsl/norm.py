"""Normalization of an activation's rows: on a CPU one native pass each way, else XLA's program.

XLA reads a row from memory for each of its sums, and writes out what lies between. The native form
(``native/norm``) reads and writes a row once, and computes its statistics again for the gradient.
It has derivatives of any order: those beyond the first gradient are XLA's.
"""

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from wafer.vsl.attend import may_be_native
from wafer.vsl.implementations.linear import compose, with_tangent
from wafer.vsl.layout import AnyArray
from wafer.vsl.native.kernels import LIBRARY

_LEAST = 2**16  # numbers of x below which XLA's program takes no longer
_LEAST_ROW = 512  # the same of a single row, which no thread is woken for
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
    native = _operands(x, scale, bias)
    if native is None:
        return _by_xla(x, scale, bias, eps=eps, centered=centered)
    return _NORM.bind(*native, eps=eps, centered=centered)[0].reshape(x.shape)


def normalize_branch(
    x: Float[Array, "*rows D"],
    scale: Float[AnyArray, " features"] | None = None,
    bias: Float[AnyArray, " features"] | None = None,
    *,
    eps: float,
    centered: bool = True,
) -> tuple[Float[Array, "*rows D"], Float[Array, "*rows D"]]:
    """Normalize what a residual branch begins with: ``normalize(x)``, and x for the sum after it.

    A native backward pass adds the gradients of both as it writes that of ``x``.

    Args:
        x: [..., D], and the others as of ``normalize``.
        scale: [D] factor; None is 1.
        bias: [D] added last; None is 0.
        eps: added to the variance.
        centered: subtract the mean.

    Returns:
        [..., D] normalized, and x.

    Raises:
        ValueError: a scale or bias of another size.
    """
    native = _operands(x, scale, bias)
    if native is None:
        return _by_xla(x, scale, bias, eps=eps, centered=centered), x
    y, kept = _BRANCH.bind(*native, eps=eps, centered=centered)
    return y.reshape(x.shape), kept.reshape(x.shape)


def _operands(x: Array, scale: AnyArray | None, bias: AnyArray | None) -> list[Array] | None:
    """Check, and return what a native norm of x takes; None where XLA's program serves."""
    for name, leaf in (("scale", scale), ("bias", bias)):
        if leaf is not None and leaf.shape != x.shape[-1:]:
            raise ValueError(
                f"normalize: {name} {leaf.shape}, x {x.shape}; expected one number per feature, "
                f"{x.shape[-1:]}"
            )
    large = x.size >= (_LEAST_ROW if x.size == x.shape[-1] else _LEAST)
    fits = x.shape[-1] >= _NARROWEST and x.dtype in _TYPES
    if not (large and fits and may_be_native() and LIBRARY.usable()):
        return None
    features = (x.shape[-1],)
    return [
        x.reshape(-1, *features),
        *(
            jnp.full(features, fill, jnp.float32)
            if leaf is None
            else jnp.asarray(leaf, jnp.float32)
            for leaf, fill in ((scale, 1), (bias, 0))
        ),
    ]


def _by_xla(
    x: Array, scale: AnyArray | None, bias: AnyArray | None, *, eps: float, centered: bool
) -> Array:
    y = x.astype(jnp.float32)
    if centered:
        y = y - y.mean(-1, keepdims=True)
    y = y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + eps)
    row = lambda leaf: jnp.asarray(leaf, jnp.float32).reshape((1,) * (x.ndim - 1) + leaf.shape)
    y = y if scale is None else y * row(scale)
    return (y if bias is None else y + row(bias)).astype(x.dtype)


def _attributes(eps: float, centered: bool) -> dict[str, np.generic]:
    return {"eps": np.float32(eps), "centered": np.bool_(centered)}


def _forward(x: Array, scale: Array, bias: Array, **static: Any) -> list[Array]:
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return [LIBRARY.call("wafer_norm_forward", result, x, scale, bias, **_attributes(**static))]


def _backward(dy: Array, x: Array, scale: Array, *residual: Array, **static: Any) -> list[Array]:
    sums = jax.ShapeDtypeStruct(scale.shape, jnp.float32)
    results = (jax.ShapeDtypeStruct(x.shape, x.dtype), sums, sums)
    added = residual or (jnp.zeros((0, x.shape[1]), x.dtype),)
    operands = (dy, x, scale, *added)
    return list(LIBRARY.call("wafer_norm_backward", results, *operands, **_attributes(**static)))


def _at_zero_bias(
    x: Array, scale: Array, static: Mapping[str, Hashable]
) -> tuple[Callable[..., Array], list[Array]]:
    return functools.partial(_by_xla, **static), [x, scale, jnp.zeros_like(scale)]


def _backward_by_xla(
    dy: Array, x: Array, scale: Array, *residual: Array, **static: Hashable
) -> list[Array]:
    function, point = _at_zero_bias(x, scale, static)
    dx, *rest = jax.vjp(function, *point)[1](dy)
    return [sum(residual, dx), *rest]


def _tangent(*operands: Array, **static: Hashable) -> list[Array]:
    *tangents, x, scale, _ = operands
    function, point = _at_zero_bias(x, scale, static)
    return [jax.jvp(function, point, tangents)[1]]


def _tangent_t(*operands: PyTree, **static: Hashable) -> list[PyTree]:
    dy, *kept, _, _, _, x, scale, _ = operands  # the cotangent of x that is kept, if it is one
    return _GRADIENTS.bind(dy, x, scale, *kept, **static)


def _with_x(function: Callable[..., list[Array]]) -> Callable[..., list[Array]]:
    """Return the first operand, x or its tangent, beside the result."""
    return lambda x, *rest, **static: [*function(x, *rest, **static), x]


_GRADIENTS = compose("norm_gradients", _backward, _backward_by_xla)
_TANGENT = compose("norm_tangent", _tangent, _tangent, _tangent_t)
_NORM = with_tangent("norm", _forward, _TANGENT.bind, moving=lambda **_: 3)
_BRANCH_TANGENT = compose("norm_branch_tangent", _with_x(_tangent), _with_x(_tangent), _tangent_t)
_BRANCH = with_tangent("norm_branch", _with_x(_forward), _BRANCH_TANGENT.bind, moving=lambda **_: 3)
