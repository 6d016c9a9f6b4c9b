"""Which task runs next on a PE that is idle."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import STEERED, Gate
from wafer.machine.reference.effects import choose, failed, row_of, with_register
from wafer.machine.reference.elements import being_read
from wafer.machine.reference.routers import CONTROL, front, pop
from wafer.machine.reference.state import Main, State, TaskKind
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
_NO_TASK = 31  # of a control wavelet that is for no task
_HANDLERS = 29  # id of the task that teardown and empty queues raise


def start_task(pe: State, kind: int | Array, own: Array, pc: Array) -> State:
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


def candidates(pe: State) -> tuple[Array, Array, Array]:
    """Bits of what could start: local tasks, data tasks that a word waits for, handlers."""
    queued, bits = pe.lanes.size > 0, jnp.arange(8)
    by_color = (queued.astype(jnp.int64) << pe.tables.colors).sum()
    by_queue = (((pe.in_slot >= 0) & queued[pe.in_slot]).astype(jnp.int64) << bits).sum()
    blocked = jnp.where(pe.tables.wse3, pe.blocked[Gate.INPUT_QUEUE], 0) | pe.blocked[Gate.DATA]
    data = jnp.where(pe.tables.wse3, by_queue, by_color) & ~blocked
    local = pe.active & ~pe.blocked[Gate.LOCAL] & 0x7FFFFFFF
    raised = ((pe.torn | pe.flushed) != 0) & (pe.blocked[Gate.LOCAL] >> _HANDLERS & 1 == 0)
    return local, data & pe.tables.channels[pe.program], raised.astype(jnp.int64) << _HANDLERS


def _asked(pe: State, own: Array) -> tuple[Array, list[Array], Array]:
    """What the first word of a data task's id ``own`` [] asks for.

    Returns:
        its slot; kind, id and first instruction of the task; words that have then started the data
        task since it gave way to its queue's control task.
    """
    data_tasks = pe.tables.data_tasks[pe.program]
    control_tasks = pe.tables.control_tasks[pe.program]
    slot = jnp.where(pe.tables.wse3, pe.in_slot[own], pe.tables.slot[own])
    head = front(pe.lanes)[slot]
    control = head & CONTROL != 0
    queue = row_of(pe, "queues", own)
    entry = jnp.where(pe.tables.wse3, jnp.maximum(queue.entry, 0), 0)
    rotates, turn = pe.tables.wse3 & (queue.limit >= 0) & ~control, pe.turns[own & 7]
    turns = rotates & (turn == queue.limit)
    key = jnp.where(turns, 0, jnp.where(control, head >> 8 + 16 & 63, own))
    control |= turns
    key = jnp.where(control, jnp.minimum(key + entry, 63), key)
    shared = ~pe.tables.wse3 & (key < 24) & (control_tasks[key] < 0)  # WSE-2 has one table
    of_control = jnp.where(shared, data_tasks[key], control_tasks[key])
    first = jnp.where(control, of_control, data_tasks[own])
    task = [jnp.where(control, TaskKind.CONTROL, TaskKind.DATA), key, first]
    return slot, task, jnp.where(turns, 0, turn + rotates)


def _lowest(bits: Array) -> Array:
    """The place of the lowest one of some ``bits`` []; 0 of none."""
    return 63 - lax.clz(jnp.maximum(bits & -bits, 1))


def _handled(pe: State) -> tuple[State, list[Array]]:
    """Take the lowest color that was torn down, else the lowest output queue found empty.

    Returns:
        the PE; kind, id and first instruction of the handler.
    """
    torn = pe.torn != 0
    bits = jnp.where(torn, pe.torn, pe.flushed)
    number, rest = _lowest(bits), bits & (bits - 1)
    of_color = pe.tables.teardown_handlers[pe.program]
    of_queue = pe.tables.empty_handlers[pe.program]
    pe = pe._replace(torn=jnp.where(torn, rest, 0), flushed=jnp.where(torn, pe.flushed, rest))
    kind = jnp.where(torn, TaskKind.TEARDOWN, TaskKind.EMPTY)
    return pe, [kind, number, jnp.where(torn, of_color[number], of_queue[number])]


def select_task(pe: State, free: Array) -> tuple[State, list[Array], Array]:
    """Choose the next task: in turn from the last id on, those of high priority first.

    Args:
        pe: that looks for one.
        free: [] whether it runs none.

    Returns:
        the PE, whose flags of what was tried are down; the task's kind, id and first instruction,
        -1 for none; the slot of the word that it takes, -1 for none.
    """
    local_tasks, data_tasks, control_tasks = (
        table[pe.program]
        for table in (pe.tables.local_tasks, pe.tables.data_tasks, pe.tables.control_tasks)
    )
    ready, data, handlers = candidates(pe)
    high, controls, busy = pe.tables.high[pe.program], (control_tasks >= 0).any(), being_read(pe)

    def tried(_: Array, so_far: tuple[State, Array, list[Array], Array]) -> Any:
        pe, left, task, slot = so_far
        among = jnp.where(left & high != 0, left & high, left)
        above = among & -(2 << pe.last_task)
        own = _lowest(jnp.where(above != 0, above, among))
        waits = (left != 0) & (task[2] < 0) & (slot < 0)
        queued, local, handles = (waits & (b >> own & 1 != 0) for b in (data, ready, handlers))
        its, asked, turn = _asked(pe, own)
        kind, key, first = asked
        ends = front(pe.lanes)[its] & CONTROL != 0  # a message, and starts no task
        ends &= pe.lanes.color[its] & STEERED != 0
        queued, dropped = queued & ~ends, queued & ends & (data_tasks[own] >= 0) & ~busy[its]
        readable, meant = queued & ~busy[its], controls | (data_tasks[own] >= 0)
        lost = readable & (kind == TaskKind.CONTROL) & (first < 0) & meant & (key != _NO_TASK)
        who = jnp.stack([jnp.int64(TaskKind.LOCAL), key])
        pe = failed(pe, lost, int(Kind.UNBOUND_CONTROL), pe.tables.colors[its], task=who)
        starts = readable & (first >= 0)
        local &= ~(starts | dropped)
        pe = pe._replace(
            active=jnp.where(local, pe.active & ~(1 << own), pe.active),
            last_task=jnp.where(waits, own, pe.last_task),
            turns=jnp.where(starts, pe.turns.at[own & 7].set(turn), pe.turns),
        )
        local &= local_tasks[own] >= 0
        handles &= ~(starts | local | dropped)
        handled, handler = _handled(pe)
        pe = choose(handles, handled, pe)
        which = [starts, local, handles]
        tasks = asked, [jnp.int64(TaskKind.LOCAL), own, local_tasks[own]], handler
        task = [jnp.select(which, list(part), old) for *part, old in zip(*tasks, task, strict=True)]
        return pe, left & ~(1 << own), task, jnp.where(starts | dropped, its, slot)

    none, left = jnp.int64(-1), jnp.where(free, ready | data | handlers, 0)
    pe, _, task, slot = lax.fori_loop(0, 32, tried, (pe, left, [none] * 3, none))
    return pe, task, slot


def dispatch(pe: State) -> tuple[State, Array]:
    """Start a task if none runs; if none is ready, the host's next call. Whether one began."""
    free = (pe.main == Main.IDLE) & (pe.program >= 0)
    pe, task, slot = select_task(pe, free)
    begins = task[2] >= 0
    pe = choose(begins, start_task(pe, *task), pe)
    taken = with_register(pe, jnp.int64(0), front(pe.lanes)[slot] >> 8)
    taken = taken._replace(wake=pe.wake + (pe.cycle > pe.ended) * pe.tables.data_task)
    taking = choose(begins, taken, pe)
    taking = taking._replace(lanes=pop(pe.lanes, slot == jnp.arange(len(pe.lanes.color))))
    pe = choose(slot >= 0, taking, pe)
    called = free & ~begins & (slot < 0) & (pe.launched[1] > 0) & ~pe.commanded
    launch = pe.launches[pe.launched[0] % len(pe.launches)]
    call = start_task(pe, TaskKind.FUNCTION, launch[0], launch[0])._replace(
        registers=pe.registers.at[: len(launch) - 1].set(launch[1:]),
        commanded=True,
        launched=pe.launched + jnp.array([1, -1]),
    )
    return choose(called, call, pe), begins | called | (slot >= 0)
