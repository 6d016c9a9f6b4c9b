"""Routers, ramps and output queues: what leaves, what arrives, which switches advance.

As ``native/routers.h`` and ``native/queues.h``; all PEs and colors at once but where the order of
colors or queues decides.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from wafer.machine.image import COLUMNS
from wafer.machine.reference.effects import failed
from wafer.machine.reference.state import Lanes, State
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault as Kind

__all__ = ["Departures", "depart", "drain", "front", "move", "pop"]

Array = jax.Array
_RAMP, _CONTROL, _ADVANCE = 16, 2, 4
_SWAPS = (1 << 10, 1 << 10, 1 << 11, 1 << 11, 3 << 10)  # of what comes in by W, E, S, N, RAMP
_NO_CE = 24  # bit of a control wavelet that the CE does not see
_NOP, _ADV, _RST, _TEARDOWN = range(4)


class Departures(NamedTuple):
    """What leaves the routers in a cycle, [C, S]: whether, by which ports, and as what."""

    go: Array
    ports: Array
    word: Array
    flag: Array


def _ports(lanes: Lanes, side: int) -> Array:
    """[C, S] ports by which words enter (side 0) or leave (1), at the switches' positions."""
    ports = (lanes.color >> 5 if side == 0 else lanes.color) & 31
    for k in (1, 2, 3):
        code = lanes.switches >> 4 * (k - 1) & 15
        changes = ((code & 7) < 5) & ((code & 8 != 0) == (side == 0))
        ports = jnp.where((k <= lanes.position[..., side]) & changes, 1 << (code & 7), ports)
    return jnp.where(lanes.torn[..., side], 0, ports)


def _command(word: Array, flag: Array) -> Array:
    return jnp.where(flag & _ADVANCE, _ADV, jnp.where(flag & _CONTROL, word >> 22 & 3, _NOP))


def _obeyed(lanes: Lanes, position: Array, command: Array) -> Array:
    code = lanes.switches >> 4 * position & 7
    ring = jnp.where(lanes.switches & 1 << 12, 0, position)
    following = jnp.where((position < 3) & (code < 5), position + 1, ring)
    out = jnp.where(command == _ADV, following, position)
    return jnp.where(command == _RST, 0, out)


def _without_first(word: Array) -> Array:
    field = (word >> 22 & 0xFF) | (word & 0xFFFF) << 8
    field = field >> 3 | (field & 1 << 23)
    return (word & 0xC03F0000) | (field & 0xFF) << 22 | field >> 8


def _forwarded(lanes: Lanes, word: Array, flag: Array) -> Array:
    first, mode = _command(word, flag), lanes.color >> 12 & 3
    leaving = lanes.position[..., 1]
    moves = _obeyed(lanes, leaving, first) != leaving
    pops = (mode == 1) | ((mode >= 2) & moves) | ((mode == 3) & (first == _NOP))
    return jnp.where((flag & _CONTROL != 0) & pops, _without_first(word), word)


def _swapped(tables: Tables, color: Array, slot: Array, side: int) -> Array:
    """The slot as which a router with this color register takes what comes in by a side."""
    swaps = _SWAPS[side]
    return jnp.where(color & swaps == swaps, tables.partner[slot], slot)


def _rule(tables: Tables) -> Callable[[str], Array]:
    """[C, S] columns of the filters."""
    rows = tables.filters[jnp.maximum(tables.filter, 0)]
    return lambda name: rows[..., COLUMNS["filters"].index(name)]


def _filtered(tables: Tables, lanes: Lanes) -> tuple[Array, Array]:
    """[C, S] whether the CE is to see the routers' heads, and whether filters count them."""
    of, head = _rule(tables), lanes.word[..., 0]
    control = lanes.flag[..., 0] & _CONTROL != 0
    hidden = control & (head >> _NO_CE & 1 != 0)
    index, by_range = head >> 16 & 0xFFFF, of("kind") == 3
    within = (index >= of("low")) & (index <= of("high"))
    controls = (of("controls_filtered") == 0) | (lanes.counter == of("most"))
    counted = jnp.where(control, controls, lanes.counter <= of("most"))
    seen = jnp.where(by_range, control | within, counted)
    counts = jnp.where(control, of("counts_control"), of("counts_data")) != 0
    return ~hidden & (seen | ~lanes.filtered), lanes.filtered & counts & ~hidden & ~by_range


def _counted(tables: Tables, lanes: Lanes, which: Array) -> Lanes:
    """Filters [C, S] count a word."""
    of = _rule(tables)
    wraps = which & (lanes.counter >= lanes.limit)
    sparse = wraps & (of("kind") == 2)
    ends = sparse & (lanes.second | (of("limit2") < 0))
    return lanes._replace(
        filtered=lanes.filtered & ~ends,
        counter=jnp.where(wraps, 0, lanes.counter + which),
        limit=jnp.where(sparse, of("limit2"), lanes.limit),
        second=lanes.second | sparse,
    )


def depart(tables: Tables, state: State) -> tuple[State, Departures]:
    """The first half of a cycle: the heads that can leave, lower colors first."""
    lanes = state.lanes
    cells, slots = lanes.color.shape
    rx, tx = _ports(lanes, 0), _ports(lanes, 1)
    full = lanes.flag[..., 1] != 0
    neighbour = tables.neighbour
    sides = sum((neighbour[:, d] >= 0).astype(jnp.int64) << d for d in range(4))
    passes, counts = _filtered(tables, lanes)
    used, links = jnp.zeros(cells, jnp.int64), state.links
    went, needs = [], []
    for slot in range(slots):
        flag, head = lanes.flag[:, slot, 0], lanes.word[:, slot, 0]
        need = jnp.where(passes[:, slot], tx[:, slot], tx[:, slot] & ~_RAMP)
        stuck = (need & _RAMP != 0) & (lanes.down_flag[:, slot] != 0)
        stuck &= lanes.size[:, slot] >= lanes.depth[:, slot]
        can = (flag != 0) & (need & used == 0) & ~stuck
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
    head, flag = lanes.word[..., 0], lanes.flag[..., 0]
    leaves = Departures(go, ports, _forwarded(lanes, head, flag), flag & ~_ADVANCE)
    lanes = _counted(tables, lanes, go & counts & (tx & _RAMP != 0))
    return state._replace(links=links, lanes=lanes), leaves


def front(lanes: Lanes) -> tuple[Array, Array]:
    """The words at the heads of the CE's queues, [S] or [C, S], and which are control wavelets."""
    take = lambda queue: jnp.take_along_axis(queue, lanes.head[..., None], -1)[..., 0]
    return take(lanes.queue), take(lanes.control)


def pop(lanes: Lanes, which: Array) -> Lanes:
    """Take heads of the CE's queues away: ``which`` [S] or [C, S]."""
    return lanes._replace(
        head=jnp.where(which, (lanes.head + 1) % 8, lanes.head), size=lanes.size - which
    )


def _enters(lanes: Lanes) -> Array:
    return (lanes.flag[..., 1] == 0) & (_ports(lanes, 0) & _RAMP != 0)


def drain(tables: Tables, pe: State) -> tuple[State, tuple[Array, Array]]:
    """The word that goes onto the ramp, of the lowest output queue that can.

    Returns:
        the PE; whether it or time moved, and [3] slot (-1: none), word and flag.
    """
    out, lanes = pe.outputs, pe.lanes
    word, slot, flag, since = (part[jnp.arange(8), out.head] for part in out[:4])
    slot = jnp.where(slot < 0, pe.out_slot, slot)
    slot = jnp.where(slot < 0, slot, _swapped(tables, lanes.color[slot], slot, 4))
    young = (out.size > 0) & (pe.cycle - since < tables.output_wait)
    waits = (out.size > 0) & ~young
    stuck = (lanes.up_flag != 0).all(-1) & ~_enters(lanes)
    leaves = waits & (slot >= 0) & ~stuck[slot]
    queue = jnp.where(leaves.any(), jnp.argmax(leaves), 8)
    lost = waits & (slot < 0)
    pe = failed(pe, (lost & (jnp.arange(8) <= queue)).any(), int(Kind.NO_COLOR), jnp.argmax(lost))
    taken = jnp.arange(8) == queue
    head = jnp.where(taken, (out.head + 1) % 8, out.head)
    gone = jnp.where(leaves.any(), jnp.stack([slot, word, flag])[:, queue], jnp.array([-1, 0, 0]))
    pe = pe._replace(outputs=out._replace(head=head, size=out.size - taken))
    return pe, (leaves.any() | young.any(), gone)


def _arrivals(tables: Tables, lanes: Lanes, leaves: Departures) -> tuple[Array, Array, Array]:
    """[C, S] words from the neighbours, their flags, and how many came."""
    cells, slots = lanes.color.shape
    every = jnp.arange(slots)
    partner = tables.partner
    word = flag = count = jnp.zeros((cells, slots), jnp.int64)
    for side in range(4):
        there = tables.neighbour[:, side, None]
        back = side ^ 1
        for its in (every, partner):
            at = jnp.maximum(its, 0)[None]
            comes = (leaves.ports[there, at] >> back & 1 != 0) & (there >= 0) & (its >= 0)
            comes &= _swapped(tables, lanes.color[:, at[0]], at, side) == every
            word = jnp.where(comes, leaves.word[there, at], word)
            flag = jnp.where(comes, flag | leaves.flag[there, at], flag)
            count = count + comes
    return word, flag, count


def _switched(lanes: Lanes, into: Array, out: Array) -> tuple[Array, Array]:
    """Positions and teardown: what has entered moves its side, what has left the other."""
    commands = jnp.stack([into, out], -1)
    position = jnp.stack(
        [_obeyed(lanes, lanes.position[..., k], commands[..., k]) for k in (0, 1)], -1
    )
    return position, lanes.torn | (commands == _TEARDOWN)


def move(
    tables: Tables,
    state: State,
    leaves: Departures,
    entering: Array,
    popped: Array,
) -> tuple[State, Array]:
    """The second half of a cycle for routers and ramps.

    Args:
        tables: constants.
        state: in which the CE has taken its words.
        leaves: of ``depart``.
        entering: [C, 3] slot, word and flag of what goes onto the ramp.
        popped: [C, S] words that the CE took in this cycle; their places are free from the next on.

    Returns:
        the state, and [C] whether anything moved.
    """
    lanes, slots = state.lanes, state.lanes.color.shape[1]
    room, to_router = lanes.size + popped < lanes.depth, _enters(lanes)
    head, head_flag = lanes.word[..., 0], lanes.flag[..., 0]
    word, flag, count = _arrivals(tables, lanes, leaves)
    rising = lanes.up_flag[..., 1]
    own = to_router & (rising != 0)
    got = jnp.where(count > 0, word, lanes.up_word[..., 1])
    got_flag = jnp.where(own, rising, 0) | flag
    clash = (count + own > 1).any(1)
    lost = tables.colors[jnp.argmax(count + own > 1, 1)]
    state = failed(state, clash, int(Kind.SAME_CYCLE_ARRIVAL), lost)
    go = leaves.go
    # The router's two words.
    first = jnp.where(go, lanes.flag[..., 1], head_flag)
    second = jnp.where(go, 0, lanes.flag[..., 1])
    first_word = jnp.where(go, lanes.word[..., 1], head)
    arrives, behind = got_flag != 0, first != 0
    second_word = jnp.where(arrives & behind, got, lanes.word[..., 1])
    second = jnp.where(arrives & behind, got_flag, second)
    first_word = jnp.where(arrives & ~behind, got, first_word)
    first = jnp.where(arrives & ~behind, got_flag, first)
    # Down to the CE's queue.
    falls = (lanes.down_flag != 0) & room
    place = ((lanes.head + lanes.size) % 8)[..., None] == jnp.arange(8)
    put = falls[..., None] & place
    queue = jnp.where(put, lanes.down_word[..., None], lanes.queue)
    control = jnp.where(put, (lanes.down_flag & _CONTROL != 0)[..., None], lanes.control)
    down = jnp.where(falls, 0, lanes.down_flag)
    lands = go & (leaves.ports & _RAMP != 0)
    # Up from the CE.
    rising = jnp.where(own, 0, rising)
    shifts = (rising == 0) & (lanes.up_flag[..., 0] != 0)
    rising = jnp.where(shifts, lanes.up_flag[..., 0], rising)
    entered = jnp.where(shifts, 0, lanes.up_flag[..., 0])
    slot, new, new_flag = jnp.moveaxis(entering, 1, 0)[..., None]
    here = slot == jnp.arange(slots)
    up_word = jnp.stack(
        [
            jnp.where(here, new, lanes.up_word[..., 0]),
            jnp.where(shifts, lanes.up_word[..., 0], lanes.up_word[..., 1]),
        ],
        -1,
    )
    entered = jnp.where(here, new_flag, entered)
    moved = (go | here | arrives | falls | own | shifts).any(1)
    leaving = jnp.where(go, _command(head, head_flag), _NOP)
    position, torn = _switched(lanes, _command(got, got_flag), leaving)
    lanes = lanes._replace(
        word=jnp.stack([first_word, second_word], -1),
        flag=jnp.stack([first, second], -1),
        up_word=up_word,
        up_flag=jnp.stack([entered, rising], -1),
        down_word=jnp.where(lands, head, lanes.down_word),
        down_flag=jnp.where(lands, head_flag, down),
        queue=queue,
        control=control,
        size=lanes.size + falls,
        position=position,
        torn=torn,
    )
    return state._replace(lanes=lanes), moved
