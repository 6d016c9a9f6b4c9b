"""Inside a program that runs on all systems (``shard_map``, axis 'csx'): micro-batches in turn.

Arrays that are shared out lead with [N systems, A micro-batches]; a system sees its own share,
[1, A, ...], and takes the micro-batches one after the other.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree


def local_shard(tree: PyTree) -> PyTree:
    """Drop the axis of systems in this system's share."""
    return jax.tree.map(lambda x: x[0], tree)


def add_axis(tree: PyTree) -> PyTree:
    """Put an axis of one in front."""
    return jax.tree.map(lambda x: x[None], tree)


def sum_over_systems(tree: PyTree) -> PyTree:
    """Add up what each system has; XLA copies all of it where there is one."""
    return tree if jax.lax.axis_size("csx") == 1 else jax.lax.psum(tree, "csx")


def num_micro_batches(items: PyTree) -> int:
    """A, of arrays [A, ...]."""
    return jax.tree.leaves(items)[0].shape[0]


def scan_micro_batches(
    micro: Callable[[PyTree], tuple[PyTree, PyTree]], items: PyTree
) -> tuple[PyTree, PyTree]:
    """Run ``micro(item) -> (to add up, to stack)`` over the micro-batches; one costs no loop.

    Several are one loop from zeros on: XLA would compute one outside of it beside the first inside,
    and keep the arrays of both.
    """
    if num_micro_batches(items) == 1:
        total, first = micro(local_shard(items))
        return total, add_axis(first)

    def body(total: PyTree, item: PyTree) -> tuple[PyTree, PyTree]:
        addend, stacked = micro(item)
        return jax.tree.map(jnp.add, total, addend), stacked

    shapes, _ = jax.eval_shape(micro, local_shard(items))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(body, zeros, items)
