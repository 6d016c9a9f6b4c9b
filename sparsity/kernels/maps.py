"""The products of a sparse weight as linear maps: y = x W, dx = dy W^T, dW at kept positions.

Each is linear in both of its arrays, and the derivatives and transposes of each are again among
the three, so that derivatives of any order and direction exist. ``gradients`` is the second and
third in one pass, which is what an ordinary gradient runs. ``products`` are those of several
weights with the same x, which is read once, and their biases.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from wafer.sparsity.kernels import native
from wafer.sparsity.kernels.pattern import Pattern, gather, to_dense
from wafer.vsl.implementations.linear import compose, multilinear, with_tangent

_FIELDS = len(Pattern._fields)
_NO_BIAS = np.zeros((0,), np.float32)


def _sums(leaf: Array) -> np.dtype:
    """Dtype of sums: float32, or float64 for arrays of that."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _dense_gradient(x: Array, dy: Array) -> Array:
    axes = ((0,), (0,)), ((), ())
    return jax.lax.dot_general(x, dy, axes, preferred_element_type=_sums(dy))


class _Masked:
    """Dense products with the weight spread out; the reference, on any device."""

    @staticmethod
    def forward(x: Array, values: Array, pattern: Pattern) -> Array:
        kernel = to_dense(values.astype(_sums(x)), pattern)
        return jnp.matmul(x.astype(_sums(x)), kernel).astype(x.dtype)

    @staticmethod
    def input_gradient(dy: Array, values: Array, pattern: Pattern, dtype: DTypeLike) -> Array:
        kernel = to_dense(values.astype(_sums(dy)), pattern)
        return jnp.matmul(dy.astype(_sums(dy)), kernel.T).astype(dtype)

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
        return _native_products(x, [values], [_NO_BIAS], [pattern])[0]

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
        dx, dvalues, _ = _native_gradients(x, [dy], [values], [_NO_BIAS], [pattern])
        return dx, dvalues


def _native_products(
    x: Array, values: Sequence[PyTree], biases: Sequence[PyTree], patterns: Sequence[Pattern]
) -> list[Array]:
    results = [jax.ShapeDtypeStruct((x.shape[0], p.shape[1]), x.dtype) for p in patterns]
    operands = [
        leaf
        for v, b, p in zip(values, biases, patterns, strict=True)
        for leaf in (v.astype(jnp.float32), b, p.pointers, p.slices, p.offsets)
    ]
    return list(native.call("wafer_sparse_multiply", tuple(results), x, *operands))


def _native_gradients(
    x: Array,
    dys: Sequence[PyTree],
    values: Sequence[PyTree],
    biases: Sequence[PyTree],
    patterns: Sequence[Pattern],
) -> list[Array]:
    """Return dx, then the gradients of each weight's values and bias in turn."""
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    operands: list[Any] = []
    for dy, v, b, p in zip(dys, values, biases, patterns, strict=True):
        results += [jax.ShapeDtypeStruct(leaf.shape, jnp.float32) for leaf in (v, b)]
        operands += [dy, v.astype(jnp.float32), *p[:2], *p[3:]]
    return list(native.call("wafer_sparse_gradients", tuple(results), x, *operands))


IMPLEMENTATIONS: Mapping[str, Any] = {"masked": _Masked, "csr": _Native}


# --- the derivative of y = x W in both, and its transpose: both gradients in one pass ------------


def _tangent(
    tx: Array, tvalues: Array, x: Array, values: Array, *pattern: Array, **static: Hashable
) -> list[Array]:
    (by_x,) = _MULTIPLY.bind(tx, values, *pattern, **static)
    (by_values,) = _MULTIPLY.bind(x, tvalues, *pattern, **static)
    return [by_x + by_values]


_TANGENT = compose(
    "sparse_multiply_tangent",
    _tangent,
    _tangent,
    # Both tangents are unknown: with one alone the product rule has a single term.
    lambda dy, _, __, x, *rest, **static: _GRADIENTS.bind(x, dy, *rest, **static),
)
_GRADIENTS = compose(
    "sparse_gradients",
    lambda x, dy, values, *pattern, implementation: list(
        IMPLEMENTATIONS[implementation].both(x, dy, values, Pattern(*pattern))
    ),
    lambda x, dy, values, *pattern, **static: [
        *_INPUT_GRADIENT.bind(dy, values, *pattern, **static),
        *_WEIGHT_GRADIENT.bind(x, dy, *pattern, **static),
    ],
)


# --- the three maps: (left, right, *pattern) -> [result] ----------------------------------------


_MULTIPLY = multilinear(
    "sparse_multiply",
    lambda x, values, *pattern, implementation: [
        IMPLEMENTATIONS[implementation].forward(x, values, Pattern(*pattern))
    ],
    lambda dy, _, values, *pattern, **static: _INPUT_GRADIENT.bind(dy, values, *pattern, **static),
    lambda dy, x, _, *pattern, **static: _WEIGHT_GRADIENT.bind(x, dy, *pattern, **static),
    together=_TANGENT.bind,
    tokens=True,
)
_INPUT_GRADIENT = multilinear(
    "sparse_input_gradient",
    lambda dy, values, *pattern, implementation: [
        IMPLEMENTATIONS[implementation].input_gradient(dy, values, Pattern(*pattern), dy.dtype)
    ],
    lambda dx, _, values, *pattern, **static: _MULTIPLY.bind(dx, values, *pattern, **static),
    lambda dx, dy, _, *pattern, **static: _WEIGHT_GRADIENT.bind(dx, dy, *pattern, **static),
    tokens=True,
)
_WEIGHT_GRADIENT = multilinear(
    "sparse_weight_gradient",
    lambda x, dy, *pattern, implementation: [
        IMPLEMENTATIONS[implementation].weight_gradient(x, dy, Pattern(*pattern))
    ],
    lambda dw, _, dy, *pattern, **static: _INPUT_GRADIENT.bind(dy, dw, *pattern, **static),
    lambda dw, x, _, *pattern, **static: _MULTIPLY.bind(x, dw, *pattern, **static),
)


def multiply(x: Array, values: Array, pattern: Pattern, implementation: str) -> Array:
    """Compute y = x W: [T, K] -> [T, N] in the dtype of ``x``.

    Args:
        x: [T, K].
        values: [nnz] kept values of W.
        pattern: where they lie.
        implementation: key of ``IMPLEMENTATIONS``.
    """
    return _MULTIPLY.bind(x, values, *pattern, implementation=implementation)[0]


# --- native products of x with several weights: (x, *values, *biases, *patterns) -> results ------


def _parts(leaves: Sequence[PyTree], count: int) -> list[Sequence[PyTree]]:
    return [leaves[i : i + count] for i in range(0, len(leaves), count)]


def _patterns(leaves: Sequence[PyTree]) -> list[Pattern]:
    return [Pattern(*leaf) for leaf in _parts(leaves, _FIELDS)]


def _products(x: Array, *leaves: Array, count: int) -> list[Array]:
    values, biases = _parts(leaves[: 2 * count], count)
    return _native_products(x, values, biases, _patterns(leaves[2 * count :]))


def _products_tangent(*leaves: Array, count: int) -> list[Array]:
    moving = 1 + 2 * count
    (tx, *tangents), (x, *primals) = leaves[:moving], leaves[moving : 2 * moving]
    results = []
    for i, pattern in enumerate(_patterns(leaves[2 * moving :])):
        operands = tx, tangents[i], x, primals[i], *pattern
        (ty,) = _TANGENT.bind(*operands, implementation="csr")
        bias = tangents[count + i]
        results.append(ty + bias.astype(ty.dtype)[None] if bias.size else ty)
    return results


def _products_tangent_t(*leaves: PyTree, count: int) -> list[PyTree]:
    dys, (x, *rest) = leaves[:count], leaves[count + 1 + 2 * count :]
    dx, *gradients = _PRODUCTS_GRADIENTS.bind(x, *dys, *rest, count=count)
    return [dx, *gradients[::2], *gradients[1::2]]


def _products_gradients(x: Array, *leaves: Array, count: int) -> list[Array]:
    dys, values, biases = _parts(leaves[: 3 * count], count)
    return _native_gradients(x, dys, values, biases, _patterns(leaves[3 * count :]))


def _products_gradients_apart(x: Array, *leaves: Array, count: int) -> list[Array]:
    dys, values, biases = _parts(leaves[: 3 * count], count)
    dx, gradients = jnp.zeros_like(x), []
    for dy, v, b, p in zip(dys, values, biases, _patterns(leaves[3 * count :]), strict=True):
        one, dvalues = _GRADIENTS.bind(x, dy, v, *p, implementation="csr")
        dx += one
        gradients += [dvalues, dy.astype(jnp.float32).sum(0) if b.size else b]
    return [dx, *gradients]


_PRODUCTS_GRADIENTS = compose(
    "sparse_products_gradients", _products_gradients, _products_gradients_apart
)
_PRODUCTS_TANGENT = compose(
    "sparse_products_tangent", _products_tangent, _products_tangent, _products_tangent_t
)
_PRODUCTS = with_tangent(
    "sparse_products", _products, _PRODUCTS_TANGENT.bind, moving=lambda count: 1 + 2 * count
)


def products(
    x: Array, values: Sequence[Array], biases: Sequence[Array | None], patterns: Sequence[Pattern]
) -> list[Array]:
    """Compute y = x W + bias for several weights by the native kernels: [T, K] -> [[T, N], ...].

    Args:
        x: [T, K] float32 or bfloat16.
        values: [nnz] of each weight.
        biases: [N] of each weight, or None.
        patterns: of each weight.

    Returns:
        One array for each weight, in the dtype of x.
    """
    ready = [jnp.asarray(_NO_BIAS if b is None else b, jnp.float32) for b in biases]
    leaves = [leaf for pattern in patterns for leaf in pattern]
    return _PRODUCTS.bind(x, *values, *ready, *leaves, count=len(values))


# --- the dense gradient that RigL reads ----------------------------------------------------------


_DENSE = multilinear(
    "sparse_probe",
    lambda x, probe: [(x.astype(_sums(x)) @ probe.astype(_sums(x))).astype(x.dtype)],
    lambda dy, _, probe: [(dy.astype(_sums(dy)) @ probe.astype(_sums(dy)).T).astype(dy.dtype)],
    lambda dy, x, _: [_dense_gradient(x, dy)],
    tokens=True,
)


@jax.custom_jvp
def with_probe(y: Array, x: Array, probe: Array) -> Array:
    """Return ``y`` as if ``x @ probe`` had been added to it: ``probe`` [K, N] holds zeros.

    Its cotangent is the dense gradient of W.
    """
    del x, probe
    return y


def _with_probe_jvp(primals: PyTree, tangents: PyTree) -> tuple[Array, Array]:
    y, x, _ = primals
    ty, _, tprobe = tangents
    ty = jnp.zeros_like(y) if isinstance(ty, SymbolicZero) else ty
    if isinstance(tprobe, SymbolicZero):
        return y, ty
    return y, ty + _DENSE.bind(x, tprobe)[0]


with_probe.defjvp(_with_probe_jvp, symbolic_zeros=True)
