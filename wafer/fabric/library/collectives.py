"""Bulk dataflow: pure functions on ``[H, W, ...]`` arrays with the clock of every PE.

Each function takes values and an ``[H, W]`` int32 clock (the cycle at which each PE is free) and
returns both, moved on. Values follow the reduction order of the PE programs in
:mod:`wafer.fabric.library.lowering`, so that they agree with the machine bit for bit;
clocks follow :mod:`wafer.fabric.library.timing`. Everything works under ``jit`` and ``vmap`` and
differentiates: a broadcast's transpose is a sum, a shift's the opposite shift. Gradients have no
clock, and XLA chooses the order of their sums.

Axes: ``axis="x"`` runs along a row (between columns), ``axis="y"`` along a column.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.library import timing
from wafer.fabric.library.timing import Array
from wafer.spec import WSE2, WaferSpec

__all__ = [
    "all_reduce",
    "broadcast",
    "gather",
    "local",
    "on",
    "reduce",
    "scatter",
    "shift",
    "start_clock",
]


def start_clock(height: int, width: int) -> np.ndarray:
    """[H, W] int32 zeros: every PE free at cycle 0."""
    return np.zeros((height, width), np.int32)


def _along(axis: str, x: Array, clock: Array) -> tuple[Array, Array]:
    if axis not in {"x", "y"}:
        raise FabricError(f"axis {axis!r}; a collective runs along 'x' (rows) or 'y' (columns)")
    return (x, clock) if axis == "x" else (x.swapaxes(0, 1), clock.swapaxes(0, 1))


def _words(x: Array) -> int:
    return math.prod(x.shape[2:])  # each element of a PE is sent as one word of 32 bits


def local(
    fn: Callable[..., Array], clock: Array, *args: Array, cycles: int | Array
) -> tuple[Array, Array]:
    """Compute inside each PE: ``fn`` of ``[H, W, ...]`` arrays, charged ``cycles``."""
    return fn(*args), timing.local_time(clock, cycles)


def on(mask: Array, new: tuple[Array, Array], old: tuple[Array, Array]) -> tuple[Array, Array]:
    """Keep a step's result only inside a region; elsewhere values and clock stay as they were.

    Args:
        mask: [H, W] bool.
        new: values [H, W, ...] and clock after the step.
        old: the same before it.
    """
    wide = mask.reshape(mask.shape + (1,) * (new[0].ndim - 2))
    return jnp.where(wide, new[0], old[0]), jnp.where(mask, new[1], old[1])


def shift(
    x: Array, clock: Array, towards: str, *, hops: int = 1, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Send every PE's words ``hops`` PEs towards a side; PEs with no sender get zeros.

    Args:
        x: [H, W, ...].
        clock: [H, W].
        towards: "N", "E", "S" or "W", the direction of travel.
        hops: distance; the links between carry ``hops`` streams.
        spec: the machine.
    """
    if towards not in {"N", "E", "S", "W"}:
        raise FabricError(f"towards {towards!r}; there are N, E, S and W")
    axis = "x" if towards in "EW" else "y"
    x, clock = _along(axis, x, clock)
    if towards in "WN":
        x, clock = x[:, ::-1], clock[:, ::-1]
    moved = jnp.roll(x, hops, axis=1).at[:, :hops].set(0)
    clock = timing.shift_time(clock, _words(x), hops, spec)
    if towards in "WN":
        moved, clock = moved[:, ::-1], clock[:, ::-1]
    return _along(axis, moved, clock)


def broadcast(
    x: Array, clock: Array, *, axis: str = "x", root: int = 0, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Copy the words of one column (``axis="x"``) or row (``"y"``) to all others.

    A PE is done ``words + distance + 2 * spec.ramp_latency + 1`` cycles after the root has started,
    which waits until no PE would be late for the stream.
    """
    x, clock = _along(axis, x, clock)
    clock = timing.broadcast_time(clock, _words(x), root, spec)
    return _along(axis, jnp.broadcast_to(x[:, root : root + 1], x.shape), clock)


def scatter(
    x: Array, clock: Array, *, axis: str = "x", spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Hand chunk k of the first PE's ``[P, ...]`` words to PE k of its row or column.

    Args:
        x: [H, W, P, ...] with P the length of the axis; only the first PE's value is read.
        clock: [H, W].
        axis: direction.
        spec: the machine.

    Returns:
        [H, W, ...] and the clock.
    """
    x, clock = _along(axis, x, clock)
    if x.ndim < 3 or x.shape[2] != x.shape[1]:
        raise FabricError(
            f"scatter along {axis}: got {x.shape}; the third axis must hold one chunk for each of"
            f" the {x.shape[1]} PEs"
        )
    return _along(axis, x[:, 0], timing.scatter_time(clock, _words(x) // x.shape[2], spec))


def gather(
    x: Array, clock: Array, *, axis: str = "x", spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Collect every PE's words at the first of its row or column; zeros elsewhere.

    Returns:
        [H, W, P, ...] and the clock: at the root ``(P - 1) * words + spec.hop_to_hop`` cycles, then
        its own copy.
    """
    x, clock = _along(axis, x, clock)
    y = jnp.zeros((x.shape[0], x.shape[1], *x.shape[1:]), x.dtype).at[:, 0].set(x)
    return _along(axis, y, timing.gather_time(clock, _words(x), spec))


def _chain(x: Array) -> Array:
    """[H, P, ...] to [H, ...]: ``x[p] + (x[p + 1] + ...)``, the order of a systolic chain."""
    columns = jnp.moveaxis(x, 1, 0)
    total, _ = jax.lax.scan(lambda acc, own: (own + acc, None), columns[-1], columns[:-1][::-1])
    return total


def _two_phase(x: Array, group: int) -> Array:
    """[H, P, ...] to [H, ...]: chains of ``group`` columns, then a chain of their sums."""
    width = x.shape[1]
    full = width - width % group
    partial_sums = []
    if full:
        groups = x[:, :full].reshape(x.shape[0], full // group, group, *x.shape[2:])
        partial_sums.append(jax.vmap(_chain, in_axes=1, out_axes=1)(groups))
    if full < width:
        partial_sums.append(_chain(x[:, full:])[:, None])
    return _chain(jnp.concatenate(partial_sums, axis=1))


def _tree(x: Array) -> Array:
    """[H, P, ...] to [H, ...]: column p adds column p + reach for reach = 1, 2, 4, ...."""
    reach = 1
    while reach < x.shape[1]:
        x = x.at[:, : x.shape[1] - reach : 2 * reach].add(x[:, reach :: 2 * reach])
        reach *= 2
    return x[:, 0]


def reduce(
    x: Array,
    clock: Array,
    *,
    axis: str = "x",
    algorithm: str = "auto",
    group: int = 0,
    spec: WaferSpec = WSE2,
) -> tuple[Array, Array]:
    """Add up a row's or column's words at its first PE; zeros elsewhere.

    Args:
        x: [H, W, ...].
        clock: [H, W].
        axis: direction.
        algorithm: "chain", "two_phase", "tree", or "auto", the cheapest by closed form where
            "two_phase" has its default group.
        group: group size of "two_phase"; 0 is the default, about the square root.
        spec: the machine.

    Returns:
        Values with the sum at the first PE in the exact order of the chosen algorithm, and clock.
    """
    x, clock = _along(axis, jnp.asarray(x), clock)
    width, words = x.shape[1], _words(x)
    if algorithm == "auto":
        algorithm = timing.best_algorithm(width, words, spec)
    group = group or timing.default_group(width)
    ways = {
        "chain": lambda: (_chain(x), timing.chain_time(clock, words, spec)),
        "two_phase": lambda: (
            _two_phase(x, group),
            timing.two_phase_time(clock, words, group, spec),
        ),
        "tree": lambda: (_tree(x), timing.tree_time(clock, words, spec)),
    }
    if algorithm not in ways:
        raise FabricError(f"reduce algorithm {algorithm!r}; there are auto, {', '.join(ways)}")
    total, clock = ways[algorithm]()
    return _along(axis, jnp.zeros_like(x).at[:, 0].set(total), clock)


def all_reduce(
    x: Array, clock: Array, *, axes: str = "x", algorithm: str = "auto", spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Give every PE the sum over its row ("x"), its column ("y") or the whole grid ("xy").

    "xy" reduces rows, then the first column, then multicasts down it and along the rows. The code
    reduces every column: off the first they hold zeros and are free no later, which changes neither
    the sum nor the clock.
    """
    if axes not in {"x", "y", "xy"}:
        raise FabricError(f"all_reduce axes {axes!r}; there are 'x', 'y' and 'xy'")
    for axis in axes:
        x, clock = reduce(x, clock, axis=axis, algorithm=algorithm, spec=spec)
    for axis in reversed(axes):
        x, clock = broadcast(x, clock, axis=axis, spec=spec)
    return x, clock
