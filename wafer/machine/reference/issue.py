"""The beginning of an operation on descriptors, as ``operate`` in the C++ machine."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from wafer.machine.codes import NEVER_ENDS, Action, Operand
from wafer.machine.costs import PACE
from wafer.machine.reference.effects import (
    bind_input,
    choose,
    failed,
    field,
    finish,
    register,
    row_of,
    with_register,
)
from wafer.machine.reference.state import ENDLESS, MAIN, Main, Operations, State
from wafer.machine.tools.reports import Fault as Kind

Array = jax.Array
# Levels of priority in order: a microthread's low, medium and high, the task's medium low to high.
RANKS = np.array([0, 4, 8, 2, 5, 6, 9])
_MEDIUM = 1  # of a microthread that names none
_ALL = 1 << 16  # bytes


def source_slot(pe: State, row: Array) -> Array:
    """Slots that rows of ``fabrics`` read, ``row`` [...]; -1 if the queue is bound to no color.

    On WSE-2 the descriptor's own color comes before that of its queue, unless the running program
    has bound it.
    """
    fabric = row_of(pe, "fabrics", row)
    bound = jnp.where(fabric.queue >= 0, pe.in_slot[fabric.queue], -1)
    own = jnp.where(fabric.color >= 0, pe.tables.slot[fabric.color], -1)
    encoded = (fabric.queue >= 0) & (pe.encoded >> fabric.queue & 1 != 0)
    return jnp.where((bound >= 0) & (pe.tables.wse3 | (own < 0) | encoded), bound, own)


class _Issue(NamedTuple):
    """An operation that begins, and what its operands say together."""

    one: Operations  # as far as it is known
    asynchronous: Array
    thread: Array
    priority: Array
    queue: Array
    lengths: Array  # [4] of operands, -1 for none
    problem: Array
    detail: Array


def _failed(issue: _Issue, where: Array, kind: Kind, detail: int | Array = 0) -> _Issue:
    wrong = issue._replace(problem=int(kind), detail=detail)
    return choose(where & (issue.problem == 0), wrong, issue)


def _heard(issue: _Issue, row: Any) -> _Issue:
    one, said = issue.one, jnp.stack([row.control_action, row.control_target])
    one = one._replace(
        control_ends=one.control_ends | (row.control_ends != 0),
        heard=jnp.where(one.heard[0] == Action.NONE, said, one.heard),
    )
    return issue._replace(one=one)


def _first(old: Array, new: Array) -> Array:
    return jnp.where(old < 0, new, old)


def _loaded(pe: State, issue: _Issue, value: Array) -> tuple[_Issue, Array, Array, Array]:
    """What a DSR holds: the issue with its load; kind, value, its effect."""
    file, own = value >> 8 & 3, value & 0xFF
    held, load = pe.dsr[jnp.minimum(file, 2), own]
    missing = (file > 2) | (own >= pe.dsr.shape[1]) | (load < 0)
    row = row_of(pe, "dsr_loads", load)
    issue = _heard(_failed(issue, missing, Kind.DSR_NOT_LOADED, value), row)
    issue = issue._replace(
        asynchronous=issue.asynchronous | (row.asynchronous != 0),
        thread=_first(issue.thread, row.thread),
    )
    return issue, row.kind, held, jnp.stack([row.action, row.target])


def _fabric(pe: State, issue: _Issue, number: Array, *, writes: bool) -> tuple[State, _Issue]:
    """A row of ``fabrics`` as an operand."""
    row = row_of(pe, "fabrics", number)
    queue, reads = row.queue, row.sends == 0
    wrong = (reads == writes) | (~reads & (queue < 0))
    issue = _failed(issue, wrong, Kind.WRONG_OPERAND)
    # Old programs name a queue and a color without binding one to the other.
    slot = pe.tables.slot[row.color]
    free = (pe.in_slot[queue] < 0) & (pe.in_slot != slot).all()
    binds = reads & (queue >= 0) & (row.color >= 0) & free
    pe = choose(binds, bind_input(pe, queue, slot), pe)
    issue = _failed(issue, reads & (source_slot(pe, number) < 0), Kind.NO_COLOR, queue)
    issue = choose(reads, _heard(issue, row), issue)
    of_queue = pe.tables.queues[pe.program, queue + 8 * writes, 1]
    of_word = jnp.array([-1, 1, 2, 2])[pe.thread_words[queue] >> 8 & 3]
    priority = _first(row.priority, jnp.where(queue < 0, -1, _first(of_queue, of_word)))
    return pe, issue._replace(
        queue=_first(issue.queue, queue), priority=_first(issue.priority, priority)
    )


def _operand(
    pe: State, issue: _Issue, kind: Array, value: Array, *, k: int
) -> tuple[State, _Issue]:
    by_dsr = kind == Operand.DSR
    number = jnp.where(by_dsr, value, -1)
    loaded, its_kind, held, effect = _loaded(pe, issue, value)
    issue, kind, value = choose(by_dsr, (loaded, its_kind, held), (issue, kind, value))
    kinds = Operand.MEMORY, Operand.SHAPED, Operand.FABRIC, Operand.FIFO
    memory, shaped, fabric, fifo = (kind == each for each in kinds)
    row = jnp.select([shaped, fabric], [field(value, 1), field(value, 0)], value & 0xFFFFFFFF)
    rows = jnp.select([shaped, fabric, fifo], list(pe.tables.rows[pe.program]), 1 << 32)
    misplaced = (kind == Operand.SCALAR) if k == 0 else (fabric | fifo) & (k == 3)
    issue = _failed(issue, misplaced | (row >= rows), Kind.WRONG_OPERAND)
    row = jnp.where(row < rows, row, 0)
    pe, issue = choose(fabric, _fabric(pe, issue, row, writes=k == 0), (pe, issue))
    shape, length, one, fifos = (row_of(pe, "shapes", row), field(value, 1), issue.one, pe.fifos)
    of_fifo = (fifos.read_length if k else fifos.write_length)[row]
    lengths = (
        length,
        shape.n0 * shape.n1 * shape.n2 * shape.n3,
        jnp.where(length == NEVER_ENDS, ENDLESS, length),
        jnp.where(of_fifo == 0, -1, of_fifo),
    )
    base = jnp.where(kind == Operand.SCALAR, value & 0xFFFFFFFF, field(value, 0))
    stride = field(value, 2, signed=True) * pe.tables.bytes[one.op, k]
    one = one._replace(
        kind=one.kind.at[k].set(kind),
        dsr=one.dsr.at[k].set(number),
        row=one.row.at[k].set(row),
        base=one.base.at[k].set(base),
        stride=one.stride.at[k].set(jnp.where(memory, stride, 0)),
        indexed=one.indexed.at[k].set(memory & (field(value, 3) >> 15 != 0)),
        effects=one.effects.at[k + 1].set(jnp.where(by_dsr, effect, 0)),
    )
    return pe, issue._replace(
        one=one,
        lengths=issue.lengths.at[k].set(jnp.select([memory, shaped, fabric, fifo], lengths, -1)),
    )


def _with_steps(pe: State, one: Operations) -> Operations:
    """Elements per step, cycles per step, elements of a row: rules 3 and 4 of ``costs.py``."""
    kind, base, width = one.kind[:3], one.base[:3], pe.tables.bytes[one.op, :3]
    shaped, shape = kind == Operand.SHAPED, row_of(pe, "shapes", one.row[:3])
    in_row = ((kind == Operand.MEMORY) | shaped) & ~one.indexed[:3]
    single = (kind == Operand.SCALAR) | (kind == Operand.NONE)
    stride = jnp.where(shaped, shape.s3, one.stride[:3] // width)
    limit = jnp.where(
        (stride == 0) | (stride == 1), ENDLESS, pe.tables.stride_widths[width // 4, stride & 7]
    )
    limit = jnp.where(in_row & (base % 4 == 0), limit, 1)
    most = jnp.where(in_row[0], pe.tables.widths[one.op], 1)
    wide = jnp.minimum(most, jnp.where(single, ENDLESS, limit).min())
    (banks, size), step = pe.tables.banks, stride * width
    line = jnp.maximum(banks * size, 1)
    fills, bank = (wide * width + size - 1) // size, base // size

    def meet(x: int, y: int, lines: int) -> Array:
        period = lines * banks
        apart = (bank[y] - bank[x]) & (period - 1)
        near = (apart < fills[x]) | (period - apart < fills[y])
        return in_row[x] & in_row[y] & ((step[x] - step[y]) % line == 0) & near

    columns = in_row[0] & (step[0] != 0) & (step[0] % line == 0)
    written = jnp.where(columns, 1 + meet(0, 1, 2) + meet(0, 2, 2), 1)
    pointer, its = one.kind[:3] == Operand.POINTER, one.base[1:3] == one.base[0]
    sums = pointer[0] & (pointer[1:] & its).any()
    turns = jnp.where(sums, pe.tables.sums[one.op], jnp.maximum(1 + meet(1, 2, 1), written))
    turns = jnp.where(banks == 0, 1, turns)
    across = jnp.maximum(jnp.where(shaped, shape.n3, ENDLESS).min(), 1)
    fabric, narrow = (one.kind == Operand.FABRIC).any(), wide == 1
    pace = jnp.where(narrow, PACE, pe.tables.pace[1 + in_row[1:].all()])
    pace = jnp.where(fabric, pe.tables.pace[0], pace)
    return one._replace(wide=wide, turns=turns * pace, across=across)


def _length(lengths: Array) -> Array:
    """That of the first source, of the second, of the destination; 1 if all are single values."""
    in_order = lengths[jnp.array([1, 2, 0])]
    empty = jnp.where((in_order == 0).any(), 0, 1)
    return jnp.where((in_order > 0).any(), in_order[jnp.argmax(in_order > 0)], empty)


def _shared(pe: State, one: Operations, length: Array) -> Array:
    """[2] bytes that a microthread's operation lies within, and those of others that run."""
    kinds = Operand.MEMORY, Operand.SHAPED, Operand.FIFO, Operand.POINTER
    memory, shaped, fifo, pointer = (one.kind == each for each in kinds)
    width, shape = pe.tables.bytes[one.op], row_of(pe, "shapes", one.row)
    spans = [(getattr(shape, f"n{d}") - 1) * getattr(shape, f"s{d}") * width for d in range(4)]
    spans = jnp.where(shaped, jnp.stack(spans), 0).at[0].add(memory * one.stride * (length - 1))
    ring = row_of(pe, "fifos", jnp.where(fifo, one.row, 0))
    begin = jnp.where(fifo, ring.address, one.base + jnp.minimum(spans, 0).sum(0))
    end = jnp.where(
        fifo, ring.address + ring.bytes, one.base + jnp.maximum(spans, 0).sum(0) + width
    )
    whole, held = one.indexed | (begin < 0) | (end > _ALL), memory | shaped | fifo | pointer
    begin = jnp.where(held, jnp.where(whole, 0, begin), _ALL).min()
    end = jnp.where(held, jnp.where(whole, _ALL, end), 0).max()
    others = jnp.where(pe.operations.on.any(), pe.shared, jnp.array([_ALL, 0]))
    return jnp.stack([jnp.minimum(begin, others[0]), jnp.maximum(end, others[1])])


def operate(pe: State, instruction: Array) -> tuple[State, tuple[Array, Array]]:
    """Begin an operation.

    Args:
        pe: whose pc is still that of the instruction.
        instruction: [5], an OPERATE.

    Returns:
        the PE, whose task waits if another operation runs on the microthread; whether the task goes
        on at once; whether all elements are done at once.
    """
    _, _, number, first, result = instruction
    row, pc = row_of(pe, "operations", number), pe.pc
    one = jax.tree.map(lambda part: jnp.zeros_like(part[0]), pe.operations)._replace(
        pc=pc,
        task=pe.task,
        op=row.op,
        control_ends=row.control_ends != 0,
        heard=jnp.stack([row.control_action, row.control_target]),
    )
    issue = _Issue(
        one=one,
        asynchronous=row.asynchronous != 0,
        thread=row.thread,
        priority=row.priority,
        queue=jnp.int64(-1),
        lengths=jnp.full(4, -1),
        problem=jnp.int64(0),
        detail=jnp.int64(0),
    )
    for k, kind in enumerate((row.dest, row.src0, row.src1, row.scalar)):
        pe, issue = _operand(pe, issue, kind, register(pe, first), k=k)
        first = first + (kind != Operand.NONE)
    one = issue.one
    fabric, fifo, held = one.kind == Operand.FABRIC, one.kind == Operand.FIFO, one.dsr >= 0
    issue = _failed(issue, fifo[1:3].all() & (one.row[1] == one.row[2]), Kind.WRONG_OPERAND)
    index = jnp.where(row.index >= 0, register(pe, first) & 0xFFFF, 0)
    base = one.base + jnp.where(one.indexed, 2 * index, 0)
    one = one._replace(index=index, base=base, indexed=one.indexed & (row.index < 0))
    one, length = _with_steps(pe, one), _length(issue.lengths)
    empty = ((one.kind == Operand.SHAPED) & (issue.lengths == 0)).any()
    issue = _failed(issue, empty & (length != 0), Kind.NO_ELEMENTS)
    apart = issue.asynchronous & fabric.any()
    thread = jnp.where(apart, _first(issue.thread, issue.queue), MAIN)
    issue = _failed(issue, thread < 0, Kind.NO_THREAD)
    good, used = issue.problem == 0, pe.operations.on[thread]
    begins, waits = good & ~used, good & used
    waiting = pe._replace(main=Main.WAITING, awaited=thread, paid=True)
    pe = choose(waits, waiting, failed(pe, ~good, issue.problem, issue.detail, pc))
    pe = pe._replace(pc=pc + ~waits)
    alone = begins & ~(pe.operations.on.any() | (fabric | fifo).any()) & (length > 0)
    # What an operation names counts unless a load did, of a descriptor of the fabric in a DSR.
    loaded = fabric.any() & (held | ~fabric).all()
    own = jnp.where(loaded, 0, jnp.stack([row.action, row.target]))
    level = jnp.where(issue.priority < 0, _MEDIUM, issue.priority)
    level = jnp.where(apart, level, pe.tables.level[pe.program])
    clears = row_of(pe, "fabrics", one.row[0]).clears
    one = one._replace(
        on=True,
        rank=jnp.asarray(RANKS)[level],
        length=length,
        turn=jnp.where(fabric.any() & ~apart, -PACE * pe.tables.fabric_start, 0),
        clears=jnp.where(one.kind[0] == Operand.FABRIC, clears, 0),
        effects=one.effects.at[0].set(own),
    )
    operations = (old.at[thread].set(part) for old, part in zip(pe.operations, one, strict=True))
    begun = pe._replace(
        shared=jnp.where(apart, _shared(pe, one, length), pe.shared),
        operations=Operations(*operations),
        main=jnp.where(apart, Main.RUNNING, Main.OPERATING),
    )
    begun = choose(apart & (result >= 0), with_register(begun, result, 1), begun)
    begun = choose(length == 0, finish(begun, thread, jnp.bool_(True)), begun)
    pe = choose(begins, begun, pe)
    return pe, (begins & (pe.main == Main.RUNNING) & ~alone, alone)
