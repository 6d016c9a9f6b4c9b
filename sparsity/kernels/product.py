"""y = x W for a W of kept values, with zeros that cost nothing.

The gradients are those of ``maps``: dx by the walk of W, dW at kept positions only.
Sums run in float32; y and dx have the dtype of x, dW that of the values. ``x @ weight``
first brings x to the dtype that JAX promotes both to.
"""

import dataclasses
import math
import typing
from collections.abc import Sequence
from typing import Literal, NoReturn

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array

from wafer.sparsity.kernels import maps, native
from wafer.sparsity.kernels.pattern import Pattern, check_pattern, to_dense
from wafer.vsl.layout import AnyArray

_NO_ARRAY = (
    "a sparse weight in csr storage is no array: it computes `x @ weight`, x [..., in] and the "
    "weight [in, out]. Let nnx.Linear take it with dot_general=sparsity.dot_general and "
    "promote_dtype=sparsity.promote_dtype, nn.Dense within `with sparsity.linen_layers():`; for "
    "equinox and other layers write `compute: masked`; cast and scale values before `attach`; "
    "weight.dense() is the array"
)
Implementation = Literal["auto", "masked", "csr"]
_NATIVE_TYPES = (jnp.float32, jnp.bfloat16)


def sparse_dot(
    x: Array, weight: "SparseWeight", *, implementation: Implementation = "auto"
) -> Array:
    """Multiply tokens by a sparse weight.

    Args:
        x: [..., K] floats.
        weight: of dense shape (K, N).
        implementation: "csr" walks kept values only (native, CPU); "masked" spreads them to a
            dense matrix (pure JAX, any device); "auto" is "csr" where the native kernels take x.

    Returns:
        [..., N] in the dtype of ``x``, accumulated in float32.

    Raises:
        ValueError: shapes that do not fit, or an unknown implementation.
        TypeError: x or values that are no floats, "csr" with x of a dtype other than float32 and
            bfloat16, or a pattern's wrong dtype.
        RuntimeError: "csr" where the native library is not built; the message says how to.
    """
    values, pattern = weight.values, weight.pattern
    chosen = _choose(x, weight, implementation)
    tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    probe = weight.probe
    if probe is not None and probe.shape != pattern.shape:
        raise ValueError(f"sparse_dot: probe {probe.shape}; expected zeros of {pattern.shape}")
    y = maps.multiply(tokens, values, pattern, chosen)
    if probe is not None:
        y = maps.with_probe(y, tokens, probe)
    return y.reshape(*x.shape[:-1], pattern.shape[1])


def promoted_dot(x: Array, weight: "SparseWeight", dtype: DTypeLike) -> Array:
    """Compute x W in a dtype other than that of x; a complex product is two of reals.

    Args:
        x: [..., K] of any numbers.
        weight: of dense shape (K, N).
        dtype: float or complex.

    Returns:
        [..., N] of ``dtype``.
    """
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return weight.project(x.astype(dtype))
    real = jnp.finfo(dtype).dtype
    return jax.lax.complex(*(promoted_dot(part, weight, real) for part in (x.real, x.imag)))


def _choose(x: Array, weight: "SparseWeight", implementation: Implementation) -> str:
    """Check a product, and say what computes it."""
    check_pattern(weight.pattern, "sparse_dot", weight.values)
    rows, columns = weight.pattern.shape
    if x.ndim < 1 or x.shape[-1] != rows:
        raise ValueError(
            f"sparse_dot: x has shape {x.shape}, the weight is {rows} x {columns}; the last axis "
            f"of x must be {rows}"
        )
    for what, leaf in (("x is", x), ("values are", weight.values)):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"sparse_dot: {what} {leaf.dtype}; expected floats. `x @ weight` promotes x of "
                "other numbers; for complex weights write `compute: masked`"
            )
    chosen: str = implementation
    if chosen == "auto":
        chosen = "csr" if x.dtype in _NATIVE_TYPES and native.usable() else "masked"
    if chosen not in maps.IMPLEMENTATIONS:
        raise ValueError(
            f"sparse_dot: implementation {implementation!r}; choose auto, masked or csr"
        )
    if chosen == "csr" and x.dtype not in _NATIVE_TYPES:
        raise TypeError(f"sparse_dot: csr takes float32 and bfloat16, x is {x.dtype}; use 'masked'")
    return chosen


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseWeight:
    """A [K, N] kernel stored as its kept values.

    ``x @ weight`` multiplies by it; ``wafer.models.layers.basic.project(x, kernel)`` takes it in
    place of an array.

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
        """Compute ``x @ self`` in the dtype that JAX promotes x and the values to."""
        x = jnp.asarray(x)
        return promoted_dot(x, self, jnp.result_type(x, self.values))

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        """Refuse what arrays do: zeros would be multiplied, or only kept values changed.

        ``self @ x``, too: equinox and torch store [out, in], this is an [in, out] kernel.
        """
        raise TypeError(_NO_ARRAY)

    __array__ = __matmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __abs__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __float__ = _refuse

    def __getitem__(self, key: object) -> "SparseWeight":
        """Return the weight itself for ``[...]``, as nnx layers read their parameters."""
        if key is not Ellipsis:
            raise TypeError(_NO_ARRAY)
        return self

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what arrays have, such as ``T`` and ``astype``."""
        raise AttributeError(f"{name}: {_NO_ARRAY}", name=name, obj=self)

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.pattern.shape

    def project(self, x: Array) -> Array:
        """Compute x W: [..., K] -> [..., N], in the dtype of ``x``."""
        return sparse_dot(x, self, implementation=self.implementation)

    def project_all(
        self, x: Array, weights: Sequence["SparseWeight"], biases: Sequence[Array | None]
    ) -> list[Array]:
        """Compute x W + bias for several weights, this one among them; native products read x once.

        Args:
            x: [..., K].
            weights: of K inputs each.
            biases: [N] of each weight, or None.
        """
        chosen = [_choose(x, weight, weight.implementation) for weight in weights]
        if {*chosen} != {"csr"} or any(weight.probe is not None for weight in weights):
            ys = [weight.project(x) for weight in weights]
            pairs = zip(ys, biases, strict=True)
            return [y if bias is None else y + bias.astype(y.dtype) for y, bias in pairs]
        tokens = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        values, patterns = [w.values for w in weights], [w.pattern for w in weights]
        ys = maps.products(tokens, values, biases, patterns)
        return [y.reshape(*x.shape[:-1], y.shape[-1]) for y in ys]

    def dense(self) -> Array:
        """Return the dense [K, N] weight, 0 where pruned."""
        return to_dense(self.values, self.pattern)
