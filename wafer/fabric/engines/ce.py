"""One cycle of all compute elements: one vector step of one thread, then task dispatch.

Rules: the thread of the highest priority goes first, of equals the task's own, then the microthread
with the lowest id (by default the task's is the highest, all others the lowest); an operation
suspends while a queue it reads is empty or the ramp it writes is full; tasks run to completion;
of the eligible tasks (activated and not blocked, or with a wavelet waiting) a high-priority one
goes first, then the lowest id. Dispatch takes no cycle of its own beyond the charged overheads.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from wafer.fabric.engines.alu import compute
from wafer.fabric.engines.lanes import fifo_step, pipe_step
from wafer.fabric.engines.router import RouterMoves, first_fault
from wafer.fabric.engines.state import ADVANCE, CONTROL, VALID, FabricState, Lanes
from wafer.fabric.program.codes import Column, Fault, Field, Kind, Opcode
from wafer.fabric.program.tables import Program

__all__ = ["ce_step", "dispatch"]

_SOURCES = (Column.SRC0, Column.SRC1, Column.SCALAR)


def _per_color(table: Array, color: Array) -> Array:
    """Select ``table[color]`` where the color index is itself an array over the grid.

    Args:
        table: [C, H, W].
        color: [..., H, W] int32 color index.
    """
    out = jnp.zeros((*color.shape[:-2], *table.shape[1:]), table.dtype)
    for c in range(table.shape[0]):
        out = jnp.where(color == c, table[c], out)
    return out


def _ready(program: Program, state: FabricState, space: Array) -> Array:
    """[1 + U, H, W] bool: threads that could do a vector step now."""
    code, pc = jnp.asarray(program.code), state.pc
    safe = jnp.maximum(pc, 0)
    column = lambda k: code[:, k][safe]
    ready = (pc >= 0) & (state.wait == 0)
    if program.meta.colors:
        head = state.queue.flag[:, 0]
        word = ((head & VALID) != 0) & ((head & CONTROL) == 0)
        for operand in _SOURCES:
            reads = column(operand) == Kind.FABRIC
            ready = ready & (~reads | _per_color(word, column(operand + Field.BASE)))
        writes = column(Column.DST) == Kind.FABRIC
        ready = ready & (~writes | _per_color(space, column(Column.DST + Field.BASE)))
    if program.meta.threads:
        # A task starts a microthread only once that thread is idle.
        target = column(Column.THREAD)[0]
        idle = jnp.ones_like(target, bool)
        for u in range(program.meta.threads):
            idle = jnp.where(target == u, pc[u + 1] < 0, idle)
        starts = target >= 0
        waits = jnp.zeros_like(ready).at[0].set(starts & ~idle)
        ready = jnp.where(starts & (jnp.arange(ready.shape[0]) == 0)[:, None, None], pc >= 0, ready)
        ready = ready & (state.wait == 0) & ~waits
    return ready


def _choose(program: Program, state: FabricState, ready: Array) -> Array:
    """[1 + U, H, W] bool: of the ready threads of each PE the one that goes."""
    if program.meta.ranked:
        code, at = jnp.asarray(program.code), jnp.maximum(state.pc, 0)
        ranks = jnp.concatenate(
            [code[:, Column.MAIN_RANK][at[:1]], code[:, Column.THREAD_RANK][at[1:]]]
        )
        ranks = jnp.where(ready, ranks, -1)
        ready = ready & (ranks == ranks.max(axis=0))
    earlier = jnp.cumsum(ready.astype(jnp.int32), axis=0) - ready
    return ready & (earlier == 0)


def _operand(program: Program, state: FabricState, op: Array, column: int, index: Array) -> Array:
    """[H, W] uint32 value of one source operand for element ``index``."""
    code = jnp.asarray(program.code)
    field = lambda k: code[:, column + k][op]
    kind, base = field(Field.KIND), field(Field.BASE)
    words = state.mem.shape[0]
    address = jnp.clip(_address(field, index), 0, words - 1)
    pes = state.mem[0].size
    flat = address.reshape(-1) * pes + jnp.arange(pes)
    value = state.mem.reshape(-1)[flat].reshape(base.shape)
    if program.meta.colors:
        value = jnp.where(kind == Kind.FABRIC, _per_color(state.queue.data[:, 0], base), value)
    value = jnp.where(kind == Kind.CONST, jax.lax.bitcast_convert_type(base, jnp.uint32), value)
    return jnp.where(kind == Kind.ARG, state.arg, value)


def _address(field, index: Array) -> Array:  # noqa: ANN001 -- column getter, local use
    inner, stride = field(Field.INNER), field(Field.STRIDE)
    size = jnp.maximum(inner, 1)
    nested = stride * (index % size) + field(Field.OUTER) * (index // size)
    return field(Field.BASE) + jnp.where(inner > 0, nested, stride * index)


def _execute(
    program: Program,
    state: FabricState,
    *,
    op: Array,
    index: Array,
    issue: Array,
    elements: Array,
) -> tuple[Array, Array]:
    """Compute up to ``rate`` elements; returns memory and the value for the fabric."""
    code = jnp.asarray(program.code)
    mem, to_fabric = state.mem, jnp.zeros_like(state.arg)
    pes = mem[0].size
    for lane in range(program.meta.rate):
        sources: list[Any] = [
            _operand(program, state._replace(mem=mem), op, column, index + lane)
            if column != Column.SCALAR or Opcode.MAC in program.meta.opcodes
            else None
            for column in _SOURCES
        ]
        opcode, dtype = code[:, Column.OPCODE][op], code[:, Column.DTYPE][op]
        value = compute(program.meta, opcode, dtype, sources, state.fault[0])
        if lane == 0:
            to_fabric = value
        field = lambda k: code[:, Column.DST + k][op]
        store = issue & (lane < elements) & (field(Field.KIND) == Kind.MEM)
        address = _address(field, index + lane).reshape(-1) * pes + jnp.arange(pes)
        address = jnp.where(store.reshape(-1), address, mem.size)
        mem = mem.reshape(-1).at[address].set(value.reshape(-1), mode="drop").reshape(mem.shape)
    return mem, to_fabric


def _retire(
    program: Program, state: FabricState, chosen: Array, op: Array, elements: Array
) -> FabricState:
    """Count down, move on to the next operation, start microthreads, activate tasks."""
    code = jnp.asarray(program.code)
    issue, main = chosen.any(axis=0), chosen[0]
    thread = code[:, Column.THREAD][op]
    starts = main & (thread >= 0)
    left = state.left - jnp.where(chosen & ~starts, elements, 0)
    finished = chosen & (left <= 0) & ~starts

    # The task's thread goes on to its next operation, or ends.
    moves_on = finished[0] | starts
    ends = moves_on & (code[:, Column.LAST][op] != 0)
    following = jnp.minimum(op + 1, code.shape[0] - 1)
    pc0 = jnp.where(ends, -1, jnp.where(moves_on, following, state.pc[0]))
    left0 = jnp.where(moves_on & ~ends, code[:, Column.N][following], left[0])
    wait0 = jnp.where(moves_on & ~ends, code[:, Column.LAUNCH][following], state.wait[0])
    pcs, lefts, waits = [pc0], [left0], [wait0]
    for u in range(1, state.pc.shape[0]):
        begun = starts & (thread == u - 1)
        pcs.append(jnp.where(begun, op, jnp.where(finished[u], -1, state.pc[u])))
        lefts.append(jnp.where(begun, code[:, Column.N][op], left[u]))
        waits.append(jnp.where(begun, 0, state.wait[u]))

    completes = finished.any(axis=0)
    if program.meta.teardown:
        color = jnp.where(completes, code[:, Column.POSITION_COLOR][op], 0) - 1
        written = jnp.arange(state.pos_rx.shape[0])[:, None, None] == color
        position = code[:, Column.POSITION][op].astype(jnp.uint8)
        state = state._replace(
            pos_rx=jnp.where(written, position, state.pos_rx),
            pos_tx=jnp.where(written, position, state.pos_tx),
        )
    bits = lambda k: jnp.where(completes, code[:, k][op], 0)
    return state._replace(
        pc=jnp.stack(pcs),
        left=jnp.stack(lefts),
        wait=jnp.stack(waits),
        active=state.active | bits(Column.ACTIVATE),
        blocked=(state.blocked | bits(Column.BLOCK)) & ~bits(Column.UNBLOCK),
        busy=state.busy + issue,
        end=jnp.where(issue, state.cycle + 1, state.end),
    )


def dispatch(program: Program, state: FabricState) -> tuple[FabricState, Array]:
    """Start one task at each PE whose task thread is idle; returns whether any started."""
    meta, code = program.meta, jnp.asarray(program.code)
    idle = state.pc[0] < 0
    start = jnp.full_like(state.pc[0], -1)
    arg, active = state.arg, state.active
    heads = state.queue.flag[:, 0]
    pop = jnp.zeros(heads.shape, bool)
    control = (heads & CONTROL) != 0
    claimed = jnp.zeros(heads.shape, bool)
    for t in meta.task_order:
        _, kind, key, _ = meta.tasks[t]
        bound = (jnp.asarray(program.entry[t]) >= 0) & ((state.blocked >> t) & 1 == 0)
        free = idle & (start < 0) & bound
        if kind in {"local", "teardown"}:
            begins = free & ((active >> t) & 1 == 1)
            active = active & ~jnp.where(begins, 1 << t, 0)
        elif kind == "data":
            begins = free & (heads[key] != 0) & ~control[key]
            pop = pop.at[key].set(pop[key] | begins)
            arg = jnp.where(begins, state.queue.data[key, 0], arg)
        else:
            begins = jnp.zeros_like(idle)
            for c in range(heads.shape[0]):
                named = control[c] & (((state.queue.data[c, 0] >> 16) & 63) == key)
                claimed = claimed.at[c].set(claimed[c] | (named & (program.entry[t] >= 0)))
                takes = free & named & ~begins
                begins = begins | takes
                pop = pop.at[c].set(pop[c] | takes)
                arg = jnp.where(takes, state.queue.data[c, 0], arg)
        start = jnp.where(begins, jnp.asarray(program.entry[t]), start)
    begins = start >= 0
    first = jnp.maximum(start, 0)
    fault = state.fault
    if meta.controls:
        fault = first_fault(fault, Fault.UNBOUND_CONTROL_TASK, control & ~claimed)
    none = jnp.zeros_like(heads)
    state = state._replace(
        pc=state.pc.at[0].set(jnp.where(begins, start, state.pc[0])),
        left=state.left.at[0].set(jnp.where(begins, code[:, Column.N][first], state.left[0])),
        wait=state.wait.at[0].set(jnp.where(begins, code[:, Column.LAUNCH][first], state.wait[0])),
        active=active,
        arg=arg,
        fault=fault,
        queue=fifo_step(state.queue, pop, state.queue.data[:, 0], none),
    )
    return state, begins.any()


def ce_step(
    program: Program, before: FabricState, state: FabricState, moves: RouterMoves
) -> FabricState:
    """Do the CEs' half of a cycle.

    Args:
        program: the program.
        before: the state at the start of the cycle (what the CE sees of its queues).
        state: after :func:`wafer.fabric.engines.router.router_step`.
        moves: what the routers did.
    """
    code = jnp.asarray(program.code)
    seen = state._replace(queue=before.queue)
    space = moves.room_up[0]
    chosen = _choose(program, state, _ready(program, seen, space))
    issue = chosen.any(axis=0)
    op = jnp.where(chosen, state.pc, 0).sum(axis=0)
    left = jnp.where(chosen, state.left, 0).sum(axis=0)
    index = code[:, Column.N][op] - left
    elements = jnp.minimum(code[:, Column.RATE][op], left)
    computes = issue & ~(chosen[0] & (code[:, Column.THREAD][op] >= 0))

    # 1. Read, compute, write.
    mem, value = _execute(program, seen, op=op, index=index, issue=computes, elements=elements)
    waiting = (state.pc >= 0) & (state.wait > 0)
    stepped = state._replace(mem=mem, wait=jnp.where(waiting, state.wait - 1, state.wait))

    # 2. Take the consumed words off the queues and put the produced one on the ramp.
    colors = jnp.arange(len(program.meta.colors))[:, None, None]
    field = lambda k: code[:, k][op]
    pop = jnp.zeros_like(space)
    for operand in _SOURCES:
        reads = computes & (field(operand) == Kind.FABRIC)
        pop = pop | (reads & (field(operand + Field.BASE) == colors))
    flags = field(Column.DST + Field.FLAGS)
    sends = (
        computes & (field(Column.DST) == Kind.FABRIC) & (field(Column.DST + Field.BASE) == colors)
    )
    flag = VALID + jnp.where(flags & 1 != 0, CONTROL, 0)
    flag = flag + jnp.where((flags & 2 != 0) & (left <= 1), ADVANCE, 0)
    queue = fifo_step(
        stepped.queue, pop, stepped.queue.data[:, 0], jnp.zeros_like(stepped.queue.flag[:, 0])
    )
    up: Lanes = pipe_step(
        before.up,
        moves.room_up,
        jnp.broadcast_to(value, space.shape),
        jnp.where(sends, flag, 0).astype(jnp.uint8),
    )
    stepped = _retire(program, stepped._replace(queue=queue, up=up), chosen, op, elements)

    # 3. Idle PEs pick a task.
    stepped, started = dispatch(program, stepped)
    progress = moves.moved | issue.any() | waiting.any() | started
    return stepped._replace(cycle=state.cycle + 1, progress=progress)
