"""Routers, ramps and output queues: what leaves, what arrives, which switches advance.

As ``native/routers.h`` and ``native/queues.h``; all PEs and colors at once but where the order of
colors or queues decides.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wafer.machine.image import COLUMNS
from wafer.machine.reference.effects import failed, flush
from wafer.machine.reference.state import Lanes, State
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
CONTROL, _ADVANCE = 2, 4  # flags of wavelets
_RAMP = 16
_SWAPS = (1 << 10, 1 << 10, 1 << 11, 1 << 11, 3 << 10)  # of what comes in by W, E, S, N, RAMP
_NO_CE = 24  # bit of a control wavelet's word that the CE does not see
_NOP, _ADV, _RST, _TEARDOWN = range(4)


class Departures(NamedTuple):
    """What leaves the routers in a cycle, [C, S]: whether, by which ports, and as what."""

    go: Array
    ports: Array
    wavelet: Array


def _ports(lanes: Lanes, side: int) -> Array:
    """[C, S] ports by which words enter (side 0) or leave (1), at the switches' positions."""
    ports = (lanes.color >> 5 if side == 0 else lanes.color) & 31
    for k in (1, 2, 3):
        code = lanes.switches >> 4 * (k - 1) & 15
        changes = ((code & 7) < 5) & ((code & 8 != 0) == (side == 0))
        ports = jnp.where((k <= lanes.position[..., side]) & changes, 1 << (code & 7), ports)
    return jnp.where(lanes.torn[..., side], 0, ports)


def _command(wavelet: Array) -> Array:
    said = jnp.where(wavelet & CONTROL, wavelet >> 8 + 22 & 3, _NOP)
    return jnp.where(wavelet & _ADVANCE, _ADV, said)


def _obeyed(lanes: Lanes, position: Array, command: Array) -> Array:
    code = lanes.switches >> 4 * position & 7
    ring = jnp.where(lanes.switches & 1 << 12, 0, position)
    following = jnp.where((position < 3) & (code < 5), position + 1, ring)
    out = jnp.where(command == _ADV, following, position)
    return jnp.where(command == _RST, 0, out)


def _without_first(wavelet: Array) -> Array:
    word = wavelet >> 8
    field = (word >> 22 & 0xFF) | (word & 0xFFFF) << 8
    field = field >> 3 | (field & 1 << 23)
    return ((word & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8) << 8 | wavelet & 0xFF


def _forwarded(lanes: Lanes, head: Array) -> Array:
    first, mode = _command(head), lanes.color >> 12 & 3
    leaving = lanes.position[..., 1]
    moves = _obeyed(lanes, leaving, first) != leaving
    pops = (mode == 1) | ((mode >= 2) & moves) | ((mode == 3) & (first == _NOP))
    return jnp.where((head & CONTROL != 0) & pops, _without_first(head), head) & ~_ADVANCE


def _swapped(tables: Tables, color: Array, slot: Array, side: int) -> Array:
    """The slot as which a router with this color register takes what comes in by a side."""
    swaps = _SWAPS[side]
    return jnp.where(color & swaps == swaps, tables.partner[slot], slot)


def _rule(tables: Tables, lanes: Lanes) -> Callable[[str], Array]:
    """[C, S] columns of the filters."""
    rows = tables.filters[jnp.maximum(lanes.rule, 0)]
    return lambda name: rows[..., COLUMNS["filters"].index(name)]


def _filtered(tables: Tables, lanes: Lanes) -> tuple[Array, Array]:
    """[C, S] whether the CE is to see the routers' heads, and whether filters count them."""
    of, head = _rule(tables, lanes), lanes.router[..., 0]
    control = head & CONTROL != 0
    hidden = control & (head >> 8 + _NO_CE & 1 != 0)
    index, by_range = head >> 8 + 16, of("kind") == 3
    within = (index >= of("low")) & (index <= of("high"))
    controls = (of("controls_filtered") == 0) | (lanes.counter == of("most"))
    counted = jnp.where(control, controls, lanes.counter <= of("most"))
    seen = jnp.where(by_range, control | within, counted)
    counts = jnp.where(control, of("counts_control"), of("counts_data")) != 0
    return ~hidden & (seen | ~lanes.filtered), lanes.filtered & counts & ~hidden & ~by_range


def _counted(tables: Tables, lanes: Lanes, which: Array) -> Lanes:
    """Filters [C, S] count a word."""
    of = _rule(tables, lanes)
    wraps = which & (lanes.counter >= lanes.limit)
    sparse = wraps & (of("kind") == 2)
    ends = sparse & (lanes.second | (of("limit2") < 0))
    return lanes._replace(
        filtered=lanes.filtered & ~ends,
        counter=jnp.where(wraps, 0, lanes.counter + which),
        limit=jnp.where(sparse, of("limit2"), lanes.limit),
        second=lanes.second | sparse,
    )


def depart(state: State) -> tuple[State, Departures]:
    """The first half of a cycle: the heads that can leave, lower colors first."""
    lanes, tables = state.lanes, state.tables
    cells, slots = lanes.color.shape
    rx, tx = _ports(lanes, 0), _ports(lanes, 1)
    head, full = lanes.router[..., 0], lanes.router[..., 1] != 0
    neighbour = tables.neighbour
    sides = sum((neighbour[:, d] >= 0).astype(jnp.int64) << d for d in range(4))
    passes, counts = _filtered(tables, lanes)
    used, links = jnp.zeros(cells, jnp.int64), state.links
    went, needs = [], []
    for slot in range(slots):
        need = jnp.where(passes[:, slot], tx[:, slot], tx[:, slot] & ~_RAMP)
        stuck = (need & _RAMP != 0) & (lanes.down[:, slot] != 0)
        stuck &= lanes.size[:, slot] >= lanes.depth[:, slot]
        can = (head[:, slot] != 0) & (need & used == 0) & ~stuck
        off = can & (need & 15 & ~sides & tables.edges != 0)
        state = failed(state, off, int(Kind.OFF_WAFER), tables.colors[slot])
        can &= ~off
        for side in range(4):
            there = neighbour[:, side]
            at = _swapped(tables, lanes.color[there, slot], jnp.full(cells, slot), side ^ 1)
            free = ~full[there, at] & (rx[there, at] >> (side ^ 1) & 1 != 0)
            can &= (need >> side & 1 == 0) | free | (there < 0)
        used = jnp.where(can, used | need, used)
        went.append(can)
        needs.append(jnp.where(can, need, 0))
        links = links + (needs[-1][:, None] >> jnp.arange(5) & 1)
    go, ports = jnp.stack(went, 1), jnp.stack(needs, 1)
    leaves = Departures(go, ports, _forwarded(lanes, head))
    lanes = _counted(tables, lanes, go & counts & (tx & _RAMP != 0))
    return state._replace(links=links, lanes=lanes), leaves


def front(lanes: Lanes) -> Array:
    """The wavelets at the heads of the CE's queues, [S] or [C, S]; old ones where none is."""
    return jnp.take_along_axis(lanes.queue, lanes.head[..., None], -1)[..., 0]


def pop(lanes: Lanes, count: Array) -> Lanes:
    """Take the first wavelets of the CE's queues away: ``count`` [S] or [C, S] of each."""
    return lanes._replace(head=(lanes.head + count) % 8, size=lanes.size - count)


def _enters(lanes: Lanes) -> Array:
    return (lanes.router[..., 1] == 0) & (_ports(lanes, 0) & _RAMP != 0)


def drain(pe: State) -> tuple[State, tuple[Array, Array]]:
    """The word that goes onto the ramp, of the lowest output queue that can.

    Returns:
        the PE; whether it or time moved, and [2] slot (-1: none) and wavelet.
    """
    out, lanes, queues = pe.outputs, pe.lanes, jnp.arange(8)
    wavelet, slot, since = (part[queues, out.head] for part in out[:3])
    slot = jnp.where(slot < 0, pe.out_slot, slot)
    slot = jnp.where(slot < 0, slot, _swapped(pe.tables, lanes.color[slot], slot, 4))
    young = (out.size > 0) & (pe.cycle - since < pe.tables.output_wait)
    waits = (out.size > 0) & ~young
    stuck = (lanes.up != 0).all(-1) & ~_enters(lanes)
    leaves = waits & (slot >= 0) & ~stuck[slot]
    queue = jnp.where(leaves.any(), jnp.argmax(leaves), 8)
    lost = waits & (slot < 0)
    pe = failed(pe, (lost & (queues <= queue)).any(), int(Kind.NO_COLOR), jnp.argmax(lost))
    taken = queues == queue
    head = jnp.where(taken, (out.head + 1) % 8, out.head)
    gone = jnp.where(leaves.any(), jnp.stack([slot, wavelet])[:, queue], jnp.array([-1, 0]))
    pe = flush(pe._replace(outputs=out._replace(head=head, size=out.size - taken)))
    return pe, (leaves.any() | young.any(), gone)


def _arrivals(tables: Tables, lanes: Lanes, leaves: Departures) -> tuple[Array, Array]:
    """[C, S] wavelets from the neighbours, and how many came."""
    cells, slots = lanes.color.shape
    every = jnp.arange(slots)
    got = count = jnp.zeros((cells, slots), jnp.int64)
    for side in range(4):
        there = tables.neighbour[:, side, None]
        for its in (every, tables.partner):
            at = jnp.maximum(its, 0)[None]
            comes = (leaves.ports[there, at] >> (side ^ 1) & 1 != 0) & (there >= 0) & (its >= 0)
            comes &= _swapped(tables, lanes.color[:, at[0]], at, side) == every
            got = jnp.where(comes, leaves.wavelet[there, at], got)
            count = count + comes
    return got, count


def move(state: State, leaves: Departures, entering: Array, sizes: Array) -> tuple[State, Array]:
    """The second half of a cycle for routers and ramps.

    Args:
        state: in which the CE has taken its words.
        leaves: of ``depart``.
        entering: [C, 2] slot and wavelet of what goes onto the ramp.
        sizes: [C, S] of the CE's queues when the cycle began: a place that the CE has taken a word
            from is free from the next cycle on.

    Returns:
        the state, and [C] whether anything moved.
    """
    lanes, tables, go = state.lanes, state.tables, leaves.go
    room, to_router = sizes < lanes.depth, _enters(lanes)
    head, second = lanes.router[..., 0], lanes.router[..., 1]
    entered, rising = lanes.up[..., 0], lanes.up[..., 1]
    own = to_router & (rising != 0)
    got, count = _arrivals(tables, lanes, leaves)
    got = jnp.where(own & (count == 0), rising, got)
    clash = count + own > 1
    lost = tables.colors[jnp.argmax(clash, 1)]
    state = failed(state, clash.any(1), int(Kind.SAME_CYCLE_ARRIVAL), lost)
    # The router's two words.
    first, second = jnp.where(go, second, head), jnp.where(go, 0, second)
    arrives, behind = got != 0, first != 0
    second = jnp.where(arrives & behind, got, second)
    first = jnp.where(arrives & ~behind, got, first)
    # Down to the CE's queue.
    falls = (lanes.down != 0) & room
    place = ((lanes.head + lanes.size) % 8)[..., None] == jnp.arange(8)
    down = jnp.where(falls, 0, lanes.down)
    # Up from the CE.
    rising = jnp.where(own, 0, rising)
    shifts = (rising == 0) & (entered != 0)
    rising, entered = jnp.where(shifts, entered, rising), jnp.where(shifts, 0, entered)
    slot, sent = entering[:, :1], entering[:, 1:]
    here = slot == jnp.arange(len(tables.colors))
    entered = jnp.where(here, sent, entered)
    # Switches and teardown: what has entered moves its side, what has left the other.
    left = jnp.where(go, _command(head), _NOP)
    commands = (_command(got), left)
    position = [_obeyed(lanes, lanes.position[..., k], commands[k]) for k in (0, 1)]
    torn = jnp.where(left == _TEARDOWN, 1 << tables.colors, 0).sum(1)
    moved = (go | here | arrives | falls | own | shifts).any(1)
    lanes = lanes._replace(
        router=jnp.stack([first, second], -1),
        up=jnp.stack([entered, rising], -1),
        down=jnp.where(go & (leaves.ports & _RAMP != 0), head, down),
        queue=jnp.where(falls[..., None] & place, lanes.down[..., None], lanes.queue),
        size=lanes.size + falls,
        position=jnp.stack(position, -1),
        torn=lanes.torn | (jnp.stack(commands, -1) == _TEARDOWN),
    )
    return state._replace(lanes=lanes, torn=state.torn | torn), moved
