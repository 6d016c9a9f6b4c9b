"""Layers of Flax that multiply by kept values: nnx through two arguments, linen in a context."""

import contextlib
import dataclasses
from typing import Any

import jax
from jaxtyping import Array

from sparsity.kernels import SparseWeight

__all__ = ["dot_general", "linen_layers", "promote_dtype"]


def dot_general(x: Array, kernel: Any, dimension_numbers: Any, *args: Any, **options: Any) -> Array:
    """Compute as ``jax.lax.dot_general``, and ``x @ kernel`` where it is a ``SparseWeight``.

    Made for ``nnx.Linear(..., dot_general=, promote_dtype=)``.

    Raises:
        ValueError: other axes than the last of ``x`` and the first of a sparse kernel.
    """
    if not isinstance(kernel, SparseWeight):
        return jax.lax.dot_general(x, kernel, dimension_numbers, *args, **options)
    if dimension_numbers != (((x.ndim - 1,), (0,)), ((), ())):
        raise ValueError(
            f"sparsity.dot_general: dimension numbers {dimension_numbers} with a sparse kernel; "
            "expected the last axis of x and the first of the kernel"
        )
    return x @ kernel


def promote_dtype(arrays: Any, /, *, dtype: Any = None, inexact: bool = True) -> Any:
    """Bring (inputs, kernel, bias) to one dtype as nnx does; a sparse kernel by its values."""
    from flax.nnx.nn import dtypes  # late: Flax is slow to import

    plain = tuple(leaf.values if isinstance(leaf, SparseWeight) else leaf for leaf in arrays)
    return tuple(
        dataclasses.replace(old, values=new) if isinstance(old, SparseWeight) else new
        for old, new in zip(
            arrays, dtypes.promote_dtype(plain, dtype=dtype, inexact=inexact), strict=True
        )
    )


def linen_layers() -> contextlib.AbstractContextManager[Any]:
    """Let ``linen.Dense`` layers that run within take a ``SparseWeight`` as their kernel.

    with sparsity.linen_layers():
        logits = module.apply({"params": sparsifier.attach(ready, sparse)}, tokens)
    """
    from flax import linen

    return linen.intercept_methods(_dense)


def _dense(call: Any, args: Any, keywords: Any, context: Any) -> Any:
    from flax import linen

    layer = context.module
    if type(layer) is not linen.Dense or not layer.has_variable("params", "kernel"):
        return call(*args, **keywords)
    kernel: Any = layer.get_variable("params", "kernel")
    if not isinstance(kernel, SparseWeight):
        return call(*args, **keywords)
    (inputs,) = (*args, *keywords.values())
    bias = layer.get_variable("params", "bias") if layer.use_bias else None
    x, kernel, bias = promote_dtype((inputs, kernel, bias), dtype=layer.dtype)
    y = x @ kernel
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
