"""Closed-form clocks: when each PE is done with a collective, without simulating a cycle.

A stream of n words that nobody stalls is consumed at one word per cycle, so an operation ends n
cycles after its first element, and that waits for the PE itself (``clock`` + launch) and for the
sender's first element (+ 2 T_R + 1 + hops, T_R the ramp's latency). Every function is a max-plus
recurrence along x over an ``[H, W]`` clock; ``axis="y"`` is the transpose. Exact against the
engines when no PE is late by more than the nine words that back-pressure leaves under way; a later
PE only delays its upstream senders. ``shift_time`` over several hops is an upper bound by a cycle.
Closed forms for equal clocks: Luczynski et al., HPDC'24.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wafer.machine.arch import ARCHITECTURES
from wafer.spec import WSE2, WaferSpec

# Of NumPy or JAX: the two array types share no useful base.
Array = Any


def _latency(spec: WaferSpec) -> int:
    """Cycles from issue to use, beyond one per hop."""
    return 2 * spec.ramp_latency + 1


def broadcast_time(clock: Array, words: int, root: int = 0, spec: WaferSpec = WSE2) -> Array:
    """Multicast from column ``root``: all join one stream, which waits for the last of them."""
    distance = np.abs(np.arange(clock.shape[1]) - root)
    arrival = np.where(distance > 0, distance + _latency(spec), 0)
    start = (clock - arrival).max(axis=1)[:, None]
    return (start + arrival + words).astype(np.int32)


def _chain_starts(ready: Array, spec: WaferSpec, reach: int = 1) -> Array:
    """First element at each node of a chain towards column 0; ``ready`` is [H, nodes]."""
    lag = (_latency(spec) + reach) * np.arange(ready.shape[1], dtype=np.int32)
    return jax.lax.cummax(jnp.asarray(ready + lag), axis=1, reverse=True) - lag


def chain_time(clock: Array, words: int, spec: WaferSpec = WSE2) -> Array:
    """``words + spec.hop_to_hop * (P - 1)`` at the root of P equal clocks."""
    return (_chain_starts(clock, spec) + words).astype(np.int32)


def two_phase_time(
    clock: Array, words: int, group: int, spec: WaferSpec = WSE2, *, launch: int = 0
) -> Array:
    """Chains of ``group`` columns, then a chain of their leaders ``launch`` cycles later."""
    width = clock.shape[1]
    if group >= width:
        return chain_time(clock, words, spec)
    starts = [_chain_starts(clock[:, i : i + group], spec) for i in range(0, width, group)]
    # The last leader streams its group's sum on as it forms; the others store it first.
    leaders = [start[:, 0] + words + launch for start in starts[:-1]] + [starts[-1][:, 0]]
    second = _chain_starts(jnp.stack(leaders, axis=1), spec, group)
    ends = [
        jnp.concatenate([second[:, i : i + 1], start[:, 1:]], axis=1)
        for i, start in enumerate(starts)
    ]
    return (jnp.concatenate(ends, axis=1) + words).astype(np.int32)


def tree_time(clock: Array, words: int, spec: WaferSpec = WSE2, *, launch: int = 0) -> Array:
    """Binary tree: each PE adds what its children send, in order, the last one while sending on.

    ``launch`` is paid before every receive.
    """
    width = clock.shape[1]
    column = np.arange(width)
    end, stream = clock, clock  # when free; first element of what is sent on
    heard = np.zeros(width, bool)
    reach = 1
    while reach < width:
        takes = (column % (2 * reach) == 0) & (column + reach < width)
        arrival = jnp.roll(stream, -reach, axis=1) + _latency(spec) + reach
        start = jnp.maximum(end + launch, arrival)
        stream = jnp.where(takes, start, stream)
        end = jnp.where(takes, start + words, end)
        heard |= takes
        reach *= 2
    return jnp.where(heard, end, clock + words).astype(np.int32)


def _copy(words: int, spec: WaferSpec) -> int:
    """Cycles of a move in memory."""
    return -(-words // ARCHITECTURES[spec.name].width("fmovs"))


def scatter_time(clock: Array, words: int, spec: WaferSpec = WSE2) -> Array:
    """Chunk k of a stream of ``P - 1`` chunks stops at column k; the root keeps its own last."""
    column = np.arange(clock.shape[1])
    root = clock[:, :1] + (len(column) - 1) * words + _copy(words, spec)
    first = clock[:, :1] + column + _latency(spec) + (column - 1) * words
    others = jnp.maximum(first, clock) + words
    return jnp.where(column == 0, root, others).astype(np.int32)


def gather_time(clock: Array, words: int, spec: WaferSpec = WSE2) -> Array:
    """``(P - 1) words`` in one stream at the root, nearest first, then its own chunk."""
    width = clock.shape[1]
    column = np.arange(width)
    # In the stream each column's words are followed by those from behind it.
    ends = clock + column + _latency(spec) + (width - column) * words
    ends = jnp.where(column == 0, clock + (width - 1) * words, ends)
    root = ends.max(axis=1)[:, None] + _copy(words, spec)
    return jnp.where(column == 0, root, clock + words).astype(np.int32)


def shift_time(clock: Array, words: int, hops: int, spec: WaferSpec = WSE2) -> Array:
    """Every PE sends ``words`` east and takes as many from ``hops`` columns west.

    A PE issues ``2 words + 1`` steps (one starts the receiving microthread), and each link
    carries ``hops`` streams.
    """
    width = clock.shape[1]
    column = np.arange(width)
    sends, hears = column + hops < width, column >= hops
    own = clock + (hears & sends)
    sender = jnp.roll(own, hops, axis=1)
    free = jnp.where(sends, own + words, clock + 1)
    taken = jnp.maximum(free, sender + hops + _latency(spec)) + words
    shared = sender + hops * words + hops + _latency(spec)
    heard = jnp.maximum(taken, shared)
    return jnp.where(hears, heard, jnp.where(sends, free, clock)).astype(np.int32)


def local_time(clock: Array, cycles: int | Array) -> Array:
    """Work that touches no fabric."""
    return (clock + cycles).astype(np.int32)


def default_group(width: int) -> int:
    """The group size that balances both phases: about the square root."""
    return max(2, round(width**0.5))


def best_algorithm(width: int, words: int, spec: WaferSpec = WSE2) -> str:
    """The cheapest of chain, two-phase and tree by closed form, for equal clocks."""
    if width <= 2:
        return "chain"
    clock = np.zeros((1, width), np.int32)
    with jax.ensure_compile_time_eval():
        times = {
            "chain": chain_time(clock, words, spec),
            "two_phase": two_phase_time(clock, words, default_group(width), spec),
            "tree": tree_time(clock, words, spec),
        }
        return min(times, key=lambda name: int(times[name][0, 0]))
