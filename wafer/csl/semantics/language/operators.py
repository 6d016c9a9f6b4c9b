"""Operators on values: computed if both are known, instructions if not."""

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.numbers import COMPARISONS, SIGNS, compute, wrapped
from wafer.csl.semantics.core.values import Register, Value, is_known
from wafer.csl.semantics.language.coerce import coerce, common, narrowed
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op

# Of operands that fit a width, the result fits it, too; a comparison's is no number.
_EXACT = frozenset(
    {Op.AND, Op.OR, Op.XOR, Op.SHR, Op.REM, Op.EQ, Op.NE, Op.LT, Op.LE, Op.GT, Op.GE}
)


_PREFIXES = {"-": (Op.NEG, "numbers"), "~": (Op.INVERT, "integers"), "!": (Op.NOT, "a bool")}


def prefixed(ev: Evaluator, sign: str, value: Value, at: Position) -> Value:
    """``-value``, ``~value`` or ``!value``."""
    (op, operands), (kind, data) = _PREFIXES[sign], value
    integer = types.is_integer(kind) or kind == types.COMPTIME_INT
    if not {"-": types.is_number(kind), "~": integer, "!": kind == types.BOOL}[sign]:
        ev.fail(at, f"'{sign}' applies to {operands}, found {described(value)}")
    if not is_known(value):
        code, machine = ev.require_code(at, "this value"), types.machine_type(kind)
        assert machine is not None
        return narrowed(code, kind, code.result(op, machine, ev.register(value, at)))
    if sign == "!":
        return Value(kind, not data)
    if sign == "~":
        return Value(kind, ~data if kind == types.COMPTIME_INT else wrapped(kind, ~data))
    return combined(ev, "-", Value(kind, 0), value, at) if integer else Value(kind, -data)


def combined(ev: Evaluator, sign: str, left: Value, right: Value, at: Position) -> Value:
    """Two values with an operator between them."""
    if types.is_number(left.type) and types.is_number(right.type):
        if sign in ("<<", ">>"):
            return _shift(ev, sign, left, right, at)
        kind = common(ev, left, right, at)
        left, right = coerce(ev, left, kind, at), coerce(ev, right, kind, at)
    elif sign not in ("==", "!=") and not (left.type == right.type == types.BOOL):
        wrong = right if types.is_number(left.type) else left
        ev.fail(at, f"'{sign}' applies to numbers, found {described(wrong)}")
    if sign in COMPARISONS:
        return _comparison(ev, sign, left, right, at)
    if is_known(left) and is_known(right):
        try:
            return Value(left.type, compute(sign, left.type, left.data, right.data))
        except ValueError as error:
            ev.fail(at, str(error), "numbers known at compile time may not overflow")
        except KeyError:
            ev.fail(at, f"'{sign}' does not apply to {left.type}")
    return _operation(ev, SIGNS[sign], left, right, at)


def _operation(ev: Evaluator, op: Op, left: Value, right: Value, at: Position) -> Value:
    """An instruction on two values of one type; its result has that type, too."""
    code, kind = ev.require_code(at, "this value"), types.machine_type(left.type)
    if kind is None:
        ev.fail(at, f"a value of type {left.type} exists at compile time only")
    first, second = ev.register(left, at), ev.register(right, at)
    register = code.result(op, kind, first, second)
    if op in _EXACT:
        return Value(left.type, Register(register))
    return narrowed(code, left.type, register)


def _shift(ev: Evaluator, sign: str, left: Value, right: Value, at: Position) -> Value:
    if is_known(left) and is_known(right):
        try:
            number = compute(sign, types.COMPTIME_INT, left.data, right.data)
        except ValueError as error:
            ev.fail(at, str(error))
        if left.type != types.COMPTIME_INT:
            number = wrapped(left.type, number)
        return Value(left.type, number)
    if left.type == types.COMPTIME_INT:
        left = coerce(ev, left, right.type, at)
    if right.type == types.COMPTIME_INT:
        right = coerce(ev, right, types.U16, at)
    return _operation(ev, SIGNS[sign], left, right, at)


def _same(left: Value, right: Value) -> bool:
    """Whether two known values are equal, of whatever type."""
    if left.type != right.type and types.VOID in (left.type, right.type):
        return False
    return left.data == right.data


def _comparison(ev: Evaluator, sign: str, left: Value, right: Value, at: Position) -> Value:
    op, function = COMPARISONS[sign]
    if is_known(left) and is_known(right):
        if sign in ("==", "!="):
            return Value(types.BOOL, _same(left, right) == (sign == "=="))
        return Value(types.BOOL, function(left.data, right.data))
    if left.type != right.type and not isinstance(left.type, types.Pointer):
        ev.fail(at, f"'{sign}' between {left.type} and {right.type}")
    return Value(types.BOOL, _operation(ev, op, left, right, at).data)
