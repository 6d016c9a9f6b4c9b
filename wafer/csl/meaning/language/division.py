"""Division of a running integer by a known one: shifts and a product instead of 50 cycles."""

from typing import NamedTuple

from wafer.csl.machine.codes import Op, Type
from wafer.csl.meaning.core import types
from wafer.csl.meaning.core.emit import Code

__all__ = ["Factor", "divide", "factor_of"]


class Factor(NamedTuple):
    """``x / divisor`` is the floor of ``x * number >> shift``, one more for a negative x."""

    number: int
    shift: int


def factor_of(size: int, room: int, divisor: int) -> Factor | None:
    """The least factor that is exact for all numbers of some bits; None if the product has no room.

    With ``number = 2^shift // divisor + 1`` the quotient is exact if the largest number times
    ``number * divisor - 2^shift`` is at most ``2^shift``.

    Args:
        size: bits of the largest absolute value.
        room: bits of the largest product.
        divisor: from 2 on.
    """
    for shift in range(size, room):
        number = (1 << shift) // divisor + 1
        if number.bit_length() + size > room:
            return None
        if number * divisor - (1 << shift) << size <= 1 << shift:
            return Factor(number, shift)
    return None


def divide(code: Code, kind: types.Plain, register: int, divisor: int) -> int | None:
    """Write the quotient toward zero, and return its register; None if DIV is needed.

    Args:
        code: to write to.
        kind: of the integer.
        register: of it.
        divisor: from 1 on.
    """
    machine, bits = kind.machine, 8 * types.size_of(kind)
    assert machine is not None
    signed = kind.name[0] == "i"
    if divisor == 1:
        return register
    if divisor & divisor - 1 == 0:
        places = divisor.bit_length() - 1
        if signed:  # divisor - 1 more for what is negative
            sign = code.result(Op.SHR, machine, register, code.constant(bits - 1))
            more = code.result(Op.AND, machine, sign, code.constant(divisor - 1))
            register = code.result(Op.ADD, machine, register, more)
        return code.result(Op.SHR, machine, register, code.constant(places))
    fitting = (
        (width, factor)
        for width in (32, 64)
        if width >= 2 * bits and (factor := factor_of(bits - signed, width - signed, divisor))
    )
    width, factor = next(fitting, (0, None))
    if factor is None:
        return None
    wide = Type[f"{kind.name[0].upper()}{width}"]
    product = code.result(Op.CAST, wide, register, machine)
    product = code.result(Op.MUL, wide, product, code.constant(factor.number))
    product = code.result(Op.SHR, wide, product, code.constant(factor.shift))
    quotient = code.result(Op.CAST, machine, product, wide)
    if signed:
        sign = code.result(Op.SHR, machine, register, code.constant(bits - 1))
        quotient = code.result(Op.SUB, machine, quotient, sign)
    return quotient
