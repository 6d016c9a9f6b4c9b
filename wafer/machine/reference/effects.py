"""Parts of a PE's step: rows of tables, registers, faults, the end of an operation.

What has a ``pe`` is of one PE: a :class:`State` without the first axis. :func:`per_pe` makes it one
of all PEs.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from wafer.machine.codes import Action, Operand
from wafer.machine.image import COLUMNS
from wafer.machine.reference.state import MAIN, Fault, Main, State
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
_ONE = {"tables", "cycle", "moved"}  # of all PEs
_AXES = State._make(None if name in _ONE else 0 for name in State._fields)


def per_pe(function: Callable[..., Any]) -> Callable[..., Any]:
    """Map a function of a PE and more of it, which returns the PE and more, over all."""

    def every(state: State, *more: object) -> tuple[State, Any]:
        return jax.vmap(function, (_AXES, *[0] * len(more)), (_AXES, 0))(state, *more)

    return every


def choose(which: Array, new: Any, old: Any) -> Any:
    """``new`` where ``which`` [] says so, else ``old``; what both have alike costs nothing."""
    return jax.tree.map(lambda n, o: o if n is o else jnp.where(which, n, o), new, old)


def row_of(pe: State, table: str, row: Array) -> SimpleNamespace:
    """Rows of a table of a PE's program, by column."""
    values = jnp.moveaxis(getattr(pe.tables, table)[pe.program, row], -1, 0)
    return SimpleNamespace(**dict(zip(COLUMNS[table], values, strict=True)))


def is_any(value: Array, codes: tuple[int, ...]) -> Array:
    """Whether a ``value`` [] is among some."""
    return jnp.stack([value == int(code) for code in codes]).any()


def runs_operation(pe: State, thread: Array) -> Array:
    """Whether a ``thread`` [], -1 for none, runs an operation."""
    return (thread >= 0) & pe.operations.on[thread]


def field(descriptor: Array, k: int, *, signed: bool = False) -> Array:
    """16 bits of a ``descriptor`` []."""
    bits = descriptor >> 16 * k & 0xFFFF
    return (bits ^ 0x8000) - 0x8000 if signed else bits


def register(pe: State, k: Array) -> Array:
    """Register ``k`` [] of the present frame."""
    return pe.registers[pe.base + k]


def with_register(pe: State, k: Array, value: int | Array) -> State:
    """Set register ``k`` [] of the present frame to a ``value`` []."""
    return pe._replace(registers=pe.registers.at[pe.base + k].set(value))


def failed(
    pe: State,
    where: Array,
    kind: int | Array,
    detail: int | Array,
    pc: int | Array = -1,
    *,
    task: Array | None = None,
) -> State:
    """Note a fault of a PE, or of each, unless it has one.

    Args:
        pe: one PE, or all.
        where: [] or [C] bool.
        kind: number of ``reports.Fault``.
        detail: as its message has it.
        pc: instruction, -1 for none.
        task: [2] or [C, 2] its kind and id; None: the running one's.
    """
    first = where & (pe.fault.kind == Kind.NO_FAULT)
    who = pe.task if task is None else task
    fault = Fault(kind, who[..., 0], who[..., 1], pc, detail)
    return pe._replace(fault=choose(first, fault, pe.fault))


def bind_input(pe: State, queue: int | Array, slot: Array) -> State:
    """Bind an input queue to a color.

    Args:
        pe: whose queue it is.
        queue: [] number.
        slot: [] of the color, -1 for none.
    """
    was, count = pe.in_slot[queue], len(pe.lanes.depth)
    own = jnp.where(pe.tables.wse3, 0, pe.tables.unbound_depth)
    depth = pe.lanes.depth.at[jnp.where(was < 0, count, was)].set(own, mode="drop")
    of_queue = pe.tables.input_depths[queue]
    depth = depth.at[jnp.where(slot < 0, count, slot)].set(of_queue, mode="drop")
    lanes = pe.lanes._replace(depth=depth)
    return pe._replace(in_slot=pe.in_slot.at[queue].set(slot), lanes=lanes)


def flush(pe: State) -> State:
    """Note the output queues that the program waits to see empty and that are."""
    empty = ((pe.outputs.size == 0).astype(jnp.int64) << jnp.arange(8)).sum()
    return pe._replace(flushed=pe.flushed | (pe.flushing & empty), flushing=pe.flushing & ~empty)


def finish(pe: State, thread: Array, by_length: Array) -> State:
    """End an operation: addresses go back to DSRs, tasks are activated, the task goes on.

    Args:
        pe: that runs it.
        thread: [] of the operation.
        by_length: [] whether all its elements are done.
    """
    one = jax.tree.map(lambda part: part[thread], pe.operations)
    dsr = pe.dsr
    for k in range(4):
        place = one.dsr[k] >> 8, one.dsr[k] & 0xFF
        held, load = dsr[place]
        saves = row_of(pe, "dsr_loads", load).saves_address != 0
        saves &= (one.dsr[k] >= 0) & (one.kind[k] == Operand.MEMORY)
        value = (held & ~0xFFFF) | (held + one.position * one.stride[k] & 0xFFFF)
        dsr = dsr.at[(*place, 0)].set(jnp.where(saves, value, held))
    own = thread == MAIN
    pe = pe._replace(
        dsr=dsr,
        operations=pe.operations._replace(on=pe.operations.on.at[thread].set(False)),
        main=jnp.where(own, Main.RUNNING, pe.main),
    )
    for effect in one.effects:
        pe = applied(pe, *effect)
    result = pe.tables.code[pe.program, one.pc, 4]
    return choose(own & (result >= 0), with_register(pe, result, by_length), pe)


def applied(pe: State, action: Array, target: Array) -> State:
    """Do an ``action`` [] with the id of a task, queue or thread: ``target`` []."""
    bit = 1 << jnp.maximum(target, 0)
    gate = action - Action.UNBLOCK
    unblocked = pe.blocked.at[gate].set(pe.blocked[gate] & ~bit)
    return pe._replace(
        active=jnp.where(action == Action.ACTIVATE, pe.active | bit, pe.active),
        blocked=jnp.where(action >= Action.UNBLOCK, unblocked, pe.blocked),
    )
