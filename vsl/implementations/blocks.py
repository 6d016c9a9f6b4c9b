"""Attention over the (query block, key block) pairs that exist.

Per block of queries the visible keys lie in one contiguous range of key blocks; a loop of dynamic
length runs over that range with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022),
inside one executable of static shape. The backward pass recomputes the scores and produces dq, dk
and dv in one sweep. Work and memory follow the real tokens.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, PyTree

from wafer.vsl.implementations.intervals import BlockSizes, Keys, block_ranges
from wafer.vsl.implementations.scores import (
    HIDDEN,
    QKV,
    KeySide,
    Learned,
    QuerySide,
    Rule,
    ScorePair,
    keep_factor,
    tile_scores,
)

_FLOOR = -1e20
"""First running maximum: above HIDDEN, so that a hidden key has probability exp(-huge) = 0."""

TileBias = Callable[[tuple[Array, ...], tuple[Array, ...], Array, Array], Array]
"""(float consts, other consts, query positions, key positions) -> bias [N, q, k]."""


class _Plan(NamedTuple):
    """Static description of one call; hashable."""

    rule: Rule
    sizes: BlockSizes
    tile_bias: TileBias | None


class _Tables(NamedTuple):
    """Integer inputs, cut into blocks."""

    queries: QuerySide  #: fields [I, q]
    keys: KeySide  #: fields [J, k]
    first: Array  #: first, last: [I] int32 key blocks each query block visits
    last: Array
    heads: Array  #: [K, G] int32 head numbers, for dropout
    consts: tuple[Array, ...]  #: arrays a tile bias reads and that have no gradient


def _cut(x: Array, size: int) -> Array:
    return x.reshape(-1, size, *x.shape[1:])


def _pad(x: Array, size: int, fill: int | float = 0) -> Array:
    extra = -x.shape[0] % size
    return jnp.pad(x, ((0, extra),) + ((0, 0),) * (x.ndim - 1), constant_values=fill)


def _take(tree: PyTree, i: Array) -> PyTree:
    return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, 0, keepdims=False), tree)


def _band(window: Float[Array, "K G E"], sizes: BlockSizes) -> Float[Array, "K G q k"]:
    """Spread a bias by distance, [.., q + k], over a tile whose diagonals are constant.

    Row i of the tile is ``window[q - 1 - i:][:k]``. Repeating the window with a row stride one
    shorter than its length shifts each row by one; no gather, and the transpose is a plain sum.
    """
    length = sizes.q + sizes.k
    lead = window.shape[:-1]
    flat = jnp.broadcast_to(window[..., None, :], (*lead, sizes.q, length))
    flat = flat.reshape(*lead, sizes.q * length)[..., : sizes.q * (length - 1)]
    rows = flat.reshape(*lead, sizes.q, length - 1)
    return rows[..., sizes.q - 1 : sizes.q - 1 + sizes.k]


def _band_start(plan: _Plan, tables: _Tables, i: Array, j: Array) -> Array:
    """Where the tile's window begins in the profile, which starts at distance -(I * q)."""
    total = tables.first.shape[0] * plan.sizes.q
    return j * plan.sizes.k - i * plan.sizes.q - (plan.sizes.q - 1) + total


def _local(plan: _Plan, tables: _Tables, learned: Learned, i: Array, j: Array) -> Learned:
    """The learned values one tile reads; the profile is narrowed to the tile's window."""
    if learned.profile is None:
        return learned
    start = _band_start(plan, tables, i, j)
    width = plan.sizes.q + plan.sizes.k
    window = jax.lax.dynamic_slice_in_dim(learned.profile, start, width, axis=2)
    return learned._replace(profile=window)


def _tile(
    plan: _Plan,
    raw: Array,
    local: Learned,
    pair: ScorePair,
    consts: tuple[Array, ...],
) -> Float[Array, "K G q k"]:
    bias = None
    if local.profile is not None:
        bias = _band(local.profile, plan.sizes)
    elif plan.tile_bias is not None:
        bias = plan.tile_bias(local.consts, consts, pair.queries.position, pair.keys.position)
        bias = bias.reshape(raw.shape)
    return tile_scores(plan.rule, raw, local, bias, pair)


def _products(q: Float[Array, "K G q H"], k: Float[Array, "K k H"]) -> Float32[Array, "K G q k"]:
    """One product per key head."""
    heads, group, size, width = q.shape
    raw = jax.lax.dot_general(
        q.reshape(heads, group * size, width),
        k,
        (((2,), (2,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
    )
    return raw.reshape(heads, group, size, k.shape[1])


def _apply(p: Float[Array, "K G q k"], v: Float[Array, "K k H"]) -> Float32[Array, "K G q H"]:
    heads, group, size, width = p.shape
    out = jax.lax.dot_general(
        p.reshape(heads, group * size, width).astype(v.dtype),
        v,
        (((2,), (1,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
    )
    return out.reshape(heads, group, size, v.shape[2])


def _reduce(p: Float[Array, "K G q k"], x: Float[Array, "K G q H"]) -> Float32[Array, "K k H"]:
    """Sum over the group and queries."""
    heads, group, size, width = p.shape
    return jax.lax.dot_general(
        p.reshape(heads, group * size, width).astype(x.dtype),
        x.reshape(heads, group * size, x.shape[3]),
        (((1,), (1,)), ((0,), (0,))),
        preferred_element_type=jnp.float32,
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: _Plan, qkv: QKV, learned: Learned, tables: _Tables) -> Array:
    return _forward(plan, qkv, learned, tables)[0]


def _forward(
    plan: _Plan, qkv: QKV, learned: Learned, tables: _Tables
) -> tuple[Float[Array, "I K G q H"], Float[Array, "I K G q"]]:
    """Output and log-sum-exp, from q [I, K, G, q, H], k and v [J, K, k, H]."""
    q, k, v = qkv

    def query_block(i: Array) -> tuple[Array, Array]:
        q_i, queries = _take((q, tables.queries), i)

        def key_block(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            top, total, acc = carry
            k_j, v_j, keys = _take((k, v, tables.keys), j)
            pair = ScorePair(queries, keys)
            local = _local(plan, tables, learned, i, j)
            s = _tile(plan, _products(q_i, k_j), local, pair, tables.consts)
            new_top = jnp.maximum(top, jnp.max(s, axis=-1))
            p = jnp.exp(s - new_top[..., None])
            shrink = jnp.exp(top - new_top)
            total = total * shrink + jnp.sum(p, axis=-1)
            keep = keep_factor(plan.rule, tables.heads, pair)
            p = p if keep is None else p * keep
            return new_top, total, acc * shrink[..., None] + _apply(p, v_j)

        start = (
            jnp.full(q_i.shape[:-1], _FLOOR, jnp.float32),
            jnp.zeros(q_i.shape[:-1], jnp.float32),
            jnp.zeros(q_i.shape, jnp.float32),
        )
        top, total, acc = jax.lax.fori_loop(tables.first[i], tables.last[i], key_block, start)
        attends = total > 0
        total = jnp.where(attends, total, 1.0)
        # A row that sees nothing: output 0, and exp(s - lse) = 0 in the backward pass.
        lse = jnp.where(attends, top + jnp.log(total), -HIDDEN)
        return (acc / total[..., None]).astype(q.dtype), lse

    return jax.lax.map(query_block, jnp.arange(q.shape[0]))


def _attend_fwd(
    plan: _Plan, qkv: QKV, learned: Learned, tables: _Tables
) -> tuple[Array, tuple[PyTree, ...]]:
    out, lse = _forward(plan, qkv, learned, tables)
    return out, (qkv, learned, tables, out, lse)


def _attend_bwd(plan: _Plan, residuals: tuple[PyTree, ...], d_out: Array) -> tuple[PyTree, ...]:
    (q, k, v), learned, tables, out, lse = residuals
    delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)

    def query_block(carry: PyTree, i: Array) -> tuple[PyTree, Array]:
        q_i, queries, do_i, lse_i, delta_i = _take((q, tables.queries, d_out, lse, delta), i)

        def key_block(j: Array, carry: PyTree) -> PyTree:
            dq_i, dk, dv, d_learned = carry
            k_j, v_j, keys = _take((k, v, tables.keys), j)
            pair = ScorePair(queries, keys)
            local = _local(plan, tables, learned, i, j)
            score = functools.partial(_tile, plan, pair=pair, consts=tables.consts)
            s, pull = jax.vjp(score, _products(q_i, k_j), local)
            p = jnp.exp(s - lse_i[..., None])
            dp = _products(do_i, v_j)
            keep = keep_factor(plan.rule, tables.heads, pair)
            if keep is not None:
                dp *= keep
            d_raw, d_local = pull(p * (dp - delta_i[..., None]))
            used = p if keep is None else p * keep
            dk = dk.at[j].add(_reduce(d_raw, q_i))
            dv = dv.at[j].add(_reduce(used, do_i))
            start = _band_start(plan, tables, i, j)
            d_learned = _accumulate(d_learned, d_local, start)
            return dq_i + _apply(d_raw, k_j), dk, dv, d_learned

        start = (jnp.zeros(q_i.shape, jnp.float32), *carry)
        dq_i, *carry = jax.lax.fori_loop(tables.first[i], tables.last[i], key_block, start)
        return tuple(carry), dq_i.astype(q.dtype)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), (k, v, learned))
    (dk, dv, d_learned), dq = jax.lax.scan(query_block, zeros, jnp.arange(q.shape[0]))
    d_learned = jax.tree.map(lambda d, x: d.astype(x.dtype), d_learned, learned)
    return QKV(dq, dk.astype(k.dtype), dv.astype(v.dtype)), d_learned, None


def _accumulate(total: Learned, tile: Learned, start: Array) -> Learned:
    """Add one tile's gradient of the learned values to the running sum."""
    profile = total.profile
    if profile is not None and tile.profile is not None:
        width = tile.profile.shape[2]
        old = jax.lax.dynamic_slice_in_dim(profile, start, width, axis=2)
        profile = jax.lax.dynamic_update_slice_in_dim(profile, old + tile.profile, start, axis=2)
    total, tile = total._replace(profile=None), tile._replace(profile=None)
    return jax.tree.map(jnp.add, total, tile)._replace(profile=profile)


_attend.defvjp(_attend_fwd, _attend_bwd)


def blocks(
    rule: Rule,
    qkv: QKV,
    learned: Learned,
    pair: ScorePair,
    *,
    sizes: BlockSizes,
    tile_bias: TileBias | None = None,
    consts: tuple[Array, ...] = (),
) -> Float[Array, "T K G H"]:
    """Run attention block by block; reverse-mode differentiable, no forward mode.

    Args:
        rule: static settings; its ``bias`` is not read here.
        qkv: queries, keys and values.
        learned: slopes; ``profile`` [N, 2 * padded T + k] bias by ``key slot - query slot``, from
            minus the padded T on; or the constants of ``tile_bias``.
        pair: the stream's queries and keys.
        sizes: tile sizes.
        tile_bias: a bias that is no function of the distance.
        consts: arrays [...] that it reads and that have no gradient.
    """
    length, heads, group, width = qkv.q.shape
    q = _cut(_pad(qkv.q, sizes.q), sizes.q).transpose(0, 2, 3, 1, 4)
    k = _cut(_pad(qkv.k, sizes.k), sizes.k).transpose(0, 2, 1, 3)
    v = _cut(_pad(qkv.v, sizes.k), sizes.k).transpose(0, 2, 1, 3)
    if learned.profile is not None:
        learned = learned._replace(profile=learned.profile.reshape(heads, group, -1))
    tables = _tables(rule, pair, sizes, consts)
    tables = tables._replace(heads=jnp.arange(heads * group).reshape(heads, group))
    out: Any = _attend(_Plan(rule, sizes, tile_bias), QKV(q, k, v), learned, tables)
    return jnp.transpose(out, (0, 3, 1, 2, 4)).reshape(-1, heads, group, width)[:length]


def _tables(rule: Rule, pair: ScorePair, sizes: BlockSizes, consts: tuple[Array, ...]) -> _Tables:
    # A padded query slot has low = high = 0: it sees nothing.
    queries = jax.tree.map(lambda x: _pad(x, sizes.q), pair.queries)
    first, last = block_ranges(
        Keys(queries.low, queries.high, queries.sink), sizes, sinks=rule.sink_tokens > 0
    )
    position = _pad(pair.keys.position, sizes.k)
    slot = jnp.arange(position.shape[0], dtype=jnp.int32)
    return _Tables(
        queries=jax.tree.map(lambda x: _cut(x, sizes.q), queries),
        keys=KeySide(_cut(position, sizes.k), _cut(slot, sizes.k)),
        first=first,
        last=last,
        heads=jnp.zeros((0,), jnp.int32),
        consts=consts,
    )
