"""What instructions cost in cycles, and how wide operations on descriptors go, per architecture.

The rules, which both the C++ machine and any other one follow; all numbers are in the tables here.

1. An instruction costs what ``op_costs`` says; an integer division by a constant what a compiler
   makes of it, a product or a shift. A task begins ``switch_task`` cycles behind the end
   of the one before. An instruction in ``codes.VISIBLE`` acts when all cycles up to and with its
   own are over.
2. An operation on descriptors costs what ``timing.py`` says: its instruction and, for each
   operand, ``operands`` of its kind. A descriptor is loaded into a DSR first, unless the code right
   before (no jump leads in or out) has loaded the same one as the same operand; an operand that is
   a DSR is loaded already. The first step is in the cycle in which the instruction acts, if it can
   be; the task goes on in the cycle behind the last one, of an asynchronous operation at once.
3. A step takes ``widths`` elements of an operation whose operands are scalars and rows of the
   memory: all at addresses that 4 divides, with no index. A stride (of the innermost dimension, in
   elements) other than 0 and 1 limits it to ``stride_widths[stride mod 8]``. A step ends with the
   row of a descriptor of several dimensions. All else, and so every operation with a pointer, a
   FIFO or the fabric, takes one element, and one wavelet, a step.
4. A step takes as many cycles as operands meet at one bank. Two operands meet if both are rows of
   the memory, their strides in bytes are equal modulo a line of ``banks * bank_bytes``, and their
   first steps go to a bank in common, each to as many as its bytes fill from the bank of its first
   element on. The count is of an operand with all that it meets. The destination takes part only
   if its stride is a multiple of a line but not 0: other writes come later and find a bank free.
5. In a cycle one operation of a PE steps: the first in rank of those that can. One whose steps take
   several cycles needs as many of them, others may come between. The task's own comes between low
   and medium priority; a microthread that names none has low on WSE-2, medium on WSE-3.
"""

from typing import NamedTuple

import numpy as np

from wafer.csl.machine.codes import DsdOp, Intrinsic, Op, Operand, Type

__all__ = ["ARCHS", "SCALAR_UNCERTAINTY", "Arch", "op_costs"]

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
        widths: [DsdOps] int32, most elements of an operation per step.
        stride_widths: most elements per step, by the stride modulo 8.
        banks: of the memory, as its 32-bit reads see them.
        bank_bytes: of one bank, side by side; then comes the next one.
        input_depths: words of the input queues.
        output_depths: words of the output queues.
        unbound_depth: words of a colour with no input queue that still reaches a data task.
        switch_task: cycles from a task's end to the next one's first instruction.
        operands: cycles that operands add to an operation's issue.
    """

    widths: np.ndarray
    stride_widths: tuple[int, ...]
    banks: int
    bank_bytes: int
    input_depths: tuple[int, ...]
    output_depths: tuple[int, ...]
    unbound_depth: int
    switch_task: int
    operands: dict[Operand, int]


# As the appendix of the vendor's language guide says: eight banks of 16-bit words, so four as two
# reads of 32 bits meet them; where it contradicts itself (stride 4: 2 or 4), the smaller one.
_STRIDE_WIDTHS = (1, 2, 8, 8, 2, 8, 8, 2)
_BANKS, _BANK_BYTES = 4, 4
# Depths as the pages on queues say.
_WSE2_DEPTHS = (6, 6, 4, 4, 2, 2, 2, 2), (2, 2, 6, 6, 2, 2, 2, 2)
_WSE3_DEPTHS = (8, 8, 4, 4, 4, 4, 4, 4), (8,) * 8
_OPERANDS = {
    Operand.MEMORY: 10,
    Operand.SHAPED: 10,
    Operand.FABRIC: 2,
    Operand.FIFO: 2,
    Operand.POINTER: 1,
}
_MEMORY = (_STRIDE_WIDTHS, _BANKS, _BANK_BYTES)
ARCHS = {
    "wse2": Arch(_widths(4, 2, 1, 1), *_MEMORY, *_WSE2_DEPTHS, 2, 2, _OPERANDS),
    "wse3": Arch(_widths(8, 4, 8, 4), *_MEMORY, *_WSE3_DEPTHS, 2, 5, _OPERANDS),
}

# Instructions that do not cost one cycle; by type where that decides. The vendor's instructions
# hold constants, its compiler inlines functions: neither is counted.
_CYCLES = {
    Op.CONST: 0,
    Op.COPY: 0,
    Op.CALL: 0,
    Op.CALL_AT: 3,
    Op.RETURN: 0,
}
# How far off the cycles of scalar code may be: the largest residual of the published rows with
# loops as they are here (docs/results/csl.md), rounded up.
SCALAR_UNCERTAINTY = 0.25
_DIVISION = {Type.F16: 40, Type.F32: 50}  # f32: a vendor's comment; integers as long
_INTRINSICS = {
    **dict.fromkeys(range(Intrinsic.SQRT, Intrinsic.RANDOM16), 60),
    Intrinsic.FLOOR: 10,
    Intrinsic.CEIL: 10,
    Intrinsic.TIMESTAMP: 0,
    Intrinsic.NEXT_COMMAND: 5,
    Intrinsic.PRINT: 4,
}


def op_costs() -> np.ndarray:
    """[Ops, kinds] int32: cycles of an instruction by its `type`; integers go by 16 bits."""
    out = np.ones((len(Op), _KINDS), np.int32)
    for op, cycles in _CYCLES.items():
        out[op] = cycles
    for op in range(Op.ADD, Op.GE + 1):
        out[op, [Type.I32, Type.U32]] = 2
        out[op, [Type.I64, Type.U64]] = 4
    out[[Op.SHL, Op.SHR], Type.I64] = out[[Op.SHL, Op.SHR], Type.U64] = 1  # mostly by whole words
    out[Op.CAST, : Type.F16] = 0  # other words of the same registers
    for op in (Op.DIV, Op.REM):
        out[op, : len(Type)] = [_DIVISION.get(kind, 50) for kind in Type]
    for intrinsic, cycles in _INTRINSICS.items():
        out[Op.INTRINSIC, intrinsic] = cycles
    return out
