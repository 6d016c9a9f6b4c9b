"""What a stage's forward pass keeps, so that its backward pass need not compute it again.

Forward and backward pass of a stage are two programs, and between them other stages run. The
backward pass gets the weights and the input again; what it lacks are the results in between. Kept
are those of products with weights, which cost the most; the others are cheap to compute from
them. Never kept are weights: they are arguments, which the backward pass fetches again.

The mechanism is JAX's own: a function under ``jax.checkpoint`` says what its pullback needs
(``opaque_residuals``), and a pullback made elsewhere takes them in place of its own. What would
have computed those is then dead code, which XLA removes.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

Compute = Callable[[Any, Any, Any], Any]  # (weights, carry, rest) -> the next carry
# Native and sparse products with weights; a norm, native or not, is computed again
_PRODUCTS = ("ffi_call", "sparse_multiply", "sparse_products")


def split(carry: PyTree) -> tuple[list[PyTree], list[PyTree], Callable[[PyTree, PyTree], PyTree]]:
    """Separate a carry into float leaves, which have gradients, and others.

    Returns:
        (float leaves, other leaves, the function that puts the two together).
    """
    leaves, tree = jax.tree.flatten(carry)
    is_float = [jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves]

    def join(floats: Iterable[PyTree], others: Iterable[PyTree]) -> PyTree:
        a, b = iter(floats), iter(others)
        return tree.unflatten(next(a) if kind else next(b) for kind in is_float)

    floats = [leaf for leaf, kind in zip(leaves, is_float, strict=True) if kind]
    return floats, [leaf for leaf, kind in zip(leaves, is_float, strict=True) if not kind], join


def run(
    compute: Compute, weights: PyTree, carry: PyTree, rest: PyTree
) -> tuple[PyTree, list[PyTree]]:
    """Compute a stage; returns (the next carry, what ``pull_back`` need not compute again).

    Args:
        compute: the stage.
        weights: differentiated by ``pull_back``.
        carry: the input; its float leaves are, too.
        rest: further arrays that it reads, without gradients.
    """
    after, pullback = _differentiate(compute, weights, carry, rest, keep=True)
    return after, pullback.opaque_residuals


def pull_back(
    compute: Compute,
    weights: PyTree,
    carry: PyTree,
    rest: PyTree,
    cotangent: PyTree,
    *,
    kept: PyTree = None,
) -> tuple[PyTree, list[PyTree]]:
    """Return (gradients of the weights, cotangents of the carry's float leaves).

    Args:
        compute: the stage.
        weights: as in the forward pass.
        carry: the input, as in the forward pass.
        rest: further arguments, as in the forward pass.
        cotangent: of the next carry's float leaves.
        kept: from ``run`` of the same stage; None computes the stage again.
    """
    _, pullback = _differentiate(compute, weights, carry, rest, keep=kept is not None)
    if kept is not None:
        pullback.opaque_residuals = list(kept)
    gradients, carry_cotangent, _ = pullback(cotangent)
    return gradients, carry_cotangent


def fitting(sizes: list[int], budget: int) -> list[bool]:
    """Choose the stages whose products stay: the last ones, which are needed first.

    Args:
        sizes: bytes that each stage would keep.
        budget: bytes for all of them.

    >>> fitting([4, 1, 3, 2], 6)
    [False, True, True, True]
    """
    keep = [False] * len(sizes)
    for i in reversed(range(len(sizes))):
        budget -= sizes[i]
        if budget < 0:
            break
        keep[i] = True
    return keep


def _differentiate(
    compute: Compute, weights: PyTree, carry: PyTree, rest: PyTree, *, keep: bool
) -> tuple[PyTree, PyTree]:
    """Return (the next carry, its pullback)."""
    floats, others, join = split(carry)
    rejoin: Any = None

    def leaves(weights: PyTree, floats: PyTree, given: PyTree) -> tuple[PyTree, PyTree]:
        nonlocal rejoin  # how the next carry is put together shows when it is traced
        others, rest = given
        after, after_others, rejoin = split(compute(weights, join(floats, others), rest))
        return after, after_others

    if keep:
        leaves = jax.checkpoint(leaves, policy=_is_product, prevent_cse=False)
    # All that is read is an argument: what a function closes over would be kept.
    out: Any = jax.vjp(leaves, weights, floats, (others, rest), has_aux=True)
    after, pullback, after_others = out
    return rejoin(after, after_others), pullback


def _is_product(primitive: Any, *_: object, **params: PyTree) -> bool:
    """Whether an operation is a product with weights: no batch axes, or one of ``_PRODUCTS``."""
    if primitive.name == "dot_general":
        _, (lhs_batch, rhs_batch) = params["dimension_numbers"]
        return not lhs_batch and not rhs_batch
    return primitive.name in _PRODUCTS
