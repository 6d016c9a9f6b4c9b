"""Block-range attention as Pallas kernels for GPUs, by way of Triton.

The same loops as ``blocks``, one program per (query block, head) forward and for dq, one per
(key block, key head) for dk and dv, so that no two programs write the same place. Masks, window,
soft cap and ALiBi are computed in registers; additive biases and dropout are left to the other
implementations. Letters as there: N query heads, K key heads, I and J blocks.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, PyTree

from wafer.vsl.implementations.intervals import BlockSizes, Keys, block_ranges
from wafer.vsl.implementations.scores import (
    HIDDEN,
    QKV,
    KeySide,
    Learned,
    QuerySide,
    Rule,
    ScorePair,
    visible,
)

_FLOOR = -1e20


class _Call(NamedTuple):
    """Static description of one call."""

    rule: Rule
    sizes: BlockSizes
    group: int
    interpret: bool


class _Tables(NamedTuple):
    """Integer inputs."""

    position: Array  #: position, low, high, sink: [T] int32 per query
    low: Array
    high: Array
    sink: Array
    key_position: Array  #: [S] int32
    first: Array  #: first, last: [I] int32 key blocks each query block visits
    last: Array
    q_first: Array  #: q_first, q_last: [J] int32 query blocks that visit each key block
    q_last: Array


def _scores(call: _Call, q: Array, k: Array, slope: Array, pair: ScorePair) -> tuple[Array, Array]:
    """Masked scores of a tile [q, k], and the derivative of the soft cap."""
    raw = plgpu.dot(q, k, trans_b=True, allow_tf32=False) * call.rule.scale
    slack = jnp.ones_like(raw)
    if call.rule.softcap is not None:
        # tanh by exp: Triton has no tanh of its own.
        squashed = 1.0 - 2.0 / (jnp.exp(2.0 / call.rule.softcap * raw) + 1.0)
        raw, slack = call.rule.softcap * squashed, 1.0 - squashed * squashed
    distance = jnp.abs(pair.queries.position[:, None] - pair.keys.position[None, :])
    raw -= slope * distance.astype(jnp.float32)
    return jnp.where(visible(call.rule, pair), raw, HIDDEN), slack


def _queries(t: _Tables, rows: Any) -> QuerySide:
    return QuerySide(t.position[rows], t.low[rows], t.high[rows], t.sink[rows])


def _keys(t: _Tables, j: Array, size: int) -> KeySide:
    columns = pl.ds(j * size, size)
    return KeySide(t.key_position[columns], j * size + jnp.arange(size, dtype=jnp.int32))


def _forward_kernel(call: _Call, *refs: Any) -> None:
    q_ref, k_ref, v_ref, slope_ref, *tables, out_ref, lse_ref = refs
    t = _Tables(*tables)
    i, (bq, bk) = pl.program_id(0), call.sizes
    q, queries, slope = q_ref[...], _queries(t, pl.ds(i * bq, bq)), slope_ref[0]

    def step(j: Array, carry: PyTree) -> PyTree:
        top, total, acc = carry
        columns = pl.ds(j * bk, bk)
        pair = ScorePair(queries, _keys(t, j, bk))
        s, _ = _scores(call, q, k_ref[columns, :], slope, pair)
        new_top = jnp.maximum(top, s.max(axis=1))
        p, shrink = jnp.exp(s - new_top[:, None]), jnp.exp(top - new_top)
        v = v_ref[columns, :]
        acc = acc * shrink[:, None] + plgpu.dot(p.astype(v.dtype), v, allow_tf32=False)
        return new_top, total * shrink + p.sum(axis=1), acc

    start = (
        jnp.full((bq,), _FLOOR, jnp.float32),
        jnp.zeros((bq,), jnp.float32),
        jnp.zeros(q.shape, jnp.float32),
    )
    top, total, acc = jax.lax.fori_loop(t.first[i], t.last[i], step, start)
    attends = total > 0
    total = jnp.where(attends, total, 1.0)
    out_ref[...] = (acc / total[:, None]).astype(out_ref.dtype)
    lse_ref[...] = jnp.where(attends, top + jnp.log(total), -HIDDEN)


def _query_kernel(call: _Call, *refs: Any) -> None:
    """dq, and each program's share of the slope's gradient."""
    q_ref, k_ref, v_ref, slope_ref, *tables, do_ref, lse_ref, delta_ref, dq_ref, ds_ref = refs
    t = _Tables(*tables)
    i, (bq, bk) = pl.program_id(0), call.sizes
    q, do, queries = q_ref[...], do_ref[...], _queries(t, pl.ds(i * bq, bq))
    lse, delta, slope = lse_ref[...], delta_ref[...], slope_ref[0]

    def step(j: Array, carry: PyTree) -> PyTree:
        dq, d_slope = carry
        columns = pl.ds(j * bk, bk)
        keys = _keys(t, j, bk)
        k = k_ref[columns, :]
        s, slack = _scores(call, q, k, slope, ScorePair(queries, keys))
        dp = plgpu.dot(do, v_ref[columns, :], trans_b=True, allow_tf32=False)
        ds = jnp.exp(s - lse[:, None]) * (dp - delta[:, None])
        distance = jnp.abs(queries.position[:, None] - keys.position[None, :])
        d_slope -= (ds * distance.astype(jnp.float32)).sum(axis=1)
        d_raw = (ds * slack * call.rule.scale).astype(k.dtype)
        return dq + plgpu.dot(d_raw, k, allow_tf32=False), d_slope

    start = (jnp.zeros(q.shape, jnp.float32), jnp.zeros((bq,), jnp.float32))
    dq, d_slope = jax.lax.fori_loop(t.first[i], t.last[i], step, start)
    dq_ref[...] = dq.astype(dq_ref.dtype)
    ds_ref[...] = d_slope


def _key_kernel(call: _Call, *refs: Any) -> None:
    """Dk and dv, summed over the query heads of a group."""
    q_ref, k_ref, v_ref, slope_ref, *tables, do_ref, lse_ref, delta_ref, dk_ref, dv_ref = refs
    t = _Tables(*tables)
    j, (bq, bk) = pl.program_id(0), call.sizes
    k, v, keys = k_ref[...], v_ref[...], _keys(t, j, bk)

    def step(i: Array, carry: PyTree, head: int) -> PyTree:
        dk, dv = carry
        rows = pl.ds(i * bq, bq)
        q, do = q_ref[head, rows, :], do_ref[head, rows, :]
        s, slack = _scores(call, q, k, slope_ref[head], ScorePair(_queries(t, rows), keys))
        p = jnp.exp(s - lse_ref[head, rows][:, None])
        dp = plgpu.dot(do, v, trans_b=True, allow_tf32=False)
        d_raw = p * (dp - delta_ref[head, rows][:, None]) * slack * call.rule.scale
        dv += plgpu.dot(p.astype(do.dtype), do, trans_a=True, allow_tf32=False)
        return dk + plgpu.dot(d_raw.astype(q.dtype), q, trans_a=True, allow_tf32=False), dv

    carry = (jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32))
    for head in range(call.group):
        one = functools.partial(step, head=head)
        carry = jax.lax.fori_loop(t.q_first[j], t.q_last[j], one, carry)
    dk_ref[...] = carry[0].astype(dk_ref.dtype)
    dv_ref[...] = carry[1].astype(dv_ref.dtype)


def _whole(x: Array) -> pl.BlockSpec:
    return pl.BlockSpec(x.shape, lambda *_: (0,) * x.ndim)


def _run(call: _Call, kernel: Callable[..., None], **blocks: Any) -> Callable[..., PyTree]:
    return pl.pallas_call(
        functools.partial(kernel, call),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=call.interpret,
        **blocks,
    )


def _over_queries(
    call: _Call, kernel: Callable[..., None], qkv: QKV, slopes: Array, tables: _Tables, *more: Array
) -> tuple[Array, Array]:
    """Run programs (query block, head): an array like q, and a float32 per query and head.

    ``more`` is what the backward pass reads as well: d_out, lse, delta.
    """
    q, bq, group = qkv.q, call.sizes.q, call.group
    block = pl.BlockSpec((None, bq, q.shape[2]), lambda i, n: (n, i, 0))
    row = pl.BlockSpec((None, bq), lambda i, n: (n, i))
    keys = pl.BlockSpec((None, *qkv.k.shape[1:]), lambda i, n: (n // group, 0, 0))
    slope = pl.BlockSpec((1,), lambda i, n: (n,))
    run = _run(
        call,
        kernel,
        grid=(q.shape[1] // bq, q.shape[0]),
        in_specs=[block, keys, keys, slope, *map(_whole, tables), *(block, row, row)[: len(more)]],
        out_specs=[block, row],
        out_shape=[
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct(q.shape[:2], jnp.float32),
        ],
    )
    return run(*qkv, slopes, *tables, *more)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, qkv: QKV, slopes: Array, tables: _Tables) -> Array:
    return _attend_fwd(call, qkv, slopes, tables)[0]


def _attend_fwd(call: _Call, qkv: QKV, slopes: Array, tables: _Tables) -> tuple[Array, PyTree]:
    out, lse = _over_queries(call, _forward_kernel, qkv, slopes, tables)
    return out, (qkv, slopes, tables, out, lse)


def _attend_bwd(call: _Call, residuals: PyTree, d_out: Array) -> tuple[QKV, Array, None]:
    qkv, slopes, tables, out, lse = residuals
    q, k, v = qkv
    delta = jnp.sum(out.astype(jnp.float32) * d_out.astype(jnp.float32), axis=-1)
    more = (d_out, lse, delta)
    dq, d_slope = _over_queries(call, _query_kernel, qkv, slopes, tables, *more)
    group = call.group
    heads = pl.BlockSpec((group, *q.shape[1:]), lambda j, n: (n, 0, 0))
    lines = pl.BlockSpec((group, q.shape[1]), lambda j, n: (n, 0))
    block = pl.BlockSpec((None, call.sizes.k, k.shape[2]), lambda j, n: (n, j, 0))
    per_group = pl.BlockSpec((group,), lambda j, n: (n,))
    run = _run(
        call,
        _key_kernel,
        grid=(k.shape[1] // call.sizes.k, k.shape[0]),
        in_specs=[heads, block, block, per_group, *map(_whole, tables), heads, lines, lines],
        out_specs=[block, block],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
    )
    dk, dv = run(*qkv, slopes, *tables, *more)
    return QKV(dq, dk, dv), d_slope.sum(axis=1), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def triton(
    rule: Rule,
    qkv: QKV,
    learned: Learned,
    pair: ScorePair,
    *,
    sizes: BlockSizes,
    interpret: bool = False,
) -> Float[Array, "T K G H"]:
    """Run the kernels.

    Args:
        rule: static settings; neither bias nor dropout.
        qkv: queries, keys and values; H a power of two of at least 16.
        learned: slopes.
        pair: the stream's queries and keys.
        sizes: tile sizes.
        interpret: run the kernels on any backend, slowly; for tests.
    """
    length, heads, group, width = qkv.q.shape

    def pad(x: Array, size: int) -> Array:
        return jnp.pad(x, ((0, -x.shape[0] % size),) + ((0, 0),) * (x.ndim - 1))

    q = jnp.transpose(pad(qkv.q, sizes.q).reshape(-1, heads * group, width), (1, 0, 2))
    k, v = jnp.swapaxes(pad(qkv.k, sizes.k), 0, 1), jnp.swapaxes(pad(qkv.v, sizes.k), 0, 1)
    position, low, high, sink = (pad(x, sizes.q) for x in pair.queries[:4] if x is not None)
    first, last = block_ranges(Keys(low, high, sink), sizes, sinks=rule.sink_tokens > 0)
    blocks_q = jnp.arange(first.shape[0], dtype=jnp.int32)[:, None]
    j = jnp.arange(k.shape[1] // sizes.k, dtype=jnp.int32)[None, :]
    visits = (first[:, None] <= j) & (j < last[:, None])
    q_last = jnp.max(jnp.where(visits, blocks_q + 1, 0), axis=0)
    q_first = jnp.minimum(jnp.min(jnp.where(visits, blocks_q, first.shape[0]), axis=0), q_last)
    key_position = pad(pair.keys.position, sizes.k)
    tables = _Tables(position, low, high, sink, key_position, first, last, q_first, q_last)
    slopes = jnp.zeros((heads * group,)) if learned.slopes is None else learned.slopes
    call = _Call(rule=rule, sizes=sizes, group=group, interpret=interpret)
    out: Any = _attend(call, QKV(q, k, v), slopes.astype(jnp.float32), tables)
    return jnp.transpose(out, (1, 0, 2)).reshape(-1, heads, group, width)[:length]
