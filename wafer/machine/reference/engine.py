"""A cycle of the whole wafer, and runs of many."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wafer.errors import CompileError
from wafer.machine.checks import registers_beyond
from wafer.machine.codes import Gate
from wafer.machine.image import COLUMNS, Image
from wafer.machine.reference.elements import execute, step_operations
from wafer.machine.reference.routers import depart, drain, move
from wafer.machine.reference.state import (
    MAIN,
    NEVER,
    THREADS,
    Fault,
    Lanes,
    Main,
    Operations,
    Outputs,
    State,
    TaskKind,
)
from wafer.machine.reference.tables import Tables, rounded_up, tables_of
from wafer.machine.reference.tasks import begin, dispatch, run_tasks

__all__ = ["launch", "load", "run", "start", "step", "store"]

Array = jax.Array
_LAUNCHES, _ARGUMENTS = 8, 8
_PAD = 64


def _bound(image: Image, tables: Tables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[C, 8] slots of input and output queues, and [C, S] depths of the CE's queues."""
    cells, slots = len(tables.program), len(tables.colors)
    ways = np.full((2, cells, 8), -1)
    depth = np.zeros((cells, slots), np.int64)
    if image.arch == "wse2":
        depth[tables.program >= 0] = tables.unbound_depth
    for cell, program in enumerate(np.asarray(tables.program)):
        if program < 0:
            continue
        colors = np.asarray(tables.queues)[program, :, 0].reshape(2, 8)
        ways[:, cell] = np.where(colors >= 0, np.asarray(tables.slot)[colors], -1)
        for queue, slot in enumerate(ways[0, cell]):
            if slot >= 0:
                depth[cell, slot] = np.asarray(tables.input_depths)[queue]
    return ways[0], ways[1], depth


def start(image: Image) -> tuple[Tables, State]:
    """The constants of an image and the state before its first cycle.

    Raises:
        CompileError: what ``tables_of`` refuses.
        RuntimeError: registers would have 32 bits.
    """
    if not jax.config.read("jax_enable_x64"):
        raise RuntimeError("registers have 64 bits: run this inside `with jax.enable_x64(True):`")
    tables = tables_of(image)
    cells, slots = len(tables.program), len(tables.colors)
    programs = image.programs
    of = lambda values: np.array([values[p] if p >= 0 else 0 for p in tables.program], np.int64)
    size = rounded_up(max(len(p.memory) for p in programs) + _PAD + 8, 1024)
    memory = np.zeros((cells, size), np.uint8)
    for cell, program in enumerate(np.asarray(tables.program)):
        if program >= 0:
            memory[cell, : len(programs[program].memory)] = programs[program].memory
    registers = rounded_up(max(p.frame + registers_beyond(p) for p in programs), 64)
    blocked = np.array([np.asarray(p.blocked, np.int64) & 0xFFFFFFFF for p in programs])
    if image.arch == "wse2":
        blocked[:, Gate.DATA] |= blocked[:, Gate.COLOR]
    loads = [p.tables["dsr_loads"] for p in programs]
    dsrs = rounded_up(max(max((int(row[1]) + 1 for row in table), default=1) for table in loads), 8)
    in_slot, out_slot, depth = _bound(image, tables)
    zeros = lambda *shape: np.zeros((cells, *shape), np.int64)
    minus = lambda *shape: np.full((cells, *shape), -1, np.int64)
    flags = lambda *shape: np.zeros((cells, *shape), bool)
    switches = np.asarray(image.switches).reshape(cells, -1)[:, tables.colors].astype(np.int64)
    position = np.repeat((switches >> 13 & 3)[..., None], 2, -1)
    color = np.asarray(image.colors).reshape(cells, -1)[:, tables.colors].astype(np.int64)
    rules = np.asarray(tables.filters)[np.maximum(tables.filter, 0)].astype(np.int64)
    of_filter = lambda column: rules[..., COLUMNS["filters"].index(column)]
    lanes = Lanes(
        *(zeros(slots, 2) for _ in range(4)),
        *(zeros(slots) for _ in range(2)),
        queue=zeros(slots, 8),
        control=flags(slots, 8),
        head=zeros(slots),
        size=zeros(slots),
        depth=depth,
        color=color,
        switches=switches,
        position=position,
        torn=np.repeat((color >> 14 & 1)[..., None] != 0, 2, -1),
        filtered=np.asarray(tables.filter) >= 0,
        counter=of_filter("start"),
        limit=of_filter("limit1"),
        second=flags(slots),
    )
    state = State(
        cycle=jnp.int64(-1),
        moved=jnp.bool_(False),
        memory=memory,
        registers=zeros(registers),
        frames=zeros(64, 2),
        main=zeros(),
        task=zeros(2),
        last_task=zeros() + 31,
        pc=zeros(),
        base=zeros(),
        depth=zeros(),
        paid=flags(),
        busy=flags(),
        debt=zeros(),
        worked=zeros(),
        ended=zeros(),
        wake=zeros() + NEVER,
        active=of([int(p.active) & 0xFFFFFFFF for p in programs]),
        blocked=np.stack([blocked[p] * (p >= 0) for p in tables.program]),
        commanded=flags(),
        launches=zeros(_LAUNCHES, 1 + _ARGUMENTS),
        launched=zeros(2),
        unanswered=jnp.int64(0),
        dsr=minus(3, dsrs, 2) + np.array([1, 0]),
        in_slot=in_slot,
        out_slot=out_slot,
        stamp=zeros(2) - np.array([0, 1]),
        random=zeros() + 0xDEADBEEF,
        operations=Operations(
            on=flags(THREADS),
            **{name: zeros(THREADS) for name in Operations._fields[1:12]},
            control_ends=flags(THREADS),
            heard=zeros(THREADS, 2),
            effects=zeros(THREADS, 4, 2),
            kind=zeros(THREADS, 4),
            dsr=minus(THREADS, 4),
            row=zeros(THREADS, 4),
            base=zeros(THREADS, 4),
            stride=zeros(THREADS, 4),
        ),
        outputs=Outputs(*(zeros(8, 8) for _ in range(4)), head=zeros(8), size=zeros(8)),
        lanes=lanes,
        links=zeros(5),
        fault=Fault(*(jnp.int64(0) for _ in range(4))),
    )
    first = of([p.start for p in programs])
    begins = (first >= 0) & (np.asarray(tables.program) >= 0)
    return tables, _started(tables, jax.tree.map(jnp.asarray, state), begins, first)


@jax.jit
def _started(tables: Tables, state: State, begins: Array, first: Array) -> State:
    """What runs before any task, and the tasks that are active."""
    kind, none = jnp.full_like(first, TaskKind.START), jnp.zeros_like(first)
    state = begin(tables, state, begins, (kind, none), first)
    state, _ = dispatch(tables, state)
    return state._replace(cycle=jnp.int64(0))


def step(tables: Tables, state: State) -> State:
    """One cycle of all PEs, in the phases of ``step`` in native/machine.h."""
    # 1. Depart: the words that leave routers, as the last cycle left them.
    state, leaves = depart(tables, state)
    # 2. Run tasks: the instructions that fall into this cycle.
    state, ran, alone = run_tasks(tables, state)
    # 3. Step operations: one step of one operation on each PE.
    waits = (state.main == Main.OPERATING) & ~alone
    state, stepped, thread, due = step_operations(tables, state, ~alone)
    thread = jnp.where(alone, MAIN, thread)
    of = lambda part: part[jnp.arange(len(thread)), thread]
    o = state.operations
    length, position, wide, across = map(of, (o.length, o.position, o.wide, o.across))
    steps = lambda count: (count + wide - 1) // wide
    cycles = (length // across * steps(across) + steps(length % across)) * of(o.turns)
    spent = jnp.where(alone, cycles, stepped)
    state = state._replace(
        wake=jnp.where(alone, state.cycle + cycles, state.wake),
        worked=state.worked + spent,
        ended=jnp.where(spent > 0, state.cycle + spent, state.ended),
    )
    before = state.outputs.size.sum(1)
    most = jnp.where(alone, length, jnp.minimum(wide, across - position % across))
    state, popped = execute(tables, state, alone | due, thread, most)
    sent = state.outputs.size.sum(1) > before
    goes_on = waits & (state.main == Main.RUNNING)
    state = state._replace(wake=jnp.where(goes_on, state.cycle + 1, state.wake))
    # 4. Drain: a word of an output queue goes to the ramp.
    state, drained, slot, word, flag = drain(tables, state)
    # 5. Move: words arrive in routers, go up and down ramps, and enter input queues.
    state, routed = move(tables, state, leaves, (slot, word, flag), popped)
    # 6. Dispatch: idle PEs start a task.
    state, begun = dispatch(tables, state)
    moved = ran | stepped | sent | drained | begun | routed
    return state._replace(moved=moved.any())


def _closed(state: State, called: Array, limit: Array) -> tuple[State, Array]:
    """The end of a cycle: the next one in which something can happen, and whether to go on."""
    later = jnp.where(state.wake > state.cycle, state.wake, NEVER).min()
    following = jnp.where(state.moved, state.cycle + 1, later)
    quiet = following == NEVER
    cycle = jnp.where(quiet, state.cycle + 1, jnp.minimum(following, limit))
    faulted = state.fault.kind != 0
    answered = called & (state.unanswered == 0)
    state = state._replace(cycle=jnp.where(faulted, state.cycle, cycle))
    return state, ~(quiet | faulted | answered | (cycle >= limit))


def run(tables: Tables, state: State, most_cycles: int | Array = 1_000_000) -> State:
    """Run until nothing can change, the host's calls are answered, a fault, or the limit.

    Args:
        tables: of ``start``.
        state: from which to go on.
        most_cycles: limit.
    """
    limit, called = state.cycle + most_cycles, state.unanswered > 0

    def body(carry: tuple[State, Array]) -> tuple[State, Array]:
        return _closed(step(tables, carry[0]), called, limit)

    goes = (state.fault.kind == 0) & (jnp.asarray(most_cycles) > 0)
    return lax.while_loop(lambda carry: carry[1], body, (state, goes))[0]


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
        unanswered=state.unanswered + 2 * int((entry >= 0).sum()),
    )


def load(state: State, cell: int, address: int, count: int) -> Array:
    """[count] uint8 of a PE's memory; PEs count row by row."""
    return lax.dynamic_slice(state.memory, (cell, address), (1, count))[0]


def store(state: State, cell: int, address: int, data: Array) -> State:
    """Write [bytes] uint8 to a PE's memory."""
    memory = lax.dynamic_update_slice(state.memory, data[None].astype(jnp.uint8), (cell, address))
    return state._replace(memory=memory)
