"""Steps of operations: which thread's turn it is, and what its elements read and write."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import DsdOp, Gate, Operand, Type
from wafer.machine.costs import PACE
from wafer.machine.image import PAD
from wafer.machine.reference.effects import applied, choose, failed, finish, per_pe, row_of
from wafer.machine.reference.fifos import (
    element_places,
    lacking,
    load_bytes,
    passed,
    short_of,
    store_bytes,
)
from wafer.machine.reference.issue import RANKS, source_slot
from wafer.machine.reference.routers import CONTROL, front, pop
from wafer.machine.reference.scalar import element, raised, single_step
from wafer.machine.reference.state import MAIN, THREADS, Fifos, Main, Operations, State
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
RELAYED = 3 << 30  # bits of a control wavelet that passes through a PE as a word


def _slots(pe: State) -> Array:
    """[T, 2] slots that the sources of operations read; -1 for none."""
    o = pe.operations
    fabric = o.on[:, None] & (o.kind[:, 1:3] == Operand.FABRIC)
    slots = source_slot(pe, jnp.where(fabric, o.row[:, 1:3], 0))
    return jnp.where(fabric, slots, -1)


def being_read(pe: State) -> Array:
    """[S] slots that operations read."""
    return (_slots(pe).reshape(-1, 1) == jnp.arange(len(pe.lanes.color))).any(0)


def _ready(pe: State) -> Array:
    """[T] operations that can step."""
    o, slots, threads = pe.operations, _slots(pe), jnp.arange(THREADS)
    reads = o.kind[:, 1:3] == Operand.FABRIC
    lacks = reads & ((slots < 0) | (pe.lanes.size[slots] == 0))
    sends = o.kind[:, 0] == Operand.FABRIC
    queue = row_of(pe, "fabrics", jnp.where(sends, o.row[:, 0], 0)).queue
    full = pe.outputs.size[queue] >= pe.tables.output_depths[queue]
    blocked = (threads != MAIN) & (pe.blocked[Gate.THREAD] >> threads & 1 != 0)
    return o.on & ~lacks.any(1) & ~(sends & full) & ~blocked


class _Progress(NamedTuple):
    """Elements so far: whether there is a next one, which, the carry, the last result."""

    going: Array
    k: Array
    carry: Array
    result: Array
    fails: Array


class _Step(NamedTuple):
    """Of the operation that steps."""

    one: Operations
    thread: Array
    alone: Array  # nothing on its PE competes with it
    goes: Array  # elements are due, and no control wavelet has come
    heard: Array  # one has, or DFILT has counted it
    short: Array  # a FIFO has no element, or no room
    words: Array  # [3] of the sources
    offset: Array  # in bytes, from the index of a word
    end: Array  # elements then


def _words(pe: State, one: Operations, slots: Array, heads: Array) -> tuple[Array, Array]:
    """[2] words of the sources, and which are control wavelets; transformed ones are words."""
    control = (slots >= 0) & (heads & CONTROL != 0)
    relays = row_of(pe, "fabrics", jnp.maximum(one.row[1:3], 0)).transform > 0
    marked = heads >> 8 & ~RELAYED | jnp.where(control, RELAYED, 0)
    return jnp.where(relays, marked, heads >> 8), control & ~relays


def _begin(pe: State, alone: Array) -> tuple[State, tuple[_Step, Array]]:
    """Choose the operation that is first in rank; take the words that it reads.

    Args:
        pe: with operations.
        alone: [] whether the task's own operation does all its elements now.

    Returns:
        the PE; its step, and whether there is one.
    """
    o, every = pe.operations, jnp.arange(len(pe.lanes.color))
    ranks = jnp.where(_ready(pe) & ~alone, o.rank, -1)
    of_task = jnp.where(pe.busy, jnp.asarray(RANKS)[pe.tables.level[pe.program]], -1)

    def tried(thread: Array, so_far: tuple[Fifos, Array, Array]) -> tuple[Fifos, Array, Array]:
        fifos, best, rank = so_far
        fifos, lacks = lacking(pe, fifos, thread, ranks[thread] > rank)
        first = (ranks[thread] > rank) & ~lacks
        return fifos, jnp.where(first, thread, best), jnp.where(first, ranks[thread], rank)

    none = jnp.int64(-1), of_task
    fifos, best, _ = lax.fori_loop(0, THREADS, tried, (pe.fifos, *none))
    thread, stepped = jnp.where(alone, MAIN, best), best >= 0
    one = jax.tree.map(lambda part: part[thread], o)
    passed_by = one.turn + PACE
    due = stepped & (passed_by >= one.turns)
    turn = o.turn.at[thread].set(jnp.where(due, passed_by - one.turns, passed_by))
    steps = lambda count: (count + one.wide - 1) // one.wide
    rows, rest = one.length // one.across, one.length % one.across
    turns = (rows * steps(one.across) + steps(rest)) * one.turns
    cycles = jnp.where(alone, (turns + PACE - 1) // PACE, stepped)
    delayed = stepped & pe.busy  # instructions of the task, by this cycle
    till = jnp.where(delayed, pe.wake, pe.cycle) + cycles
    pe = pe._replace(
        fifos=fifos,
        operations=o._replace(turn=jnp.where(stepped, turn, o.turn)),
        wake=jnp.where(alone | delayed, till, pe.wake),
        worked=pe.worked + cycles,
        ended=jnp.where(cycles > 0, till, pe.ended),
    )
    most = jnp.minimum(one.wide, one.across - one.position % one.across)
    end = jnp.minimum(one.length, one.position + jnp.where(alone, one.length, most))
    short = due & jnp.stack([short_of(pe, one, k) for k in range(3)]).any()
    # A control wavelet ends an operation and stays, or is an element.
    slots, heads = _slots(pe)[thread], front(pe.lanes)
    # DFILT counts control wavelets and drops the others, of the lowest color if it reads two.
    filters = (one.op == DsdOp.DFILT) & (slots >= 0).any()
    slots = jnp.where(filters & (slots != jnp.where(slots < 0, len(every), slots).min()), -1, slots)
    words, control = _words(pe, one, slots, heads[slots])
    takes = (alone | due) & ~short
    heard = takes & control.any() & one.control_ends
    goes = takes & ~heard & ~filters
    taken = takes & ~heard & (every == slots[:, None]).any(0)
    counted = takes & ~heard & filters & control.any()
    words = jnp.append(jnp.where(slots >= 0, words, 0), 0)
    has_index = ((slots >= 0) & (pe.tables.bytes[one.op, 1:3] == 2)).any() & one.indexed[:3].any()
    offset = jnp.where(has_index, 2 * (heads[slots.max()] >> 8 + 16), 0)
    pe = choose(heard, applied(pe, *one.heard), pe)
    one = one._replace(position=one.position + counted)
    step = _Step(one, thread, alone, goes, heard | counted, short, words, offset, end)
    return pe._replace(lanes=pop(pe.lanes, taken)), (step, stepped)


def _address(pe: State, step: _Step, operand: int, k: Array) -> Array:
    rest, offset, one = k, 0, step.one
    shape = row_of(pe, "shapes", one.row[operand])
    for d in (3, 2, 1, 0):
        extent = jnp.maximum(getattr(shape, f"n{d}"), 1)
        offset = offset + rest % extent * getattr(shape, f"s{d}")
        rest = rest // extent
    offset = offset * pe.tables.bytes[one.op, operand]
    shaped = one.kind[operand] == Operand.SHAPED
    base = one.base[operand] + jnp.where(one.indexed[operand], step.offset, 0)
    return (base + jnp.where(shaped, offset, k * one.stride[operand])) & 0xFFFF


def _element(pe: State, step: _Step, so_far: _Progress) -> tuple[State, _Progress]:
    """One element: sources are read, and set to 0 where that is asked; the result is written."""
    one, good, values, outside = step.one, so_far.going, [], int(Kind.OUTSIDE_MEMORY)
    size, widths = pe.tables.size[pe.program], pe.tables.bytes[one.op]
    kinds = (Operand.MEMORY, Operand.SHAPED, Operand.POINTER)
    held = jnp.stack([one.kind == kind for kind in kinds]).any(0)
    fifo = one.kind == Operand.FIFO
    for k in (1, 2, 3):
        address, width = _address(pe, step, k, so_far.k), widths[k]
        bad = good & held[k] & (address + width > size + PAD)
        pe, good = failed(pe, bad, outside, address, one.pc, task=one.task), good & ~bad
        places = jnp.where(fifo[k], element_places(pe, one, k), address + jnp.arange(8))
        value = load_bytes(pe.memory, places, width)
        value = jnp.where(held[k] | fifo[k], value, one.base[k])
        value = jnp.where(one.kind[k] == Operand.FABRIC, step.words[k - 1], value)
        value = jnp.where(one.kind[k] == Operand.NONE, 0, value)
        values.append(value & jnp.where(width == 2, 0xFFFF, 0xFFFFFFFF))
        clears = good & held[k] & (one.clears >> (k - 1) & 1 != 0)
        pe = pe._replace(memory=store_bytes(pe.memory, places, clears * width, 0))
        pe = passed(pe, good & fifo[k], one, k)
    a, b, scale = values
    result, carry = element(one.op, a, b, scale, so_far.carry, half=pe.tables.half)
    kind = jnp.where(widths[0] == 2, Type.F16, Type.F32)
    bits = raised((single_step(one.op), kind), (a, b, result), pe.tables.half) & ~pe.exceptions
    bad = good & (bits != 0)
    pe, good = failed(pe, bad, int(Kind.EXCEPTION), bits, one.pc, task=one.task), good & ~bad
    address = _address(pe, step, 0, so_far.k)
    bad = good & held[0] & (address + widths[0] > size)
    pe, good = failed(pe, bad, outside, address, one.pc, task=one.task), good & ~bad
    places = jnp.where(fifo[0], element_places(pe, one, 0), address + jnp.arange(8))
    memory = store_bytes(pe.memory, places, (good & (held[0] | fifo[0])) * widths[0], result)
    pe = passed(pe, good & fifo[0], one, 0)
    more = so_far._replace(k=so_far.k + 1, carry=carry, result=result)
    fails, so_far = so_far.fails | (so_far.going & ~good), choose(good, more, so_far)
    going = good & (so_far.k < step.end)
    return pe._replace(memory=memory), so_far._replace(going=going, fails=fails)


def _element_sent(pe: State, one: Operations, progress: _Progress) -> State:
    row = row_of(pe, "fabrics", one.row[0])
    index = one.index + jnp.where(row.indexed >= 0, row.indexed + progress.k - 1, 0)
    half = pe.tables.bytes[one.op, 0] == 2
    word = progress.result | jnp.where(half, (index & 0xFFFF) << 16, 0)
    return sent(pe, row, word, (row.advances != 0) & (progress.k == one.length))


def sent(pe: State, row: Any, word: Array, advances: Array) -> State:
    """Put a wavelet into an output queue.

    Args:
        pe: that sends it.
        row: of ``fabrics``, by column.
        word: [] of the wavelet.
        advances: [] whether it advances switches.
    """
    relayed = (row.transform > 0) & (word & RELAYED == RELAYED)
    word = jnp.where(relayed, word & ~RELAYED ^ (pe.transform & 63) << 16, word)
    flag, out = 1 | CONTROL * ((row.control != 0) | relayed) | 4 * advances, pe.outputs
    slot = jnp.where(row.color >= 0, pe.tables.slot[row.color], -1)
    place = row.queue, (out.head[row.queue] + out.size[row.queue]) % 8
    return pe._replace(
        outputs=out._replace(
            wavelet=out.wavelet.at[place].set(word << 8 | flag),
            slot=out.slot.at[place].set(slot),
            since=out.since.at[place].set(pe.cycle),
            size=out.size.at[row.queue].add(1),
        )
    )


def _end(pe: State, step: _Step, progress: _Progress) -> tuple[State, None]:
    """What a step leaves behind: a word that is sent, or the operation's end."""
    one, o, before = step.one, pe.operations, pe.main
    went = o._replace(
        position=o.position.at[step.thread].set(progress.k),
        carry=o.carry.at[step.thread].set(progress.carry),
    )
    good = step.goes & ~progress.fails
    pe = pe._replace(operations=choose(step.goes | step.heard, went, o))
    pe = choose(good & (one.kind[0] == Operand.FABRIC), _element_sent(pe, one, progress), pe)
    ended = (good | step.heard) & (progress.k == one.length)
    over = ended | (step.heard & one.control_ends) | step.short
    pe = choose(over, finish(pe, step.thread, ended), pe)
    goes_on = ~step.alone & (before == Main.OPERATING) & (pe.main == Main.RUNNING)
    return pe._replace(wake=jnp.where(goes_on, pe.cycle + 1, pe.wake)), None


def step_operations(state: State, alone: Array) -> tuple[State, Array]:
    """One step of one operation on each PE; all of one that began alone.

    Args:
        state: of all PEs.
        alone: [C] PEs with an operation of which all elements are due now.

    Returns:
        the state; [C] whether an operation stepped.
    """
    state, (step, stepped) = per_pe(_begin)(state, alone)
    k, no = step.one.position, jnp.zeros_like(alone)
    first = _Progress(step.goes & (k < step.end), k, step.one.carry, jnp.zeros_like(k), no)
    state, progress = lax.while_loop(
        lambda so_far: so_far[1].going.any(),
        lambda so_far: per_pe(_element)(so_far[0], step, so_far[1]),
        (state, first),
    )
    return per_pe(_end)(state, step, progress)[0], stepped
