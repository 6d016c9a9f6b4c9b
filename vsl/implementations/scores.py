"""What happens to a tile of attention scores between the two matrix products.

One definition serves every implementation: scale, soft cap, ALiBi, additive bias, visibility,
dropout of probabilities. Letters: K key heads, G query heads per key head (N = K * G), q and k
the queries and keys of a tile.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from wafer.vsl.bias import BiasFn
from wafer.vsl.noise import hash_bits, keep_threshold

HIDDEN = -1e30
"""Score of a hidden key; finite, because inf - inf is NaN in a row that sees nothing."""


@dataclasses.dataclass(frozen=True)
class Rule:
    """The static part of an attention call."""

    scale: float
    softcap: float | None = None
    sink_tokens: int = 0
    dropout_rate: float = 0.0
    bias: BiasFn | None = None


class Learned(NamedTuple):
    """The differentiable part of an attention call besides q, k, v; None where unused."""

    slopes: Array | None = None  #: [N] float32 ALiBi slopes
    #: [N, E] float32 bias by stream distance, read by the block kernel only
    profile: Array | None = None
    consts: tuple[Array, ...] = ()  #: float arrays a bias function closes over


class QKV(NamedTuple):
    """Queries [T, K, G, H], keys [S, K, H] and values [S, K, H], or blocks of them."""

    q: Array
    k: Array
    v: Array


class QuerySide(NamedTuple):
    """What a tile knows about its queries."""

    position: Array  #: [q] int32 position inside the sequence
    low: Array  #: low, high, sink: [q] int32, see :class:`wafer.vsl.implementations.intervals.Keys`
    high: Array
    sink: Array
    #: [q] uint32 state of the dropout bits, absorbed up to the query; None without dropout
    noise: Array | None = None


class KeySide(NamedTuple):
    """What a tile knows about its keys."""

    position: Array  #: [k] int32 position inside the sequence
    slot: Array  #: [k] int32 index in the stream


class ScorePair(NamedTuple):
    """Queries and keys of one tile, or of a whole stream."""

    queries: QuerySide
    keys: KeySide


def visible(rule: Rule, pair: ScorePair) -> Bool[Array, "q k"]:
    """Which keys of the tile each query sees."""
    queries = pair.queries
    slot = pair.keys.slot[None, :]
    high = queries.high[:, None]
    mask = (slot >= queries.low[:, None]) & (slot < high)
    if rule.sink_tokens:
        sink = queries.sink[:, None]
        mask |= (slot >= sink) & (slot < jnp.minimum(sink + rule.sink_tokens, high))
    return mask


def tile_scores(
    rule: Rule,
    raw: Float[Array, "K G q k"],
    learned: Learned,
    bias: Float[Array, "K G q k"] | None,
    pair: ScorePair,
) -> Float[Array, "K G q k"]:
    """Turn dot products into scores; hidden pairs get :data:`HIDDEN`.

    The soft cap is applied to the scaled products before any bias is added, as in Gemma 2.

    Args:
        rule: static settings.
        raw: float32 dot products of queries and keys.
        learned: slopes are read here.
        bias: additive bias of the tile, already looked up.
        pair: the tile's queries and keys.
    """
    scores = raw * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * jnp.tanh(scores / rule.softcap)
    if learned.slopes is not None:
        distance = jnp.abs(pair.queries.position[:, None] - pair.keys.position[None, :])
        slopes = learned.slopes.reshape(*raw.shape[:2], 1, 1)
        scores -= slopes * distance.astype(jnp.float32)[None, None]
    if bias is not None:
        scores += bias
    return jnp.where(visible(rule, pair)[None, None], scores, HIDDEN)


def keep_factor(rule: Rule, heads: Int[Array, "K G"], pair: ScorePair) -> Array | None:
    """Return the dropout factor of the probabilities.

    Args:
        rule: static settings, with the rate.
        heads: number of each head.
        pair: the queries' and the keys' stream, with the noise.

    Returns:
        [K, G, q, k] of 0 and 1 / (1 - rate); None without dropout.
    """
    if rule.dropout_rate == 0.0:
        return None
    assert pair.queries.noise is not None
    per_query = hash_bits(pair.queries.noise[None, None, :], heads[:, :, None])
    bits = hash_bits(per_query[..., None], pair.keys.position[None, None, None, :])
    keep = bits < jnp.uint32(keep_threshold(rule.dropout_rate))
    return jnp.where(keep, jnp.float32(1.0 / (1.0 - rule.dropout_rate)), jnp.float32(0.0))
