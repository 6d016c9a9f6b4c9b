"""Looks at an image before a machine reads it: no number of it leads out of what it belongs to.

An image comes from the compiler or out of a folder that anyone may have written. What is data here
(which column names what) the C++ machine relies on: it checks nothing of this again.
"""

from collections.abc import Iterator

import numpy as np

from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import Action, DsdOp, Gate, Intrinsic, Op, Operand, Type
from wafer.machine.image import COLORS, COLUMNS, ENTRIES, Image, Program

_HARDWARE = ARCHITECTURES["wse2"]  # as many of each in WSE-3
_QUEUES, _FILES = len(_HARDWARE.input_depths), 3
OPERANDS = 6  # registers that an operation may read behind its first
_MOST = (1 << 31) - 1
_MOST_REGISTERS = 1 << 16
_MOST_CYCLES = (1 << 23) - 1  # of an instruction

# The columns of an instruction that name registers; the others' are a, b and c.
_REGISTERS = {
    "": (Op.JUMP, Op.RETURN, Op.FAULT, Op.WAIT),
    "a": (Op.CONST, Op.ACTIVATE, Op.BLOCK, Op.UNBLOCK, Op.DSR_GET),
    "b": (Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL, Op.LOAD_DSR),
    "c": (Op.DSR_BASE,),
    "ab": (
        *(Op.COPY, Op.NEG, Op.INVERT, Op.NOT, Op.CAST, Op.LOAD, Op.STORE, Op.MOVE, Op.DSD_GET),
        *(Op.RECEIVE, Op.SEND, Op.CONFIG_GET, Op.CONFIG_SET, Op.CALL_AT),
    ),
    "bc": (Op.OPERATE,),
}
_BY_OP = {op: letters for letters, ops in _REGISTERS.items() for op in ops}
_NAMED = np.array([[letter in _BY_OP.get(op, "abc") for letter in "abc"] for op in Op])
_JUMPS = (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL)
_LAST = (Op.JUMP, Op.RETURN, Op.FAULT)
_ROWS = {Op.OPERATE: "operations", Op.LOAD_DSR: "dsr_loads"}  # column a is a row of
_NULLABLE = {Op.OPERATE: "c", Op.INTRINSIC: "abc"}  # registers that may be -1: none
# How many values `type` has, where those are not the Types.
_TYPES = {
    **dict.fromkeys((Op.BLOCK, Op.UNBLOCK), len(Gate)),
    **dict.fromkeys((Op.DSD_SET, Op.DSD_GET), 4),
    **dict.fromkeys((Op.DSR_GET, Op.DSR_BASE), _FILES),
    Op.INTRINSIC: len(Intrinsic),
    Op.WAIT: 2,
    Op.OPERATE: _MOST,  # nobody reads it
}
_TYPED = np.array([_TYPES.get(op, len(Type)) for op in Op])

_EFFECT = (0, len(Action) - 1 + len(Gate) - 1)
# Lowest and highest value of the columns that name something, in all tables or in one of them; the
# others may hold anything.
_RANGES: dict[str, tuple[int, int]] = {
    "op": (0, len(DsdOp) - 1),
    **dict.fromkeys(("dest", "src0", "src1", "scalar"), (0, len(Operand) - 1)),
    **dict.fromkeys(("action", "control_action"), _EFFECT),
    **dict.fromkeys(("target", "control_target"), (-1, 31)),
    **dict.fromkeys(("thread", "queue"), (-1, _QUEUES - 1)),
    "priority": (-1, 2),
    "color": (-1, COLORS - 1),
    "clears": (0, 3),
    "address": (0, _MOST),
    "bytes": (2, _MOST),
    **dict.fromkeys(("push_task", "pop_task"), (-1, 30)),
    **dict.fromkeys(("n0", "n1", "n2", "n3"), (0, 1 << 16)),
    **dict.fromkeys(("s0", "s1", "s2", "s3"), (-(1 << 15), (1 << 15) - 1)),
    "file": (0, _FILES - 1),
    "id": (0, 255),
    "kind": (Operand.MEMORY, Operand.FIFO),
}
_TABLES = [name for name in COLUMNS if name != "filters"]

_Problem = tuple[bool, str]  # whether something is wrong, and what to say of it then


def registers_beyond(program: Program) -> int:
    """Registers that one function may name; see ``lay_out``'s stream.

    Args:
        program: one that ``check_image`` has nothing against.
    """
    code = program.code
    if not len(code):
        return OPERANDS
    return int(np.where(_NAMED[code[:, 0]], code[:, 2:], 0).max()) + 1 + OPERANDS


def check_image(image: Image) -> None:
    """Refuse an image that a machine cannot run.

    Raises:
        CompileError: an array of another shape or type, or a number that leads out of a table.
    """
    _refuse("the image", _planes(image))
    for program in image.programs:
        _refuse(program.name, _arrays(program))  # what the next ones read is there then
        _refuse(program.name, _tables(program))
        _refuse(program.name, _code(program))


def _refuse(name: str, problems: Iterator[_Problem]) -> None:
    for wrong, what in problems:
        if wrong:
            raise CompileError(f"{name}: the compiled code has {what}")


def _holds_numbers(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize >= 4


def _beyond(values: np.ndarray, ends: tuple[int, int]) -> bool:
    return bool(values.size) and bool(values.min() < ends[0] or values.max() > ends[1])


def _is_table(array: np.ndarray, columns: int) -> bool:
    return array.ndim == 2 and array.shape[1] == columns and _holds_numbers(array)


def _planes(image: Image) -> Iterator[_Problem]:
    grid, routed = image.tiles.shape, image.routed
    lanes = (*grid, COLORS)
    yield len(grid) != 2 or 0 in grid, "tiles that are no rectangle of PEs"
    yield not _holds_numbers(image.tiles), "tiles that are no whole numbers"
    filters = (*lanes, len(COLUMNS["filters"]))
    for name, shape in (("colors", lanes), ("switches", lanes), ("filters", filters)):
        array = getattr(image, name)
        wrong = array.shape != shape or not _holds_numbers(array)
        yield wrong, f"{name} of shape {array.shape}; {shape} integers were expected"
    wrong = routed.shape != lanes or routed.dtype != np.bool_
    yield wrong, f"routed of shape {routed.shape}; {lanes} truth values were expected"
    beyond = _beyond(image.tiles, (-1, len(image.programs) - 1))
    yield beyond, "PEs whose program is not there"
    streams = np.array([*image.streams], np.int64)
    yield _beyond(streams, (0, COLORS - 1)), f"streams on other colors than 0 to {COLORS - 1}"


def _arrays(program: Program) -> Iterator[_Problem]:
    yield (not _is_table(program.code, 5), "instructions that are not five whole numbers")
    lines = program.lines
    wrong = not _is_table(lines, 2) or len(lines) != len(program.code)
    yield (wrong, "other than one line of source for each instruction")
    yield (_beyond(lines[:, 0], (0, len(program.files) - 1)), "lines of unknown files")
    memory = program.memory
    yield (memory.ndim != 1 or memory.dtype != np.uint8, "memory that is not bytes")
    yield (program.blocked.shape != (len(Gate),), f"other than {len(Gate)} words of gates")
    yield (not 3 <= program.level <= 6, f"level {program.level} of its tasks; 3 to 6 were expected")
    for name, most in ENTRIES.items():
        values = np.asarray(getattr(program, name))
        wrong = values.ndim != 1 or len(values) > most or not _holds_numbers(values)
        yield (wrong, f"{name} of shape {values.shape}; at most {most} whole numbers were expected")
    for name in _TABLES:
        table = program.tables.get(name, np.zeros(0))
        yield (
            not _is_table(table, len(COLUMNS[name])),
            f"{name} of shape {table.shape}; {len(COLUMNS[name])} columns were expected",
        )
    yield (len(program.tables.get("queues", ())) > 2 * _QUEUES, "more than 16 queues")


def _tables(program: Program) -> Iterator[_Problem]:
    for name in _TABLES:
        columns = dict(zip(COLUMNS[name], program.tables[name].T, strict=True))
        for column, values in columns.items():
            ends = _RANGES.get(f"{name}.{column}") or _RANGES.get(column)
            if ends:
                what = f"{column} of {name} outside of {ends[0]} to {ends[1]}"
                yield _beyond(values, ends), what
        for action in columns.keys() & {"action", "control_action"}:
            target = action.replace("action", "target")
            acts = columns[action] > Action.NONE
            yield _beyond(columns[target][acts], (0, 31)), f"{action} of {name} without a {target}"
    fifos = program.tables["fifos"][:, :2].astype(np.int64)
    beyond = _beyond(fifos.sum(axis=1), (0, len(program.memory)))
    yield (beyond, "a FIFO outside of the memory")
    sizes = np.maximum(program.tables["shapes"][:, :4].astype(np.float64), 1).prod(axis=1)
    yield (_beyond(sizes, (0, _MOST)), "a shape of more elements than are counted")
    yield (not 0 <= program.frame <= _MOST_REGISTERS, "frames of no or too many registers")


def _code(program: Program) -> Iterator[_Problem]:
    code, tables = program.code.astype(np.int64), program.tables
    op, kind, (a, b, c) = code[:, 0], code[:, 1], code[:, 2:].T
    yield (_beyond(op, (0, len(Op) - 1)), f"operation codes outside of 0..{len(Op) - 1}")
    operands = np.where(_NAMED[op], code[:, 2:], 0)
    least = np.array([[-(letter in _NULLABLE.get(o, "")) for letter in "abc"] for o in Op])[op]
    yield (_beyond(operands, (-1, _MOST_REGISTERS - 1)), "a register beyond 65535")
    yield (bool((operands < least).any()), "a negative register")
    yield (bool(((kind < 0) | (kind >= _TYPED[op])).any()), "a type that there is not")
    jumps = np.isin(op, _JUMPS)
    entries = [np.asarray(getattr(program, name)) for name in ENTRIES]
    starts = [program.start, *program.functions.values()]
    targets = np.concatenate([a[jumps], *entries, np.array(starts, np.int64)])
    yield (_beyond(targets, (-_MOST, len(code) - 1)), "a jump behind the end")
    yield (_beyond(a[jumps], (0, _MOST)), "a jump before the start")
    without_end = len(code) and op[-1] not in _LAST
    yield (bool(without_end), "no end behind its last instruction")
    for one, table in _ROWS.items():
        beyond = _beyond(a[op == one], (0, len(tables[table]) - 1))
        yield (beyond, f"{one.name} of a row that {table} does not have")
    ids = tables["dsr_loads"][:, COLUMNS["dsr_loads"].index("id")].astype(np.int64)
    last = int(ids.max(initial=-1))
    read = np.isin(op, (Op.DSR_GET, Op.DSR_BASE))
    yield (_beyond(b[read], (0, last)), "a DSR that nothing is loaded into")
    calls = op == Op.INTRINSIC
    of_type = (kind < Intrinsic.RANDOM16) | (kind == Intrinsic.PRINT)
    typed = (op == Op.CAST) | (calls & of_type)
    yield (_beyond(c[typed], (0, len(Type) - 1)), "a type that there is not")
    waits = op == Op.WAIT
    yield (_beyond(a[waits], _RANGES["thread"]), "a wait for a microthread that there is not")
    yield (_beyond(c[waits], (0, _MOST_CYCLES)), "a wait of too many cycles")
    fifo = calls & (kind == Intrinsic.FIFO_LENGTH)
    yield (_beyond(c[fifo], (0, _MOST)), "a length of a FIFO in no register")
    yield (_beyond(c[op == Op.MOVE], (0, _MOST)), "a negative number of bytes")
