"""Configuration registers and the time stamp counter, as in ``native/queues.h``."""

import jax
import jax.numpy as jnp

from wafer.machine.codes import CONFIG, STEERED, TORN
from wafer.machine.reference.effects import bind_input, choose
from wafer.machine.reference.state import State

Array = jax.Array
_COUNTS = dict.fromkeys(("thread", "input_queue", "output_queue"), 8) | {"timestamp": 3}
_FILTERS = {"filter_counter": "counter", "filter_limit": "limit", "filter_most": "most"}
_COUNTS |= dict.fromkeys(("color", "switch", "beside", *_FILTERS), 24)  # of the others 1
_SWAPS, _BOUND, _FILTERED = 3 << 10, 1 << 5, 1 << 6


def now(pe: State) -> Array:
    """The time stamp counter."""
    counter, since = pe.stamp
    return counter + jnp.where(since < 0, 0, pe.cycle - since)


def timer(pe: State, what: Array) -> State:
    """Start (``what`` [] is 1), stop (0) or clear (2) the time stamp counter."""
    runs = (what == 1) | ((what == 2) & (pe.stamp[1] >= 0))
    stamp = [jnp.where(what == 2, 0, now(pe)), jnp.where(runs, pe.cycle, -1)]
    return pe._replace(stamp=jnp.stack(stamp))


def _kinds(pe: State, address: Array) -> tuple[dict[str, Array], Array]:
    """Whether an address is one of each kind, and the slot of the color that it names, or -1."""
    kinds = {
        name: (address >= first) & (address < first + _COUNTS.get(name, 1))
        for name, first in CONFIG.items()
    }
    slot = pe.tables.slot[address & 31]
    for name in ("color", "switch", "beside", *_FILTERS):
        kinds[name] &= slot >= 0
    kinds["beside"] &= pe.tables.wse3
    for name in _FILTERS:
        kinds[name] &= pe.lanes.rule[slot] >= 0
    return kinds, slot


def read_register(pe: State, address: Array) -> tuple[Array, Array]:
    """What the register at a word ``address`` [] holds, and whether there is one."""
    (kinds, slot), queue = _kinds(pe, address), address & 7
    lane = jax.tree.map(lambda part: part[slot], pe.lanes)
    into, out = pe.in_slot[queue], pe.out_slot[queue]
    color = lambda slot: jnp.where(slot < 0, 0, pe.tables.colors[slot] | _BOUND)
    filtered = jnp.where((into >= 0) & pe.lanes.filtered[into], _FILTERED, 0)
    values = {
        "color": (lane.color & ~TORN) | jnp.where(lane.torn[1], TORN, 0),
        "switch": (lane.switches & 0x9FFF) | lane.position[1] << 13,
        "beside": lane.switches >> 16,
        "thread": pe.thread_words[queue],
        "input_queue": color(into) | filtered,
        "output_queue": color(out),
        "timestamp": now(pe) >> 16 * (address & 3) & 0xFFFF,
        "timer": pe.stamp[1] >= 0,
        "transform": pe.transform,
        "generator": pe.generator,
        "exceptions": pe.exceptions,
        "input_status": _status(
            (pe.in_slot < 0) | (pe.lanes.size[pe.in_slot] == 0),
            (pe.in_slot >= 0) & (pe.lanes.size >= pe.lanes.depth)[pe.in_slot],
        ),
        "output_status": _status(pe.outputs.size == 0, pe.outputs.size >= pe.tables.output_depths),
        **{name: getattr(lane, part) for name, part in _FILTERS.items()},
    }
    known = jnp.stack([*kinds.values()])
    return jnp.select([*kinds.values()], [values[name] for name in kinds], 0), known.any()


def _status(empty: Array, full: Array) -> Array:
    """Bits of the queues, [8], that are empty, and from bit 8 on of those that are full."""
    return (jnp.concatenate([empty, full]).astype(jnp.int64) << jnp.arange(16)).sum()


def write_register(pe: State, address: Array, value: Array) -> tuple[State, Array]:
    """Write a register; the PE, and whether there is one and it takes the value.

    Args:
        pe: whose it is.
        address: [] of its word.
        value: [] to write.
    """
    (kinds, slot), queue, lanes = _kinds(pe, address), address & 7, pe.lanes
    word, named = value & 0xFFFF, value & _BOUND != 0
    bound = jnp.where(named, pe.tables.slot[value & 31], -1)
    kinds["color"] &= (value & _SWAPS == 0) | (pe.tables.partner[slot] >= 0)
    kinds["color"] &= (value & STEERED == 0) | (slot == pe.tables.messages).any()
    for name in ("input_queue", "output_queue"):
        kinds[name] &= ~named | (bound >= 0)
    on = (lanes.rule[bound] >= 0) & (value & _FILTERED != 0)
    takes = bind_input(pe, queue, bound)
    filtered = choose(bound >= 0, lanes.filtered.at[bound].set(on), lanes.filtered)
    shift, counter = 16 * (address & 3), now(pe)
    counter = (counter & ~(jnp.int64(0xFFFF) << shift)) | word << shift
    since = jnp.where(pe.stamp[1] >= 0, pe.cycle, -1)
    color = lanes.color.at[slot].set(word), lanes.torn.at[slot].set(value & TORN != 0)
    switches = lanes.switches.at[slot].set((lanes.switches[slot] & ~0xFFFF) | word)
    position = lanes.position.at[slot].set(value >> 13 & 3)
    beside = lanes.switches.at[slot].set(lanes.switches[slot] & 0xFFFF | word << 16)
    changed = {
        "color": pe._replace(lanes=lanes._replace(color=color[0], torn=color[1])),
        "switch": pe._replace(lanes=lanes._replace(switches=switches, position=position)),
        "beside": pe._replace(lanes=lanes._replace(switches=beside)),
        "thread": pe._replace(thread_words=pe.thread_words.at[queue].set(word)),
        "input_queue": takes._replace(
            encoded=pe.encoded | 1 << queue, lanes=takes.lanes._replace(filtered=filtered)
        ),
        "output_queue": pe._replace(out_slot=pe.out_slot.at[queue].set(bound)),
        "timestamp": pe._replace(stamp=jnp.stack([counter, since])),
        "timer": timer(pe, (value != 0).astype(jnp.int64)),
        "transform": pe._replace(transform=word),
        "generator": pe._replace(generator=word),
        "exceptions": pe._replace(exceptions=word),
    }
    for name, part in _FILTERS.items():
        held = getattr(lanes, part).at[slot].set(word)
        changed[name] = pe._replace(lanes=lanes._replace(**{part: held}))
    del kinds["input_status"], kinds["output_status"]
    for name, new in changed.items():
        pe = choose(kinds[name], new, pe)
    return pe, jnp.stack([*kinds.values()]).any()
