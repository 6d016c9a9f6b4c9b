"""Operations of a program in words, as CSL writes them."""

from collections.abc import Sequence

from wafer.fabric.program.codes import Column, Dtype, Field, Kind, Opcode
from wafer.fabric.program.tables import Meta

__all__ = ["op_text"]

_SUFFIXES = {Dtype.FLOAT32: "s", Dtype.FLOAT16: "h", Dtype.UINT32: "32"}
_SOURCES = (Column.SRC0, Column.SRC1, Column.SCALAR)
_NAMES = {int(code): code.name.lower() for code in Opcode}
_OTHERS = {int(Kind.CONST): "constant", int(Kind.ARG): "wavelet"}


def op_text(meta: Meta, op: Sequence[int]) -> str:
    """Return a row of the code table as its builtin, "fadds(x, x, fabin(3), n=4)"."""
    count, name = op[Column.N], _NAMES[op[Column.OPCODE]]
    if op[Column.OPCODE] == Opcode.WORK:
        return f"work({count})"
    suffix = _SUFFIXES[Dtype(op[Column.DTYPE])]
    parts = [_operand(meta, op, Column.DST, "fabout")]
    parts += [_operand(meta, op, column, "fabin") for column in _SOURCES]
    text = ", ".join(part for part in parts if part)
    return f"{'' if suffix == '32' else 'f'}{name}{suffix}({text}, n={count})"


def _operand(meta: Meta, op: Sequence[int], column: int, fabric: str) -> str:
    kind, base = op[column], op[column + Field.BASE]
    if kind == Kind.MEM:
        name, first, *_ = meta.array_at(base)
        return f"{name}[{base - first}]" if base > first else name
    if kind == Kind.FABRIC:
        return f"{fabric}({meta.colors[base]})"
    return _OTHERS.get(kind, "")
