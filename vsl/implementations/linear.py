"""JAX primitives of maps that are linear in some operands: derivatives of any order, and vmap.

A foreign call has no derivative, and ``jax.custom_vjp`` has no forward mode. These primitives have
both: the derivative of each map, and its transpose, are maps of the same family.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import PyTree

from wafer.vsl.native.library import manual_axes, vary_together

Fun = Callable[..., list[Any]]
# (cotangent of each result, operands, None where it is linear in an unknown one; static parameters)
# -> cotangents of the first operands
Transpose = Callable[..., Sequence[Any]]


def multilinear(
    name: str,
    fun: Fun,
    *transposes: Transpose,
    together: Fun | None = None,
    tokens: bool = False,
    has_batch_axes: bool = False,
) -> Primitive:
    """Make a primitive that is linear in each of its first operands.

    Args:
        name: in jaxprs.
        fun: arrays and static keywords -> [array]; usable under jit.
        *transposes: for each operand that it is linear in, the cotangent of that one where it is
            unknown, in a list; the other operands have no derivative.
        together: (tangents, primals, **static) -> [tangent], where all of them are perturbed; None
            adds the terms of the product rule.
        tokens: the first operand is [T, ...], and its rows are computed apart: under vmap they
            become more rows. Otherwise a batch is computed one after another.
        has_batch_axes: ``fun`` and ``transposes`` take ``batch_axes=``, how many leading axes of
            every operand are a batch's: vmap adds one.
    """

    def jvp(primals: Sequence[PyTree], tangents: Sequence[PyTree], **static: Hashable) -> PyTree:
        out = primitive.bind(*primals, **static)
        live = [i for i in range(len(transposes)) if not isinstance(tangents[i], ad.Zero)]
        if together is not None and len(live) == len(transposes):
            return out, together(*tangents[: len(live)], *primals, **static)
        terms = [
            primitive.bind(*primals[:i], tangents[i], *primals[i + 1 :], **static)[0] for i in live
        ]
        return out, [functools.reduce(jnp.add, terms)]

    def transpose(cotangent: PyTree, *operands: PyTree, **static: Hashable) -> Sequence[PyTree]:
        unknown = next(i for i, leaf in enumerate(operands) if leaf is None)
        return [*[None] * unknown, *transposes[unknown](cotangent, *operands, **static)]

    primitive = _primitive(name, fun, jvp, tokens=tokens)
    ad.primitive_transposes[primitive] = functools.partial(_transpose_rule, transpose)
    if has_batch_axes:
        rule = functools.partial(_batch_axes_rule, primitive)
        batching.primitive_batchers[primitive] = rule
    return primitive


def compose(name: str, fun: Fun, equivalent: Fun, transpose: Transpose | None = None) -> Primitive:
    """Make a primitive that computes at once what several others compute together.

    Args:
        name: in jaxprs.
        fun: arrays and static keywords -> list of arrays; usable under jit.
        equivalent: the same function, of primitives that have derivatives.
        transpose: the rule where its linear operands are unknown.
    """

    def jvp(primals: Sequence[PyTree], tangents: Sequence[PyTree], **static: Hashable) -> PyTree:
        live = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]

        def at_live(*some: PyTree) -> list[PyTree]:
            full = list(primals)
            for i, leaf in zip(live, some, strict=True):
                full[i] = leaf
            return equivalent(*full, **static)

        return jax.jvp(at_live, [primals[i] for i in live], [tangents[i] for i in live])

    primitive = _primitive(name, fun, jvp, tokens=False)
    if transpose is not None:
        ad.primitive_transposes[primitive] = functools.partial(_transpose_rule, transpose)
    return primitive


def with_tangent(name: str, fun: Fun, tangent: Fun, *, moving: Callable[..., int]) -> Primitive:
    """Make a primitive whose derivative in its first operands is another function's result.

    Args:
        name: in jaxprs.
        fun: arrays and static keywords -> list of arrays; usable under jit.
        tangent: (tangents of the first operands, all operands, **static) -> tangents; of primitives
            that have derivatives, and a transpose in the tangents.
        moving: (**static) -> how many operands have a derivative.
    """

    def jvp(primals: Sequence[PyTree], tangents: Sequence[PyTree], **static: Hashable) -> PyTree:
        given = map(ad.instantiate_zeros, tangents[: moving(**static)])
        return primitive.bind(*primals, **static), tangent(*given, *primals, **static)

    primitive = _primitive(name, fun, jvp, tokens=False)
    return primitive


class _Primitive(Primitive):
    """A primitive whose operands vary over the same axes of a ``shard_map``, like JAX's own."""

    def bind(self, *operands: PyTree, **static: Hashable) -> PyTree:
        return super().bind(*vary_together(operands), **static)


def _typed(like: PyTree, leaf: jax.ShapeDtypeStruct) -> jax.core.ShapedArray:
    if not manual_axes(like):
        return jax.core.ShapedArray(leaf.shape, leaf.dtype)
    sharding = like.sharding.update(spec=jax.P(*[None] * leaf.ndim))
    return like.update(shape=leaf.shape, dtype=leaf.dtype, weak_type=False, sharding=sharding)


def _primitive(name: str, fun: Fun, jvp: Callable[..., PyTree], *, tokens: bool) -> Primitive:
    primitive = _Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(fun)

    def shapes(*avals: PyTree, **static: Hashable) -> list[PyTree]:
        given = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        results = jax.eval_shape(functools.partial(fun, **static), *given)
        return [_typed(avals[0], leaf) for leaf in results]

    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, mlir.lower_fun(fun, multiple_results=True))
    ad.primitive_jvps[primitive] = jvp
    batching.primitive_batchers[primitive] = functools.partial(_batching_rule, primitive, tokens)
    return primitive


def _transpose_rule(
    rule: Transpose, cotangents: Sequence[PyTree], *operands: PyTree, **static: Hashable
) -> list[PyTree]:
    unknown = [ad.is_undefined_primal(leaf) for leaf in operands]
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [
            ad.Zero(leaf.aval) if linear else None
            for leaf, linear in zip(operands, unknown, strict=True)
        ]
    known = [None if linear else leaf for leaf, linear in zip(operands, unknown, strict=True)]
    given = map(ad.instantiate_zeros, cotangents)
    results = itertools.chain(rule(*given, *known, **static), itertools.repeat(None))
    return [
        result.astype(leaf.aval.dtype) if linear else None
        for leaf, linear, result in zip(operands, unknown, results, strict=False)
    ]


def _batch_axes_rule(
    primitive: Primitive, operands: Sequence[PyTree], axes: Sequence[int | None], *, batch_axes: int
) -> tuple[list[PyTree], list[int]]:
    pairs = list(zip(operands, axes, strict=True))
    size = next(leaf.shape[axis] for leaf, axis in pairs if axis is not None)
    batched = [
        jnp.broadcast_to(leaf, (size, *leaf.shape)) if axis is None else jnp.moveaxis(leaf, axis, 0)
        for leaf, axis in pairs
    ]
    results = primitive.bind(*batched, batch_axes=batch_axes + 1)
    return results, [0] * len(results)


def _batching_rule(
    primitive: Primitive,
    tokens: bool,
    operands: Sequence[PyTree],
    axes: Sequence[int | None],
    **static: Hashable,
) -> tuple[list[PyTree], list[int]]:
    front = [
        leaf if axis is None else jnp.moveaxis(leaf, axis, 0)
        for leaf, axis in zip(operands, axes, strict=True)
    ]
    if tokens and all(axis is None for axis in axes[1:]):
        rows, *rest = front
        (out,) = primitive.bind(rows.reshape(-1, *rows.shape[2:]), *rest, **static)
        return [out.reshape(*rows.shape[:2], *out.shape[1:])], [0]

    def one(batched: list[PyTree]) -> list[PyTree]:
        left = iter(batched)
        full = [
            leaf if axis is None else next(left) for leaf, axis in zip(front, axes, strict=True)
        ]
        return primitive.bind(*full, **static)

    chosen = [leaf for leaf, axis in zip(front, axes, strict=True) if axis is not None]
    results = jax.lax.map(one, chosen)
    return results, [0] * len(results)
