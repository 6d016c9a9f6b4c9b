"""Cycles of each instruction of a program: the rules of ``costs.py`` that need its neighbours."""

import numpy as np

from wafer.csl.machine.codes import Op, Operand, Type
from wafer.csl.machine.costs import Arch, op_costs
from wafer.csl.machine.image import COLUMNS, Program

__all__ = ["instruction_cycles"]

_JUMPS = (Op.JUMP, Op.JUMP_IF, Op.JUMP_UNLESS, Op.CALL)
_ENDS = (*_JUMPS, Op.CALL_AT, Op.RETURN)
_FIRST = COLUMNS["operations"].index("dest")
_BITS = {Type[f"{sign}{bits}"]: bits for sign in "IU" for bits in (8, 16, 32, 64)}


class _Straight:
    """What is known in straight code: the values of registers and what DSRs hold.

    Attributes:
        values: by register; an int is a constant, any other object only equal to itself.
        loaded: descriptor by place of an operand.
    """

    def __init__(self) -> None:
        self.values = dict[int, object]()
        self.loaded = dict[int, object]()

    def follow(self, op: int, a: int, b: int, c: int) -> None:
        """Go on behind an instruction."""
        if op in _ENDS:
            self.values, self.loaded = {}, {}
        elif op == Op.CONST:
            self.values[a] = c << 32 | b & 0xFFFFFFFF
        elif op == Op.COPY:
            self.values[a] = self.values.setdefault(b, object())
        else:
            self.values.pop(c if op == Op.OPERATE else a, None)

    def loads(self, kinds: list[int], register: int) -> list[int]:
        """Load the operands of an operation; return the kinds of those that were not loaded."""
        out = []
        for place, kind in enumerate(kinds):
            if kind == Operand.NONE:
                continue
            value = kind, self.values.setdefault(register, object())
            if self.loaded.get(place) != value:
                out.append(kind)
            self.loaded[place], register = value, register + 1
        return out


def instruction_cycles(program: Program, arch: Arch) -> np.ndarray:
    """Return the cycles of each instruction; of an OPERATE those before its first step.

    Args:
        program: one that ``check_image`` accepts.
        arch: that runs it.

    Returns:
        [instructions] int32.
    """
    code, costs = program.code.tolist(), op_costs()
    targets = {row[2] for row in code if row[0] in _JUMPS}
    out = np.zeros(len(code), np.int32)
    state = _Straight()
    for pc, (op, kind, a, b, c) in enumerate(code):
        if pc in targets:
            state = _Straight()
        out[pc] = costs[op, 0 if op == Op.OPERATE else kind]
        if op == Op.OPERATE:
            kinds = program.tables["operations"][a, _FIRST : _FIRST + 4].tolist()
            out[pc] += sum(arch.operands.get(Operand(k), 0) for k in state.loads(kinds, b))
        elif op in (Op.DIV, Op.REM) and kind in _BITS:
            divisor = state.values.get(c)
            if isinstance(divisor, int) and divisor:
                out[pc] = _division(op, Type(kind), divisor, costs)
        state.follow(op, a, b, c)
    return out


def _division(op: int, kind: Type, divisor: int, costs: np.ndarray) -> int:
    """Return the cycles of a quotient or a remainder by a constant other than 0.

    The quotient is the upper half of a product, shifted; with a sign, one more for a negative
    number. Powers of two are shifts.
    """
    cost = lambda op, of=kind: int(costs[op, of])
    signed = kind.name[0] == "I"
    size = abs(divisor) if signed else divisor % (1 << 64)
    if size == 1:
        return cost(Op.NEG) if divisor < 0 and op == Op.DIV else 0
    power = size & size - 1 == 0
    if power and not signed:
        return cost(Op.SHR if op == Op.DIV else Op.AND)
    if power:  # size - 1 more for a negative number
        quotient = 2 * cost(Op.SHR) + cost(Op.AND) + cost(Op.ADD)
    else:
        wide = Type[f"U{min(64, 2 * _BITS[kind])}"]
        quotient = cost(Op.MUL, wide) + cost(Op.SHR, wide)
        quotient += signed * (cost(Op.SHR) + cost(Op.SUB))
    if op == Op.DIV:
        return quotient + (cost(Op.NEG) if signed and divisor < 0 else 0)
    return quotient + cost(Op.SHL if power else Op.MUL) + cost(Op.SUB)
