"""What instructions cost in cycles, and how wide operations on descriptors go, per architecture.

A task's own instructions are counted one by one; an operation on descriptors costs its issue, what
its operands need (an implicit descriptor is loaded into a DSR first), and then the cycles of its
elements, which the machine counts.
"""

from typing import NamedTuple

import numpy as np

from wafer.csl.machine.codes import DsdOp, Intrinsic, Op, Operand, Type

__all__ = ["ARCHS", "Arch", "op_costs"]

_KINDS = max(len(Intrinsic), len(Type))
_WIDE = ("FADDH FSUBH FMULH FNEGH FABSH FNORMH FSCALEH FMACH FMOVH MOV16 ADD16 SUB16 AND16 OR16"
         " XOR16")  # fmt: skip
_SINGLES = "MOV32 FMOVS FADDS FSUBS FNEGS FABSS FNORMS FSCALES FADDHS FMACHS"
_HALVES = "ADDC16 FMAXH FH2XP16 XP162FH"
_OTHERS = "FMAXS SLL16 SLR16 SAR16 FS2H FH2S FS2XP16 XP162FS"
_GROUPS = (_WIDE, _SINGLES, _HALVES, _OTHERS)


def _widths(*per_group: int) -> np.ndarray:
    """[DsdOps] int32: most elements per cycle of operands that lie side by side in memory."""
    out = np.ones(len(DsdOp), np.int32)
    for names, width in zip(_GROUPS, per_group, strict=True):
        out[[DsdOp[name] for name in names.split()]] = width
    return out


class Arch(NamedTuple):
    """What an architecture fixes.

    Attributes:
        widths: [DsdOps] int32, most elements of an operation per cycle.
        input_depths: words of the input queues.
        output_depths: words of the output queues.
        unbound_depth: words of a colour with no input queue that still reaches a data task.
        switch_task: cycles from a task's end to the next one's first instruction.
        operands: cycles that operands add to an operation's issue.
    """

    widths: np.ndarray
    input_depths: tuple[int, ...]
    output_depths: tuple[int, ...]
    unbound_depth: int
    switch_task: int
    operands: dict[Operand, int]


# Widths and depths as the appendix and the pages on queues of the vendor's language guide say.
_OPERANDS = {
    Operand.MEMORY: 2,
    Operand.SHAPED: 3,
    Operand.FABRIC: 2,
    Operand.FIFO: 2,
    Operand.POINTER: 1,
}
ARCHS = {
    "wse2": Arch(
        _widths(4, 2, 1, 1), (6, 6, 4, 4, 2, 2, 2, 2), (2, 2, 6, 6, 2, 2, 2, 2), 2, 10, _OPERANDS
    ),
    "wse3": Arch(
        _widths(8, 4, 8, 4), (8, 8, 4, 4, 4, 4, 4, 4), (8,) * 8, 2, 10, _OPERANDS
    ),
}  # fmt: skip

# Instructions that do not cost one cycle; by type where that decides.
_CYCLES = {
    Op.COPY: 0,
    Op.JUMP_IF: 2,
    Op.JUMP_UNLESS: 2,
    Op.CALL: 3,
    Op.CALL_AT: 3,
    Op.RETURN: 2,
}
_DIVISION = {Type.F16: 40, Type.F32: 50}  # f32: a vendor's comment; integers as long
_INTRINSICS = {
    **dict.fromkeys(range(Intrinsic.SQRT, Intrinsic.RANDOM16), 60),
    Intrinsic.FLOOR: 10,
    Intrinsic.CEIL: 10,
    Intrinsic.TIMESTAMP: 3,
    Intrinsic.NEXT_COMMAND: 5,
    Intrinsic.PRINT: 20,
}


def op_costs() -> np.ndarray:
    """[Ops, kinds] int32: cycles of an instruction by its `type`; integers go by 16 bits."""
    out = np.ones((len(Op), _KINDS), np.int32)
    for op, cycles in _CYCLES.items():
        out[op] = cycles
    for op in range(Op.ADD, Op.GE + 1):
        out[op, [Type.I32, Type.U32]] = 2
        out[op, [Type.I64, Type.U64]] = 4
    for op in (Op.DIV, Op.REM):
        out[op, : len(Type)] = [_DIVISION.get(kind, 50) for kind in Type]
    for intrinsic, cycles in _INTRINSICS.items():
        out[Op.INTRINSIC, intrinsic] = cycles
    return out
