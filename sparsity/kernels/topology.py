"""Exact selection and topology change for sparse weights: native, with a pure JAX reference.

Counts are exact and equal scores go to the lowest index in canonical order, so both give the same
bits. Neither recompiles when a schedule changes the counts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from sparsity import selection
from sparsity.kernels import native
from sparsity.kernels.pattern import (
    Pattern,
    check_pattern,
    gather,
    pattern_from_flat,
    to_dense,
    walked,
)

__all__ = ["Regrown", "move_values", "rigl_update", "topk_mask"]


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
    """A weight after a topology change; shapes as before.

    pattern: the new positions
    values: [nnz] as before where the weight was active before, else 0
    others: the other [nnz] arrays (optimizer moments), moved the same way
    """

    pattern: Pattern
    values: Array
    others: tuple[Array, ...]


def rigl_update(
    values: Float[Array, " nnz"],
    pattern: Pattern,
    grow_scores: Float[Array, "K N"],
    keep: Int[Array, ""] | int,
    others: Sequence[Shaped[Array, " nnz"]] = (),
    *,
    grow: Int[Array, ""] | int | None = None,
    implementation: str = "auto",
) -> Regrown:
    """Drop the smallest weights, grow others at the highest scores (RigL, Evci et al. 2020).

    The ``keep`` active weights of largest magnitude stay; ``grow`` positions are added at the
    highest scores among all that did not stay, those just dropped included: a weight that grows
    back at once goes on with its value and moments, as in the vendor's stack. SET is the same
    with random scores. Ties go to the lowest place in canonical order; NaN scores count as +inf.

    Args:
        values: [nnz] kept weights.
        pattern: their positions.
        grow_scores: [K, N], for RigL the absolute dense gradient.
        keep: [] int32, how many active weights stay; may be traced.
        others: further [nnz] arrays that follow their weights.
        grow: [] int32, how many positions grow, at most what ``nnz`` leaves room for; as many as
            were dropped when None.
        implementation: "auto", "native" or "reference".

    Returns:
        The new topology, ``keep + grow`` weights active.

    Raises:
        ValueError: shapes that do not fit, or an unknown implementation.
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
    active = pattern.pointers[-1]
    keep = jnp.clip(jnp.asarray(keep, jnp.int32), 0, active)
    grow = jnp.clip(active - keep if grow is None else grow, 0, pattern.nnz - keep)
    counts = jnp.stack([keep, grow.astype(jnp.int32)])
    scores = grow_scores.astype(jnp.float32)
    if implementation == "native":
        return _update_native(values, pattern, scores, counts, tuple(others))
    return _update_reference(values, pattern, scores, counts, tuple(others))


def _update_native(
    values: Array, pattern: Pattern, scores: Array, counts: Array, others: tuple[Array, ...]
) -> Regrown:
    compressed = pattern[:5]
    results = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in compressed]
    results.append(jax.ShapeDtypeStruct(values.shape, jnp.int32))
    *arrays, source = native.call(
        "wafer_sparse_update_pattern",
        tuple(results),
        values.astype(jnp.float32),
        *compressed[1:],
        scores,
        counts,
    )

    moved = tuple(_taken(leaf, source) for leaf in (values, *others))
    return Regrown(walked(*arrays), moved[0], moved[1:])


def _taken(leaf: Array, source: Array) -> Array:
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
    source = native.call("wafer_sparse_places", result, *old[2:5], *new[2:5])
    return [_taken(leaf, source) for leaf in leaves]


def _update_reference(
    values: Array, pattern: Pattern, scores: Array, counts: Array, others: tuple[Array, ...]
) -> Regrown:
    rows, columns = pattern.shape
    slots = jnp.arange(pattern.nnz)
    size = jnp.where(slots < pattern.pointers[-1], jnp.abs(values.astype(jnp.float32)), -1.0)
    survives = selection.topk_mask(size[None], counts[0])[0]
    stays = to_dense(survives, pattern, False).T.reshape(1, -1)
    lowest = float(jnp.finfo(jnp.float32).min)
    scores = jnp.where(jnp.isnan(scores), jnp.inf, jnp.maximum(scores, lowest)).T.reshape(1, -1)
    grown = selection.topk_mask(jnp.where(stays, -jnp.inf, scores), counts[1])
    mask = (stays | grown).reshape(-1)
    (flat,) = jnp.nonzero(mask, size=pattern.nnz, fill_value=mask.size)
    new = pattern_from_flat(flat.astype(jnp.int32), (rows, columns), validate=False)

    moved = tuple(gather(to_dense(leaf, pattern), new) for leaf in (values, *others))
    return Regrown(new, moved[0], moved[1:])
