"""Layers of Flax that multiply by kept values: nnx through two arguments, linen in a context."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer.sparsity.kernels import SparseWeight
from wafer.sparsity.kernels.product import promoted_dot


def dot_general(
    x: Array,
    kernel: Array | SparseWeight,
    dimension_numbers: jax.lax.DotDimensionNumbers,
    *args: Any,
    **options: Any,
) -> Array:
    """Compute as ``jax.lax.dot_general``, also where the kernel is a ``SparseWeight``.

    Made for ``nnx.Linear(..., dot_general=, promote_dtype=)``. Dtypes, ``preferred_element_type``
    among them, are those of ``jax.lax.dot_general``; sums of a sparse kernel run in float32 at any
    ``precision``.

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
    like = jax.ShapeDtypeStruct(kernel.shape, kernel.values.dtype)
    product = lambda x, like: jax.lax.dot_general(x, like, dimension_numbers, *args, **options)
    dtype = jax.eval_shape(product, x, like).dtype
    x = x if jnp.issubdtype(dtype, jnp.complexfloating) else jnp.real(x)  # of a real kernel
    return promoted_dot(x, kernel, jnp.result_type(x, kernel.values, dtype)).astype(dtype)


def promote_dtype(
    arrays: Sequence[Array | SparseWeight | None],
    /,
    *,
    dtype: Any = None,
    inexact: bool = True,
) -> tuple[PyTree, ...]:
    """Bring (inputs, kernel, bias) to one dtype as nnx does; a sparse kernel by its values."""
    from flax.nnx.nn import dtypes  # late: Flax is slow to import

    plain = tuple(leaf.values if isinstance(leaf, SparseWeight) else leaf for leaf in arrays)
    return tuple(
        dataclasses.replace(old, values=new) if isinstance(old, SparseWeight) else new
        for old, new in zip(
            arrays, dtypes.promote_dtype(plain, dtype=dtype, inexact=inexact), strict=True
        )
    )


def linen_layers() -> contextlib.AbstractContextManager[object]:
    """Let ``linen.Dense`` layers that run within take a ``SparseWeight`` as their kernel.

    Other layers that are given one raise a ``TypeError`` with their path, and so does a ``Dense``
    with a ``dot_general``, ``dot_general_cls`` or ``promote_dtype`` of its own.

    with sparsity.linen_layers():
        logits = module.apply({"params": sparsifier.attach(ready, sparse)}, tokens)
    """
    from flax import linen

    return linen.intercept_methods(_dense)


def _refuse_options(layer: Any) -> None:
    """Name a function of the layer that would not be called."""
    for field in dataclasses.fields(layer):
        own = getattr(layer, field.name) not in (field.default, dot_general)
        if own and field.name in ("dot_general", "dot_general_cls", "promote_dtype"):
            raise TypeError(
                f"sparsity.linen_layers: Dense {'/'.join(layer.path)!r} has its own {field.name}, "
                "and its kernel is stored as csr; expected none. Leave it out of the csr group, or "
                "write `compute: masked`"
            )


def _dense(
    call: Callable[..., PyTree], args: tuple[PyTree, ...], keywords: dict[str, PyTree], context: Any
) -> PyTree:
    from flax import errors, linen

    layer = context.module
    if type(layer) is not linen.Dense or not layer.has_variable("params", "kernel"):
        try:
            return call(*args, **keywords)
        except errors.ScopeParamShapeError as error:
            leaves = layer.variables["params"]
            sparse = [name for name, p in leaves.items() if isinstance(p, SparseWeight)]
            if not sparse:
                raise
            raise TypeError(  # a parameter has the shape of kept values
                f"sparsity.linen_layers: {type(layer).__name__} {'/'.join(layer.path)!r} reads "
                f"{sparse[0]!r} as an array, and it is stored as csr; expected linen.Dense. Leave "
                "it out of the csr group, or write `compute: masked`"
            ) from error
    kernel: Any = layer.get_variable("params", "kernel")
    if not isinstance(kernel, SparseWeight):
        return call(*args, **keywords)
    _refuse_options(layer)
    (inputs,) = (*args, *keywords.values())
    bias = layer.get_variable("params", "bias") if layer.use_bias else None
    x, kernel, bias = promote_dtype((inputs, kernel, bias), dtype=layer.dtype)
    y = x @ kernel
    return y if bias is None else y + bias.reshape((1,) * (y.ndim - 1) + (-1,))
