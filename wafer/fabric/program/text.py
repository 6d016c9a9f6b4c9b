"""Operations of a program in words, as CSL writes them."""

from wafer.fabric.program.ops import Const, FabIn, FabOut, Mem, Op, Operand, WaveletArg, builtin_of

__all__ = ["op_text"]


def op_text(op: Op) -> str:
    """Return an operation as its builtin, "fadds(x, x, fabin(3), n=4)"."""
    if op.kind == "work":
        return f"work({op.n})"
    parts = ", ".join(_operand(o) for o in op.operands if o is not None)
    return f"{builtin_of(op)}({parts}, n={op.n})"


def _operand(operand: Operand) -> str:
    match operand:
        case Mem(array, offset):
            return f"{array}[{offset}]" if offset else array
        case FabIn(color):
            return f"fabin({color})"
        case FabOut(color):
            return f"fabout({color})"
        case Const():
            return "constant"
        case WaveletArg():
            return "wavelet"
