"""What a run has done, in the kinds of ``wafer.energy``: from its profile and its operations."""

import numpy as np

from wafer.energy import Counts
from wafer.machine.codes import BYTES, DsdOp, Op, Type
from wafer.machine.costs import ARCHS
from wafer.machine.image import Program
from wafer.machine.timing import instruction_cycles

# Columns of what instructions have taken and done; operations and the rest of OPERATE alone.
WORK = ("cycles", "operations", "elements", "reads", "writes")

# What an element of an operation is; moves and changes of sign are nothing.
_ELEMENTS = {
    "adds32": "FADDS FSUBS FMAXS FADDHS FMACS FMACHS",
    "multiplies32": "FMULS FMACS",
    "adds16": "FADDH FSUBH FMAXH FMACH",
    "multiplies16": "FMULH FMACH FMACHS",
    "integers": "FS2H FH2S FS2XP16 FH2XP16 XP162FS XP162FH ADD16 ADDC16 SUB16 AND16 OR16 XOR16"
    " SLL16 SLR16 SAR16 CLZ CTZ POPCNT FNORMS FNORMH FSCALES FSCALEH ADD32 SUB32 MUL32 MAC32 MAX32",
}  # fmt: skip
_SUMS, _PRODUCTS = (Op.ADD, Op.SUB), (Op.MUL, Op.DIV, Op.REM)
_BITS = {Type.F16: "16", Type.F32: "32"}
_BYTES = np.array(BYTES)


def counts_of(program: Program, arch: str, work: np.ndarray) -> Counts:
    """What all PEs of a program have done, without what routers did.

    Args:
        program: their code.
        arch: 'wse2' or 'wse3'.
        work: [instructions, 5] int64, columns of ``WORK``.
    """
    operates = program.code[:, 0] == Op.OPERATE
    cycles, operations, done, reads, writes = work.T
    scalar = np.where(operates, 0, cycles)
    costs = instruction_cycles(program, ARCHS[arch]).own
    issued = np.where(operates, costs, 0) * operations
    out = dict.fromkeys(Counts._fields, 0)
    out["instructions"] = int(scalar.sum() + issued.sum())
    out["reads"], out["writes"] = int(reads.sum()), int(writes.sum())
    _add_scalars(out, program, scalar, scalar // np.maximum(1, costs))
    if operates.any():
        elements = np.zeros(len(DsdOp), np.int64)
        rows = program.tables["operations"][program.code[operates, 2], 0]
        np.add.at(elements, rows, done[operates])
        for name, members in _ELEMENTS.items():
            out[name] += int(elements[[DsdOp[op] for op in members.split()]].sum())
    return Counts(**out)


def _add_scalars(
    out: dict[str, int], program: Program, cycles: np.ndarray, times: np.ndarray
) -> None:
    """Add what scalar instructions did, from their cycles and how often each was executed."""
    ops, kinds = program.code[:, 0], program.code[:, 1]
    computes = (ops >= Op.ADD) & (ops <= Op.GE)
    floats = np.isin(kinds, list(_BITS))
    out["integers"] += int(cycles[computes & ~floats].sum())
    for kind, bits in _BITS.items():
        for name, group in ((f"adds{bits}", _SUMS), (f"multiplies{bits}", _PRODUCTS)):
            out[name] += int(times[np.isin(ops, group) & (kinds == kind)].sum())
    moved = ops == Op.MOVE
    words = np.where(moved, (program.code[:, 4] + 1) // 2, (_BYTES[kinds % len(_BYTES)] + 1) // 2)
    for name, op in (("reads", Op.LOAD), ("writes", Op.STORE)):
        rows = moved | (ops == op)
        out[name] += int((times * words)[rows].sum())
