"""One cycle of all routers: who leaves by which ports, who arrives, which switches advance.

Rules: one wavelet per link direction and cycle;
a multicast wavelet leaves all its ports at once or not at all; among colors that want one link
the lowest index wins; a router takes a wavelet only if its FIFO of that color had room at the
start of the cycle and the switch position lists the port; two arrivals of one color in one cycle
are a fault.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from wafer.fabric.engines.lanes import fifo_step, flow, moving, occupancy, pipe_step, shift_from
from wafer.fabric.engines.state import ADVANCE, CONTROL, FabricState
from wafer.fabric.program.codes import TORN, Command, Fault, FilterKind, Port
from wafer.fabric.program.tables import Program
from wafer.machine.arch import OPPOSITE

__all__ = ["RouterMoves", "first_fault", "router_step"]


class RouterMoves(NamedTuple):
    """What one router cycle did, for the CE's half of the cycle and the counters.

    room_up: list of [C, H, W] bool, elastic room of the CE-to-router pipe
    moved: [] bool, whether any wavelet moved
    """

    room_up: list[Array]
    moved: Array


def _at_position(program: Program, table: Array, position: Array) -> Array:
    out = jnp.asarray(table[0])
    if program.meta.switched:
        for k in range(1, table.shape[0]):
            out = jnp.where(position == k, table[k], out)
    return jnp.where(position == TORN, 0, out) if program.meta.teardown else out


def _command(data: Array, flag: Array) -> Array:
    """Switch command of a passing wavelet: 0 none, 1 advance, 2 reset, 3 teardown.

    Slot 0 of a control wavelet, or ``advance_switch``.
    """
    control = (flag & CONTROL) != 0
    opcode = jnp.where(control, (data >> 22) & 3, 0)
    return jnp.where((flag & ADVANCE) != 0, Command.SWITCH_ADV, opcode)


def _advance(program: Program, position: Array, command: Array) -> Array:
    last = jnp.maximum(program.positions, 1) - 1
    wrapped = jnp.where(program.ring, 0, last)
    following = jnp.where(position >= last, wrapped, position + 1)
    moved = jnp.where(
        command == Command.SWITCH_RST,
        0,
        jnp.where(command == Command.SWITCH_ADV, following, position),
    )
    if program.meta.teardown:  # what the PE wrote itself is no position of the switch
        moved = jnp.where(position > last, position, moved)
        moved = jnp.where(command == Command.TEARDOWN, TORN, moved)
    return moved.astype(jnp.uint8)


def _swapped(program: Program, planes: Array, side: str) -> Array:
    """What leaves (or may leave) a router by a side, listed under the color it arrives as."""
    if not program.meta.swaps:
        return planes
    partner = planes[jnp.asarray(program.meta.partners)]
    return jnp.where(program.swap[int(side in "NS")], partner, planes)


def _next_hop(data: Array, flag: Array) -> Array:
    """Rotate the 24-bit field of commands by one, for the per-hop rule."""
    field = ((data >> 22) & 0xFF) | ((data & 0xFFFF) << 8)
    field = (field >> 3) | ((field & 7) << 21)
    kept = data & jnp.uint32(0xC03F0000)
    turned = kept | ((field & 0xFF) << 22) | (field >> 8)
    return jnp.where((flag & CONTROL) != 0, turned, data)


def _passes_filter(program: Program, state: FabricState, data: Array, flag: Array) -> Array:
    """Whether the CE is to see the head wavelet."""
    control = (flag & CONTROL) != 0
    passes = ~(control & (((data >> 24) & 1) != 0))
    if program.meta.filters:
        kind, a, b, _ = (program.filters[i] for i in range(4))
        index = (data >> 16).astype(jnp.int32)
        counted = state.counter <= a
        ranged = (index >= a) & (index <= b)
        rule = jnp.where(kind == FilterKind.RANGE, ranged, True)
        rule = jnp.where(kind == FilterKind.COUNTER, counted, rule)
        passes = passes & (control | rule)
    return passes


def _arbitrate(wants: Array, ports: Array) -> Array:
    """Grant links to the lowest color; [C, H, W] bool."""
    used = jnp.zeros_like(ports[0])
    grants = []
    for c in range(ports.shape[0]):
        grant = wants[c] & ((ports[c] & used) == 0)
        used = jnp.where(grant, used | ports[c], used)
        grants.append(grant)
    return jnp.stack(grants)


def _collect(
    program: Program, head: tuple[Array, Array], ports: Array, injected: tuple[Array, Array]
) -> tuple[Array, Array, Array]:
    """Gather arrivals at every router: payload, flag, and how many came at once."""
    per_hop = program.meta.spec.per_hop_commands
    data, flag = head
    up, up_flag = injected
    passed = flag & jnp.uint8(255 - ADVANCE)
    value = _next_hop(data, flag) if per_hop else data
    got, got_flag, count = up, up_flag, (up_flag != 0).astype(jnp.int8)
    for side, opposite in OPPOSITE.items():
        sent = (ports & Port[opposite]) != 0
        leaves = _swapped(program, jnp.where(sent, passed, 0).astype(jnp.uint8), opposite)
        here = shift_from(leaves, side)
        got = jnp.where(here != 0, shift_from(_swapped(program, value, opposite), side), got)
        got_flag = got_flag | here
        count = count + (here != 0)
    return got, got_flag, count


def first_fault(fault: Array, kind: int, bad: Array) -> Array:
    """Record the first PE of a [C, H, W] mask, unless a fault is already recorded."""
    flat = jnp.argmax(bad.reshape(-1)).astype(jnp.int32)
    _, height, width = bad.shape
    here = jnp.stack(
        [jnp.int32(kind), flat // (height * width), flat // width % height, flat % width]
    )
    return jnp.where((fault[0] == 0) & bad.any(), here, fault)


def _switches(
    program: Program, state: FabricState, got: tuple[Array, Array], go: Array, to_ce: Array
) -> tuple[Array, Array, Array]:
    """Advance switches, the entering side with arrivals, the leaving side with departures."""
    data, flag = state.router.data[:, 0], state.router.flag[:, 0]
    pos_rx, pos_tx, counter = state.pos_rx, state.pos_tx, state.counter
    if program.meta.switched:
        pos_rx = _advance(program, pos_rx, _command(*got))
        left = jnp.where(go, flag, 0).astype(jnp.uint8)
        pos_tx = _advance(program, pos_tx, _command(data, left))
    if program.meta.filters:
        counts = go & to_ce & ((flag & CONTROL) == 0) & (program.filters[0] == FilterKind.COUNTER)
        wraps = counter >= program.filters[2]
        counter = jnp.where(counts, jnp.where(wraps, 0, counter + 1), counter)
    return pos_rx, pos_tx, counter


def router_step(program: Program, state: FabricState) -> tuple[FabricState, RouterMoves]:
    """Advance routers, ramps and input queues; the CE's injections follow in its own step.

    Returns:
        The state with routers, the down pipe and the queues moved (the CE has not popped yet),
        and the moves. The up pipe is left to the CE's step, which may add to it.
    """
    meta = program.meta
    rx = _at_position(program, program.rx, state.pos_rx)
    tx = _at_position(program, program.tx, state.pos_tx)
    held = occupancy(state.router)
    data, flag = state.router.data[:, 0], state.router.flag[:, 0]

    # 1. Which ports could take the head of each FIFO.
    room = held < 2
    free = jnp.zeros_like(tx)
    for side, opposite in OPPOSITE.items():
        takes = _swapped(program, shift_from(room & ((rx & Port[opposite]) != 0), side), side)
        free = free | jnp.where(takes, Port[side], 0).astype(jnp.uint8)
    queue_room = occupancy(state.queue) < jnp.asarray(program.depth)[:, None, None]
    room_down = flow(state.down, queue_room)
    free = free | jnp.where(room_down[0], Port.RAMP, 0).astype(jnp.uint8)

    # 2. The CE's copy may be filtered; then one link, one wavelet.
    passes = _passes_filter(program, state, data, flag)
    need = jnp.where(passes, tx, tx & jnp.uint8(255 - Port.RAMP))
    go = _arbitrate((held > 0) & ((need & ~free) == 0), need)
    ports = jnp.where(go, need, 0).astype(jnp.uint8)

    # 3. Arrivals from neighbours and from the CE.
    up_room = room & ((rx & Port.RAMP) != 0)
    room_up = flow(state.up, up_room)
    up_flag = jnp.where(up_room, state.up.flag[:, -1], 0).astype(jnp.uint8)
    got, got_flag, count = _collect(program, (data, flag), ports, (state.up.data[:, -1], up_flag))
    router = fifo_step(state.router, go, got, got_flag)

    # 4. Down to the CE: pipe, then queue.
    to_ce = jnp.where((ports & Port.RAMP) != 0, flag, 0).astype(jnp.uint8)
    queued, queued_flag = data, to_ce
    if state.down.flag.shape[1]:
        queued = state.down.data[:, -1]
        queued_flag = jnp.where(queue_room, state.down.flag[:, -1], 0).astype(jnp.uint8)
    down = pipe_step(state.down, room_down, data, to_ce)
    queue = fifo_step(state.queue, jnp.zeros_like(go), queued, queued_flag)

    pos_rx, pos_tx, counter = _switches(program, state, (got, got_flag), go, (tx & Port.RAMP) != 0)
    active = state.active
    for t, (_, kind, key, _) in enumerate(meta.tasks):
        if kind == "teardown":
            falls = (pos_tx[key] == TORN) & (state.pos_tx[key] != TORN) & (program.entry[t] >= 0)
            active = active | jnp.where(falls, 1 << t, 0)
    moved = go.any() | moving(state.up, room_up) | moving(state.down, room_down)
    links = jnp.stack([((ports & bit) != 0).sum(axis=0, dtype=jnp.int32) for bit in Port])
    state = state._replace(
        fault=first_fault(state.fault, Fault.SAME_CYCLE_ARRIVAL, count > 1),
        router=router,
        down=down,
        queue=queue,
        pos_rx=pos_rx,
        pos_tx=pos_tx,
        counter=counter,
        active=active,
        links=state.links + links,
    )
    return state, RouterMoves(room_up, moved)
