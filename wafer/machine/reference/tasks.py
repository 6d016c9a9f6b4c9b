"""The task that runs: its instructions until it waits."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from wafer.machine.codes import (
    BYTES,
    CONFIG,
    DEEPEST_CALL,
    GENERATORS,
    VISIBLE,
    Intrinsic,
    Op,
    Type,
)
from wafer.machine.image import PAD
from wafer.machine.reference import scalar
from wafer.machine.reference.effects import (
    choose,
    failed,
    field,
    flush,
    is_any,
    per_pe,
    register,
    row_of,
    runs_operation,
    with_register,
)
from wafer.machine.reference.elements import sent
from wafer.machine.reference.fifos import load_bytes, store_bytes
from wafer.machine.reference.issue import operate, source_slot
from wafer.machine.reference.registers import now, read_register, timer, write_register
from wafer.machine.reference.routers import front, pop
from wafer.machine.reference.state import Main, State, TaskKind
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
_AT_ONCE = 4096  # instructions without an effect that others see


def _result(pe: State, i: Array) -> tuple[Array, Array]:
    """What an instruction that only computes puts into r[a], and whether it is one."""
    op, kind, _, b, c = i
    x, y, width = register(pe, b), register(pe, c), jnp.asarray(BYTES)[kind]
    shift = 16 * jnp.minimum(kind, 3)
    values = {
        Op.CONST: c << 32 | b & 0xFFFFFFFF,
        Op.COPY: x,
        Op.NEG: scalar.negated(kind, x),
        Op.INVERT: scalar.wrapped(kind, ~x),
        Op.NOT: x == 0,
        Op.CAST: scalar.cast(kind, jnp.clip(c, 0, Type.BOOL), x, pe.tables.half),
        Op.DSD_SET: (x & ~(jnp.int64(0xFFFF) << shift)) | (y & 0xFFFF) << shift,
        Op.DSD_GET: jnp.where(kind == 2, field(x, 2, signed=True), x >> shift & 0xFFFF),
        Op.DSR_GET: pe.dsr[kind, b, 0],
        Op.ELEMENT: (field(x, 0) + y * field(x, 2, signed=True) * width) & 0xFFFF,
    }
    operands = op, kind, x, y, pe.tables.half
    two = jnp.where(op <= Op.SHR, scalar.arithmetic(*operands), scalar.compare(*operands))
    return scalar.chosen(op, values, two), (op <= Op.CAST) | is_any(op, tuple(values))


def _access(pe: State, i: Array) -> tuple[State, Array, Array]:
    """LOAD, STORE and MOVE: the PE behind one, whether it went outside of the memory, where."""
    op, kind, a, b, c = i
    size, width = pe.tables.size[pe.program], jnp.asarray(BYTES)[kind]
    stores, moves = op == Op.STORE, op == Op.MOVE
    to, source = register(pe, a) & 0xFFFF, register(pe, b) & 0xFFFF
    address = (register(pe, jnp.where(stores, a, b)) + c) & 0xFFFF
    beyond = jnp.where(moves, to + c > size, stores & (address + width > size))
    far = jnp.where(moves, source + c, address + width) > size + PAD
    there = jnp.arange(pe.memory.size)
    moved = pe.memory[jnp.maximum(there - to + source, 0)]
    moved = jnp.where((there >= to) & (there < to + c), moved, pe.memory)
    places = address + jnp.arange(8)
    stored = store_bytes(pe.memory, places, stores * width, register(pe, b))
    loaded = scalar.wrapped(kind, load_bytes(pe.memory, places, width))
    after = choose(op == Op.LOAD, with_register(pe, a, loaded), pe)
    after = after._replace(memory=jnp.where(moves, moved, stored))
    outside = is_any(op, (Op.LOAD, Op.STORE, Op.MOVE)) & (beyond | far)
    return after, outside, jnp.where(moves, jnp.where(beyond, to, source), address)


def _compute(pe: State, i: Array) -> tuple[State, Array]:
    """An instruction that only its task sees; whether the task goes on."""
    op, kind, a, b, c = i
    result, computes = _result(pe, i)
    after, outside, where = _access(pe, i)
    after = choose(computes, with_register(after, a, result), after)
    by_zero = is_any(op, (Op.DIV, Op.REM)) & ~is_any(kind, (Type.F16, Type.F32))
    by_zero &= register(pe, c) == 0
    operands = register(pe, b), register(pe, c), result
    raises = scalar.raised((op, kind), operands, pe.tables.half) & ~pe.exceptions
    truth = register(pe, b) != 0
    jumps = (op == Op.JUMP) | ((op == Op.JUMP_IF) & truth) | ((op == Op.JUMP_UNLESS) & ~truth)
    charge = jnp.where(jumps & (op != Op.JUMP), pe.tables.taken[pe.program, pe.pc], 0)
    debt = jnp.maximum(pe.debt + charge, 0)
    after = after._replace(pc=jnp.where(jumps, a, pe.pc + 1), debt=debt)
    called = after._replace(
        frames=pe.frames.at[pe.depth].set(jnp.stack([pe.pc + 1, pe.base])),
        pc=jnp.where(op == Op.CALL, a, register(pe, a)),
        base=pe.base + b,
        depth=pe.depth + 1,
    )
    calls, back = is_any(op, (Op.CALL, Op.CALL_AT)), pe.frames[pe.depth - 1]
    deep = (pe.depth == DEEPEST_CALL) | (called.base > pe.tables.frame[pe.program])
    returned = after._replace(pc=back[0], base=back[1], depth=pe.depth - 1)
    after = choose(op == Op.RETURN, returned, choose(calls, called, after))
    wrong, fails = pe._replace(main=Main.IDLE), jnp.bool_(False)
    for bad, fault, detail in (
        (outside, Kind.OUTSIDE_MEMORY, where),
        (by_zero, Kind.DIVISION, 0),
        (raises != 0, Kind.EXCEPTION, raises),
        (calls & deep, Kind.TOO_DEEP, 0),
    ):
        wrong, fails = failed(wrong, bad, int(fault), detail, pe.pc), fails | bad
    return choose(fails, wrong, after), ~fails


def _register(pe: State, i: Array) -> tuple[Array, Array]:
    """Whether an instruction uses a configuration register, and its word address."""
    op, _, a, b, c = i
    named, sets = is_any(op, (Op.CONFIG_GET, Op.CONFIG_SET)), is_any(op, (Op.STORE, Op.CONFIG_SET))
    at = register(pe, jnp.where(sets, a, b))
    place = at + c & 0xFFFF
    pointed = is_any(op, (Op.LOAD, Op.STORE)) & (place >= 0xFE40) & (place < 0xFEE8)
    return named | pointed, jnp.where(named, at, place // 2)


def _configured(pe: State, i: Array, address: Array) -> State:
    """The PE behind an instruction that reads or writes a configuration register."""
    op, _, a, b, _ = i
    value, there = read_register(pe, address)
    written, fits = write_register(pe, address, register(pe, b))
    sets = is_any(op, (Op.STORE, Op.CONFIG_SET))
    done = choose(sets, written, with_register(pe, a, value))
    wrong = ~jnp.where(sets, fits, there)
    stopped = failed(pe, wrong, int(Kind.NO_CONFIG), address, pe.pc)._replace(main=Main.IDLE)
    return choose(wrong, stopped, done)


def _intrinsic(pe: State, i: Array) -> State:
    """A call of what no instruction says."""
    _, kind, a, b, c = i
    value, fifos = jnp.where(b >= 0, register(pe, b), 0), pe.fifos
    generator = pe.generator % GENERATORS
    random = pe.random[generator]
    for _ in range(8):
        random = (random << 16 | ((random >> 7 ^ random >> 2) & 0xFFFF)) & 0xFFFFFFFF
    results = {
        Intrinsic.RANDOM16: random & 0xFFFF,
        Intrinsic.TIMESTAMP: now(pe) & 0xFFFFFFFFFFFF,
        Intrinsic.COORDINATE: jnp.where(value != 0, pe.place[1], pe.place[0]),
    }
    exact = scalar.function(kind, jnp.clip(c, 0, Type.BOOL), value, pe.tables.half)
    out = scalar.chosen(kind, results, exact)
    # FIFO_LENGTH and TEARDOWN_EXIT may name what there is not.
    fifo, slot = jnp.maximum(value >> 1, 0), pe.tables.slot[jnp.clip(value, 0, 23)]
    no_fifo = (value < 0) | (fifo >= pe.tables.rows[pe.program, 2])
    no_color = (value < 0) | (value >= 24) | (slot < 0)
    length = register(pe, jnp.maximum(c, 0))
    read, written = (old.at[fifo].set(length) for old in (fifos.read_length, fifos.write_length))
    given = choose(
        value & 1 != 0, fifos._replace(write_length=written), fifos._replace(read_length=read)
    )
    carries = pe.lanes._replace(torn=pe.lanes.torn.at[slot].set(False))
    silent = {
        Intrinsic.SEED: pe._replace(random=pe.random.at[generator].set(value & 0xFFFFFFFF)),
        Intrinsic.TIMER: timer(pe, value),
        Intrinsic.NEXT_COMMAND: pe._replace(
            commanded=False, unanswered=pe.unanswered - pe.commanded
        ),
        Intrinsic.FIFO_LENGTH: choose(
            no_fifo,
            failed(pe, no_fifo, int(Kind.WRONG_OPERAND), 0, pe.pc),
            pe._replace(fifos=given),
        ),
        Intrinsic.QUEUE_FLUSH: flush(pe._replace(flushing=pe.flushing | 1 << (value & 7))),
        Intrinsic.TEARDOWN_EXIT: choose(
            no_color,
            failed(pe, no_color, int(Kind.NO_CONFIG), CONFIG["color"] + value, pe.pc),
            pe._replace(lanes=carries),
        ),
    }
    spoken = choose(a >= 0, with_register(pe, a, out), pe)
    drawn = jnp.where(kind == Intrinsic.RANDOM16, random, pe.random[generator])
    after = spoken._replace(random=pe.random.at[generator].set(drawn))
    return _by_code(kind, silent, after)


def _by_code(code: Array, changed: dict[Any, State], otherwise: State) -> State:
    """The PE that a ``code`` [] changes."""
    for each, pe in changed.items():
        otherwise = choose(code == int(each), pe, otherwise)
    return otherwise


def _exchanged(pe: State, i: Array) -> tuple[State, Array]:
    """The PE behind a RECEIVE or a SEND, and whether its wavelet has come, or gone."""
    op, kind, a, b, _ = i
    lanes, receives = pe.lanes, op == Op.RECEIVE
    number = field(register(pe, jnp.where(receives, b, a)), 0)
    known = number < pe.tables.rows[pe.program, 1]
    number = jnp.where(known, number, 0)
    row, slot = row_of(pe, "fabrics", number), jnp.where(known, source_slot(pe, number), -1)
    sends = known & (row.sends != 0) & (row.queue >= 0)
    wrong = ~jnp.where(receives, known, sends)
    pe = failed(pe, wrong, int(Kind.WRONG_OPERAND), 0, pe.pc)
    pe = failed(pe, receives & (slot < 0), int(Kind.NO_COLOR), 0, pe.pc)
    comes = (slot >= 0) & (lanes.size[slot] > 0)
    received = with_register(pe, a, scalar.wrapped(kind, front(lanes)[slot] >> 8))
    received = received._replace(lanes=pop(lanes, slot == jnp.arange(len(lanes.size))))
    received = choose(comes, received, pe)
    # A wavelet with a value, if its output queue has room.
    goes = sends & (pe.outputs.size[row.queue] < pe.tables.output_depths[row.queue])
    value = register(pe, b) & jnp.where(jnp.asarray(BYTES)[kind] < 4, 0xFFFF, 0xFFFFFFFF)
    gone = choose(goes, sent(pe, row, value, row.advances != 0), pe)
    return choose(receives, received, gone), jnp.where(receives, comes, goes)


def _act(pe: State, i: Array) -> tuple[State, tuple[Array, Array]]:
    """An instruction that others see; whether the task goes on at once, and operates alone."""
    op, kind, a, b, c = i
    bit, old = 1 << (register(pe, a) & 31), pe.blocked[kind]
    file, number = jnp.clip(kind, 0, 2), b
    load = row_of(pe, "dsr_loads", a)
    based = (pe.dsr[file, number, 0] & ~0xFFFF) | register(pe, c) & 0xFFFF
    fails = failed(pe, op == Op.FAULT, int(Kind.MESSAGE), a, pe.pc)
    called = pe.task[0] == TaskKind.FUNCTION
    waits = (op == Op.WAIT) & (kind == 0) & ((c > 0) | runs_operation(pe, a))
    waiting = pe._replace(main=Main.WAITING, awaited=a, wake=pe.cycle + c)
    changed = {
        Op.ACTIVATE: pe._replace(active=pe.active | bit),
        Op.BLOCK: pe._replace(blocked=pe.blocked.at[kind].set(old | bit)),
        Op.UNBLOCK: pe._replace(blocked=pe.blocked.at[kind].set(old & ~bit)),
        Op.LOAD_DSR: pe._replace(
            dsr=pe.dsr.at[load.file, load.id].set(jnp.stack([register(pe, b), a]))
        ),
        Op.DSR_BASE: pe._replace(dsr=pe.dsr.at[file, number, 0].set(based)),
        Op.INTRINSIC: _intrinsic(pe, i),
        Op.FAULT: fails._replace(main=Main.IDLE),
        Op.RETURN: pe._replace(main=Main.IDLE, unanswered=pe.unanswered - called),
    }
    after = _by_code(op, changed, choose(waits, waiting, pe))
    configures, address = _register(pe, i)
    after = choose(configures, _configured(pe, i, address), after)
    exchanges, (exchanged, moves) = is_any(op, (Op.RECEIVE, Op.SEND)), _exchanged(pe, i)
    stalls, stalled = jnp.where(op == Op.RECEIVE, Main.RECEIVING, Main.SENDING), _stalls(pe)
    exchanged = exchanged._replace(
        main=jnp.where(moves, Main.RUNNING, stalls),
        paid=~moves,
        wake=jnp.where(moves & stalled, pe.cycle + 1, pe.wake),
    )
    after = choose(exchanges, exchanged, after)
    plain = ~is_any(op, (Op.OPERATE, Op.RETURN, Op.FAULT)) & ~waits & ~(exchanges & ~moves)
    plain &= ~configures | (after.main != Main.IDLE)
    after = after._replace(pc=jnp.where(plain, pe.pc + 1, pe.pc))
    begun, (goes, alone) = operate(pe, i)
    operates = op == Op.OPERATE
    goes_on = (plain & ~stalled) | (operates & goes)
    return choose(operates, begun, after), (goes_on, operates & alone)


def _instruction(
    pe: State, going: Array, alone: Array, left: Array
) -> tuple[State, tuple[Array, Array, Array]]:
    """The next instruction, if the task goes on, or the wait for the cycles of those before."""
    i, charge = pe.tables.code[pe.program, pe.pc], pe.tables.costs[pe.program, pe.pc]
    visible = is_any(i[0], tuple(VISIBLE)) | ((i[0] == Op.RETURN) & (pe.depth == 0))
    visible |= _register(pe, i)[0]
    due = pe._replace(debt=jnp.where(pe.paid, pe.debt, pe.debt + charge))
    waits = (visible | _meets_microthreads(pe, i)) & (due.debt > 0)
    due = due._replace(paid=waits)
    computed, goes_on = _compute(due, i)
    acted, (at_once, by_itself) = _act(due, i)
    after = choose(waits, due, choose(visible, acted, computed))
    goes_on = ~waits & jnp.where(visible, at_once, goes_on)
    tired = goes_on & (left <= 1)
    debt = jnp.where(tired & (after.debt == 0), 1, after.debt)
    wake, worked = pe.cycle + debt, pe.worked + debt
    slept = after._replace(wake=wake, ended=wake, worked=worked, busy=True, debt=0)
    after = choose(waits | tired, slept, after)
    alone = alone | (going & visible & ~waits & by_itself)
    return choose(going, after, pe), (going & goes_on & ~tired, alone, left - going)


def _meets_microthreads(pe: State, i: Array) -> Array:
    """Whether the order of an instruction and of microthreads' steps can matter."""
    op, kind, a, b, c = i
    to, source, width = register(pe, a), register(pe, b), jnp.asarray(BYTES)[kind]
    shared = lambda at, count: (at & 0xFFFF < pe.shared[1]) & ((at & 0xFFFF) + count > pe.shared[0])
    meets = {
        Op.LOAD: shared(source + c, width),
        Op.STORE: shared(to + c, width),
        Op.MOVE: shared(to, c) | shared(source, c),
        Op.DSR_GET: jnp.bool_(True),
    }
    return pe.operations.on.any() & scalar.chosen(op, meets, jnp.bool_(False))


def _stalls(pe: State) -> Array:
    """Whether a RECEIVE waits for a wavelet, or a SEND for room."""
    return (pe.main == Main.RECEIVING) | (pe.main == Main.SENDING)


def _resumed(pe: State) -> tuple[State, Array]:
    """The PE, and whether its task's time has come."""
    due, op = pe.wake <= pe.cycle, pe.tables.code[pe.program, pe.pc, 0]
    goes = due & (pe.main == Main.WAITING) & ~runs_operation(pe, pe.awaited)
    runs = due & (pe.main == Main.RUNNING) | goes | _stalls(pe)
    main = jnp.where(goes, Main.RUNNING, pe.main)
    return pe._replace(busy=pe.busy & ~runs, main=main, pc=pe.pc + (goes & (op == Op.WAIT))), runs


def run_tasks(state: State) -> tuple[State, tuple[Array, Array]]:
    """Go on with tasks whose time has come.

    Returns:
        the state; [C] whether a task did anything; [C] whether it began an operation in memory that
        nothing on its PE competes with, whose elements are due now.
    """
    state, runs = per_pe(_resumed)(state)
    stalled = _stalls(state)
    left = jnp.full_like(state.pc, _AT_ONCE)
    state, (_, alone, _) = lax.while_loop(
        lambda carry: carry[1][0].any(),
        lambda carry: per_pe(_instruction)(carry[0], *carry[1]),
        (state, (runs, jnp.zeros_like(runs), left)),
    )
    return state, (runs & ~(stalled & _stalls(state)), alone)
