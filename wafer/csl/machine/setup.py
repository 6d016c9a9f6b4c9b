"""Lays an image out as the C++ machine reads it: one stream of int32, and nothing unchecked in it.

``native/program.h`` and ``native/machine.cc`` read it in the same order.
"""

import numpy as np

from wafer.csl.machine.codes import Op
from wafer.csl.machine.costs import ARCHS, issue_cycles, op_costs
from wafer.csl.machine.image import COLUMNS, NO_COLOR, Image, Program
from wafer.errors import CompileError

__all__ = ["colors_of", "lay_out", "registers_beyond"]

_COLORS = 24
_TABLES = tuple(name for name in COLUMNS if name not in {"queues", "filters"})
_OPERANDS = 6  # registers that an operation may read behind its first

# The columns of an instruction that name registers; the others' are a, b and c.
_REGISTERS = {
    "": (Op.JUMP, Op.RETURN, Op.FAULT),
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


def _flat(values: object) -> np.ndarray:
    return np.asarray(values, np.int32).reshape(-1)


def _rows(table: np.ndarray) -> list[np.ndarray]:
    """A count and the rows."""
    return [_flat(len(table)), _flat(table)]


def _bytes(memory: np.ndarray) -> list[np.ndarray]:
    padded = np.zeros(-(-len(memory) // 4) * 4, np.uint8)
    padded[: len(memory)] = memory
    return [_flat(len(memory)), padded.view(np.int32)]


def registers_beyond(program: Program) -> int:
    """Look at what the C++ side does not; returns the registers one function may name.

    Raises:
        CompileError: an instruction that names no register, instruction or row.
    """
    code = program.code
    if not len(code):
        return _OPERANDS
    if code[:, 0].min() < 0 or code[:, 0].max() >= len(Op):
        raise CompileError(f"{program.name}: operation codes outside of 0..{len(Op) - 1}")
    operands = np.where(_NAMED[code[:, 0]], code[:, 2:], 0)
    jumps = np.isin(code[:, 0], _JUMPS)
    targets = np.concatenate([code[jumps, 2], *_entries(program), [program.start]])
    problems = [
        (operands.max() >= 1 << 16, "a register beyond 65535"),
        (operands.min() < -1, "a negative register"),
        (targets.size and targets.max() >= len(code), "a jump behind the end"),
        (code[jumps, 2].size and code[jumps, 2].min() < 0, "a jump before the start"),
        (code[-1, 0] not in _LAST, "no end behind its last instruction"),
    ]
    for op, table in _ROWS.items():
        rows = code[code[:, 0] == op, 2]
        bad = rows.size and (rows.min() < 0 or rows.max() >= len(program.tables[table]))
        problems.append((bad, f"{op.name} of a row that {table} does not have"))
    fifos = program.tables["fifos"]
    ends = fifos[:, 0] + fifos[:, 1] if len(fifos) else np.zeros(1, np.int32)
    problems.append((ends.max() > len(program.memory), "a FIFO outside of the memory"))
    for wrong, what in problems:
        if wrong:
            raise CompileError(f"{program.name}: the compiled code has {what}")
    return int(operands.max()) + 1 + _OPERANDS


def _entries(program: Program) -> tuple[np.ndarray, ...]:
    """First instructions of the tasks, in the stream's order."""
    return (
        _flat(program.local_tasks),
        _flat(program.data_tasks),
        _flat(program.control_tasks),
        _flat(program.teardown_handlers),
        _flat(program.empty_handlers),
    )


def _fitted(values: np.ndarray, length: int) -> np.ndarray:
    out = np.full(length, NO_COLOR, np.int32)
    out[: len(values)] = values
    return out


def _program(program: Program, arch: str) -> list[np.ndarray]:
    slack = registers_beyond(program)
    code = np.array(program.code)
    operations = code[:, 0] == Op.OPERATE
    code[operations, 1] = issue_cycles(program, ARCHS[arch])[operations]
    queues = np.full((16, len(COLUMNS["queues"])), -1, np.int32)
    queues[: len(program.tables["queues"])] = program.tables["queues"]
    entries = map(_fitted, _entries(program), (31, _COLORS, 64, _COLORS, 8))
    return [
        *_rows(code),
        *_bytes(program.memory),
        *(part for name in _TABLES for part in _rows(program.tables[name])),
        _flat(queues),
        *entries,
        _flat(program.blocked),
        _flat([program.start]),
        _flat(np.array([program.active], np.uint32).view(np.int32)),
        _flat([program.frame, slack]),
    ]


def colors_of(image: Image) -> list[int]:
    """Colours that anything names, ascending, with the partners of those that are swapped."""
    used = set(image.streams)
    used |= {int(c) for c in np.flatnonzero(np.asarray(image.routed).any(axis=(0, 1)))}
    for program in image.programs:
        used |= {int(c) for c in program.tables["queues"][:, 0] if c >= 0}
        used |= {int(c) for c in program.tables["fabrics"][:, 2] if c >= 0}
        used |= {int(c) for c in np.flatnonzero(np.asarray(program.teardown_handlers) >= 0)}
        if image.arch == "wse2":
            used |= {int(c) for c in np.flatnonzero(np.asarray(program.data_tasks) >= 0)}
    swapped = np.flatnonzero((np.asarray(image.colors) & 0xC00).any(axis=(0, 1)))
    used |= {int(c) ^ 1 for c in swapped}
    return sorted(used)


def _costs(image: Image) -> list[np.ndarray]:
    arch = ARCHS[image.arch]
    streams = [0] * _COLORS
    for color, name in image.streams.items():
        streams[color] = 1 if "H2D" in name.upper() else 2
    fixed = [int(image.arch == "wse3"), arch.switch_task]
    depths = [*arch.input_depths, *arch.output_depths, arch.unbound_depth]
    memory = [*arch.stride_widths, arch.banks, arch.bank_bytes]
    parts = (fixed, op_costs(), arch.widths, memory, depths, streams)
    return [_flat(part) for part in parts]


def lay_out(image: Image) -> np.ndarray:
    """The stream.

    Args:
        image: compiled.

    Raises:
        CompileError: no such architecture, or code that cannot be run.
    """
    if image.arch not in ARCHS:
        raise CompileError(f"arch {image.arch!r}; there are {', '.join(ARCHS)}")
    height, width = image.tiles.shape
    colors = colors_of(image)
    filtered = np.argwhere(np.asarray(image.filters)[..., colors, 0] != 0)
    rows = np.array([image.filters[y, x, colors[slot]] for y, x, slot in filtered], np.int32)
    kinds, kind = np.unique(
        rows.reshape(-1, len(COLUMNS["filters"])), axis=0, return_inverse=True
    )  # many PEs share one
    at = [
        [y * width + x, slot, k] for (y, x, slot), k in zip(filtered, kind.reshape(-1), strict=True)
    ]
    words = lambda table: np.asarray(table)[..., colors].astype(np.uint32) & 0xFFFF
    registers = words(image.colors) | words(image.switches) << 16
    parts = [
        _flat([height, width]),
        *_costs(image),
        *_rows(np.array(colors)),
        *_rows(kinds),
        _flat(len(image.programs)),
        *(part for program in image.programs for part in _program(program, image.arch)),
        *_rows(image.tiles.reshape(-1)),
        registers.view(np.int32).reshape(-1),
        *_rows(np.array(at, np.int32).reshape(-1, 3)),
    ]
    return np.ascontiguousarray(np.concatenate(parts))
