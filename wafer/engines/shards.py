"""Sharded state: every array in N parts over the systems, and layers that gather their weights.

Weights, gradients and optimizer state lie in parts, one on each system (ZeRO stage 3: Rajbhandari
et al. 2020, arXiv:1910.02054). A layer gathers its weights when it computes, in the forward pass
and again in the backward pass; the transpose of the gather adds gradients up and leaves each
system its part (reduce-scatter). The optimizer updates parts, as XLA partitions it.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec as P
from jaxtyping import Array, PyTree

from wafer.engines.microbatches import sum_over_systems
from wafer.engines.stagewise import residuals
from wafer.models.base import Batch, DropKey, Model, StageFn
from wafer.models.paths import named_leaves

COPIED = -1  # in place of an axis: all of the array is on every system
_LEAST = 1024  # elements; a collective costs more time than smaller arrays take memory


def split_axis(leaf: Any, parts: int) -> int:
    """Return the axis along which an array is split: the first that ``parts`` divides.

    The first, since parts along another axis are transposed when they are put together.

    Args:
        leaf: array or its shape and dtype.
        parts: number of systems; 1 copies everything.

    Returns:
        The axis, or ``COPIED`` where there is none or the array is small.
    """
    if parts == 1 or math.prod(leaf.shape) < _LEAST:
        return COPIED
    fits = (axis for axis, length in enumerate(leaf.shape) if length % parts == 0)
    return next(fits, COPIED)


def spec_of(leaf: Any, parts: int) -> P:
    """Return where the parts of an array lie on a mesh with the axis 'csx'."""
    axis = split_axis(leaf, parts)
    return P() if axis == COPIED else P(*[None] * axis, "csx")


def auto_mesh(mesh: Mesh) -> Mesh:
    """Return the same mesh for programs of whole arrays, which XLA partitions."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def copied_bytes(tree: PyTree, parts: int) -> tuple[int, int]:
    """Return (bytes of all arrays, bytes of those that every system holds whole)."""
    size = lambda leaf: math.prod(leaf.shape) * leaf.dtype.itemsize
    leaves = jax.tree.leaves(tree)
    copied = [leaf for leaf in leaves if split_axis(leaf, parts) == COPIED]
    return sum(map(size, leaves)), sum(map(size, copied))


def transposed_bytes(tree: PyTree, parts: int) -> int:
    """Return the bytes of the arrays that are split along another axis than their first."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if split_axis(leaf, parts) > 0]
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def unsplit(tree: PyTree, parts: int) -> list[str]:
    """Name the arrays that every system holds whole although they are not small."""
    whole = lambda leaf: math.prod(leaf.shape) >= _LEAST and split_axis(leaf, parts) == COPIED
    return [name for name, leaf in named_leaves(tree) if whole(leaf)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ShardedArray:
    """This system's part of a weight, inside ``shard_map``; stages of ``gathering`` take it."""

    part: Array  #: [...] one of N
    axis: int = dataclasses.field(metadata={"static": True})  #: that is split


def mark(tree: PyTree, axes: PyTree) -> PyTree:
    """Make a ``ShardedArray`` of every part; arrays whose axis is ``COPIED`` stay.

    Args:
        tree: parts of arrays, inside ``shard_map``.
        axes: of the same structure, from ``split_axis`` of the whole arrays.
    """
    return jax.tree.map(lambda x, axis: x if axis == COPIED else ShardedArray(x, axis), tree, axes)


def gathering(model: Model) -> Model:
    """Return a model whose stages take ``ShardedArray`` and gather them when they compute.

    The backward pass gathers the weights again; it is given the stage's products with weights.
    """
    kinds = {
        kind: (roles, functools.partial(_gathered, function))
        for kind, (roles, function) in model.kinds.items()
    }
    return dataclasses.replace(model, kinds=kinds)


def _gathered(
    function: StageFn, params: PyTree, carry: PyTree, batch: Batch, key: DropKey
) -> PyTree:
    def compute(params: PyTree, carry: PyTree, rest: tuple[Batch, DropKey]) -> PyTree:
        return function(_whole(params), carry, *rest)

    @jax.custom_vjp
    def run(params: PyTree, carry: PyTree, rest: PyTree) -> PyTree:
        return compute(_after(_inputs(carry, rest), params), carry, rest)

    def forward(params: PyTree, carry: PyTree, rest: PyTree) -> tuple[PyTree, PyTree]:
        after, kept = residuals.run(compute, _after(_inputs(carry, rest), params), carry, rest)
        return after, (params, carry, rest, kept)

    def backward(saved: PyTree, cotangent: PyTree) -> tuple[PyTree, PyTree, None]:
        params, carry, rest, kept = saved
        floats = [x for x in jax.tree.leaves(cotangent) if x.dtype != jax.dtypes.float0]
        parts = _after(floats, params)
        grads, own = residuals.pull_back(compute, parts, carry, rest, floats, kept=kept)
        _, others, join = residuals.split(carry)
        none = [np.zeros(x.shape, jax.dtypes.float0) for x in others]
        return grads, join(own, none), None

    run.defvjp(forward, backward)
    return run(params, carry, (batch, key))


def _inputs(carry: PyTree, rest: tuple[Batch, DropKey]) -> list[Array]:
    """List what a stage's weights wait for: float arrays of its carry, else arrays of the batch."""
    return residuals.split(carry)[0] or jax.tree.leaves(rest[0])


def _after(computed: list[Array], params: PyTree) -> PyTree:
    """Make parts wait for arrays, by a condition on all of them that never holds.

    XLA would gather the weights of all layers before the first one, or before the loop over
    micro-batches, or keep them from the forward pass to the backward pass; it removes
    ``optimization_barrier`` on a CPU before it looks.
    """
    ones = [leaf[(0,) * leaf.ndim] for leaf in computed]
    never = functools.reduce(jnp.logical_or, [(one < 0) & (one > 0) for one in ones])
    wait = lambda part: jnp.where(never, jnp.zeros((), part.dtype), part)
    return _map_shards(lambda node: ShardedArray(wait(node.part), node.axis), params)


def _whole(params: PyTree) -> PyTree:
    return _map_shards(lambda node: _gather(node.part, node.axis), params)


def _gather(part: Array, axis: int) -> Array:
    """Join all parts. A tiled gather of XLA along a later axis turns single elements."""
    parts = jnp.moveaxis(jax.lax.all_gather(part, "csx"), 0, axis)
    return parts.reshape(*part.shape[:axis], -1, *part.shape[axis + 1 :])


def _map_shards(fn: Callable[[ShardedArray], PyTree], tree: PyTree) -> PyTree:
    is_shard = lambda node: isinstance(node, ShardedArray)
    return jax.tree.map(lambda x: fn(x) if is_shard(x) else x, tree, is_leaf=is_shard)


def sum_copied(tree: PyTree, axes: PyTree) -> PyTree:
    """Add up over the systems what is copied; parts are sums already, by reduce-scatter.

    Args:
        tree: inside ``shard_map``.
        axes: of its first leaves; those after them are copied.
    """
    leaves, structure = jax.tree.flatten(tree)
    known = jax.tree.leaves(axes)
    known += [COPIED] * (len(leaves) - len(known))
    copied = [leaf for leaf, axis in zip(leaves, known, strict=True) if axis == COPIED]
    sums = iter(sum_over_systems(copied))
    return structure.unflatten(
        next(sums) if axis == COPIED else leaf for leaf, axis in zip(leaves, known, strict=True)
    )
