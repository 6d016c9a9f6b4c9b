"""The beginning of an operation on descriptors, as ``Operations::operate`` in the C++ machine."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wafer.machine.codes import Action, DsdOp, Operand
from wafer.machine.reference.effects import field, finish, register, row_of, with_register
from wafer.machine.reference.faults import noted
from wafer.machine.reference.state import ENDLESS, MAIN, THREADS, Main, Operations, State
from wafer.machine.reference.tables import Tables
from wafer.machine.tools.reports import Fault as Kind

__all__ = ["WIDTHS", "operate", "source_slot"]

Array = jax.Array
# A microthread's levels, then the task's own: medium low (as CSL has it) to high.
_RANKS, _MEDIUM, _OWN = np.array([0, 4, 8, 2, 5, 6, 9]), 1, 3


def _widths() -> np.ndarray:
    """[DsdOps, 4] bytes of an element of dest, src0, src1, scalar."""
    out = np.full((len(DsdOp), 4), 2)
    singles = "FADDS FSUBS FMULS FMAXS FMACS FMOVS MOV32 FNEGS FABSS FNORMS DFILT"
    singles += " ADD32 SUB32 MUL32 MAC32 MAX32"
    out[[DsdOp[name] for name in singles.split()]] = 4
    out[DsdOp.FADDHS], out[DsdOp.FMACHS] = (4, 2, 4, 2), (4, 4, 2, 2)
    out[[DsdOp.FS2H, DsdOp.FS2XP16]] = 2, 4, 4, 4
    out[[DsdOp.FH2S, DsdOp.XP162FS]] = 4, 2, 2, 2
    out[DsdOp.FSCALES] = 4, 4, 2, 2
    return out


WIDTHS = _widths()


def _short(value: Array) -> Array:
    return (value ^ 0x8000) - 0x8000


def source_slot(tables: Tables, state: State, row: Array) -> Array:
    """[C] or [C, T] slots that fabric operands read; -1 if the queue is bound to no color.

    On WSE-2 the descriptor's own color comes before that of its queue.
    """
    get = row_of(tables, "fabrics", row)
    queue, color = get("queue"), get("color")
    bound = jnp.take_along_axis(
        state.in_slot, jnp.maximum(queue, 0).reshape(len(queue), -1), 1
    ).reshape(queue.shape)
    own = jnp.where(color >= 0, jnp.asarray(tables.slot)[color], -1)
    by_queue = (queue >= 0) & (bound >= 0) & (jnp.asarray(tables.wse3) | (own < 0))
    return jnp.where(by_queue, bound, own)


class _Issue(NamedTuple):
    """What operands say together, [C]."""

    asynchronous: Array
    thread: Array
    priority: Array
    queue: Array
    fabric: Array
    held: Array  # a descriptor of the fabric in a DSR
    named: Array  # and in the operation
    control_ends: Array
    heard: Array  # [C, 2]
    problem: Array
    detail: Array


class _Operand(NamedTuple):
    """One operand, [C]; its length is -1 for none, -2 without end."""

    kind: Array
    dsr: Array
    row: Array
    base: Array
    stride: Array
    length: Array
    effect: Array  # [C, 2]


def _failed(issue: _Issue, where: Array, kind: Kind, detail: Array) -> _Issue:
    first = where & (issue.problem == 0)
    return issue._replace(
        problem=jnp.where(first, int(kind), issue.problem),
        detail=jnp.where(first, detail, issue.detail),
    )


def _heard(issue: _Issue, where: Array, ends: Array, action: Array, target: Array) -> _Issue:
    new = where & (issue.heard[:, 0] == Action.NONE)
    said = jnp.stack([action, target], 1)
    return issue._replace(
        control_ends=issue.control_ends | (where & (ends != 0)),
        heard=jnp.where(new[:, None], said, issue.heard),
    )


def _loaded(
    tables: Tables, state: State, there: Array, value: Array, issue: _Issue
) -> tuple[Array, Array, Array, Array, _Issue]:
    """What a DSR holds: kind, value, its number, its effect."""
    rows, depth = jnp.arange(len(value)), state.dsr.shape[2]
    file, own = value >> 8 & 3, value & 0xFF
    held = state.dsr[rows, jnp.minimum(file, 2), jnp.minimum(own, depth - 1)]
    row = held[:, 1]
    missing = there & ((file > 2) | (own >= depth) | (row < 0))
    issue = _failed(issue, missing, Kind.DSR_NOT_LOADED, value)
    get = row_of(tables, "dsr_loads", jnp.maximum(row, 0))
    issue = issue._replace(
        asynchronous=issue.asynchronous | (there & (get("asynchronous") != 0)),
        thread=jnp.where(there & (issue.thread < 0), get("thread"), issue.thread),
    )
    names = ("control_ends", "control_action", "control_target")
    issue = _heard(issue, there, *map(get, names))
    return get("kind"), held[:, 0], value, jnp.stack([get("action"), get("target")], 1), issue


def _bind(tables: Tables, state: State, which: Array, queue: Array, slot: Array) -> State:
    """Bind an input queue that has no color yet."""
    rows = jnp.arange(len(queue))
    lanes = state.lanes
    at = jnp.where(which, queue, 8)
    depth = jnp.asarray(tables.input_depths)[queue]
    lane = jnp.where(which, slot, lanes.depth.shape[1])
    return state._replace(
        in_slot=state.in_slot.at[rows, at].set(slot, mode="drop"),
        lanes=lanes._replace(depth=lanes.depth.at[rows, lane].set(depth, mode="drop")),
    )


def _fabric(
    tables: Tables, state: State, there: Array, value: Array, issue: _Issue, *, k: int
) -> tuple[State, Array, Array, _Issue]:
    """Row and length of a fabric operand."""
    row = jnp.where(there, _short(field(value, 0)), 0)
    get = row_of(tables, "fabrics", row)
    queue, color, sends = get("queue"), get("color"), get("sends") != 0
    wrong = there & ((sends != (k == 0)) | (sends & (queue < 0)))
    issue = _failed(issue, wrong, Kind.WRONG_OPERAND, jnp.int64(0))
    slot = jnp.where(color >= 0, jnp.asarray(tables.slot)[color], -1)
    free = state.in_slot[jnp.arange(len(queue)), jnp.maximum(queue, 0)] < 0
    free &= (state.in_slot != slot[:, None]).all(1)
    binds = there & ~sends & (queue >= 0) & (color >= 0) & free
    state = _bind(tables, state, binds, jnp.maximum(queue, 0), slot)
    unbound = there & ~sends & (source_slot(tables, state, row) < 0)
    issue = _failed(issue, unbound, Kind.NO_COLOR, queue)
    names = ("control_ends", "control_action", "control_target")
    issue = _heard(issue, there & ~sends, *map(get, names))
    of_queue = jnp.asarray(tables.queues)[tables.program, jnp.maximum(queue, 0) + 8 * (k == 0), 1]
    priority = jnp.where(get("priority") < 0, jnp.where(queue < 0, -1, of_queue), get("priority"))
    issue = issue._replace(
        fabric=issue.fabric | there,
        queue=jnp.where(there & (issue.queue < 0), queue, issue.queue),
        priority=jnp.where(there & (issue.priority < 0), priority, issue.priority),
    )
    length = field(value, 1)
    return state, row, jnp.where(length == 0x7FFF, -2, length), issue


def _operand(
    tables: Tables,
    state: State,
    there: Array,
    value: Array,
    issue: _Issue,
    *,
    kind: Array,
    k: int,
    op: Array,
) -> tuple[State, _Operand, _Issue]:
    width = jnp.asarray(WIDTHS)[op, k]
    by_dsr = there & (kind == Operand.DSR)
    loaded, held, number, effect, issue = _loaded(tables, state, by_dsr, value, issue)
    kind, value = jnp.where(by_dsr, loaded, kind), jnp.where(by_dsr, held, value)
    fabric = there & (kind == Operand.FABRIC)
    issue = issue._replace(
        held=issue.held | (fabric & by_dsr), named=issue.named | (fabric & ~by_dsr)
    )
    state, row, length, issue = _fabric(tables, state, fabric, value, issue, k=k)
    shaped = there & (kind == Operand.SHAPED)
    shape = jnp.where(shaped, _short(field(value, 1)), 0)
    of_shape = row_of(tables, "shapes", shape)
    extents = [of_shape(f"n{d}") for d in range(4)]
    memory = there & (kind == Operand.MEMORY)
    indexed = memory & (field(value, 3) >> 15 != 0)
    issue = _failed(issue, indexed, Kind.BAD_CODE, jnp.int64(0))
    length = jnp.where(fabric, length, -1)
    length = jnp.where(memory, field(value, 1), length)
    length = jnp.where(shaped, extents[0] * extents[1] * extents[2] * extents[3], length)
    scalar = kind == Operand.SCALAR
    operand = _Operand(
        kind=jnp.where(there, kind, Operand.NONE),
        dsr=jnp.where(by_dsr, number, -1),
        row=jnp.where(shaped, shape, row),
        base=jnp.where(scalar, value & 0xFFFFFFFF, field(value, 0)),
        stride=jnp.where(memory, _short(field(value, 2)) * width, 0),
        length=length,
        effect=jnp.where(by_dsr[:, None], effect, 0),
    )
    return state, operand, issue


def _steps(
    tables: Tables, state: State, op: Array, operands: list[_Operand]
) -> tuple[Array, Array]:
    """Elements per step, and cycles per step: rules 3 and 4 of ``costs.py``."""
    widths = jnp.asarray(WIDTHS)[op]
    kinds = [operand.kind for operand in operands]
    strides, rows = [], [(k == Operand.MEMORY) | (k == Operand.SHAPED) for k in kinds]
    for k, operand in enumerate(operands):
        inner = row_of(tables, "shapes", jnp.where(operand.kind == Operand.SHAPED, operand.row, 0))(
            "s3"
        )
        shaped = operand.kind == Operand.SHAPED
        strides.append(jnp.where(shaped, inner, operand.stride // widths[:, k]))
    wide = jnp.where(rows[0], jnp.asarray(tables.widths)[op], 1)
    limits = jnp.asarray(tables.stride_widths)
    for operand, stride, row in zip(operands, strides, rows, strict=True):
        single = (operand.kind == Operand.SCALAR) | (operand.kind == Operand.NONE)
        slow = ~single & (~row | (operand.base % 4 != 0))
        limited = jnp.where((stride == 0) | (stride == 1), wide, limits[stride & 7])
        wide = jnp.where(single, wide, jnp.where(slow, 0, jnp.minimum(wide, limited)))
    wide = jnp.maximum(wide, 1)
    banks, size = jnp.asarray(tables.banks)[0], jnp.asarray(tables.banks)[1]
    line = jnp.maximum(banks * size, 1)
    steps = [stride * widths[:, k] for k, stride in enumerate(strides)]
    fills = [(wide * widths[:, k] + size - 1) // size for k in range(3)]

    def meet(x: int, y: int, lines: int) -> Array:
        period = lines * banks
        apart = (operands[y].base // size - operands[x].base // size) & (period - 1)
        near = (apart < fills[x]) | (period - apart < fills[y])
        return rows[x] & rows[y] & ((steps[x] - steps[y]) % line == 0) & near

    columns = rows[0] & (steps[0] != 0) & (steps[0] % line == 0)
    written = 1 + meet(0, 1, 2) + meet(0, 2, 2)
    turns = jnp.maximum(1 + meet(1, 2, 1), jnp.where(columns, written, 1))
    return wide, jnp.where(banks == 0, 1, turns)


def _across(tables: Tables, operands: list[_Operand]) -> Array:
    """[C] elements of the shortest row of a descriptor of several dimensions."""
    rows = []
    for operand in operands:
        shaped = operand.kind == Operand.SHAPED
        row = row_of(tables, "shapes", jnp.where(shaped, operand.row, 0))("n3")
        rows.append(jnp.where(shaped, row, ENDLESS))
    return jnp.maximum(jnp.stack(rows).min(0), 1)


def _length(operands: list[_Operand]) -> Array:
    """That of the first source, of the second, of the destination; 1 if all are single values."""
    lengths = [operands[k].length for k in (1, 2, 0)]
    empty = jnp.stack([length == 0 for length in lengths]).any(0)
    out = jnp.where(empty, 0, 1)
    for length in reversed(lengths):
        out = jnp.where(length > 0, length, jnp.where(length == -2, ENDLESS, out))
    return out


def _rank(apart: Array, priority: Array, own: Array) -> Array:
    """[C] of an operation: of a microthread by its level, else by that of the task's own thread."""
    level = jnp.where(priority < 0, _MEDIUM, priority)
    return jnp.asarray(_RANKS)[jnp.where(apart, level, jnp.maximum(own, _OWN))]


def _effects(issue: _Issue, own: Array, operands: list[_Operand]) -> Array:
    """[C, 4, 2]: what an operation's end does; what a load said counts where that is in a DSR."""
    loaded = (issue.held & ~issue.named)[:, None]
    return jnp.stack([jnp.where(loaded, 0, own), *(o.effect for o in operands)], 1)


def operate(
    tables: Tables, state: State, which: Array, instruction: Array
) -> tuple[State, Array, Array]:
    """Begin operations.

    Args:
        tables: constants.
        state: pc is still that of the instruction.
        which: [C] PEs that execute an OPERATE.
        instruction: [C, 5].

    Returns:
        the state; [C] whether the task goes on at once; [C] whether all elements are done at once.
    """
    row, first, result = (instruction[:, k] for k in (2, 3, 4))
    row = jnp.where(which, row, 0)
    get = row_of(tables, "operations", row)
    cells, rows = len(row), jnp.arange(len(row))
    minus, none = jnp.full(cells, -1), jnp.zeros(cells, jnp.int64)
    op = get("op")
    issue = _Issue(
        asynchronous=get("asynchronous") != 0,
        thread=get("thread"),
        priority=get("priority"),
        queue=minus,
        fabric=jnp.zeros(cells, bool),
        held=jnp.zeros(cells, bool),
        named=jnp.zeros(cells, bool),
        control_ends=get("control_ends") != 0,
        heard=jnp.stack([get("control_action"), get("control_target")], 1),
        problem=none,
        detail=none,
    )
    operands = []
    for k, name in enumerate(("dest", "src0", "src1", "scalar")):
        kind = get(name)
        there = which & (kind != Operand.NONE)
        value = register(state, first)
        state, operand, issue = _operand(tables, state, there, value, issue, kind=kind, k=k, op=op)
        first = first + there
        operands.append(operand)
    wide, turns = _steps(tables, state, op, operands[:3])
    length = _length(operands)
    apart = issue.asynchronous & issue.fabric
    own = jnp.where(issue.thread >= 0, issue.thread, issue.queue)
    thread = jnp.where(apart, own, MAIN)
    issue = _failed(issue, which & (thread < 0), Kind.NO_THREAD, none)
    taken = state.operations.on[rows, jnp.maximum(thread, 0)]
    issue = _failed(issue, which & taken, Kind.THREAD_IN_USE, thread)
    failed = which & (issue.problem != 0)
    fault = noted(state.fault, failed, issue.problem, state.pc, issue.detail)
    begins = which & ~failed
    alone = begins & ~state.operations.on.any(1) & ~issue.fabric & (length > 0)
    to_fabric = operands[0].kind == Operand.FABRIC
    clears = row_of(tables, "fabrics", jnp.where(to_fabric, operands[0].row, 0))("clears")
    effects = _effects(issue, jnp.stack([get("action"), get("target")], 1), operands[:3])
    stacked = lambda name: jnp.stack([getattr(o, name) for o in operands], 1)
    new = Operations(
        on=jnp.ones(cells, bool),
        rank=_rank(apart, issue.priority, get("priority")),
        pc=state.pc,
        op=op,
        length=length,
        position=none,
        carry=none,
        wide=wide,
        across=_across(tables, operands[:3]),
        turns=turns,
        turn=jnp.where(issue.fabric & ~apart, -tables.fabric_start, 0),
        clears=jnp.where(to_fabric, clears, 0),
        control_ends=issue.control_ends,
        heard=issue.heard,
        effects=effects,
        kind=stacked("kind"),
        dsr=stacked("dsr"),
        row=stacked("row"),
        base=stacked("base"),
        stride=stacked("stride"),
    )
    at = jnp.where(begins, thread, THREADS)
    operations = Operations(
        *(
            old.at[rows, at].set(value, mode="drop")
            for old, value in zip(state.operations, new, strict=True)
        )
    )
    main = jnp.where(apart, Main.RUNNING, Main.OPERATING)
    state = state._replace(
        operations=operations,
        fault=fault,
        main=jnp.where(begins, main, state.main),
        pc=jnp.where(which, state.pc + 1, state.pc),
    )
    state = with_register(state, begins & apart & (result >= 0), result, jnp.int64(1))
    empty = begins & (length == 0)
    state = finish(tables, state, empty, thread, jnp.ones(cells, bool))
    return state, begins & (state.main == Main.RUNNING) & ~alone, alone
