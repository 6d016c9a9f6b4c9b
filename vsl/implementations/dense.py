"""Attention with the whole score matrix in memory: the reference, and the stock padded form."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from wafer.vsl.implementations.scores import (
    QKV,
    Learned,
    Rule,
    ScorePair,
    keep_factor,
    tile_scores,
    visible,
)


def dense(rule: Rule, qkv: QKV, learned: Learned, pair: ScorePair) -> Float[Array, "T K G H"]:
    """Compute attention with a [T, S] score matrix per head; float32 inside.

    Args:
        rule: static settings.
        qkv: queries, keys and values.
        learned: slopes and biases.
        pair: the queries' and the keys' stream.

    Returns:
        The heads' outputs; 0 where a query sees nothing.
    """
    q, k, v = qkv
    raw = jnp.einsum("tkgh,skh->kgts", q, k, preferred_element_type=jnp.float32)
    bias = None
    if rule.bias is not None:
        bias = rule.bias(pair.queries.position, pair.keys.position).reshape(raw.shape)
    scores = tile_scores(rule, raw, learned, bias, pair)
    p = jnp.where(visible(rule, pair), jax.nn.softmax(scores, axis=-1), 0.0)
    heads = jnp.arange(q.shape[1] * q.shape[2]).reshape(q.shape[1:3])
    keep = keep_factor(rule, heads, pair)
    if keep is not None:
        p *= keep
    # In this order the product reads values as they are; any other would turn them first.
    out = jnp.einsum("kgts,skh->kgth", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return jnp.moveaxis(out, 2, 0).astype(q.dtype)


def padded(
    rule: Rule, qkv: QKV, learned: Learned, pair: ScorePair, batch: int
) -> Float[Array, "T K G H"]:
    """The same per row of a padded batch: [B, S, S] scores, what stock models compute.

    Args:
        rule: static settings.
        qkv: B rows, flattened.
        learned: slopes.
        pair: the flattened stream's queries and keys.
        batch: static B.
    """
    rows = jax.tree.map(lambda x: x.reshape(batch, -1, *x.shape[1:]), (qkv, pair))
    out = jax.vmap(lambda qkv, pair: dense(rule, qkv, learned, pair))(*rows)
    return out.reshape(qkv.q.shape)
