"""What a program's code is known to do before it runs: words on colors, activations, reach."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from wafer.machine.codes import Action, Op, Operand
from wafer.machine.image import COLUMNS, Program

_FAR = 64  # instructions that are searched for a register's value
_TABLES = {Op.OPERATE: "operations", Op.LOAD_DSR: "dsr_loads"}
_ACTIONS = (("action", "target"), ("control_action", "control_target"))
_OPERANDS = {Op.OPERATE: ("dest", "src0", "src1", "scalar"), Op.LOAD_DSR: ("kind",)}


def constant_in(program: Program, pc: int, register: int) -> int | None:
    """Return the lower 32 bits of a constant that the instructions before one put into a register.

    Args:
        program: its code.
        pc: the instruction.
        register: that it reads.

    Returns:
        None if that is not known.
    """
    for op, _, a, b, _ in program.code[max(pc - _FAR, 0) : pc][::-1]:
        if op in (Op.JUMP, Op.RETURN, Op.FAULT):
            return None
        if a != register:
            continue
        if op == Op.COPY:
            register = int(b)
        else:
            return int(b) if op == Op.CONST else None
    return None


def place_of(program: Program | None, pc: int) -> tuple[str, int]:
    """Return the file and line of an instruction; '' and 0 if there is none.

    Args:
        program: its code; None: not known.
        pc: the instruction.
    """
    if program is None or not 0 <= pc < len(program.lines):
        return "", 0
    file, line = program.lines[pc]
    return program.files[file], int(line)


def line_of(program: Program | None, pc: int) -> str:
    """Return the place of an instruction, as ``place_of``, as 'file:line'; '' if there is none."""
    file, line = place_of(program, pc)
    return f"{file}:{line}" if line else file


def row_of(program: Program, table: str, number: int) -> dict[str, int]:
    """Return a row of one of a program's tables, by the names of its columns.

    Args:
        program: its tables.
        table: a key of ``COLUMNS``.
        number: of the row.
    """
    return dict(zip(COLUMNS[table], program.tables[table][number].tolist(), strict=True))


def _instructions(program: Program, *ops: Op) -> Iterator[tuple[int, int, int, int, int]]:
    """Place, Op, type, a and b of the instructions of some kinds."""
    for pc in np.flatnonzero(np.isin(program.code[:, 0], ops)).tolist():
        op, kind, a, b, _ = program.code[pc].tolist()
        yield pc, op, kind, a, b


def actions(program: Program) -> Iterator[tuple[int, int, int | None]]:
    """Yield what a program activates and unblocks: an instruction, the Action and the task's id.

    Args:
        program: compiled.
    """
    for pc, op, kind, a, _ in _instructions(program, Op.ACTIVATE, Op.UNBLOCK, *_TABLES):
        if table := _TABLES.get(Op(op)):
            row = row_of(program, table, a)
            yield from ((pc, row[action], row[target]) for action, target in _ACTIONS)
        else:
            action = Action.ACTIVATE if op == Op.ACTIVATE else Action.UNBLOCK + kind
            yield pc, action, constant_in(program, pc, a)


def unbound_activations(program: Program) -> Iterator[tuple[int, int]]:
    """Yield the local tasks without code that are activated: id, and instruction.

    The instruction is -1 for a task that is active at the start.

    Args:
        program: compiled.
    """
    unbound = {task for task, entry in enumerate(program.local_tasks) if entry < 0}
    yield from ((task, -1) for task in sorted(unbound) if program.active >> task & 1)
    for pc, action, task in actions(program):
        if action == Action.ACTIVATE and task in unbound:
            yield task, pc


class FabricUse(NamedTuple):
    """An operation on the fabric."""

    pc: int  #: its instruction
    color: int  #: of its descriptor or queue; -1 - queue if that has none
    sends: bool  #: whether it sends
    words: int  #: of its descriptor
    place: str  #: file and line


def fabric_uses(program: Program, arch: str) -> Iterator[FabricUse | None]:
    """Return the operations on the fabric; None for one whose descriptor is not a constant.

    Args:
        program: compiled.
        arch: 'wse2' or 'wse3'.
    """
    for pc, op, _, a, b in _instructions(program, *_TABLES, Op.SEND, Op.RECEIVE):
        registers = [a if op == Op.SEND else b]
        if op in _TABLES:
            row, names = row_of(program, _TABLES[Op(op)], a), _OPERANDS[Op(op)]
            kinds = [row[name] for name in names if row[name] != Operand.NONE]
            registers = [b + k for k, kind in enumerate(kinds) if kind == Operand.FABRIC]
        yield from (_fabric_use(program, arch, pc, register) for register in registers)


def _fabric_use(program: Program, arch: str, pc: int, register: int) -> FabricUse | None:
    known = constant_in(program, pc, register)
    if known is None or known & 0xFFFF >= len(program.tables["fabrics"]):
        return None
    fabric = row_of(program, "fabrics", known & 0xFFFF)
    sends, queue, color, bound = bool(fabric["sends"]), fabric["queue"], fabric["color"], -1
    if queue >= 0 and (not sends or arch == "wse3"):
        bound = int(program.tables["queues"][queue + 8 * sends, 0])
    if bound >= 0 and (arch == "wse3" or color < 0):
        color = bound
    if color < 0 and queue < 0:
        return None
    place, words = line_of(program, pc), known >> 16 & 0xFFFF
    return FabricUse(pc, color if color >= 0 else -1 - queue, sends, words, place)


def reachable(program: Program, entry: int) -> set[int]:
    """Return the instructions that a run from one may come to.

    Args:
        program: its code.
        entry: the first instruction.
    """
    seen, waiting = set[int](), [entry]
    while waiting:
        pc = waiting.pop()
        if pc in seen or not 0 <= pc < len(program.code):
            continue
        seen.add(pc)
        op, a = int(program.code[pc, 0]), int(program.code[pc, 2])
        if op in (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL):
            waiting.append(a)
        if op not in (Op.JUMP, Op.RETURN, Op.FAULT):
            waiting.append(pc + 1)
    return seen
