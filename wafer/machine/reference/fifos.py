"""FIFOs: rings of 16-bit words in a PE's memory, as in ``native/operands.h``."""

import jax
import jax.numpy as jnp

from wafer.machine.codes import Operand
from wafer.machine.reference.effects import row_of
from wafer.machine.reference.state import MAIN, Fifos, Operations, State

Array = jax.Array


def load_bytes(memory: Array, places: Array, count: Array) -> Array:
    """The first bytes at some ``places`` [8] of a ``memory`` [M], little end first.

    Args:
        memory: [M] uint8.
        places: [8] their addresses.
        count: [] how many.
    """
    at = jnp.arange(8)
    return (jnp.where(at < count, memory[places], 0).astype(jnp.int64) << 8 * at).sum()


def store_bytes(memory: Array, places: Array, count: Array, value: int | Array) -> Array:
    """A memory in which bytes are written.

    Args:
        memory: [M] uint8.
        places: [8] their addresses.
        count: [] how many.
        value: [] they are its lowest.
    """
    at = jnp.arange(8)
    places = jnp.where(at < count, places, memory.size)
    return memory.at[places].set((value >> 8 * at & 0xFF).astype(jnp.uint8), mode="drop")


def short_of(pe: State, one: Operations, k: int) -> Array:
    """Whether an operand is a FIFO without an element, or without room for one.

    Args:
        pe: that runs the operation.
        one: the operation.
        k: the operand.
    """
    row, width = one.row[k], pe.tables.bytes[one.op, k]
    capacity = row_of(pe, "fifos", row).bytes // width * (width // 2)
    used = pe.fifos.used[row]
    return (one.kind[k] == Operand.FIFO) & ((used if k else capacity - used) < width // 2)


def lacking(pe: State, fifos: Fifos, thread: Array, asked: Array) -> tuple[Fifos, Array]:
    """Whether an operation has to wait for a FIFO, which then knows that it was asked.

    Args:
        pe: that runs it.
        fifos: as those that were asked before know it.
        thread: [] of the operation.
        asked: [] whether it would step.
    """
    one, waits = jax.tree.map(lambda part: part[thread], pe.operations), jnp.bool_(False)
    for k in (1, 2, 0):
        short = asked & ~waits & short_of(pe, one, k)
        rule, row = row_of(pe, "fifos", one.row[k]), one.row[k]
        name, ends = ("starved", rule.empty_ends) if k else ("choked", rule.full_ends)
        fifos = fifos._replace(**{name: getattr(fifos, name).at[row].max(short)})
        # 0: an operation that the task waits for ends, others wait; 1: all end; 2: all wait.
        waits |= short & ~((ends == 1) | ((ends == 0) & (thread == MAIN)))
    return fifos, waits


def element_places(pe: State, one: Operations, k: int) -> Array:
    """[8] addresses from a FIFO's next element on, or from the first free place.

    Args:
        pe: that runs the operation.
        one: the operation.
        k: the operand; 0 is the destination.
    """
    row, fifos = one.row[k], pe.fifos
    rule = row_of(pe, "fifos", row)
    first = fifos.head[row] + (0 if k else fifos.used[row])
    return rule.address + (2 * first + jnp.arange(8)) % jnp.maximum(rule.bytes & ~1, 1)


def passed(pe: State, which: Array, one: Operations, k: int) -> State:
    """Note that an element has left a FIFO, or entered it (k is 0); who waits is activated.

    Args:
        pe: that runs the operation.
        which: [] whether.
        one: the operation.
        k: the operand.
    """
    row, fifos, count = one.row[k], pe.fifos, which * pe.tables.bytes[one.op, k] // 2
    rule, name = row_of(pe, "fifos", row), "choked" if k else "starved"
    task, waited = rule.push_task if k else rule.pop_task, getattr(fifos, name)
    wakes = which & waited[row] & (task >= 0)
    head = (fifos.head[row] + (count if k else 0)) % jnp.maximum(rule.bytes // 2, 1)
    fifos = fifos._replace(
        head=fifos.head.at[row].set(head),
        used=fifos.used.at[row].add(-count if k else count),
        **{name: waited.at[row].set(waited[row] & ~which)},
    )
    return pe._replace(fifos=fifos, active=pe.active | wakes << jnp.maximum(task, 0))
