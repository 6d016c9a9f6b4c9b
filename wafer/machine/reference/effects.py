"""Registers and rows of tables, and what the end of an operation does."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from wafer.machine.codes import Action, Gate, Operand
from wafer.machine.image import COLUMNS
from wafer.machine.reference.state import MAIN, THREADS, Main, State
from wafer.machine.reference.tables import Tables

__all__ = [
    "applied",
    "field",
    "finish",
    "gate_set",
    "is_any",
    "register",
    "row_of",
    "runs_operation",
    "with_register",
]

Array = jax.Array


def row_of(tables: Tables, table: str, row: Array) -> Callable[[str], Array]:
    """Rows of a table, of each PE's program (the first axis is the PEs'), column by column."""
    program = jnp.maximum(jnp.asarray(tables.program), 0).reshape(-1, *[1] * (row.ndim - 1))
    values = jnp.asarray(getattr(tables, table)).at[program, row].get(mode="promise_in_bounds")
    return lambda name: values[..., COLUMNS[table].index(name)]


def is_any(values: Array, ops: tuple[int, ...]) -> Array:
    """[C] whether values are among some.

    Args:
        values: [C].
        ops: those.
    """
    return jnp.stack([values == int(op) for op in ops]).any(0)


def runs_operation(state: State, thread: Array) -> Array:
    """[C] whether a microthread (-1: none) runs an operation.

    Args:
        state: of all PEs.
        thread: [C].
    """
    on = state.operations.on[jnp.arange(len(thread)), jnp.clip(thread, 0, 7)]
    return (thread >= 0) & on


def field(descriptor: Array, k: int) -> Array:
    """16 bits of a descriptor."""
    return descriptor >> 16 * k & 0xFFFF


def register(state: State, k: Array) -> Array:
    """[C] registers of the present frames."""
    at = jnp.clip(state.base + k, 0, state.registers.shape[1] - 1)
    return state.registers[jnp.arange(len(state.pc)), at]


def with_register(state: State, which: Array, k: Array, value: Array) -> State:
    """Set registers of the present frames where [C] says so."""
    at = jnp.where(which, state.base + k, state.registers.shape[1])
    rows = jnp.arange(len(state.pc))
    return state._replace(registers=state.registers.at[rows, at].set(value, mode="drop"))


def finish(tables: Tables, state: State, which: Array, thread: Array, by_length: Array) -> State:
    """End operations: addresses go back to DSRs, tasks are activated, the main thread goes on."""
    rows = jnp.arange(len(thread))
    thread = jnp.maximum(thread, 0)
    one = jax.tree.map(lambda part: part[rows, thread], state.operations)
    dsr, depth = state.dsr, state.dsr.shape[2]
    for k in range(4):
        file, number = one.dsr[:, k] >> 8, one.dsr[:, k] & 0xFF
        held = dsr[rows, jnp.clip(file, 0, 2), jnp.minimum(number, depth - 1)]
        saves = row_of(tables, "dsr_loads", jnp.maximum(held[:, 1], 0))("saves_address")
        saves = which & (one.dsr[:, k] >= 0) & (one.kind[:, k] == Operand.MEMORY) & (saves != 0)
        address = (held[:, 0] + one.position * one.stride[:, k]) & 0xFFFF
        value = (held[:, 0] & ~0xFFFF) | address
        at = jnp.where(saves, file, 3)
        dsr = dsr.at[rows, at, jnp.minimum(number, depth - 1), 0].set(value, mode="drop")
    active, blocked = state.active, state.blocked
    for k in range(4):
        active, blocked = applied(tables, active, blocked, which, one.effects[:, k])
    own = which & (thread == MAIN)
    at = jnp.where(which, thread, THREADS)
    operations = state.operations
    state = state._replace(
        dsr=dsr,
        active=active,
        blocked=blocked,
        operations=operations._replace(on=operations.on.at[rows, at].set(False, mode="drop")),
        main=jnp.where(own, Main.RUNNING, state.main),
    )
    result = jnp.asarray(tables.code)[tables.program, one.pc, 4]
    return with_register(state, own & (result >= 0), result, by_length.astype(jnp.int64))


def applied(
    tables: Tables, active: Array, blocked: Array, which: Array, effect: Array
) -> tuple[Array, Array]:
    """Active tasks and blocked ids after an action and its target, [C, 2]."""
    action, target = effect[:, 0], jnp.maximum(effect[:, 1], 0)
    active = jnp.where(which & (action == Action.ACTIVATE), active | 1 << target, active)
    gate = gate_set(tables, action - Action.UNBLOCK)
    frees = which & (action >= Action.UNBLOCK)
    at = jnp.where(frees, gate, len(Gate))
    rows = jnp.arange(len(action))
    old = blocked[rows, jnp.clip(gate, 0, len(Gate) - 1)]
    return active, blocked.at[rows, at].set(old & ~(1 << target), mode="drop")


def gate_set(tables: Tables, gate: Array) -> Array:
    """WSE-2's colors are its data tasks."""
    return jnp.where(~jnp.asarray(tables.wse3) & (gate == Gate.COLOR), Gate.DATA, gate)
