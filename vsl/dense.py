"""Attention with the whole score matrix in memory: the reference, and the stock padded form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vsl.scores import Learned, Rule, Side, keep_factor, tile_scores, visible

__all__ = ["dense", "padded"]


def dense(
    rule: Rule,
    q: Float[Array, "T K G H"],
    k: Float[Array, "S K H"],
    v: Float[Array, "S K H"],
    learned: Learned,
    queries: Side,
    keys: Side,
) -> Float[Array, "T K G H"]:
    """Softmax over a [T, S] score matrix per head; float32 inside; 0 where nothing is seen."""
    raw = jnp.einsum("tkgh,skh->kgts", q, k, preferred_element_type=jnp.float32)
    bias = None
    if rule.bias is not None:
        bias = rule.bias(queries.position, keys.position).reshape(raw.shape)
    scores = tile_scores(rule, raw, learned, bias, queries, keys)
    p = jnp.where(visible(rule, queries, keys), jax.nn.softmax(scores, axis=-1), 0.0)
    heads = jnp.arange(q.shape[1] * q.shape[2]).reshape(q.shape[1:3])
    keep = keep_factor(rule, heads, queries, keys)
    if keep is not None:
        p *= keep
    out = jnp.einsum("kgts,skh->tkgh", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return out.astype(q.dtype)


def padded(
    rule: Rule,
    q: Float[Array, "T K G H"],
    k: Float[Array, "S K H"],
    v: Float[Array, "S K H"],
    learned: Learned,
    queries: Side,
    keys: Side,
    batch: int,
) -> Float[Array, "T K G H"]:
    """The same per row of a padded batch: [B, S, S] scores, what stock models compute.

    Args:
        rule: static settings.
        q: queries of B rows, flattened.
        k: keys of B rows, flattened.
        v: values of B rows, flattened.
        learned: slopes.
        queries: the whole stream's queries.
        keys: the whole stream's keys.
        batch: static B.
    """

    def rows(x: Array) -> Array:
        return x.reshape(batch, -1, *x.shape[1:])

    def row(q: Array, k: Array, v: Array, queries: Side, keys: Side) -> Array:
        return dense(rule, q, k, v, learned, queries, keys)

    queries, keys = jax.tree.map(rows, (queries, keys))
    out = jax.vmap(row)(rows(q), rows(k), rows(v), queries, keys)
    return out.reshape(q.shape)
