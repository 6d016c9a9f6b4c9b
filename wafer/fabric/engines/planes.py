"""The bit-sliced timing plane in JAX: 32 PEs per word, a cycle is a few bit operations per color.

The words run along y, so that what moves along x moves by whole words; programs that are flat in
y are transposed first. XLA's CPU backend recomputes shared planes in every consumer, so the loop
body holds one cycle and only planes that the program uses.
Cycle for cycle equal to the machine.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from wafer.fabric import native
from wafer.fabric.engines.planar import PlaneMasks, PlaneShape, plane_program, transpose
from wafer.fabric.errors import DeadlockError, FaultError
from wafer.fabric.program.tables import Program
from wafer.machine.arch import PORTS

__all__ = ["PlaneState", "Timing", "count_cycles", "is_flat", "pack", "plane_run", "plane_run_rows"]

W, E, S, N, RAMP = range(len(PORTS))
_OPPOSITE = {N: S, E: W, S: N, W: E}
_CHECK_EVERY = 512


class Timing(NamedTuple):
    """What the plane engines report."""

    cycles: Array  #: [] int32, as :func:`wafer.fabric.cycles`
    faulted: Array  #: [] bool, a same-cycle arrival occurred
    stuck: Array  #: [] bool, operations were left that can never run


class PlaneState(NamedTuple):
    """Words of 32 PEs along y; tuples keep unused planes out of the program."""

    router: tuple[tuple[Array, Array], ...]  #: per color (at least one word held, two words held)
    up: tuple[tuple[Array, ...], ...]  #: per color the T_R stages
    down: tuple[tuple[Array, ...], ...]  #: per color the T_R - 1 stages
    queue: tuple[tuple[Array, ...], ...]  #: per color, level k: more than k words held
    at: tuple[Array, ...]  #: per slot, PEs in that slot
    left: tuple[Array, ...]  #: per bit, cycles of the current slot left, minus 1
    fault: Array  #: PEs where two wavelets of a color arrived at once
    cycle: Array  #: [] int32


class _Packed(NamedTuple):
    """The masks in words; dictionaries by the pairs that :class:`PlaneShape` lists."""

    ports: dict[tuple[int, int], Array]
    inject: tuple[Array, ...]
    reads: dict[tuple[int, int], Array]
    writes: dict[tuple[int, int], Array]
    exists: tuple[Array, ...]
    counts: tuple[tuple[Array, ...], ...]


def pack(plane: np.ndarray) -> np.ndarray:
    """[..., H, W] bool to [..., ceil(H / 32), W] uint32; bit j of word i is row 32 i + j."""
    height = plane.shape[-2]
    rows = -(-height // 32) * 32
    padded = np.pad(plane, [(0, 0)] * (plane.ndim - 2) + [(0, rows - height), (0, 0)])
    lanes = padded.reshape(*plane.shape[:-2], rows // 32, 32, plane.shape[-1])
    weights = (np.uint32(1) << np.arange(32, dtype=np.uint32))[:, None]
    return (lanes * weights).sum(axis=-2, dtype=np.uint32)


def _pack_masks(shape: PlaneShape, masks: PlaneMasks) -> _Packed:
    words = lambda plane: jnp.asarray(pack(plane))
    return _Packed(
        {(c, p): words(masks.ports[c, p]) for c, p in shape.ports},
        tuple(words(m) for m in masks.inject),
        {(s, c): words(masks.reads[s, c]) for s, c in shape.reads},
        {(s, c): words(masks.writes[s, c]) for s, c in shape.writes},
        tuple(words(m) for m in masks.exists),
        tuple(
            tuple(words((counts >> k) & 1 != 0) for k in range(shape.bits))
            for counts in masks.counts
        ),
    )


def _from(plane: Array, port: int) -> Array:
    """Each PE's view of its neighbour on a side."""
    if port == W:
        return jnp.pad(plane[:, :-1], ((0, 0), (1, 0)))
    if port == E:
        return jnp.pad(plane[:, 1:], ((0, 0), (0, 1)))
    if port == N:
        return (plane << 1) | jnp.pad(plane[:-1] >> 31, ((1, 0), (0, 0)))
    return (plane >> 1) | jnp.pad(plane[1:] << 31, ((0, 1), (0, 0)))


def _start(shape: PlaneShape, packed: _Packed) -> PlaneState:
    zero = jnp.zeros_like(packed.exists[0])
    colors, ramp = range(len(shape.depths)), shape.spec.ramp_latency
    return PlaneState(
        router=tuple((zero, zero) for _ in colors),
        up=tuple((zero,) * ramp for _ in colors),
        down=tuple((zero,) * (ramp - 1) for _ in colors),
        queue=tuple((zero,) * shape.depths[c] for c in colors),
        at=(packed.exists[0], *([zero] * (shape.slots - 1))),
        left=packed.counts[0],
        fault=zero,
        cycle=jnp.int32(0),
    )


def _departures(shape: PlaneShape, packed: _Packed, state: PlaneState, down_room: list) -> list:
    """Per color, PEs whose router sends its head this cycle."""
    go, used = [], {}
    for c in range(len(shape.depths)):
        ok = state.router[c][0]
        ports = [p for color, p in shape.ports if color == c]
        for p in ports:
            room = down_room[c] if p == RAMP else _from(~state.router[c][1], p)
            ok = ok & (~packed.ports[c, p] | room)
            if p in used:  # an earlier color has the link
                ok = ok & ~(packed.ports[c, p] & used[p])
        for p in ports:
            others = [color for color, port in shape.ports if port == p]
            if max(others) > c:
                taken = ok & packed.ports[c, p]
                used[p] = used[p] | taken if p in used else taken
        go.append(ok)
    return go


def _pipe(stages: tuple[Array, ...], room: list[Array], into: Array) -> tuple[Array, ...]:
    held = [into, *stages]
    return tuple(
        (stage & ~room[k + 1]) | (held[k] if k == 0 else held[k] & room[k])
        for k, stage in enumerate(stages)
    )


def _rooms(stages: tuple[Array, ...], leaves: Array) -> list[Array]:
    room = [leaves]
    for stage in stages[::-1]:
        room.append(~stage | room[-1])
    return room[::-1]


def _queue(levels: tuple[Array, ...], push: Array, pop: Array) -> tuple[Array, ...]:
    """Unary occupancy: level k holds where more than k words wait."""
    both = ~(push ^ pop)
    ones = ~jnp.zeros_like(push)
    below, above = (ones, *levels[:-1]), (*levels[1:], jnp.zeros_like(push))
    return tuple(
        (level & both) | (lower & push & ~pop) | (upper & pop & ~push)
        for level, lower, upper in zip(levels, below, above, strict=True)
    )


def _issue(shape: PlaneShape, packed: _Packed, state: PlaneState, up_room: list) -> Array:
    """PEs whose current operation takes a vector step."""
    ready = functools.reduce(jnp.bitwise_or, state.at)
    for s, c in shape.reads:
        ready = ready & ~(state.at[s] & packed.reads[s, c] & ~state.queue[c][0])
    for s, c in shape.writes:
        ready = ready & ~(state.at[s] & packed.writes[s, c] & ~up_room[c][0])
    return ready


def _count_down(
    shape: PlaneShape, packed: _Packed, state: PlaneState, ready: Array
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    borrow, count = ready, []
    for bit in state.left:
        count.append(bit ^ borrow)
        borrow = borrow & ~bit
    ends = borrow  # was 0: that was the last cycle of the slot
    at = [state.at[0] & ~ends]
    reload = [jnp.zeros_like(ends)] * shape.bits
    for s in range(1, shape.slots):
        enters = state.at[s - 1] & ends & packed.exists[s]
        at.append((state.at[s] & ~ends) | enters)
        reload = [r | (enters & n) for r, n in zip(reload, packed.counts[s], strict=True)]
    count = tuple((bit & ~ends) | r for bit, r in zip(count, reload, strict=True))
    return tuple(at), count


def _step(shape: PlaneShape, packed: _Packed, state: PlaneState) -> PlaneState:
    colors = range(len(shape.depths))
    queue_room = [~state.queue[c][-1] for c in colors]
    down_room = [_rooms(state.down[c], queue_room[c]) for c in colors]
    up_room = [_rooms(state.up[c], ~state.router[c][1] & packed.inject[c]) for c in colors]
    go = _departures(shape, packed, state, [room[0] for room in down_room])
    ready = _issue(shape, packed, state, up_room)
    at, count = _count_down(shape, packed, state, ready)

    router, up, down, queue, fault = [], [], [], [], state.fault
    none = jnp.zeros_like(ready)
    for c in colors:
        sources = [state.up[c][-1] & up_room[c][-1]]
        sources += [
            _from(go[c] & packed.ports[c, opposite], p)
            for p, opposite in _OPPOSITE.items()
            if (c, opposite) in packed.ports
        ]
        arrives = functools.reduce(jnp.bitwise_or, sources)
        if c in shape.merges:
            for i, one in enumerate(sources):
                for other in sources[:i]:
                    fault = fault | (one & other)
        one, two = state.router[c]
        left = one & ~go[c]
        router.append((arrives | two | left, (left & arrives) | (two & ~go[c])))
        sent = [state.at[s] & packed.writes[s, d] for s, d in shape.writes if d == c]
        taken = [state.at[s] & packed.reads[s, d] for s, d in shape.reads if d == c]
        sends = ready & functools.reduce(jnp.bitwise_or, sent) if sent else none
        takes = ready & functools.reduce(jnp.bitwise_or, taken) if taken else none
        up.append(_pipe(state.up[c], up_room[c], sends))
        to_ce = go[c] & packed.ports[c, RAMP] if (c, RAMP) in packed.ports else none
        down.append(_pipe(state.down[c], down_room[c], to_ce))
        push = state.down[c][-1] & queue_room[c] if state.down[c] else to_ce
        queue.append(_queue(state.queue[c], push, takes))
    return PlaneState(
        tuple(router), tuple(up), tuple(down), tuple(queue), at, count, fault, state.cycle + 1
    )


def _busy(state: PlaneState) -> Array:
    return functools.reduce(jnp.bitwise_or, state.at).any()


@functools.partial(jax.jit, static_argnames=("shape", "max_cycles"))
def plane_run(shape: PlaneShape, packed: _Packed, max_cycles: int = 10_000_000) -> Timing:
    """Run to the end; a dead state is noticed within 512 cycles.

    Args:
        shape: static structure.
        packed: the masks in words.
        max_cycles: limit.
    """
    step = functools.partial(_step, shape, packed)

    def stretch(carry: tuple[PlaneState, Array]) -> tuple[PlaneState, Array]:
        before, _ = carry
        end = before.cycle + _CHECK_EVERY
        state = jax.lax.while_loop(lambda s: _busy(s) & (s.cycle < end), step, before)
        before = before._replace(cycle=state.cycle)
        same = [(a == b).all() for a, b in zip(*map(jax.tree.leaves, (state, before)), strict=True)]
        return state, functools.reduce(jnp.logical_and, same)

    def goes_on(carry: tuple[PlaneState, Array]) -> Array:
        state, still = carry
        return _busy(state) & ~still & ~state.fault.any() & (state.cycle < max_cycles)

    state, _ = jax.lax.while_loop(goes_on, stretch, (_start(shape, packed), jnp.bool_(False)))
    return Timing(state.cycle, state.fault.any(), _busy(state))


@functools.partial(jax.jit, static_argnames=("shape", "devices", "max_cycles"))
def plane_run_rows(
    shape: PlaneShape, packed: _Packed, devices: int, max_cycles: int = 10_000_000
) -> Timing:
    """Run rows that exchange nothing on several devices, each to the end of its own rows.

    Args:
        shape: static structure; no color leaves north or south.
        packed: the masks in words, their rows a multiple of ``devices``.
        devices: how many; on a CPU ``--xla_force_host_platform_device_count`` makes cores devices.
        max_cycles: limit.
    """
    mesh = jax.make_mesh((devices,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("rows")

    def part(packed: _Packed) -> Timing:
        return Timing(*(v[None] for v in plane_run(shape, packed, max_cycles)))

    run = jax.shard_map(part, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    every = run(packed)
    return Timing(every.cycles.max(), every.faulted.any(), every.stuck.any())


def prepare(program: Program, devices: int = 1) -> tuple[PlaneShape, _Packed]:
    """Reduce and pack a program, oriented so that words are full.

    Args:
        program: see :func:`wafer.fabric.engines.planar.plane_program`.
        devices: pad the words' rows to a multiple of this (for :func:`plane_run_rows`).
    """
    shape, masks = plane_program(program)
    if shape.height < 32 and shape.width > shape.height:
        shape, masks = transpose(shape, masks)
    packed = _pack_masks(shape, masks)
    more = -len(packed.exists[0]) % devices
    return shape, jax.tree.map(lambda words: jnp.pad(words, ((0, more), (0, 0))), packed)


def is_flat(shape: PlaneShape) -> bool:
    """Whether no color leaves north or south, so that rows exchange nothing."""
    return all(port not in {N, S} for _, port in shape.ports)


def check_timing(result: Timing) -> int:
    """Turn a result into cycles, or raise what the machine would."""
    if bool(result.faulted):
        raise FaultError("a same-cycle arrival; fabric.simulate names the PE and the color")
    if bool(result.stuck):
        raise DeadlockError("operations are left that can never run; fabric.simulate names them")
    return int(result.cycles)


def count_cycles(program: Program, implementation: str = "auto") -> int:
    """Cycles of a data-oblivious program, without its values.

    Args:
        program: see :func:`wafer.fabric.engines.planar.plane_program`.
        implementation: "native" (C++ words of 512 PEs), "jax", or "auto": native where built.

    Returns:
        Cycles, equal to ``cycles(simulate(program))``.

    Raises:
        FaultError: a same-cycle arrival.
        DeadlockError: operations that can never run.
    """
    if native.is_asked(implementation):
        return check_timing(Timing(*native.run(*plane_program(program))))
    devices = len(jax.devices())
    shape, packed = prepare(program, devices)
    if devices > 1 and is_flat(shape):
        return check_timing(plane_run_rows(shape, packed, devices))
    return check_timing(plane_run(shape, packed))
