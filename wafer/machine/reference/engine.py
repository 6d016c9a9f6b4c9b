"""A cycle of the whole wafer, and runs of many."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wafer.errors import CompileError
from wafer.machine.codes import GENERATORS, Gate
from wafer.machine.image import COLUMNS, PAD, Image
from wafer.machine.reference.dispatch import dispatch, start_task
from wafer.machine.reference.effects import bind_input, choose, per_pe
from wafer.machine.reference.elements import step_operations
from wafer.machine.reference.routers import depart, drain, move
from wafer.machine.reference.state import (
    NEVER,
    THREADS,
    Fault,
    Fifos,
    Lanes,
    Operations,
    Outputs,
    State,
    TaskKind,
)
from wafer.machine.reference.tables import Tables, rounded_up, tables_of
from wafer.machine.reference.tasks import run_tasks
from wafer.machine.setup import filters_of

Array = jax.Array
_LAUNCHES, _ARGUMENTS = 8, 8


def start(image: Image) -> tuple[Tables, State]:
    """The constants of an image and the state before its first cycle.

    Raises:
        CompileError: what ``tables_of`` refuses.
        RuntimeError: registers would have 32 bits.
    """
    if not jax.config.read("jax_enable_x64"):
        raise RuntimeError("registers have 64 bits: run this inside `with jax.enable_x64(True):`")
    tables = tables_of(image)
    cells, slots, programs = len(tables.program), len(tables.colors), image.programs
    of = lambda values, none: np.array([*values, none])[tables.program]  # -1: the last
    size = rounded_up(max(len(p.memory) for p in programs) + PAD + 8, 1024)
    memories = [np.pad(p.memory, (0, size - len(p.memory))) for p in programs]
    registers = rounded_up(int((tables.frame + tables.slack).max()), 64)
    blocked = np.array([np.asarray(p.blocked, np.int64) & 0xFFFFFFFF for p in programs])
    dsrs = rounded_up(int(tables.dsrs.max()), 8)
    unbound = (tables.program >= 0) & ~tables.wse3  # colors there hold words without a queue
    zeros = lambda *shape: np.zeros((cells, *shape), np.int64)
    flags = lambda *shape: np.zeros((cells, *shape), bool)

    def filled(kind: Any, /, *shape: int, **known: Any) -> Any:
        """All zeros but what is known."""
        return kind(**{name: known.get(name, zeros(*shape)) for name in kind._fields})

    of_slots = lambda array: np.asarray(array).reshape(cells, -1)[:, tables.colors].astype(np.int64)
    switches, color = of_slots(image.switches), of_slots(image.colors)
    both = lambda values: np.repeat(values[..., None], 2, -1)  # what enters, and what leaves
    rule = filters_of(image, tables.colors.tolist())[1]
    column = COLUMNS["filters"].index
    of_filter = lambda name: tables.filters[np.maximum(rule, 0), column(name)].astype(np.int64)
    lanes = filled(
        Lanes,
        slots,
        router=zeros(slots, 2),
        wire=zeros(slots),
        up=zeros(slots, 2),
        queue=zeros(slots, 8),
        depth=zeros(slots) + np.where(unbound, tables.unbound_depth, 0)[:, None],
        color=color,
        switches=switches,
        position=both(switches >> 13 & 3),
        torn=both(color >> 14 & 1 != 0),
        rule=rule,
        filtered=rule >= 0,
        counter=of_filter("start"),
        limit=of_filter("limit1"),
        most=of_filter("most"),
        second=flags(slots),
    )
    operations = filled(
        Operations,
        THREADS,
        on=flags(THREADS),
        task=zeros(THREADS, 2),
        control_ends=flags(THREADS),
        heard=zeros(THREADS, 2),
        effects=zeros(THREADS, 5, 2),
        **{name: zeros(THREADS, 4) for name in ("kind", "row", "base", "stride")},
        indexed=flags(THREADS, 4),
        dsr=zeros(THREADS, 4) - 1,
    )
    fifos = tables.fifos.shape[1]
    state = filled(
        State,
        tables=None,
        cycle=jnp.int64(-1),
        moved=jnp.bool_(False),
        program=tables.program,
        place=tables.place,
        memory=of(memories, np.zeros(size, np.uint8)),
        registers=zeros(registers),
        frames=zeros(64, 2),
        **{name: flags() for name in ("paid", "busy", "commanded")},
        task=zeros(2),
        last_task=zeros() + 31,
        wake=zeros() + NEVER,
        active=of([int(p.active) & 0xFFFFFFFF for p in programs], 0),
        blocked=of(blocked, np.zeros(len(Gate), np.int64)),
        launches=zeros(_LAUNCHES, 1 + _ARGUMENTS),
        launched=zeros(2),
        dsr=zeros(3, dsrs, 2) + np.array([0, -1]),
        in_slot=zeros(8) - 1,
        out_slot=zeros(8) - 1,
        thread_words=zeros(8),
        shared=zeros(2),
        awaited=zeros() - 1,
        stamp=zeros(2) - np.array([0, 1]),
        random=zeros(GENERATORS) + 0xDEADBEEF,
        turns=zeros(8),
        exceptions=zeros() + 0xFFFF,
        operations=operations,
        outputs=filled(Outputs, 8, 8, head=zeros(8), size=zeros(8)),
        fifos=filled(Fifos, fifos, starved=flags(fifos), choked=flags(fifos)),
        lanes=lanes,
        links=zeros(5),
        fault=filled(Fault),
    )
    first = of([p.start for p in programs], -1)
    return tables, _started(tables, jax.tree.map(jnp.asarray, state), first)


@jax.jit
def _started(tables: Tables, state: State, first: Array) -> State:
    """Queues with their colors, what runs before any task, and the tasks that are active."""

    def started(pe: State, first: Array) -> tuple[State, Array]:
        queues = pe.tables.queues[pe.program]
        colors = jnp.where(pe.program < 0, -1, queues[:, 0])
        bound = jnp.where(colors < 0, -1, pe.tables.slot[colors])
        for queue in range(8):
            pe = bind_input(pe, queue, bound[queue])
        pe = pe._replace(out_slot=bound[8:], turns=jnp.maximum(queues[:8, 4], 0))
        begun = start_task(pe, TaskKind.START, jnp.int64(0), first)
        return dispatch(choose(first >= 0, begun, pe))

    state, _ = per_pe(started)(state._replace(tables=tables), first)
    return state._replace(tables=None, cycle=jnp.int64(0))


def step(state: State) -> State:
    """One cycle of all PEs, in the phases of ``step`` in native/machine.h."""
    # 1. Depart: the words that leave routers, as the last cycle left them.
    sizes = state.lanes.size
    state, leaves = depart(state)
    # 2. Run tasks: the instructions that fall into this cycle.
    state, (ran, alone) = run_tasks(state)
    # 3. Step operations: one step of one operation on each PE.
    state, stepped = step_operations(state, alone)
    # 4. Drain: a word of an output queue goes to the ramp.
    state, (drained, entering) = per_pe(drain)(state)
    # 5. Move: words arrive in routers, go up and down ramps, and enter input queues.
    state, routed = move(state, leaves, entering, sizes)
    # 6. Dispatch: idle PEs start a task.
    state, begun = per_pe(dispatch)(state)
    return state._replace(moved=(ran | stepped | drained | begun | routed).any())


def _closed(state: State, called: Array, limit: Array) -> tuple[State, Array]:
    """The end of a cycle: the next one in which something can happen, and whether to go on."""
    later = jnp.where(state.wake > state.cycle, state.wake, NEVER).min()
    following = jnp.where(state.moved, state.cycle + 1, later)
    quiet = following == NEVER
    cycle = jnp.where(quiet, state.cycle + 1, jnp.minimum(following, limit))
    faulted = (state.fault.kind != 0).any()
    answered = called & (state.unanswered == 0).all()
    state = state._replace(cycle=jnp.where(faulted, state.cycle, cycle))
    return state, ~(quiet | faulted | answered | (cycle >= limit))


def run(tables: Tables, state: State, most_cycles: int | Array = 1_000_000) -> State:
    """Run until nothing can change, the host's calls are answered, a fault, or the limit.

    Args:
        tables: of ``start``.
        state: from which to go on.
        most_cycles: limit.
    """
    limit, called = state.cycle + most_cycles, (state.unanswered > 0).any()

    def body(carry: tuple[State, Array]) -> tuple[State, Array]:
        return _closed(step(carry[0]), called, limit)

    goes = (state.fault.kind == 0).all() & (jnp.asarray(most_cycles) > 0)
    state = state._replace(tables=jax.tree.map(jnp.asarray, tables))
    return lax.while_loop(lambda carry: carry[1], body, (state, goes))[0]._replace(tables=None)


def launch(image: Image, state: State, function: str, words: tuple[int, ...] = ()) -> State:
    """Call an exported function on every PE that has it, after what was called before.

    Args:
        image: of the program.
        state: to call in.
        function: exported name.
        words: arguments as registers hold them, at most 8.

    Raises:
        CompileError: no PE has that function.
    """
    tiles = np.asarray(image.tiles).reshape(-1)
    entry = np.array(
        [image.programs[p].functions.get(function, -1) if p >= 0 else -1 for p in tiles]
    )
    if (entry < 0).all() or len(words) > _ARGUMENTS:
        raise CompileError(f"no PE exports a function {function!r} of {len(words)} words")
    call = np.zeros((len(tiles), 1 + _ARGUMENTS), np.int64)
    call[:, 0], call[:, 1 : 1 + len(words)] = entry, words
    rows, there = jnp.arange(len(tiles)), jnp.asarray(entry >= 0)
    at = jnp.where(there, state.launched.sum(1) % _LAUNCHES, _LAUNCHES)
    return state._replace(
        launches=state.launches.at[rows, at].set(call, mode="drop"),
        launched=state.launched.at[:, 1].add(there),
        unanswered=state.unanswered + 2 * there,
    )


def load(state: State, cell: int, address: int, count: int) -> Array:
    """[count] uint8 of a PE's memory; PEs count row by row."""
    return lax.dynamic_slice(state.memory, (cell, address), (1, count))[0]


def store(state: State, cell: int, address: int, data: Array) -> State:
    """Write [bytes] uint8 to a PE's memory."""
    memory = lax.dynamic_update_slice(state.memory, data[None].astype(jnp.uint8), (cell, address))
    return state._replace(memory=memory)
