"""Routers, ramps and output queues: what leaves, what arrives, which switches advance.

As ``native/routers.h`` and ``native/queues.h``; all PEs and colors at once but where the order of
colors or queues decides. Axes: C PEs, S slots (a slot is a color in use). Ports are bits, W E S N
and the ramp from bit 0 on; a side is W E S N as 0 to 3, and ``side ^ 1`` the opposite one.

Bits of the color and switch registers are listed at ``codes.CONFIG``. Of the four bits of a
position 1 to 3, at ``4 * (position - 1)``, the lower three are its port (from 5 on: it changes
nothing) and the upper one says that words enter by it. A control wavelet's word has its index in
bits 16-21 and eight commands of three bits in bits 22-29, then 0-15; the upper bit of the first
hides the wavelet from the CE.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wafer.machine.codes import STEERED
from wafer.machine.image import COLUMNS
from wafer.machine.reference.effects import failed, flush
from wafer.machine.reference.state import Lanes, State
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault

Array = jax.Array
CONTROL, _ADVANCE = 2, 4  # flags of wavelets
_RAMP = 16
_SWAPS = (1 << 10, 1 << 10, 1 << 11, 1 << 11, 3 << 10)  # of what comes in by W, E, S, N, RAMP
_NO_CE = 24  # bit of a control wavelet's word that the CE does not see
_SPARSE_COUNTER, _RANGE = 2, 3  # kinds of filters; 0 is none, 1 a counter
_NOP, _ADV, _RST, _TEARDOWN = range(4)


class Departures(NamedTuple):
    """What leaves the routers in a cycle, [C, S]: whether, by which ports, and as what."""

    go: Array
    ports: Array
    wavelet: Array


def _ports(lanes: Lanes, *, leaving: bool) -> Array:
    """[C, S] ports by which words enter or leave, at the switches' positions."""
    ports = (lanes.color if leaving else lanes.color >> 5) & 31
    for k in (1, 2, 3):
        code, beside = (lanes.switches >> (4 * (k - 1)) & 15, lanes.switches >> (4 * k + 12) & 15)
        port, enters = 1 << (code & 7), (code & 8) != 0
        both = enters & (beside != 0) & leaving
        changes = (k <= lanes.position[..., int(leaving)]) & ((code & 7) < 5)
        ports = jnp.where(changes & (enters != leaving), port, ports)
        ports = jnp.where(changes & both, 1 << beside >> 1 & 31, ports)
    return jnp.where(lanes.torn[..., int(leaving)], 0, ports)


def _command(wavelet: Array) -> Array:
    first = (wavelet >> (8 + 22)) & 3
    return jnp.where(wavelet & _ADVANCE, _ADV, jnp.where(wavelet & CONTROL, first, _NOP))


def _obeyed(lanes: Lanes, position: Array, command: Array) -> Array:
    following_port = (lanes.switches >> (4 * position)) & 7  # of position + 1
    ring = jnp.where(lanes.switches & (1 << 12), 0, position)
    following = jnp.where((position < 3) & (following_port < 5), position + 1, ring)
    return jnp.where(command == _RST, 0, jnp.where(command == _ADV, following, position))


def _without_first(wavelet: Array) -> Array:
    """A control wavelet without its first command; NOPs with the last one's bit 2 move up."""
    word = wavelet >> 8
    commands = ((word >> 22) & 0xFF) | ((word & 0xFFFF) << 8)
    commands = (commands >> 3) | (commands & (1 << 23))
    word = (word & 0xC03F0000) | ((commands & 0xFF) << 22) | (commands >> 8)
    return (word << 8) | (wavelet & 0xFF)


def _forwarded(lanes: Lanes, word: Array) -> Array:
    """[C, S] the routers' heads as they leave."""
    first, mode = _command(word), (lanes.color >> 12) & 3
    position = lanes.position[..., 1]
    moves = _obeyed(lanes, position, first) != position
    pops = (mode == 1) | ((mode >= 2) & moves) | ((mode == 3) & (first == _NOP))
    return jnp.where(((word & CONTROL) != 0) & pops, _without_first(word), word) & ~_ADVANCE


def _swapped(tables: Tables, color: Array, slot: Array, side: int) -> Array:
    """The slot as which a router with this color register takes what comes in by a side."""
    swaps = _SWAPS[side]
    return jnp.where(color & swaps == swaps, tables.partner[slot], slot)


def _steered(state: State, color: Array, slot: int) -> Array:
    """[C] the ports by which a slot's head leaves; of a header of a message one that is free.

    Args:
        state: at the start of a cycle.
        color: [C, S] the color registers so far, with the ports that messages hold.
        slot: of the words.
    """
    own, head, (x, y) = color[:, slot], state.lanes.router[:, slot, 0], state.place.T
    column, row = head >> 8 & 0x7FF, head >> 19 & 0x7FF
    ways = [column < x, column > x, row > y, row < y]
    port = jnp.select(ways, [jnp.int64(1 << side) for side in range(4)], _RAMP)
    held = (color[:, state.tables.messages] & port[:, None] != 0).any(1)
    begins = (own & STEERED != 0) & (head != 0) & (own & 31 == 0) & ~held
    plain = _ports(state.lanes, leaving=True)[:, slot]
    return jnp.where(own & STEERED == 0, plain, jnp.where(begins, port, own & 31))


def _rule(tables: Tables, lanes: Lanes) -> Callable[[str], Array]:
    """[C, S] columns of the filters."""
    rows = tables.filters[jnp.maximum(lanes.rule, 0)]
    return lambda name: rows[..., COLUMNS["filters"].index(name)]


def _filtered(tables: Tables, lanes: Lanes) -> tuple[Array, Array]:
    """[C, S] whether the CE is to see the routers' heads, and whether filters count them."""
    of, word = _rule(tables, lanes), lanes.router[..., 0]
    control = (word & CONTROL) != 0
    hidden = control & (((word >> (8 + _NO_CE)) & 1) != 0)
    index, by_range = word >> (8 + 16), of("kind") == _RANGE
    within = (index >= of("low")) & (index <= of("high"))
    controls = (of("controls_filtered") == 0) | (lanes.counter == lanes.most)
    counted = jnp.where(control, controls, lanes.counter <= lanes.most)
    seen = jnp.where(by_range, control | within, counted)
    counts = jnp.where(control, of("counts_control"), of("counts_data")) != 0
    return ~hidden & (seen | ~lanes.filtered), lanes.filtered & counts & ~hidden & ~by_range


def _counted(tables: Tables, lanes: Lanes, which: Array) -> Lanes:
    """Filters [C, S] count a word."""
    of = _rule(tables, lanes)
    wraps = which & (lanes.counter >= lanes.limit)
    sparse = wraps & (of("kind") == _SPARSE_COUNTER)
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
    rx, tx = _ports(lanes, leaving=False), _ports(lanes, leaving=True)
    word, full = lanes.router[..., 0], lanes.router[..., 1] != 0
    neighbour = tables.neighbour  # -1 where no PE is simulated
    simulated = sum((neighbour[:, d] >= 0).astype(jnp.int64) << d for d in range(4))
    seen, counts = _filtered(tables, lanes)
    used, links = jnp.zeros(cells, jnp.int64), state.links
    goes, by = [], []
    no_room, messages = (lanes.down != 0) & (lanes.size >= lanes.depth), tables.messages
    steered, color = (lanes.color & STEERED) != 0, lanes.color
    if messages.size:
        no_room = jnp.where(steered, no_room[:, messages[:1]], no_room)
    for slot in range(slots):
        out = _steered(state, color, slot) if messages.size else tx[:, slot]
        need = jnp.where(seen[:, slot], out, out & ~_RAMP)
        stuck = ((need & _RAMP) != 0) & no_room[:, slot]
        can = (word[:, slot] != 0) & ((need & used) == 0) & ~stuck
        can &= ~steered[:, slot] | (out != 0)
        off_wafer = can & ((need & 15 & ~simulated & tables.edges) != 0)
        state = failed(state, off_wafer, int(Fault.OFF_WAFER), detail=tables.colors[slot])
        can &= ~off_wafer
        for side in range(4):
            there = neighbour[:, side]  # -1 reads the last PE, which (there < 0) then overrules
            at = _swapped(tables, lanes.color[there, slot], jnp.full(cells, slot), side ^ 1)
            if messages.size:
                at = jnp.where(steered[:, slot], messages[1 + side], at)
            free = ~full[there, at] & (((rx[there, at] >> (side ^ 1)) & 1) != 0)
            # A word for a PE of the wafer that is not simulated leaves and is gone.
            can &= (((need >> side) & 1) == 0) | free | (there < 0)
        used = jnp.where(can, used | need, used)
        goes.append(can)
        by.append(jnp.where(can, need, 0))
        if messages.size:  # a message holds its port until its last word leaves
            port = jnp.where(can & ((word[:, slot] & _ADVANCE) != 0), 0, out)
            held = jnp.where(steered[:, slot], color[:, slot] & ~31 | port, color[:, slot])
            color = color.at[:, slot].set(held)
        links = links + ((by[-1][:, None] >> jnp.arange(5)) & 1)
    go, ports = jnp.stack(goes, 1), jnp.stack(by, 1)
    leaves = Departures(go, ports, jnp.where(steered, word, _forwarded(lanes, word)))
    lanes = _counted(tables, lanes, go & counts & ((tx & _RAMP) != 0))
    return state._replace(links=links, lanes=lanes._replace(color=color)), leaves


def front(lanes: Lanes) -> Array:
    """The wavelets at the heads of the CE's queues, [S] or [C, S]; old ones where none is."""
    return jnp.take_along_axis(lanes.queue, lanes.head[..., None], -1)[..., 0]


def pop(lanes: Lanes, count: Array) -> Lanes:
    """Take the first wavelets of the CE's queues away: ``count`` [S] or [C, S] of each."""
    return lanes._replace(head=(lanes.head + count) % 8, size=lanes.size - count)


def _enters(lanes: Lanes) -> Array:
    return (lanes.router[..., 1] == 0) & ((_ports(lanes, leaving=False) & _RAMP) != 0)


def drain(pe: State) -> tuple[State, tuple[Array, Array]]:
    """The word that goes onto the ramp, of the lowest output queue that can.

    Args:
        pe: of one PE, without the axis C (``per_pe``).

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
    pe = failed(pe, (lost & (queues <= queue)).any(), int(Fault.NO_COLOR), jnp.argmax(lost))
    taken = queues == queue
    sent = jnp.where(leaves.any(), jnp.stack([slot, wavelet])[:, queue], jnp.array([-1, 0]))
    out = out._replace(head=(out.head + taken) % 8, size=out.size - taken)
    return flush(pe._replace(outputs=out)), (leaves.any() | young.any(), sent)


def _arrivals(tables: Tables, lanes: Lanes, leaves: Departures) -> tuple[Array, Array]:
    """[C, S] wavelets from the neighbours, and how many came."""
    every = jnp.arange(lanes.color.shape[1])
    got = count = jnp.zeros(lanes.color.shape, jnp.int64)
    for side in range(4):
        there = tables.neighbour[:, side, None]
        for sent_as in (every, tables.partner):
            at = jnp.maximum(sent_as, 0)[None]
            sent = ((leaves.ports[there, at] >> (side ^ 1)) & 1) != 0
            taken_as = _swapped(tables, lanes.color[:, at[0]], at, side)
            comes = sent & (there >= 0) & (sent_as >= 0) & (taken_as == every)
            comes &= (lanes.color[there, at] & STEERED) == 0
            got = jnp.where(comes, leaves.wavelet[there, at], got)
            count = count + comes
    return got, count


def _messages(
    state: State, leaves: Departures, came: tuple[Array, Array], below: tuple[Array, Array]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """What arrives, and what goes down the ramp, with the words of messages: their colors change.

    Args:
        state: in which they leave.
        leaves: of ``depart``.
        came: [C, S] wavelets of all other colors from the neighbours, and how many.
        below: [C, S] whether a wavelet goes down, and which.
    """
    (got, count), (follows, falls), tables = came, below, state.tables
    steered = (state.lanes.color & STEERED) != 0
    for side in range(4):
        there, slot = tables.neighbour[:, side, None], tables.messages[1 + (side ^ 1)]
        sent = steered[there[:, 0]] & (leaves.ports[there[:, 0]] >> (side ^ 1) & 1 != 0)
        comes = (sent & (there >= 0)).any(1)
        word = jnp.where(sent, leaves.wavelet[there[:, 0]], 0).sum(1)
        got = got.at[:, slot].set(jnp.where(comes, word, got[:, slot]))
        count = count.at[:, slot].add(comes)
    down, first = steered & follows, tables.messages[0]
    word = jnp.where(down, falls, 0).sum(1)
    word = jnp.where(word & _ADVANCE, word & ~_ADVANCE | CONTROL, word)
    here, ours = down.any(1), steered[:, first]
    falls = falls.at[:, first].set(jnp.where(ours, word, falls[:, first]))
    follows = (follows & ~steered).at[:, first].set(jnp.where(ours, here, follows[:, first]))
    return (got, count), (follows, falls)


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
    word, behind = lanes.router[..., 0], lanes.router[..., 1]
    entered, rising = lanes.up[..., 0], lanes.up[..., 1]
    own = to_router & (rising != 0)
    arrived = _arrivals(tables, lanes, leaves)
    below = go & ((leaves.ports & _RAMP) != 0), word
    if tables.messages.size:
        arrived, below = _messages(state, leaves, arrived, below)
    (came, count), (follows, lower) = arrived, below
    first, second = jnp.where(go, behind, word), jnp.where(go, 0, behind)
    far, stays = tables.hop > 1, (lanes.wire != 0) & (second != 0)
    got = jnp.where(far, jnp.where(stays, 0, lanes.wire), came)
    wire = jnp.where(far, jnp.where(stays, lanes.wire, came), 0)
    clash = (count > 1) | (own & (got != 0))
    got = jnp.where(own & (got == 0), rising, got)
    color = tables.colors[jnp.argmax(clash, 1)]
    state = failed(state, clash.any(1), int(Fault.SAME_CYCLE_ARRIVAL), detail=color)
    # The router's two words.
    arrives, stays = got != 0, first != 0
    second = jnp.where(arrives & stays, got, second)
    first = jnp.where(arrives & ~stays, got, first)
    # Down to the CE's queue: also if a word follows, as the queue may have got less depth since.
    falls = (lanes.down != 0) & (room | follows)
    place = ((lanes.head + lanes.size) % 8)[..., None] == jnp.arange(8)
    # Up from the CE.
    rising = jnp.where(own, 0, rising)
    shifts = (rising == 0) & (entered != 0)
    rising, entered = jnp.where(shifts, entered, rising), jnp.where(shifts, 0, entered)
    slot, sent = entering[:, :1], entering[:, 1:]
    here = slot == jnp.arange(len(tables.colors))
    # Switches and teardown: what has entered moves its side, what has left the other.
    left = jnp.where(go, _command(word), _NOP)
    obeys = (lanes.color & STEERED) == 0
    commands = tuple(jnp.where(obeys, each, _NOP) for each in (_command(got), left))
    position = [_obeyed(lanes, lanes.position[..., k], commands[k]) for k in (0, 1)]
    lanes = lanes._replace(
        router=jnp.stack([first, second], -1),
        wire=wire,
        up=jnp.stack([jnp.where(here, sent, entered), rising], -1),
        down=jnp.where(follows, lower, jnp.where(falls, 0, lanes.down)),
        queue=jnp.where(falls[..., None] & place, lanes.down[..., None], lanes.queue),
        size=lanes.size + falls,
        position=jnp.stack(position, -1),
        torn=lanes.torn | (jnp.stack(commands, -1) == _TEARDOWN),
    )
    torn = state.torn | jnp.where(commands[1] == _TEARDOWN, 1 << tables.colors, 0).sum(1)
    state = state._replace(lanes=lanes, torn=torn)
    return state, (go | here | arrives | (came != 0) | falls | own | shifts).any(1)
