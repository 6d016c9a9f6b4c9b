"""Arithmetic on known numbers: integers that may not overflow, floats rounded to their type."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wafer.csl.semantics.core import types
from wafer.machine import codes

# Operator -> the machine's instruction.
SIGNS = {
    "+": codes.Op.ADD,
    "-": codes.Op.SUB,
    "*": codes.Op.MUL,
    "/": codes.Op.DIV,
    "%": codes.Op.REM,
    "&": codes.Op.AND,
    "|": codes.Op.OR,
    "^": codes.Op.XOR,
    "<<": codes.Op.SHL,
    ">>": codes.Op.SHR,
}
COMPARISONS: dict[str, tuple[codes.Op, Callable[[Any, Any], bool]]] = {
    "==": (codes.Op.EQ, operator.eq),
    "!=": (codes.Op.NE, operator.ne),
    "<": (codes.Op.LT, operator.lt),
    "<=": (codes.Op.LE, operator.le),
    ">": (codes.Op.GT, operator.gt),
    ">=": (codes.Op.GE, operator.ge),
}
WIDEST = 4096  # bits of a comptime_int, and digits of one that is written out


def bounds(kind: types.Type) -> tuple[int, int]:
    """Least and greatest value of an integer type."""
    assert isinstance(kind, types.Plain)
    width = kind.bits
    half = 1 << width >> 1
    return (-half, max(half - 1, 0)) if kind.name[0] == "i" else (0, (1 << width) - 1)


def fits(kind: types.Type, number: int) -> bool:
    """Whether an integer is one of a type."""
    low, high = bounds(kind)
    return low <= number <= high


def wrapped(kind: types.Type, number: int) -> int:
    """An integer modulo the width of a type."""
    low, high = bounds(kind)
    return (number - low) % (high - low + 1) + low


def half_bits(name: str, number: float) -> int:
    """Return the bits of a number as a 16-bit float, rounded to nearest even; 64 bits are enough.

    Args:
        name: of the format, in ``codes.HALVES``.
        number: of double precision.
    """
    fraction, bias = codes.HALVES[name]
    sign, size = (math.copysign(1, number) < 0) << 15, abs(number)
    infinity = 0x7FFF >> fraction << fraction
    if math.isnan(number):
        return sign | infinity | 1 << fraction - 1
    if math.isinf(number):
        return sign | infinity
    exponent = max(math.frexp(size)[1] - 1 + bias, 1) if size else 1
    kept = round(math.ldexp(size, fraction + bias - exponent))  # Python rounds to even
    return sign | min((exponent - 1 << fraction) + kept, infinity)


def half_value(name: str, bits: int) -> float:
    """Return the number that the bits of a 16-bit float are.

    Args:
        name: of the format, in ``codes.HALVES``.
        bits: of the float.
    """
    fraction, bias = codes.HALVES[name]
    exponent, rest = (bits & 0x7FFF) >> fraction, bits & (1 << fraction) - 1
    if exponent == 0x7FFF >> fraction:
        size = math.nan if rest else math.inf
    else:
        hidden = (exponent > 0) << fraction
        size = math.ldexp(rest | hidden, max(exponent, 1) - bias - fraction)
    return math.copysign(size, -1 if bits & 0x8000 else 1)


def _to_odd(number: float) -> float:
    """Return an integer with 53 bits, the last one odd if some are lost, to be rounded again."""
    if not isinstance(number, int) or (lost := number.bit_length() - 53) <= 0:
        return number
    size = abs(number)
    kept = size >> lost | (size & (1 << lost) - 1 != 0)
    return kept << lost if number > 0 else -(kept << lost)


def rounded(kind: types.Type, number: float) -> float:
    """A number as one of a float type; comptime_float keeps 64 bits."""
    assert isinstance(kind, types.Plain)
    number = number if kind == types.COMPTIME_FLOAT else _to_odd(number)
    with np.errstate(over="ignore"):
        try:
            if kind.name in codes.HALVES:
                return half_value(kind.name, half_bits(kind.name, float(number)))
            return float(np.float32(number) if kind.name == "f32" else number)
        except OverflowError:  # an integer beyond a double's range
            return math.inf if number > 0 else -math.inf


def bits_of(kind: types.Type, data: float) -> int:
    """What a register holds: an integer itself, a float's bit pattern."""
    if str(kind) in codes.HALVES:
        return half_bits(str(kind), data)
    if types.is_float(kind):
        with np.errstate(over="ignore"):
            return int(np.float32(data).view(np.uint32))
    return int(data)


def number_of_bits(kind: types.Type, bits: int) -> float:
    """Return the number that the bits of a float or an integer of a type are."""
    if str(kind) in codes.HALVES:
        return half_value(str(kind), bits)
    if types.is_float(kind):
        return float(np.uint32(bits).view(np.float32))
    return wrapped(kind, bits) if types.is_integer(kind) else bits


def bytes_of(kind: types.Plain, data: Sequence[float]) -> bytes:
    """Numbers as memory holds them, little end first."""
    if kind.name in codes.HALVES and kind.name != "f16":
        return np.array([half_bits(kind.name, number) for number in data], "<u2").tobytes()
    with np.errstate(over="ignore"):
        return np.array(data, f"<{kind.name[0]}{types.size_of(kind)}").tobytes()


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_INTEGERS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": lambda a, b: a - b * _quotient(a, b),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def compute(sign: str, kind: types.Type, a: Any, b: Any) -> Any:
    """One operation on two values of a type.

    Raises:
        ValueError: overflow, division by zero, a shift by less than 0 or too many bits, more bits
            than a comptime_int has; says which.
        KeyError: the type has no such operation.
    """
    if types.is_float(kind) or kind == types.COMPTIME_FLOAT:
        single = np.float32 if kind == types.F32 else np.float64
        with np.errstate(all="ignore"):
            return rounded(kind, float(_FLOATS[sign](single(a), single(b))))
    if sign in ("/", "%") and b == 0:
        raise ValueError("division by zero")
    if sign in ("<<", ">>") and not 0 <= b < WIDEST:
        raise ValueError(f"shift by {b} bits; it is less than {WIDEST:,}")
    number = _INTEGERS[sign](a, b)
    if number.bit_length() > WIDEST:
        raise ValueError(f"a number of {number.bit_length():,} bits; it has at most {WIDEST:,}")
    if kind != types.COMPTIME_INT and not fits(kind, number):
        low, high = bounds(kind)
        raise ValueError(f"{a} {sign} {b} is {number}, and {kind} reaches from {low} to {high}")
    return number


_FUNCTIONS: dict[codes.Intrinsic, Callable[[np.float64], np.float64]] = {
    codes.Intrinsic.SQRT: np.sqrt,
    codes.Intrinsic.EXP: np.exp,
    codes.Intrinsic.LOG: np.log,
    codes.Intrinsic.SIN: np.sin,
    codes.Intrinsic.COS: np.cos,
    codes.Intrinsic.TANH: np.tanh,
    codes.Intrinsic.FLOOR: np.floor,
    codes.Intrinsic.CEIL: np.ceil,
}


def function_of(intrinsic: codes.Intrinsic, kind: types.Type, number: float) -> float:
    """A function of a number: worked out in double precision and rounded as the machine does it.

    Raises:
        KeyError: no function of numbers alone.
    """
    with np.errstate(all="ignore"):
        exact = float(_FUNCTIONS[intrinsic](np.float64(number)))
        # By way of single precision, also to half.
        return rounded(kind, float(np.float32(exact)) if types.is_float(kind) else exact)


def truncated(number: float) -> int:
    """A float as an integer, toward zero.

    Raises:
        ValueError: it is none.
    """
    if not math.isfinite(number):
        raise ValueError(f"{number} is no integer")
    return math.trunc(number)
