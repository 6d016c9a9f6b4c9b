"""Operations of a program in words, as CSL writes them."""

import numpy as np

from wafer.fabric.program.codes import Column, Dtype, Field, Kind, Opcode
from wafer.fabric.program.tables import Program

__all__ = ["op_text", "task_of_ops"]

_SUFFIXES = {Dtype.FLOAT32: "s", Dtype.FLOAT16: "h", Dtype.BFLOAT16: "b", Dtype.UINT32: "32"}
_SOURCES = (Column.SRC0, Column.SRC1, Column.SCALAR)


def op_text(program: Program, row: int) -> str:
    """Return an operation of the code table as its builtin, "fadds(x, x, fabin(3), n=4)"."""
    code, kind = np.asarray(program.code)[row], Opcode(np.asarray(program.code)[row, Column.OPCODE])
    count = code[Column.N]
    if kind == Opcode.WORK:
        return f"work({count})"
    suffix = _SUFFIXES[Dtype(code[Column.DTYPE])]
    name = f"{'' if suffix == '32' else 'f'}{kind.name.lower()}{suffix}"
    parts = [_operand(program, code[Column.DST :], "fabout")]
    parts += [_operand(program, code[column:], "fabin") for column in _SOURCES]
    return f"{name}({', '.join(part for part in parts if part)}, n={count})"


def _operand(program: Program, fields: np.ndarray, fabric: str) -> str:
    kind, base = fields[Field.KIND], fields[Field.BASE]
    if kind == Kind.MEM:
        arrays = [a for a in program.meta.arrays if a[1] <= base < a[1] + a[2]]
        name, first = (arrays[0][0], base - arrays[0][1]) if arrays else ("memory", base)
        return f"{name}[{first}]" if first else name
    if kind == Kind.FABRIC:
        return f"{fabric}({program.meta.colors[base]})"
    return {Kind.CONST: "constant", Kind.ARG: "wavelet"}.get(kind, "")


def task_of_ops(program: Program) -> np.ndarray:
    """[S] int32: the task, by its place in ``meta.tasks``, whose operation each row is."""
    out = np.full(len(program.code), -1, np.int32)
    last = np.asarray(program.code)[:, Column.LAST]
    for task, entries in enumerate(np.asarray(program.entry)):
        for row in np.unique(entries[entries >= 0]).tolist():
            end = row + int(np.argmax(last[row:] != 0))
            out[row : end + 1] = task
    return out
