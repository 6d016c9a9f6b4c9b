"""y = x W for a W of kept values, with zeros that cost nothing.

The derivative is written by hand: dx from the transposed pattern, dW at kept positions only.
Sums run in float32; y and dx have the dtype of x, dW that of the values.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jax.typing import DTypeLike
from jaxtyping import Array

from sparsity.kernels import native
from sparsity.kernels.pattern import Pattern, check_pattern, gather, to_dense
from vsl.layout import AnyArray

__all__ = ["SparseWeight", "sparse_dot"]

Implementation = Literal["auto", "masked", "csr"]
_NATIVE_TYPES = (jnp.float32, jnp.bfloat16)


def sparse_dot(
    x: Array, weight: "SparseWeight", *, implementation: Implementation = "auto"
) -> Array:
    """Multiply tokens by a sparse weight.

    Args:
        x: [..., K] float32 or bfloat16.
        weight: of dense shape (K, N).
        implementation: "csr" walks kept values only (native, CPU); "masked" spreads them to a
            dense matrix (pure JAX, any device); "auto" is "csr" where the native kernels take x.

    Returns:
        [..., N] in the dtype of ``x``, accumulated in float32.

    Raises:
        ValueError: shapes that do not fit, or an unknown implementation.
        TypeError: "csr" with a dtype other than float32 and bfloat16, or a pattern's wrong dtype.
        RuntimeError: "csr" where the native library is not built; the message says how to.
    """
    values, pattern = weight.values, weight.pattern
    check_pattern(pattern, "sparse_dot", values)
    rows, columns = pattern.shape
    if x.ndim < 1 or x.shape[-1] != rows:
        raise ValueError(
            f"sparse_dot: x has shape {x.shape}, the weight is {rows} x {columns}; the last axis "
            f"of x must be {rows}"
        )
    tokens = x.reshape(math.prod(x.shape[:-1]), rows)
    chosen: str = implementation
    if chosen == "auto":
        chosen = "csr" if x.dtype in _NATIVE_TYPES and native.usable() else "masked"
    if chosen not in _IMPLEMENTATIONS:
        raise ValueError(
            f"sparse_dot: implementation {implementation!r}; choose auto, masked or csr"
        )
    if chosen == "csr" and x.dtype not in _NATIVE_TYPES:
        raise TypeError(f"sparse_dot: csr takes float32 and bfloat16, x is {x.dtype}; use 'masked'")
    probe = weight.probe
    if probe is not None and probe.shape != pattern.shape:
        raise ValueError(f"sparse_dot: probe {probe.shape}; expected zeros of {pattern.shape}")
    y = _product(tokens, values, probe, pattern, chosen)
    return y.reshape(*x.shape[:-1], columns)


class _Saved(NamedTuple):
    x: Array
    values: Array
    probe: Array | None
    pattern: Pattern
    needs: "_Needs"


@jax.tree_util.register_static
class _Needs(tuple[bool, bool, bool]):
    """Which of x, values and probe are differentiated; static."""

    __slots__ = ()


def _forward(
    x: Array, values: Array, probe: Array | None, pattern: Pattern, implementation: str
) -> Array:
    del probe
    return _IMPLEMENTATIONS[implementation].forward(x, values, pattern)


_product = jax.custom_vjp(_forward, nondiff_argnums=(4,))


def _product_fwd(
    x: CustomVJPPrimal,
    values: CustomVJPPrimal,
    probe: CustomVJPPrimal | None,
    pattern: Any,
    implementation: str,
) -> tuple[Array, _Saved]:
    plain = jax.tree.map(
        lambda p: p.value, pattern, is_leaf=lambda leaf: isinstance(leaf, CustomVJPPrimal)
    )
    needs = _Needs((x.perturbed, values.perturbed, probe is not None and probe.perturbed))
    y = _forward(x.value, values.value, None, plain, implementation)
    return y, _Saved(x.value, values.value, None if probe is None else probe.value, plain, needs)


def _product_bwd(implementation: str, saved: _Saved, dy: Any) -> tuple[Any, Any, Any, None]:
    x, values, probe, pattern, needs = saved
    if isinstance(dy, SymbolicZero):
        return None, None, None, None
    dy = dy.astype(x.dtype)
    kernels = _IMPLEMENTATIONS[implementation]
    dx = dvalues = dprobe = None
    if needs[0] and needs[1]:
        dx, dvalues = kernels.both(x, dy, values, pattern)
    elif needs[0]:
        dx = kernels.input_gradient(dy, values, pattern, x.dtype)
    elif needs[1]:
        dvalues = kernels.weight_gradient(x, dy, pattern)
    if dvalues is not None:
        dvalues = dvalues.astype(values.dtype)
    if needs[2] and probe is not None:
        dprobe = _dense_gradient(x, dy).astype(probe.dtype)
    return dx, dvalues, dprobe, None


_product.defvjp(_product_fwd, _product_bwd, symbolic_zeros=True)


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
        return native.call(
            "wafer_sparse_multiply", result, x, values, pattern.slices, pattern.offsets
        )

    @staticmethod
    def input_gradient(dy: Array, values: Array, pattern: Pattern, dtype: DTypeLike) -> Array:
        result = jax.ShapeDtypeStruct((dy.shape[0], pattern.shape[0]), dtype)
        transposed = pattern.order, pattern.t_slices, pattern.t_offsets
        values = values.astype(jnp.float32)
        return native.call("wafer_sparse_input_gradient", result, dy, values, *transposed)

    @staticmethod
    def weight_gradient(x: Array, dy: Array, pattern: Pattern) -> Array:
        result = jax.ShapeDtypeStruct((pattern.nnz,), jnp.float32)
        return native.call(
            "wafer_sparse_weight_gradient", result, x, dy, pattern.slices, pattern.offsets
        )

    @staticmethod
    def both(x: Array, dy: Array, values: Array, pattern: Pattern) -> tuple[Array, Array]:
        result = (
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct(values.shape, jnp.float32),
        )
        values = values.astype(jnp.float32)
        return native.call("wafer_sparse_gradients", result, x, dy, values, *pattern[4:])


_IMPLEMENTATIONS: Mapping[str, Any] = {"masked": _Masked, "csr": _Native}


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseWeight:
    """A [K, N] kernel stored as its kept values.

    ``x @ weight`` multiplies by it; ``models.layers.basic.project(x, kernel)`` takes it in place of
    an array.

    Attributes:
        values: [nnz] kept weights in canonical order (by n, then k).
        pattern: where they lie.
        probe: [K, N] zeros, or None. With it, the cotangent of ``probe`` is the dense gradient
            dW, which RigL reads at its update steps; without it dW is computed at kept positions
            only.
        implementation: static; "auto", "masked" or "csr", see ``sparse_dot``.
    """

    values: Array
    pattern: Pattern
    probe: Array | None = None
    implementation: Implementation = dataclasses.field(default="auto", metadata={"static": True})

    __array_ufunc__ = None  # NumPy leaves ``x @ weight`` to us

    def __rmatmul__(self, x: AnyArray) -> Array:
        """Compute ``x @ self``, as ``project`` does."""
        return self.project(jnp.asarray(x))

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.pattern.shape

    def project(self, x: Array) -> Array:
        """Compute x W: [..., K] -> [..., N], in the dtype of ``x``."""
        return sparse_dot(x, self, implementation=self.implementation)

    def dense(self) -> Array:
        """Return the dense [K, N] weight, 0 where pruned."""
        return to_dense(self.values, self.pattern)
