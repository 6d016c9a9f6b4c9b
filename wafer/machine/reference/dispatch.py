"""Which task runs next on a PE that is idle."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import Gate
from wafer.machine.reference.effects import choose, failed, with_register
from wafer.machine.reference.elements import being_read
from wafer.machine.reference.routers import CONTROL, front, pop
from wafer.machine.reference.state import Main, State, TaskKind
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
_NO_TASK = 31  # of a control wavelet that is for no task
_HANDLERS = 29  # id of the task that teardown and empty queues raise


def begin(pe: State, kind: int | Array, own: Array, pc: Array) -> State:
    """Start a task, in the next cycle.

    Args:
        pe: that is idle.
        kind: a ``TaskKind``.
        own: [] id.
        pc: [] first instruction.
    """
    return pe._replace(
        main=Main.RUNNING,
        task=jnp.stack([jnp.int64(kind), own]),
        pc=pc,
        base=0,
        depth=0,
        paid=False,
        busy=False,
        debt=0,
        wake=pe.cycle + 1 + pe.tables.switch_task,
    )


def _channels(pe: State) -> Array:
    """Bits of data tasks (by color or queue) that a word waits for."""
    queued, bits = pe.lanes.size > 0, jnp.arange(8)
    by_color = (queued.astype(jnp.int64) << pe.tables.colors).sum()
    by_queue = (((pe.in_slot >= 0) & queued[pe.in_slot]).astype(jnp.int64) << bits).sum()
    blocked = jnp.where(pe.tables.wse3, pe.blocked[Gate.INPUT_QUEUE], 0) | pe.blocked[Gate.DATA]
    return jnp.where(pe.tables.wse3, by_queue, by_color) & ~blocked


def _asked(pe: State, own: Array) -> tuple[Array, list[Array]]:
    """The slot of a data task's id ``own`` []; kind, id and first instruction that a word asks."""
    data_tasks, control_tasks = (
        pe.tables.data_tasks[pe.program],
        pe.tables.control_tasks[pe.program],
    )
    slot = jnp.where(pe.tables.wse3, pe.in_slot[own], pe.tables.slot[own])
    head = front(pe.lanes)[slot]
    control = head & CONTROL != 0
    key = jnp.where(control, head >> 8 + 16 & 63, own)
    shared = ~pe.tables.wse3 & (key < 24) & (control_tasks[key] < 0)  # WSE-2 has one table
    of_control = jnp.where(shared, data_tasks[key], control_tasks[key])
    first = jnp.where(control, of_control, data_tasks[own])
    return slot, [jnp.where(control, TaskKind.CONTROL, TaskKind.DATA), key, first]


def _handled(pe: State) -> tuple[State, list[Array]]:
    """Take the lowest color that was torn down, else the lowest output queue found empty.

    Returns:
        the PE; kind, id and first instruction of the handler.
    """
    torn = pe.torn != 0
    bits = jnp.where(torn, pe.torn, pe.flushed)
    number, rest = 63 - lax.clz(jnp.maximum(bits & -bits, 1)), bits & (bits - 1)
    of_color, of_queue = (
        pe.tables.teardown_handlers[pe.program],
        pe.tables.empty_handlers[pe.program],
    )
    pe = pe._replace(torn=jnp.where(torn, rest, 0), flushed=jnp.where(torn, pe.flushed, rest))
    kind = jnp.where(torn, TaskKind.TEARDOWN, TaskKind.EMPTY)
    return pe, [kind, number, jnp.where(torn, of_color[number], of_queue[number])]


def dispatch(pe: State) -> tuple[State, Array]:
    """Start a task if none runs; if none is ready, the host's next call. Whether one began.

    In turn from the last dispatched id on, the first task that can run.
    """
    free = (pe.main == Main.IDLE) & (pe.program >= 0)
    names = "local_tasks", "data_tasks", "control_tasks", "channels", "high"
    local_tasks, data_tasks, control_tasks, channels, high = (
        getattr(pe.tables, name)[pe.program] for name in names
    )
    ready = pe.active & ~pe.blocked[Gate.LOCAL] & 0x7FFFFFFF
    raised = ((pe.torn | pe.flushed) != 0) & (pe.blocked[Gate.LOCAL] >> _HANDLERS & 1 == 0)
    data, controls = _channels(pe) & channels, (control_tasks >= 0).any()
    busy = being_read(pe)

    def tried(turn: Array, so_far: tuple[State, Array, Array, Array]) -> Any:
        pe, last, begun, slot = so_far
        last = jnp.where(turn == 32, pe.last_task, last)
        own = (last + 1 + turn) & 31
        waits = ~begun & ((high >> own & 1 != 0) == (turn < 32))
        queued, local = (waits & (bits >> own & 1 != 0) for bits in (data, ready))
        handles = waits & raised & (own == _HANDLERS)
        its, (kind, key, first) = _asked(pe, own)
        readable, meant = queued & ~busy[its], controls | (data_tasks[own] >= 0)
        lost = readable & (kind == TaskKind.CONTROL) & (first < 0) & meant & (key != _NO_TASK)
        task = jnp.stack([jnp.int64(TaskKind.LOCAL), key])
        pe = failed(pe, lost, int(Kind.UNBOUND_CONTROL), pe.tables.colors[its], task=task)
        starts = readable & (first >= 0)
        local &= ~starts
        pe = pe._replace(
            active=jnp.where(local, pe.active & ~(1 << own), pe.active),
            last_task=jnp.where(queued | local | handles, own, pe.last_task),
        )
        local &= local_tasks[own] >= 0
        handles &= ~(starts | local)
        handled, handler = _handled(pe)
        pe = choose(handles, handled, pe)
        which = [starts, local, handles & (handler[2] >= 0)]
        tasks = [kind, key, first], [TaskKind.LOCAL, own, local_tasks[own]], handler
        task = [jnp.select(which, list(part)) for part in zip(*tasks, strict=True)]
        begins = jnp.stack(which).any()
        pe = choose(begins, begin(pe, *task), pe)
        return pe, last, begun | begins, jnp.where(starts, its, slot)

    # Those of high priority first.
    none = pe.last_task, ~free, jnp.int64(-1)
    pe, _, begun, slot = lax.fori_loop(0, 64, tried, (pe, *none))
    taking = with_register(pe, jnp.int64(0), front(pe.lanes)[slot] >> 8)
    taking = taking._replace(lanes=pop(pe.lanes, slot == jnp.arange(len(busy))))
    pe = choose(slot >= 0, taking, pe)
    called = ~begun & (pe.launched[1] > 0) & ~pe.commanded
    launch = pe.launches[pe.launched[0] % len(pe.launches)]
    call = begin(pe, TaskKind.FUNCTION, launch[0], launch[0])._replace(
        registers=pe.registers.at[: len(launch) - 1].set(launch[1:]),
        commanded=True,
        launched=pe.launched + jnp.array([1, -1]),
    )
    return choose(called, call, pe), (free & begun) | called
