"""Exact selection and topology change for sparse weights: native, with a pure JAX reference.

Counts are exact and equal scores go to the lowest index in canonical order, so both give the same
bits. Neither recompiles when a schedule changes the counts.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Shaped

from wafer.sparsity import selection
from wafer.sparsity.kernels import native
from wafer.sparsity.kernels.pattern import (
    Pattern,
    add_walk,
    check_pattern,
    gather,
    pattern_from_flat,
    to_dense,
)


def topk_mask(
    scores: Float[Array, "R n"], k: Int[Array, ""] | Int[Array, " R"] | int
) -> Bool[Array, "R n"]:
    """Mark the k highest scores of each row; among equals the lowest index wins.

    Args:
        scores: [R, n] float; NaN counts as the highest.
        k: how many to keep per row, [] or [R] int32, ``0 <= k <= n``; may be traced.

    Returns:
        [R, n] bool with exactly k true per row; the same bits as ``selection.topk_mask``, which
        serves where there is no native library.

    Raises:
        ValueError: scores that are not two-dimensional.
    """
    if scores.ndim != 2:
        raise ValueError(f"topk_mask: scores have shape {scores.shape}; expected [R, n]")
    if not native.usable():
        return selection.topk_mask(scores, k)
    k = jnp.broadcast_to(jnp.asarray(k, jnp.int32), scores.shape[:1])
    result = jax.ShapeDtypeStruct(scores.shape, jnp.bool_)
    return native.call("wafer_sparse_topk_mask", result, scores.astype(jnp.float32), k)


class Regrown(NamedTuple):
    """A weight after a topology change; shapes as before."""

    pattern: Pattern  #: the new positions
    values: Array  #: [nnz] as before where the weight was active before, else 0
    others: tuple[Array, ...]  #: the other [nnz] arrays (optimizer moments), moved the same way


def rigl_update(
    values: Float[Array, " nnz"],
    pattern: Pattern,
    grow_scores: Float[Array, "K N"],
    keep: Int[Array, ""] | int,
    others: Sequence[Shaped[Array, " nnz"]] = (),
    *,
    grow: Int[Array, ""] | int | None = None,
    groups: int = 1,
    implementation: str = "auto",
) -> Regrown:
    """Drop the smallest weights, grow others at the highest scores (RigL, Evci et al. 2020).

    The ``keep`` active weights of largest magnitude stay; ``grow`` positions are added at the
    highest scores among all that did not stay, those just dropped included: a weight that grows
    back at once goes on with its value and moments. SET is the same with random scores. Ties go to
    the lowest place in canonical order; NaN scores count as +inf.

    Args:
        values: [nnz] kept weights.
        pattern: their positions.
        grow_scores: [K, N], for RigL the absolute dense gradient.
        keep: [] int32, how many active weights stay in each group; may be traced.
        others: further [nnz] arrays that follow their weights.
        grow: [] int32, how many positions grow in each group, at most what ``nnz`` leaves room
            for; as many as were dropped when None.
        groups: equal groups of neighboring outputs, each a competition of its own.
        implementation: "auto", "native" or "reference".

    Returns:
        The new topology, ``keep + grow`` weights active in each group; a group that had fewer than
        ``keep`` active ones grows the rest.

    Raises:
        ValueError: shapes that do not fit, groups that do not divide the outputs, or an unknown
            implementation.
        TypeError: a pattern's wrong dtype.
    """
    check_pattern(pattern, "rigl_update", values, *others)
    if grow_scores.shape != pattern.shape:
        raise ValueError(
            f"rigl_update: scores have shape {grow_scores.shape}; expected {pattern.shape}"
        )
    if implementation not in {"auto", "native", "reference"}:
        raise ValueError(f"rigl_update: {implementation!r}; choose auto, native or reference")
    if implementation == "auto":
        implementation = "native" if native.usable() else "reference"
    if groups < 1 or pattern.shape[1] % groups:
        raise ValueError(f"rigl_update: {groups} groups do not divide {pattern.shape[1]} outputs")
    active = pattern.pointers[-1] // groups
    most = min(pattern.nnz, math.prod(pattern.shape)) // groups
    keep = jnp.clip(jnp.asarray(keep, jnp.int32), 0, most)
    grow = jnp.clip(active - keep if grow is None else grow, 0, most - keep)
    counts = jnp.stack([keep, grow.astype(jnp.int32)])
    scores = grow_scores.astype(jnp.float32)
    update = _update_native if implementation == "native" else _update_reference
    return update((values, *others), pattern, scores, counts, groups)


def _update_native(
    leaves: tuple[Array, ...], pattern: Pattern, scores: Array, counts: Array, groups: int
) -> Regrown:
    compressed = pattern[:3]
    results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in compressed]
    results.append(jax.ShapeDtypeStruct(leaves[0].shape, jnp.int32))
    *arrays, source = native.call(
        "wafer_sparse_update_pattern",
        tuple(results),
        leaves[0].astype(jnp.float32),
        *compressed,
        scores,
        counts,
        groups=np.int64(groups),
    )

    moved = tuple(_take(leaf, source) for leaf in leaves)
    return Regrown(add_walk(*arrays), moved[0], moved[1:])


def _take(leaf: Array, source: Array) -> Array:
    """Take ``leaf[source]``, 0 where the source is -1."""
    if leaf.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):  # float32 may not hold it
        return jnp.where(source < 0, jnp.zeros((), leaf.dtype), leaf[source])
    result = jax.ShapeDtypeStruct(source.shape, jnp.float32)
    return native.call("wafer_sparse_take", result, leaf.astype(jnp.float32), source).astype(
        leaf.dtype
    )


def move_values(leaves: Sequence[Shaped[Array, " nnz"]], old: Pattern, new: Pattern) -> list[Array]:
    """Carry [nnz] arrays from one pattern of a weight to another; 0 at positions that are new.

    Raises:
        ValueError: shapes that do not fit.
    """
    check_pattern(old, "move_values", *leaves)
    check_pattern(new, "move_values")
    if old.shape != new.shape:
        raise ValueError(
            f"move_values: patterns of weights {old.shape} and {new.shape}; expected one shape"
        )
    if not native.usable():
        return [gather(to_dense(leaf, old), new) for leaf in leaves]
    result = jax.ShapeDtypeStruct((new.nnz,), jnp.int32)
    source = native.call("wafer_sparse_places", result, *old[:2], *new[:2])
    return [_take(leaf, source) for leaf in leaves]


def _update_reference(
    leaves: tuple[Array, ...], pattern: Pattern, scores: Array, counts: Array, groups: int
) -> Regrown:
    rows = lambda dense: dense.T.reshape(groups, -1)  # canonical order, cut into groups
    active = jnp.diff(pattern.pointers).reshape(groups, -1).sum(axis=1, dtype=jnp.int32)
    keep = jnp.minimum(counts[0], active)
    size = to_dense(jnp.abs(leaves[0].astype(jnp.float32)), pattern, -1.0)
    stays = selection.topk_mask(rows(size), keep)
    lowest = float(jnp.finfo(jnp.float32).min)
    scores = rows(jnp.where(jnp.isnan(scores), jnp.inf, jnp.maximum(scores, lowest)))
    grown = selection.topk_mask(jnp.where(stays, -jnp.inf, scores), jnp.sum(counts) - keep)
    mask = (stays | grown).reshape(-1)
    (flat,) = jnp.nonzero(mask, size=pattern.nnz, fill_value=mask.size)
    new = pattern_from_flat(flat.astype(jnp.int32), pattern.shape, validate=False)

    moved = tuple(gather(to_dense(leaf, pattern), new) for leaf in leaves)
    return Regrown(new, moved[0], moved[1:])
