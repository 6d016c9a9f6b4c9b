"""The task that runs: its instructions until it waits, and which task runs next."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import DEEPEST_CALL, VISIBLE, Gate, Intrinsic, Op, Type
from wafer.machine.reference.effects import field, gate_set, register, row_of, with_register
from wafer.machine.reference.elements import being_read, load_bytes, store_bytes
from wafer.machine.reference.faults import noted
from wafer.machine.reference.issue import operate
from wafer.machine.reference.routers import front, pop
from wafer.machine.reference.scalar import (
    BYTES,
    arithmetic,
    cast,
    compare,
    function,
    negated,
    wrapped,
)
from wafer.machine.reference.state import Fault, Main, State, TaskKind
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault as Kind

__all__ = ["begin", "dispatch", "run_tasks"]

Array = jax.Array
_AT_ONCE = 4096  # instructions without an effect that others see
_PAD = 64
_NO_TASK = 31  # of a control wavelet that is for no task


def _mask(values: Array, ops: tuple[int, ...]) -> Array:
    out = jnp.zeros(values.shape, bool)
    for op in ops:
        out |= values == int(op)
    return out


def _results(state: State, i: Array) -> Array:
    """[C] what instructions that only compute put into r[a]."""
    op, kind, b, c = i[:, 0], i[:, 1], i[:, 3], i[:, 4]
    x, y = register(state, b), register(state, c)
    shift = 16 * jnp.minimum(kind, 3)
    values = {
        Op.CONST: c << 32 | b & 0xFFFFFFFF,
        Op.COPY: x,
        Op.NEG: negated(kind, x),
        Op.INVERT: wrapped(kind, ~x),
        Op.NOT: (x == 0).astype(jnp.int64),
        Op.CAST: cast(kind, jnp.clip(c, 0, Type.BOOL), x),
        Op.DSD_SET: (x & ~(jnp.int64(0xFFFF) << shift)) | (y & 0xFFFF) << shift,
        Op.DSD_GET: jnp.where(
            kind == 2, ((x >> 32 & 0xFFFF) ^ 0x8000) - 0x8000, x >> shift & 0xFFFF
        ),
        Op.DSR_GET: state.dsr[
            jnp.arange(len(b)), jnp.clip(kind, 0, 2), jnp.clip(b, 0, state.dsr.shape[2] - 1), 0
        ],
        Op.ELEMENT: (field(x, 0) + y * ((field(x, 2) ^ 0x8000) - 0x8000) * jnp.asarray(BYTES)[kind])
        & 0xFFFF,
    }
    out = jnp.where((op >= Op.ADD) & (op <= Op.SHR), arithmetic(op, kind, x, y), 0)
    out = jnp.where((op >= Op.EQ) & (op <= Op.GE), compare(op, kind, x, y), out)
    for code, value in values.items():
        out = jnp.where(op == int(code), value, out)
    return out


class _Accessed(NamedTuple):
    """Memory after LOAD, STORE and MOVE: what was loaded, and which went outside, where."""

    memory: Array
    loaded: Array
    outside: Array
    where: Array


def _access(tables: Tables, state: State, which: Array, i: Array) -> _Accessed:
    op, kind, a, b, c = (i[:, k] for k in range(5))
    size = jnp.asarray(tables.size)[tables.program]
    width = jnp.asarray(BYTES)[kind]
    stores, loads = which & (op == Op.STORE), which & (op == Op.LOAD)
    address = (register(state, jnp.where(op == Op.STORE, a, b)) + c) & 0xFFFF
    outside = (loads & (address + width > size + _PAD)) | (stores & (address + width > size))
    inside = stores & ~outside
    memory = store_bytes(state.memory, inside, address, width, value=register(state, b), most=8)
    loaded = wrapped(kind, load_bytes(state.memory, address, width, most=8))
    moves = which & (op == Op.MOVE)
    to, source = register(state, a) & 0xFFFF, register(state, b) & 0xFFFF
    beyond = to + c > size
    far = moves & (beyond | (source + c > size + _PAD))
    place = jnp.arange(memory.shape[1])
    block = (moves & ~far)[:, None] & (place >= to[:, None]) & (place < (to + c)[:, None])
    moved = jnp.clip(place - to[:, None] + source[:, None], 0, memory.shape[1] - 1)
    memory = jnp.where(block, jnp.take_along_axis(memory, moved, 1), memory)
    where = jnp.where(moves, jnp.where(beyond, to, source), address)
    return _Accessed(memory, loaded, outside | far, where)


def _compute(tables: Tables, state: State, which: Array, i: Array) -> tuple[State, Array]:
    """Instructions that only their task sees; [C] whether it goes on."""
    op, kind, a, b, c = (i[:, k] for k in range(5))
    kind = jnp.clip(kind, 0, Type.BOOL)
    i = i.at[:, 1].set(kind)
    rows = jnp.arange(len(op))
    writes = ((op <= Op.CAST) | _mask(op, (Op.DSD_SET, Op.DSD_GET, Op.DSR_GET, Op.ELEMENT))) & which
    integers = ~_mask(kind, (Type.F16, Type.F32))
    by_zero = which & _mask(op, (Op.DIV, Op.REM)) & integers & (register(state, c) == 0)
    results = _results(state, i)
    memory, loaded, outside, where = _access(tables, state, which, i)
    loads = which & (op == Op.LOAD)
    truth = register(state, b) != 0
    jumps = (op == Op.JUMP) | ((op == Op.JUMP_IF) & truth) | ((op == Op.JUMP_UNLESS) & ~truth)
    calls, returns = which & _mask(op, (Op.CALL, Op.CALL_AT)), which & (op == Op.RETURN)
    target = jnp.where(op == Op.CALL_AT, register(state, a), a)
    frame = jnp.asarray(tables.frame)[tables.program]
    deep = calls & ((state.depth == DEEPEST_CALL) | (state.base + b > frame))
    level = jnp.where(calls & ~deep, state.depth, DEEPEST_CALL)
    kept = jnp.stack([state.pc + 1, state.base], 1)
    frames = state.frames.at[rows, level].set(kept, mode="drop")
    back = frames[rows, jnp.maximum(state.depth - 1, 0)]
    pc = jnp.where(jumps, a, state.pc + 1)
    pc = jnp.where(calls, target, jnp.where(returns, back[:, 0], pc))
    failed = by_zero | outside | deep
    kinds = jnp.where(by_zero, int(Kind.DIVISION), int(Kind.OUTSIDE_MEMORY))
    kinds = jnp.where(deep, int(Kind.TOO_DEEP), kinds)
    fault = noted(state.fault, failed, kinds, state.pc, jnp.where(outside, where, 0))
    goes = which & ~failed
    state = with_register(state, goes & (writes | loads), a, jnp.where(loads, loaded, results))
    base = jnp.where(calls, state.base + b, jnp.where(returns, back[:, 1], state.base))
    state = state._replace(
        memory=memory,
        frames=frames,
        pc=jnp.where(goes, pc, state.pc),
        base=jnp.where(goes, base, state.base),
        depth=jnp.where(goes, state.depth + calls - returns, state.depth),
        main=jnp.where(failed, Main.IDLE, state.main),
        fault=fault,
    )
    return state, goes


def _intrinsics(tables: Tables, state: State, which: Array, i: Array) -> State:
    """Calls of what no instruction says."""
    kind, a, b, c = i[:, 1], i[:, 2], i[:, 3], i[:, 4]
    value = jnp.where(b >= 0, register(state, b), 0)
    is_ = lambda intrinsic: which & (kind == int(intrinsic))
    random = state.random
    for _ in range(8):
        random = (random << 16 | ((random >> 7 ^ random >> 2) & 0xFFFF)) & 0xFFFFFFFF
    random = jnp.where(is_(Intrinsic.RANDOM16), random, state.random)
    counter, since = state.stamp[:, 0], state.stamp[:, 1]
    now = counter + jnp.where(since < 0, 0, state.cycle - since)
    timer = is_(Intrinsic.TIMER)
    runs = (value == 1) | ((value == 2) & (since >= 0))
    stamp = jnp.stack(
        [
            jnp.where(timer, jnp.where(value == 2, 0, now), counter),
            jnp.where(timer, jnp.where(runs, state.cycle, -1), since),
        ],
        1,
    )
    place = jnp.asarray(tables.place)
    out = function(kind, jnp.clip(c, 0, Type.BOOL), value)
    out = jnp.where(kind == Intrinsic.RANDOM16, random & 0xFFFF, out)
    out = jnp.where(kind == Intrinsic.TIMESTAMP, now & 0xFFFFFFFFFFFF, out)
    out = jnp.where(
        kind == Intrinsic.COORDINATE, jnp.where(value != 0, place[:, 1], place[:, 0]), out
    )
    silent = _mask(kind, (Intrinsic.SEED, Intrinsic.TIMER, Intrinsic.NEXT_COMMAND))
    frees = is_(Intrinsic.NEXT_COMMAND) & state.commanded
    state = with_register(state, which & ~silent & (a >= 0), a, out)
    return state._replace(
        random=jnp.where(is_(Intrinsic.SEED), value & 0xFFFFFFFF, random),
        stamp=stamp,
        commanded=state.commanded & ~frees,
        unanswered=state.unanswered - frees.sum(),
    )


def _runs(state: State, thread: Array) -> Array:
    """[C] whether a microthread (-1: none) runs an operation."""
    on = state.operations.on[jnp.arange(len(thread)), jnp.clip(thread, 0, 7)]
    return (thread >= 0) & on


def _act(tables: Tables, state: State, which: Array, i: Array) -> tuple[State, Array, Array]:
    """Instructions that others see; [C] whether the task goes on at once, and operates alone."""
    op, kind, a, b, c = (i[:, k] for k in range(5))
    rows = jnp.arange(len(op))
    is_ = lambda code: which & (op == int(code))
    target = register(state, a) & 31
    active = jnp.where(is_(Op.ACTIVATE), state.active | 1 << target, state.active)
    gate = gate_set(tables, kind)
    gated = is_(Op.BLOCK) | is_(Op.UNBLOCK)
    held = state.blocked[rows, jnp.clip(gate, 0, len(Gate) - 1)]
    changed = jnp.where(op == Op.BLOCK, held | 1 << target, held & ~(1 << target))
    blocked = state.blocked.at[rows, jnp.where(gated, gate, len(Gate))].set(changed, mode="drop")
    loads, bases = is_(Op.LOAD_DSR), is_(Op.DSR_BASE)
    row = jnp.where(loads, a, 0)
    get = row_of(tables, "dsr_loads", row)
    file = jnp.where(loads, get("file"), jnp.clip(kind, 0, 2))
    own = jnp.where(loads, get("id"), b)
    own = jnp.clip(own, 0, state.dsr.shape[2] - 1)
    old = state.dsr[rows, file, own]
    based = (old[:, 0] & ~0xFFFF) | register(state, c) & 0xFFFF
    new = jnp.where(
        loads[:, None], jnp.stack([register(state, b), row], 1), jnp.stack([based, old[:, 1]], 1)
    )
    dsr = state.dsr.at[rows, jnp.where(loads | bases, file, 3), own].set(new, mode="drop")
    state = state._replace(active=active, blocked=blocked, dsr=dsr)
    state = _intrinsics(tables, state, is_(Op.INTRINSIC), i)
    waits = is_(Op.WAIT) & (kind == 0) & ((c > 0) | _runs(state, a))
    operates, stops, fails = is_(Op.OPERATE), is_(Op.RETURN), is_(Op.FAULT)
    called = stops & (state.task[:, 0] == TaskKind.FUNCTION)
    state = state._replace(
        unanswered=state.unanswered - called.sum(),
        main=jnp.where(stops | fails, Main.IDLE, jnp.where(waits, Main.WAITING, state.main)),
        wake=jnp.where(waits, state.cycle + c, state.wake),
        fault=noted(state.fault, fails, int(Kind.MESSAGE), state.pc, a),
    )
    plain = which & ~operates & ~stops & ~fails & ~waits
    state = state._replace(pc=jnp.where(plain, state.pc + 1, state.pc))
    state, goes, alone = operate(tables, state, operates, i)
    return state, plain | goes, alone


def run_tasks(tables: Tables, state: State) -> tuple[State, Array, Array]:
    """Go on with tasks whose time has come.

    Returns:
        the state; [C] whether a task did anything; [C] whether it began an operation in memory that
        nothing on its PE competes with, whose elements are due now.
    """
    code, costs = jnp.asarray(tables.code), jnp.asarray(tables.costs)
    due = state.wake <= state.cycle
    waits_for = code[tables.program, state.pc, 2]
    goes = due & (state.main == Main.WAITING) & ~_runs(state, waits_for)
    runs = due & (state.main == Main.RUNNING) | goes
    state = state._replace(
        busy=state.busy & ~runs,
        main=jnp.where(goes, Main.RUNNING, state.main),
        pc=state.pc + goes,
    )
    never = jnp.zeros_like(runs)

    def more(carry: tuple[State, Array, Array, Array]) -> Array:
        return carry[1].any()

    def instruction(
        carry: tuple[State, Array, Array, Array],
    ) -> tuple[State, Array, Array, Array]:
        state, going, alone, left = carry
        i = code[tables.program, state.pc]
        charge = costs[tables.program, state.pc]
        debt = jnp.where(going & ~state.paid, state.debt + charge, state.debt)
        op = i[:, 0]
        visible = _mask(op, tuple(VISIBLE)) | ((op == Op.RETURN) & (state.depth == 0))
        waits = going & visible & (debt > 0)
        acts, computes = going & visible & ~waits, going & ~visible
        state = state._replace(paid=jnp.where(going, waits, state.paid), debt=debt)
        state, goes_on = _compute(tables, state, computes, i)
        state, at_once, by_itself = _act(tables, state, acts, i)
        left = jnp.where(going, left - 1, left)
        tired = (goes_on | at_once) & (left <= 0)
        debt = jnp.where(tired & (state.debt == 0), 1, state.debt)
        sleeps = waits | tired
        state = state._replace(
            wake=jnp.where(sleeps, state.cycle + debt, state.wake),
            busy=state.busy | sleeps,
            worked=state.worked + jnp.where(sleeps, debt, 0),
            ended=jnp.where(sleeps, state.cycle + debt, state.ended),
            debt=jnp.where(sleeps, 0, state.debt),
        )
        return state, (goes_on | at_once) & ~tired, alone | by_itself, left

    left = jnp.full(len(runs), _AT_ONCE)
    state, _, alone, _ = lax.while_loop(more, instruction, (state, runs, never, left))
    return state, runs, alone


def begin(
    tables: Tables, state: State, which: Array, task: tuple[Array, Array], pc: Array
) -> State:
    """Start tasks; they begin in the next cycle."""
    zero = jnp.zeros_like(pc)
    return state._replace(
        main=jnp.where(which, Main.RUNNING, state.main),
        task=jnp.where(which[:, None], jnp.stack(task, 1), state.task),
        pc=jnp.where(which, pc, state.pc),
        base=jnp.where(which, zero, state.base),
        depth=jnp.where(which, zero, state.depth),
        paid=state.paid & ~which,
        busy=state.busy & ~which,
        debt=jnp.where(which, 0, state.debt),
        wake=jnp.where(which, state.cycle + 1 + tables.switch_task, state.wake),
    )


def _channels(tables: Tables, state: State) -> Array:
    """[C] bits of data tasks (by color or queue) that a word waits for."""
    queued = state.lanes.size > 0
    by_color = (queued.astype(jnp.int64) << jnp.asarray(tables.colors)).sum(1)
    rows = jnp.arange(len(queued))[:, None]
    bound = (state.in_slot >= 0) & queued[rows, jnp.maximum(state.in_slot, 0)]
    by_queue = (bound.astype(jnp.int64) << jnp.arange(8)).sum(1)
    blocked = state.blocked[:, int(Gate.DATA)]
    queues = jnp.bitwise_or(blocked, state.blocked[:, int(Gate.INPUT_QUEUE)])
    return jnp.where(tables.wse3, jnp.bitwise_and(by_queue, ~queues), by_color & ~blocked)


class _Choice(NamedTuple):
    """Which task begins, [C], while ids are tried one after another."""

    begun: Array
    kind: Array
    own: Array
    pc: Array
    slot: Array  # of the word that it takes, -1
    word: Array
    active: Array
    last: Array
    fault: Fault


def _chosen(tables: Tables, state: State, free: Array) -> _Choice:
    """In turn from the last dispatched id on, the first task that can run."""
    program, rows = jnp.maximum(jnp.asarray(tables.program), 0), jnp.arange(len(free))
    data = _channels(tables, state) & jnp.asarray(tables.channels)[program]
    of = lambda table: jnp.asarray(table)[program]
    local_tasks, data_tasks = of(tables.local_tasks), of(tables.data_tasks)
    control_tasks = of(tables.control_tasks)
    ready = state.active & ~state.blocked[:, int(Gate.LOCAL)] & 0x7FFFFFFF
    high = of(tables.high)
    heads, is_control = front(state.lanes)
    busy = being_read(tables, state)

    def tried(turn: Array, so_far: _Choice) -> _Choice:
        own = (state.last_task + 1 + turn) & 31
        waits = free & ~so_far.begun & ((high >> own & 1 != 0) == (turn < 32))
        queued, local = (waits & (bits >> own & 1 != 0) for bits in (data, ready))
        by_queue = state.in_slot[rows, jnp.minimum(own, 7)]
        by_color = jnp.asarray(tables.slot)[jnp.minimum(own, 23)]
        slot = jnp.maximum(jnp.where(tables.wse3, by_queue, by_color), 0)
        word, control = heads[rows, slot], is_control[rows, slot]
        key = jnp.where(control, word >> 16 & 63, own)
        for_data = data_tasks[rows, jnp.minimum(own, 23)]
        by_id = control_tasks[rows, key]
        shared = ~jnp.asarray(tables.wse3) & (key < 24) & (by_id < 0)  # WSE-2 has one table
        by_id = jnp.where(shared, data_tasks[rows, jnp.minimum(key, 23)], by_id)
        first = jnp.where(control, by_id, for_data)
        readable = queued & ~busy[rows, slot]
        starts = readable & (first >= 0)
        meant = (control_tasks >= 0).any(1) | (for_data >= 0)
        lost = readable & control & (first < 0) & meant & (key != _NO_TASK)
        color = jnp.asarray(tables.colors)[slot]
        kind = int(Kind.UNBOUND_CONTROL)
        taken = local & ~starts
        of_local = local_tasks[rows, jnp.minimum(own, 30)]
        local = taken & (of_local >= 0)
        now = starts | local
        reason = jnp.where(control, TaskKind.CONTROL, TaskKind.DATA)
        return _Choice(
            begun=so_far.begun | now,
            kind=jnp.where(starts, reason, jnp.where(local, TaskKind.LOCAL, so_far.kind)),
            own=jnp.where(starts, key, jnp.where(local, own, so_far.own)),
            pc=jnp.where(starts, first, jnp.where(local, of_local, so_far.pc)),
            slot=jnp.where(starts, slot, so_far.slot),
            word=jnp.where(starts, word, so_far.word),
            active=jnp.where(taken, so_far.active & ~(1 << own), so_far.active),
            last=jnp.where(queued | taken, own, so_far.last),
            fault=noted(so_far.fault, lost, kind, jnp.int64(-1), color),
        )

    none = jnp.zeros_like(state.pc)
    nothing = _Choice(
        *(jnp.zeros_like(free), none, none, none, none - 1, none),
        state.active, state.last_task, state.fault,
    )  # fmt: skip
    return lax.fori_loop(0, 64, tried, nothing)  # those of high priority first


def dispatch(tables: Tables, state: State) -> tuple[State, Array]:
    """Start a task on PEs where none runs; where none is ready, the host's next call."""
    rows = jnp.arange(len(state.pc))
    free = (state.main == Main.IDLE) & (jnp.asarray(tables.program) >= 0)
    choice = _chosen(tables, state, free)
    called = free & ~choice.begun & (state.launched[:, 1] > 0) & ~state.commanded
    launch = state.launches[rows, state.launched[:, 0] % state.launches.shape[1]]
    kind = jnp.where(called, TaskKind.FUNCTION, choice.kind)
    own, pc = (jnp.where(called, launch[:, 0], part) for part in (choice.own, choice.pc))
    every = jnp.arange(state.lanes.color.shape[1])
    state = state._replace(
        active=choice.active,
        last_task=choice.last,
        fault=choice.fault,
        lanes=pop(state.lanes, choice.slot[:, None] == every),
        commanded=state.commanded | called,
        launched=state.launched + jnp.stack([called, -called.astype(jnp.int64)], 1),
    )
    state = begin(tables, state, choice.begun | called, (kind, own), pc)
    state = with_register(state, choice.slot >= 0, jnp.zeros_like(pc), choice.word)
    for k in range(launch.shape[1] - 1):
        state = with_register(state, called, jnp.full_like(pc, k), launch[:, k + 1])
    return state, choice.begun | called
