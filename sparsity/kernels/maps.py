"""The products of a sparse weight as linear maps: y = x W, dx = dy W^T, dW at kept positions.

Each is linear in both of its arrays, and the derivatives and transposes of each are again among
the three, so that derivatives of any order and direction exist. ``gradients`` is the second and
third in one pass, which is what an ordinary gradient runs.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array

from sparsity.kernels import native
from sparsity.kernels.pattern import Pattern, gather, to_dense
from vsl.implementations.linear import compose, multilinear

__all__ = ["IMPLEMENTATIONS", "multiply", "with_probe"]


def _dense_gradient(x: Array, dy: Array) -> Array:
    return jax.lax.dot_general(x, dy, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


class _Masked:
    """Dense products with the weight spread out; the reference, on any device."""

    @staticmethod
    def forward(x: Array, values: Array, pattern: Pattern) -> Array:
        kernel = to_dense(values.astype(jnp.float32), pattern)
        return jnp.matmul(x.astype(jnp.float32), kernel).astype(x.dtype)

    @staticmethod
    def input_gradient(dy: Array, values: Array, pattern: Pattern, dtype: DTypeLike) -> Array:
        kernel = to_dense(values.astype(jnp.float32), pattern)
        return jnp.matmul(dy.astype(jnp.float32), kernel.T).astype(dtype)

    @staticmethod
    def weight_gradient(x: Array, dy: Array, pattern: Pattern) -> Array:
        return gather(_dense_gradient(x, dy), pattern)

    @classmethod
    def both(cls, x: Array, dy: Array, values: Array, pattern: Pattern) -> tuple[Array, Array]:
        dx = cls.input_gradient(dy, values, pattern, x.dtype)
        return dx, cls.weight_gradient(x, dy, pattern)


class _Native:
    """The C++ kernels of ``sparse_dot.cc``."""

    @staticmethod
    def forward(x: Array, values: Array, pattern: Pattern) -> Array:
        result = jax.ShapeDtypeStruct((x.shape[0], pattern.shape[1]), x.dtype)
        values = values.astype(jnp.float32)
        places = pattern.pointers, pattern.slices, pattern.offsets
        return native.call("wafer_sparse_multiply", result, x, values, *places)

    @staticmethod
    def input_gradient(dy: Array, values: Array, pattern: Pattern, dtype: DTypeLike) -> Array:
        result = jax.ShapeDtypeStruct((dy.shape[0], pattern.shape[0]), dtype)
        values = values.astype(jnp.float32)
        places = pattern.indices, pattern.pointers, pattern.t_slices, pattern.t_offsets
        return native.call("wafer_sparse_input_gradient", result, dy, values, *places)

    @staticmethod
    def weight_gradient(x: Array, dy: Array, pattern: Pattern) -> Array:
        result = jax.ShapeDtypeStruct((pattern.nnz,), jnp.float32)
        places = pattern.pointers, pattern.slices, pattern.offsets
        return native.call("wafer_sparse_weight_gradient", result, x, dy, *places)

    @staticmethod
    def both(x: Array, dy: Array, values: Array, pattern: Pattern) -> tuple[Array, Array]:
        result = (
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct(values.shape, jnp.float32),
        )
        values = values.astype(jnp.float32)
        places = *pattern[:2], *pattern[3:]
        return native.call("wafer_sparse_gradients", result, x, dy, values, *places)


IMPLEMENTATIONS: Mapping[str, Any] = {"masked": _Masked, "csr": _Native}


# --- the three maps: (left, right, *pattern) -> [result] ----------------------------------------


def _multiply(x: Array, values: Array, *pattern: Array, implementation: str) -> list[Array]:
    return [IMPLEMENTATIONS[implementation].forward(x, values, Pattern(*pattern))]


def _multiply_t(dy: Any, x: Any, values: Any, *pattern: Any, **static: Any) -> list[Any]:
    if x is None:
        return _INPUT_GRADIENT.bind(dy, values, *pattern, **static)
    return [None, *_WEIGHT_GRADIENT.bind(x, dy, *pattern, **static)]


def _input_gradient(dy: Array, values: Array, *pattern: Array, implementation: str) -> list[Array]:
    kernels = IMPLEMENTATIONS[implementation]
    return [kernels.input_gradient(dy, values, Pattern(*pattern), dy.dtype)]


def _input_gradient_t(dx: Any, dy: Any, values: Any, *pattern: Any, **static: Any) -> list[Any]:
    if dy is None:
        return _MULTIPLY.bind(dx, values, *pattern, **static)
    return [None, *_WEIGHT_GRADIENT.bind(dx, dy, *pattern, **static)]


def _weight_gradient(x: Array, dy: Array, *pattern: Array, implementation: str) -> list[Array]:
    return [IMPLEMENTATIONS[implementation].weight_gradient(x, dy, Pattern(*pattern))]


def _weight_gradient_t(dvalues: Any, x: Any, dy: Any, *pattern: Any, **static: Any) -> list[Any]:
    if x is None:
        return _INPUT_GRADIENT.bind(dy, dvalues, *pattern, **static)
    return [None, *_MULTIPLY.bind(x, dvalues, *pattern, **static)]


# --- the derivative of y = x W in both, and its transpose: both gradients in one pass ------------


def _tangent(
    tx: Array, tvalues: Array, x: Array, values: Array, *pattern: Array, **static: Any
) -> list[Array]:
    (by_x,) = _MULTIPLY.bind(tx, values, *pattern, **static)
    (by_values,) = _MULTIPLY.bind(x, tvalues, *pattern, **static)
    return [by_x + by_values]


def _tangent_t(
    dy: Any, tx: Any, tvalues: Any, x: Any, values: Any, *pattern: Any, **static: Any
) -> list[Any]:
    del tx, tvalues  # both are unknown: with one alone the product rule has a single term
    return _GRADIENTS.bind(x, dy, values, *pattern, **static)


def _gradients(
    x: Array, dy: Array, values: Array, *pattern: Array, implementation: str
) -> list[Array]:
    return list(IMPLEMENTATIONS[implementation].both(x, dy, values, Pattern(*pattern)))


def _gradients_apart(
    x: Array, dy: Array, values: Array, *pattern: Array, **static: Any
) -> list[Array]:
    dx = _INPUT_GRADIENT.bind(dy, values, *pattern, **static)
    return [*dx, *_WEIGHT_GRADIENT.bind(x, dy, *pattern, **static)]


_TANGENT = compose("sparse_multiply_tangent", _tangent, _tangent, _tangent_t)
_MULTIPLY = multilinear(
    "sparse_multiply",
    _multiply,
    _multiply_t,
    together=_TANGENT.bind,
    tokens=True,
)
_INPUT_GRADIENT = multilinear(
    "sparse_input_gradient", _input_gradient, _input_gradient_t, tokens=True
)
_WEIGHT_GRADIENT = multilinear("sparse_weight_gradient", _weight_gradient, _weight_gradient_t)
_GRADIENTS = compose("sparse_gradients", _gradients, _gradients_apart)


def multiply(x: Array, values: Array, pattern: Pattern, implementation: str) -> Array:
    """Compute y = x W: [T, K] -> [T, N] in the dtype of ``x``.

    Args:
        x: [T, K].
        values: [nnz] kept values of W.
        pattern: where they lie.
        implementation: key of ``IMPLEMENTATIONS``.
    """
    return _MULTIPLY.bind(x, values, *pattern, implementation=implementation)[0]


# --- the dense gradient that RigL reads ----------------------------------------------------------


def _dense(x: Array, probe: Array) -> list[Array]:
    return [(x.astype(jnp.float32) @ probe.astype(jnp.float32)).astype(x.dtype)]


def _dense_t(dy: Any, x: Any, probe: Any) -> list[Any]:
    if x is None:
        return [(dy.astype(jnp.float32) @ probe.astype(jnp.float32).T).astype(dy.dtype)]
    return [None, _dense_gradient(x, dy)]


_DENSE = multilinear("sparse_probe", _dense, _dense_t, tokens=True)


@jax.custom_jvp
def with_probe(y: Array, x: Array, probe: Array) -> Array:
    """Return ``y`` as if ``x @ probe`` had been added to it: ``probe`` [K, N] holds zeros.

    Its cotangent is the dense gradient of W.
    """
    del x, probe
    return y


def _with_probe_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    y, x, _ = primals
    ty, _, tprobe = tangents
    ty = jnp.zeros_like(y) if isinstance(ty, SymbolicZero) else ty
    if isinstance(tprobe, SymbolicZero):
        return y, ty
    return y, ty + _DENSE.bind(x, tprobe)[0]


with_probe.defjvp(_with_probe_jvp, symbolic_zeros=True)
