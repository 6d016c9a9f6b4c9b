"""Arithmetic on registers and elements, by type and operation, as ``native/scalar.h`` has it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from wafer.machine.codes import BYTES, HALVES, DsdOp, Intrinsic, Op, Type

_ROOM = 8 * np.array(BYTES)  # bits; of a bool in memory
_WIDTHS = np.where(np.arange(len(BYTES)) == Type.BOOL, 1, _ROOM)
_INTEGERS = {
    kind: f"{'u' * (kind >= Type.U8)}int{8 * BYTES[kind]}" for kind in Type if kind < Type.F16
}

Array = jax.Array


def _signed(kind: Array) -> Array:
    return kind <= Type.I64


def _float(kind: Array) -> Array:
    return (kind == Type.F16) | (kind == Type.F32)


def _unsigned(value: Array) -> Array:
    return lax.bitcast_convert_type(value, jnp.uint64)


def wrapped(kind: Array, value: Array) -> Array:
    """The low bits of a value as a register holds them."""
    shift = 64 - jnp.asarray(_WIDTHS)[kind]
    up = lax.shift_left(value, shift)
    return jnp.where(
        _signed(kind), lax.shift_right_arithmetic(up, shift), lax.shift_right_logical(up, shift)
    )


def _single(bits: Array) -> Array:
    """f32 as f64, which holds each exactly: XLA takes subnormal singles for 0."""
    size = bits & 0x7FFFFFFF
    plain = lax.bitcast_convert_type(bits.astype(jnp.uint32), jnp.float32).astype(jnp.float64)
    tiny = size.astype(jnp.float64) * 2.0**-149
    return jnp.where(size >= 1 << 23, plain, jnp.where(bits >> 31 & 1, -tiny, tiny))


_FRACTIONS, _BIASES = (np.array(column) for column in zip(*HALVES.values(), strict=True))
# Subnormal numbers of bf16 are those of f32.
_STEPS = np.array([0.0 if b == 127 else 2.0 ** (1 - b - f) for f, b in HALVES.values()])


def _half(bits: Array, half: Array | int = 0) -> Array:
    """16-bit floats of the format ``half`` [] as f64."""
    width, bias, size = jnp.asarray(_FRACTIONS)[half], jnp.asarray(_BIASES)[half], bits & 0x7FFF
    exponent, fraction = size >> width, size & (1 << width) - 1
    biased = jnp.where(exponent == 0x7FFF >> width, 0xFF, exponent - bias + 127)
    plain = _single(biased << 23 | fraction << 23 - width)
    tiny = fraction.astype(jnp.float64) * jnp.asarray(_STEPS)[half]
    value = jnp.where((exponent == 0) & (bias != 127), tiny, plain)
    return jnp.where(bits & 0x8000 != 0, -value, value)


def _single_bits(value: Array) -> Array:
    """f64 as f32, rounded to nearest even: once, since f64 has room for twice its bits."""
    size, sign = jnp.abs(value), jnp.signbit(value).astype(jnp.int64)
    plain = lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32).astype(jnp.int64)
    tiny = jnp.round(size * 2.0**149).astype(jnp.int64)
    return jnp.where(size < 2.0**-126, sign << 31 | tiny, plain)


def _half_bits(value: Array, half: Array | int = 0) -> Array:
    """f64 as 16-bit floats of the format ``half`` []; ``vsl/native/half.h`` has the same steps."""
    width, bias, bits = (
        jnp.asarray(_FRACTIONS)[half],
        jnp.asarray(_BIASES)[half],
        _single_bits(value),
    )
    size, infinity = bits & 0x7FFFFFFF, 0x7FFF >> width << width
    significand = size & 0x7FFFFF | (size >= 1 << 23).astype(jnp.int64) << 23
    exponent = jnp.maximum(size >> 23, 1) - 127 + bias
    normal = jnp.maximum(exponent, 1)
    lost = jnp.minimum(23 - width + normal - exponent, 25)
    kept = significand + (1 << lost - 1) - 1 + (significand >> lost & 1) >> lost
    finite = jnp.minimum((normal - 1 << width) + kept, infinity)
    nan = infinity | 1 << width - 1
    size = jnp.where(size > 0x7F800000, nan, jnp.where(size == 0x7F800000, infinity, finite))
    return bits >> 16 & 0x8000 | size


def _float_in(kind: Array, bits: Array, half: Array | int = 0) -> Array:
    return jnp.where(kind == Type.F16, _half(bits, half), _single(bits))


def _float_out(kind: Array, value: Array, half: Array | int = 0) -> Array:
    return jnp.where(kind == Type.F16, _half_bits(value, half), _single_bits(value))


def chosen(op: Array, values: Mapping[Any, Array], otherwise: Array) -> Array:
    """The value of an ``op`` [...] by its code, or that ``otherwise`` [...] gives."""
    out = otherwise
    for code, value in values.items():
        out = jnp.where(op == int(code), value, out)
    return out


def _divided(op: Array, kind: Array, x: Array, y: Array) -> Array:
    """XLA wraps the lowest number by -1."""
    signed = jnp.where(op == Op.DIV, lax.div(x, y), lax.rem(x, y))
    ux, uy = _unsigned(x), _unsigned(y)
    unsigned = jnp.where(op == Op.DIV, lax.div(ux, uy), lax.rem(ux, uy))
    return jnp.where(_signed(kind), signed, lax.bitcast_convert_type(unsigned, jnp.int64))


def _shifted(op: Array, kind: Array, x: Array, by: Array) -> Array:
    """XLA shifts by 64 or more, and by less than 0, to 0 or the sign."""
    logical, arithmetic = lax.shift_right_logical(x, by), lax.shift_right_arithmetic(x, by)
    right = jnp.where(_signed(kind), arithmetic, logical)
    return jnp.where(op == Op.SHL, lax.shift_left(x, by), right)


def arithmetic(op: Array, kind: Array, x: Array, y: Array, half: Array | int = 0) -> Array:
    """``x op y`` for ADD to SHR; a divisor of 0 is seen to before."""
    a, b = _float_in(kind, x, half), _float_in(kind, y, half)
    floats = chosen(op, {Op.ADD: a + b, Op.SUB: a - b, Op.MUL: a * b, Op.DIV: a / b}, lax.rem(a, b))
    integers = chosen(
        op,
        {Op.ADD: x + y, Op.SUB: x - y, Op.MUL: x * y}
        | dict.fromkeys((Op.DIV, Op.REM), _divided(op, kind, x, y)),
        _shifted(op, kind, x, y),
    )
    bits = chosen(op, {Op.AND: x & y, Op.OR: x | y, Op.XOR: x ^ y}, wrapped(kind, integers))
    return jnp.where(_float(kind) & (op <= Op.REM), _float_out(kind, floats, half), bits)


def raised(operation: tuple[Array, Array], operands: tuple[Array, ...], half: Array) -> Array:
    """[] bits of ``FloatException`` that an instruction of floats raises; 0 of others.

    Args:
        operation: [] code and type.
        operands: [] bits of both operands and of the result.
        half: [] format of 16-bit floats.
    """
    op, kind = operation
    a, b, r = (_float_in(kind, bits, half) for bits in operands)
    back = chosen(op, {Op.ADD: (r - a) - b, Op.SUB: (a - r) - b, Op.MUL: a * b - r}, r * b - a)
    least = jnp.asarray(np.ldexp(1.0, 1 - _BIASES))[half]
    tiny = jnp.abs(r) < jnp.where(kind == Type.F16, least, 2.0**-126)
    lost = jnp.where(back == 0, 0, 1 << 5 | tiny.astype(jnp.int64) << 3)
    lost = jnp.where(jnp.isfinite(r), lost, 1 << 4 | 1 << 5)
    lost = jnp.where((op == Op.DIV) & (b == 0), 1 << 7, lost)
    lost = jnp.where(jnp.isfinite(a) & jnp.isfinite(b), lost, 0)
    lost = jnp.where(jnp.isnan(r), (~jnp.isnan(a) & ~jnp.isnan(b)).astype(jnp.int64) << 6, lost)
    return jnp.where(_float(kind) & (op >= Op.ADD) & (op <= Op.DIV), lost, 0)


def single_step(op: Array) -> Array:
    """The code of the sum, difference or product of floats that an element of ``op`` [] is."""
    codes = {Op.ADD: ("FADDS", "FADDH"), Op.SUB: ("FSUBS", "FSUBH"), Op.MUL: ("FMULS", "FMULH")}
    named = {DsdOp[name]: jnp.int64(code) for code, names in codes.items() for name in names}
    return chosen(op, named, jnp.int64(Op.COPY))


def compare(op: Array, kind: Array, x: Array, y: Array, half: Array | int = 0) -> Array:
    """0 or 1 for EQ to GE."""

    def ordered(a: Array, b: Array) -> Array:
        results = {Op.EQ: a == b, Op.NE: a != b, Op.LT: a < b, Op.LE: a <= b, Op.GT: a > b}
        return chosen(op, results, a >= b)

    floats = ordered(_float_in(kind, x, half), _float_in(kind, y, half))
    integers = jnp.where(_signed(kind), ordered(x, y), ordered(_unsigned(x), _unsigned(y)))
    return jnp.where(_float(kind), floats, integers).astype(jnp.int64)


def negated(kind: Array, x: Array) -> Array:
    """``-x``."""
    sign = lax.shift_left(jnp.int64(1), (jnp.asarray(_ROOM)[kind] - 1).astype(jnp.int64))
    return jnp.where(_float(kind), x ^ sign, wrapped(kind, -x))


def cast(to: Array, kind: Array, x: Array, half: Array | int = 0) -> Array:
    """A value of one type as another."""
    value = _float_in(kind, x, half)
    truth = jnp.where(_float(kind), value != 0, x != 0).astype(jnp.int64)
    # Toward zero; out of range to the nearest end, NaN to 0, as XLA converts.
    integers = {own: value.astype(dtype).astype(jnp.int64) for own, dtype in _INTEGERS.items()}
    integer = jnp.where(_float(kind), chosen(to, integers, jnp.int64(0)), wrapped(to, x))
    plain = jnp.where(_signed(kind), x.astype(jnp.float32), _unsigned(x).astype(jnp.float32))
    plain = plain.astype(jnp.float64)
    same = _float(kind) & (to == kind)
    number = jnp.where(same, x, _float_out(to, jnp.where(_float(kind), value, plain), half))
    return jnp.where(to == Type.BOOL, truth, jnp.where(_float(to), number, integer))


def function(which: Array, kind: Array, x: Array, half: Array | int = 0) -> Array:
    """SQRT, FLOOR and CEIL, which are exact everywhere."""
    value = _float_in(kind, x, half)
    results = {Intrinsic.SQRT: jnp.sqrt(value), Intrinsic.FLOOR: jnp.floor(value)}
    return _float_out(kind, chosen(which, results, jnp.ceil(value)), half)


# Elements


def _larger(a: Array, b: Array) -> Array:
    """The larger one, 0 before -0; a NaN if there is one."""
    first = (a > b) | ((a == b) & ~jnp.signbit(a))
    return jnp.where(jnp.isnan(a) | jnp.isnan(b), a + b, jnp.where(first, a, b))


def _pair(
    operation: Callable[[Array, Array], Array], a: Array, b: Array, half: Array | int
) -> tuple[Array, Array]:
    return (
        _single_bits(operation(_single(a), _single(b))),
        _half_bits(operation(_half(a, half), _half(b, half)), half),
    )


def _rescaled(x: Array, new_exponent: Callable[[Array], Array]) -> Array:
    """Bits of a single with another exponent, rounded to nearest even; 0, infinity and NaN stay.

    By integers: XLA takes singles without a full significand for 0.

    Args:
        x: [] its bits.
        new_exponent: the biased exponent from that of ``x``, as if it had a full significand.
    """
    exponent, fraction = x >> 23 & 0xFF, x & 0x7FFFFF
    shift = jnp.where(exponent == 0, lax.clz(fraction) - 40, 0)
    significand = fraction << shift | (exponent != 0).astype(jnp.int64) << 23
    new = new_exponent(jnp.maximum(exponent, 1) - shift)
    lost = jnp.clip(1 - new, 0, 25)
    half = jnp.where(lost > 0, (1 << lost >> 1) - 1 + (significand >> lost & 1), 0)
    size = ((jnp.maximum(new, 1) - 1) << 23) + (significand + half >> lost)
    stays = (exponent == 0xFF) | (x & 0x7FFFFFFF == 0)
    return jnp.where(stays, x, x & 0x80000000 | jnp.minimum(size, 0x7F800000))


def _fused(a: Array, b: Array, s: Array, half: Array | int = 0) -> Array:
    """Bits of halves a + b * s, rounded once, as FMACH does; ``native/scalar.h`` says why."""
    x, b, s = (_half(bits, half) for bits in (a, b, s))
    total, y = x + b * s, b * s
    part = total - x
    rest = (x - (total - part)) + (y - part)
    bits = lax.bitcast_convert_type(total, jnp.int64)
    inexact = (rest != 0) & ~jnp.isnan(rest) & (bits & 1 == 0)
    bits = jnp.where(inexact, bits + jnp.where((rest > 0) == (total > 0), 1, -1), bits)
    lost = (1 << 29) - 1
    odd = jnp.where(bits & lost != 0, bits | lost + 1, bits) & ~lost
    return _half_bits(lax.bitcast_convert_type(odd, jnp.float64), half)


def element(
    op: Array, a: Array, b: Array, s: Array, carry: Array, *, half: Array | int = 0
) -> tuple[Array, Array]:
    """Bits of the result from those of the sources, and the next element's carry.

    A product of FMACS is rounded before it is added: it goes through a choice of bits, since XLA
    leaves roundings out where it may and compilers fuse products with sums.
    """
    adds, addh = _pair(jnp.add, a, b, half)
    subs, subh = _pair(jnp.subtract, a, b, half)
    muls, mulh = _pair(jnp.multiply, a, b, half)
    maxs, maxh = _pair(_larger, a, b, half)
    product = _single_bits(_single(b) * _single(s))
    macs = _single_bits(_single(a) + _single(jnp.where(op == DsdOp.FMACS, product, 0)))
    halves = _single(_single_bits(_half(b, half) * _half(s, half)))  # exact but for tiny bf16
    machs = _single_bits(_single(a) + halves)
    total = (a & 0xFFFF) + (b & 0xFFFF) + carry
    low, i16 = a & 0xFFFF, jnp.full_like(a, Type.I16)
    u16 = jnp.full_like(a, Type.U16)
    left, right = jnp.full_like(a, Op.SHL), jnp.full_like(a, Op.SHR)
    integer = lambda value: value.astype(jnp.int16).astype(jnp.int64) & 0xFFFF
    number = wrapped(i16, a).astype(jnp.float64)
    lowest = low & -low
    word = lambda value: value & 0xFFFFFFFF
    as_single, by = _single_bits(_half(a, half)), wrapped(i16, b)
    halved = lambda bits: _half_bits(_single(bits), half)
    normal = lambda exponent: jnp.full_like(exponent, 127)
    scaled = lambda exponent: exponent + by
    results = {
        DsdOp.FADDS: adds, DsdOp.FSUBS: subs, DsdOp.FMULS: muls, DsdOp.FMAXS: maxs,
        DsdOp.FADDH: addh, DsdOp.FSUBH: subh, DsdOp.FMULH: mulh, DsdOp.FMAXH: maxh,
        DsdOp.FADDHS: _single_bits(_half(a, half) + _single(b)),
        DsdOp.FMACS: macs, DsdOp.FMACH: _fused(a, b, s, half), DsdOp.FMACHS: machs,
        DsdOp.FNEGS: a ^ 0x80000000, DsdOp.FNEGH: a ^ 0x8000,
        DsdOp.FABSS: a & 0x7FFFFFFF, DsdOp.FABSH: a & 0x7FFF,
        DsdOp.FS2H: _half_bits(_single(a), half), DsdOp.FH2S: _single_bits(_half(a, half)),
        DsdOp.FS2XP16: integer(_single(a)), DsdOp.FH2XP16: integer(_half(a, half)),
        DsdOp.XP162FS: _single_bits(number), DsdOp.XP162FH: _half_bits(number, half),
        DsdOp.ADD16: (a + b) & 0xFFFF, DsdOp.ADDC16: total & 0xFFFF, DsdOp.SUB16: (a - b) & 0xFFFF,
        DsdOp.AND16: a & b, DsdOp.OR16: a | b, DsdOp.XOR16: a ^ b,
        DsdOp.SLL16: _shifted(left, u16, low, b & 0xFFFF) & 0xFFFF,
        DsdOp.SLR16: _shifted(right, u16, low, b & 0xFFFF) & 0xFFFF,
        DsdOp.SAR16: _shifted(right, i16, wrapped(i16, a), b & 0xFFFF) & 0xFFFF,
        DsdOp.CLZ: lax.clz(low) - 48,
        DsdOp.CTZ: jnp.where(low == 0, 16, 63 - lax.clz(lowest)),
        DsdOp.POPCNT: lax.population_count(low),
        DsdOp.FNORMS: _rescaled(a, normal), DsdOp.FNORMH: halved(_rescaled(as_single, normal)),
        DsdOp.FSCALES: _rescaled(a, scaled), DsdOp.FSCALEH: halved(_rescaled(as_single, scaled)),
        DsdOp.ADD32: word(a + b), DsdOp.SUB32: word(a - b), DsdOp.MUL32: word(a * b),
        DsdOp.MAC32: word(a + b * s), DsdOp.MAX32: jnp.maximum(a, b),
    }  # fmt: skip
    return chosen(op, results, a), jnp.where(op == DsdOp.ADDC16, total >> 16, carry)
