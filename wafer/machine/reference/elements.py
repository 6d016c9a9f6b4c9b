"""Steps of operations: which thread's turn it is, and what its elements read and write."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import Gate, Operand
from wafer.machine.reference.effects import applied, finish, row_of
from wafer.machine.reference.faults import noted
from wafer.machine.reference.issue import WIDTHS, source_slot
from wafer.machine.reference.routers import front, pop
from wafer.machine.reference.scalar import element
from wafer.machine.reference.state import MAIN, THREADS, Operations, State
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault as Kind

__all__ = ["being_read", "execute", "load_bytes", "step_operations", "store_bytes"]

Array = jax.Array
_PAD = 64  # bytes behind a program's memory that read as zero


def load_bytes(memory: Array, address: Array, count: Array, most: int) -> Array:
    """[C] up to 8 bytes of each PE, little end first."""
    rows, out = jnp.arange(len(memory)), jnp.zeros(len(memory), jnp.int64)
    for k in range(most):
        at = jnp.clip(address + k, 0, memory.shape[1] - 1)
        out = out | jnp.where(k < count, memory[rows, at].astype(jnp.int64) << 8 * k, 0)
    return out


def store_bytes(
    memory: Array, which: Array, address: Array, count: Array, *, value: Array, most: int
) -> Array:
    """Write bytes of PEs where [C] says so."""
    rows = jnp.arange(len(memory))
    for k in range(most):
        at = jnp.where(which & (k < count), address + k, memory.shape[1])
        memory = memory.at[rows, at].set((value >> 8 * k & 0xFF).astype(jnp.uint8), mode="drop")
    return memory


def _slots(tables: Tables, state: State) -> Array:
    """[C, T, 2] slots that the sources of operations read; -1 for none."""
    o = state.operations
    out = []
    for k in (1, 2):
        fabric = o.on & (o.kind[..., k] == Operand.FABRIC)
        slot = source_slot(tables, state, jnp.where(fabric, o.row[..., k], 0))
        out.append(jnp.where(fabric, slot, -1))
    return jnp.stack(out, -1)


def being_read(tables: Tables, state: State) -> Array:
    """[C, S] slots that operations read."""
    slots = _slots(tables, state).reshape(len(state.pc), -1, 1)
    return (slots == jnp.arange(state.lanes.color.shape[1])).any(1)


def _ready(tables: Tables, state: State) -> Array:
    """[C, T] operations that can step."""
    o, lanes = state.operations, state.lanes
    rows = jnp.arange(len(state.pc))[:, None]
    slots = _slots(tables, state)
    out = o.on
    for k in range(2):
        slot = slots[..., k]
        reads = o.kind[..., k + 1] == Operand.FABRIC
        there = (slot >= 0) & (lanes.size[rows, jnp.maximum(slot, 0)] > 0)
        out &= ~reads | there
    sends = o.kind[..., 0] == Operand.FABRIC
    queue = row_of(tables, "fabrics", jnp.where(sends, o.row[..., 0], 0))("queue")
    queue = jnp.maximum(queue, 0)
    full = state.outputs.size[rows, queue] >= jnp.asarray(tables.output_depths)[queue]
    blocked = state.blocked[:, int(Gate.THREAD), None] >> jnp.arange(THREADS) & 1
    blocked = (blocked != 0) & (jnp.arange(THREADS) != MAIN)
    return out & ~(sends & full) & ~blocked


def step_operations(
    tables: Tables, state: State, which: Array
) -> tuple[State, Array, Array, Array]:
    """The first in rank of the operations that can step, on PEs [C] where one may.

    Returns:
        the state; [C] whether there was one; its thread; whether its elements are due now.
    """
    o = state.operations
    rank = jnp.where(_ready(tables, state) & (which & ~state.busy)[:, None], o.rank, -1)
    thread = jnp.argmax(rank, 1)
    rows = jnp.arange(len(thread))
    stepped = rank[rows, thread] >= 0
    turn = o.turn[rows, thread] + 1
    due = stepped & (turn >= o.turns[rows, thread])
    at = jnp.where(stepped, thread, THREADS)
    turns = o.turn.at[rows, at].set(jnp.where(due, 0, turn), mode="drop")
    return state._replace(operations=o._replace(turn=turns)), stepped, thread, due


def _address(tables: Tables, one: Operations, operand: int, k: Array) -> Array:
    width = jnp.asarray(WIDTHS)[one.op, operand]
    base, rest = one.base[:, operand], k
    offset = jnp.zeros_like(base)
    shaped = one.kind[:, operand] == Operand.SHAPED
    get = row_of(tables, "shapes", jnp.where(shaped, one.row[:, operand], 0))
    for d in (3, 2, 1, 0):
        extent, step = jnp.maximum(get(f"n{d}"), 1), get(f"s{d}")
        offset = offset + rest % extent * step * width
        rest = rest // extent
    plain = k * one.stride[:, operand]
    return (base + jnp.where(shaped, offset, plain)) & 0xFFFF


def _in_memory(one: Operations, operand: int) -> Array:
    kind = one.kind[:, operand]
    return (kind == Operand.MEMORY) | (kind == Operand.SHAPED) | (kind == Operand.POINTER)


class _Progress(NamedTuple):
    """Elements so far, [C]: those at work, which is next, what was read, written or wrong."""

    going: Array
    k: Array
    memory: Array
    carry: Array
    fails: Array
    where: Array
    result: Array


def _source(
    tables: Tables, one: Operations, so_far: _Progress, operand: int, word: Array
) -> tuple[_Progress, Array]:
    """The bits of a source's element."""
    width = jnp.asarray(WIDTHS)[one.op, operand]
    address, reads = _address(tables, one, operand, so_far.k), _in_memory(one, operand)
    size = jnp.asarray(tables.size)[tables.program]
    bad = so_far.going & reads & (address + width > size + _PAD) & ~so_far.fails
    fails = so_far.fails | bad
    kept = load_bytes(so_far.memory, address, width, most=4)
    value = jnp.where(reads, kept, one.base[:, operand])
    kind = one.kind[:, operand]
    value = jnp.where(kind == Operand.FABRIC, word, value)
    value = jnp.where(kind == Operand.NONE, 0, value)
    clears = so_far.going & ~fails & reads & (one.clears >> (operand - 1) & 1 != 0)
    memory = store_bytes(so_far.memory, clears, address, width, value=jnp.zeros_like(width), most=4)
    so_far = so_far._replace(
        memory=memory, fails=fails, where=jnp.where(bad, address, so_far.where)
    )
    return so_far, value & jnp.where(width == 2, 0xFFFF, 0xFFFFFFFF)


def _elements(
    tables: Tables, one: Operations, words: Array, first: _Progress, end: Array
) -> _Progress:
    """Elements one after another, up to the end."""
    width = jnp.asarray(WIDTHS)[one.op, 0]
    size = jnp.asarray(tables.size)[tables.program]
    stores = _in_memory(one, 0)

    def following(so_far: _Progress) -> _Progress:
        values = []
        for operand in (1, 2, 3):
            so_far, value = _source(tables, one, so_far, operand, words[:, operand - 1])
            values.append(value)
        result, carry = element(one.op, *values, carry=so_far.carry)
        address = _address(tables, one, 0, so_far.k)
        good = so_far.going & ~so_far.fails
        bad = good & stores & (address + width > size)
        good &= ~bad
        k = jnp.where(good, so_far.k + 1, so_far.k)
        return _Progress(
            going=good & (k < end),
            k=k,
            memory=store_bytes(so_far.memory, good & stores, address, width, value=result, most=4),
            carry=jnp.where(good | bad, carry, so_far.carry),
            fails=so_far.fails | bad,
            where=jnp.where(bad, address, so_far.where),
            result=jnp.where(good, result, so_far.result),
        )

    return lax.while_loop(lambda so_far: so_far.going.any(), following, first)


def execute(
    tables: Tables, state: State, which: Array, thread: Array, most: Array
) -> tuple[State, Array]:
    """Up to so many elements of an operation.

    Args:
        tables: constants.
        state: with operations.
        which: [C] PEs.
        thread: [C] whose operation.
        most: [C] elements.

    Returns:
        the state, and [C, S] words that were taken from the CE's queues.
    """
    rows = jnp.arange(len(thread))
    one = jax.tree.map(lambda part: part[rows, thread], state.operations)
    slots = _slots(tables, state)[rows, thread]
    heads, controls = front(state.lanes)
    every = jnp.arange(state.lanes.color.shape[1])
    # A control wavelet at the head: the lowest color's first.
    reads = slots >= 0
    control = reads & controls[rows[:, None], jnp.maximum(slots, 0)]
    heard = which & control.any(1)
    lowest = jnp.where(control, slots, len(every)).min(1)
    active, blocked = applied(tables, state.active, state.blocked, heard, one.heard)
    state = state._replace(active=active, blocked=blocked)
    taken = heard[:, None] & (every == lowest[:, None])
    # Elements.
    goes = which & ~heard
    words = jnp.where(reads, heads[rows[:, None], jnp.maximum(slots, 0)], 0)
    words = jnp.pad(words, ((0, 0), (0, 1)))
    end = jnp.minimum(one.length, one.position + most)
    none, no = jnp.zeros_like(most), jnp.zeros_like(which)
    going = goes & (one.position < end)
    first = _Progress(going, one.position, state.memory, one.carry, no, none, none)
    _, position, memory, bits, fails, where, result = _elements(tables, one, words, first, end)
    fault = noted(state.fault, fails, int(Kind.OUTSIDE_MEMORY), one.pc, where)
    sends = goes & ~fails & (one.kind[:, 0] == Operand.FABRIC)
    state = _send(tables, state, sends, one, position=position, value=result)
    for k in range(2):
        taken = taken | (goes & reads[:, k])[:, None] & (every == slots[:, k, None])
    at = jnp.where(goes, thread, THREADS)
    o = state.operations
    operations = o._replace(
        position=o.position.at[rows, at].set(position, mode="drop"),
        carry=o.carry.at[rows, at].set(bits, mode="drop"),
    )
    state = state._replace(
        memory=memory, fault=fault, operations=operations, lanes=pop(state.lanes, taken)
    )
    ended = goes & ~fails & (position == one.length)
    cut = heard & one.control_ends
    return finish(tables, state, ended | cut, thread, ended), taken


def _send(
    tables: Tables, state: State, which: Array, one: Operations, *, position: Array, value: Array
) -> State:
    """Put a wavelet into an output queue."""
    row = jnp.where(which, one.row[:, 0], 0)
    get = row_of(tables, "fabrics", row)
    queue = jnp.maximum(get("queue"), 0)
    last = (get("advances") != 0) & (position == one.length)
    flag = 1 | 2 * (get("control") != 0) | 4 * last
    color = get("color")
    slot = jnp.where(color >= 0, jnp.asarray(tables.slot)[color], -1)
    out, rows = state.outputs, jnp.arange(len(position))
    place = (out.head[rows, queue] + out.size[rows, queue]) % 8
    at = jnp.where(which, queue, 8)
    put = lambda old, new: old.at[rows, at, place].set(new, mode="drop")
    return state._replace(
        outputs=out._replace(
            word=put(out.word, value),
            slot=put(out.slot, slot),
            flag=put(out.flag, flag),
            since=put(out.since, state.cycle),
            size=out.size.at[rows, at].add(1, mode="drop"),
        )
    )
