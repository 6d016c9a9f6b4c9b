"""Softmax and cross-entropy as vector operations of a PE, nothing but add, subtract, multiply, max.

A PE has no instruction for exp, log or division. Each is a short program here, over all samples of
a micro-batch at once, so that its cycles are those of its operations and both engines give the
same bits: exp by splitting off the power of two (the integer part goes straight into the exponent
bits) and a polynomial; 1/s by Newton's iteration from the bit pattern; log on [1, classes] by the
series of the inverse hyperbolic tangent. Relative errors are below 3e-7.
"""

import math
from collections.abc import Callable

from wafer.fabric.program.ops import Const, Mem, Op, Operand, fadds, fmaxs, fmovs, fmuls, fsubs, mem

_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # Cody and Waite: k * high is exact
_TAYLOR = [1 / math.factorial(i) for i in range(6, -1, -1)]
_ROUND = 1.5 * 2.0**23  # adding it rounds to an integer, which is then in the low bits
_EXPONENT, _BIAS = 1 << 23, 127 << 23
_RECIPROCAL = 0x7EF311C7  # minus the bits of s: 1/s to 12 %
_LEAST = -80.0  # exp(-80) is 2e-35: far below what a probability adds, far above subnormals

# words of the loss's arrays: per class and sample, and per sample
WORDS = {
    "wide": ("shifted", "power", "scratch", "whole"),
    "narrow": ("top", "total", "inverse", "narrow", "ratio", "square", "series", "target"),
}


def _bits(kind: str, dst: Mem, a: Operand, b: Operand, n: int) -> Op:
    return Op(kind, dst, a, b, n=n, dtype="uint32")


def exp_ops(x: Mem, scratch: Mem, whole: Mem, out: Mem, n: int) -> list[Op]:
    """``out = exp(x)`` for -87 < x < 88; x is left as the remainder, at most ln 2 / 2.

    Args:
        x: n words.
        scratch: n words.
        whole: n words.
        out: n words, not those of x.
        n: elements.
    """
    return [
        fmuls(scratch, x, Const(_LOG2_E), n),
        fadds(scratch, scratch, Const(_ROUND), n),
        fsubs(whole, scratch, Const(_ROUND), n),
        Op("mac", x, x, whole, Const(-_LN2_HIGH), n=n),
        Op("mac", x, x, whole, Const(-_LN2_LOW), n=n),
        *_polynomial(out, x, _TAYLOR, n),
        _bits("mul", scratch, scratch, Const(_EXPONENT), n),
        _bits("add", scratch, scratch, Const(_BIAS), n),
        fmuls(out, out, scratch, n),
    ]


def _polynomial(out: Mem, x: Mem, coefficients: list[float], n: int) -> list[Op]:
    """Horner's rule, highest power first."""
    first, *rest = coefficients
    ops = [fmuls(out, x, Const(first), n)]
    for c in rest:
        ops += [fadds(out, out, Const(c), n), fmuls(out, out, x, n)]
    return ops[:-1]


def reciprocal_ops(s: Mem, scratch: Mem, out: Mem, n: int) -> list[Op]:
    """``out = 1 / s`` for normal positive s."""
    ops = [_bits("sub", out, Const(_RECIPROCAL), s, n)]
    for _ in range(3):
        ops += [
            fmuls(scratch, s, out, n),
            fsubs(scratch, Const(2.0), scratch, n),
            fmuls(out, out, scratch, n),
        ]
    return ops


def log_ops(s: Mem, top: float, operand: Callable[[str], Mem], out: Mem, n: int) -> list[Op]:
    """``out = log(s)`` for 1 <= s <= top: ``log c + 2 artanh((s - c) / (s + c))``, c = sqrt(top).

    Args:
        s: n words; left as ``s - c``.
        top: greatest s.
        operand: scratch array by name: inverse, narrow, ratio, square.
        out: n words.
        n: elements.
    """
    centre = math.sqrt(top)
    bound, terms = (centre - 1) / (centre + 1), 1
    while bound ** (2 * terms + 1) / (2 * terms + 1) > 1e-8:
        terms += 1
    series = [2 / (2 * i + 1) for i in range(terms - 1, -1, -1)]
    ratio, square = operand("ratio"), operand("square")
    return [
        fadds(square, s, Const(centre), n),
        fsubs(s, s, Const(centre), n),
        *reciprocal_ops(square, operand("narrow"), operand("inverse"), n),
        fmuls(ratio, s, operand("inverse"), n),
        fmuls(square, ratio, ratio, n),
        *(_polynomial(out, square, series, n) if terms > 1 else [fmovs(out, Const(2.0), n)]),
        fmuls(out, out, ratio, n),
        fadds(out, out, Const(math.log(centre)), n),
    ]


def gradient_ops(scores: Mem, labels: Mem, out: Mem, classes: int, batch: int) -> list[Op]:
    """``out = softmax(scores) - labels``, all [classes, batch], class by class.

    Leaves ``shifted`` (scores less the greatest) and ``total`` (sum of their powers) to
    :func:`loss_ops`.
    """
    n = classes * batch
    per_class = lambda name: mem(name, 0, 1, inner=batch)  # again for every class
    top, total, power = per_class("top"), per_class("total"), mem("power")
    return [
        fmovs(top, scores, batch),
        fmaxs(top, top, scores, n),
        fsubs(mem("shifted"), scores, top, n),
        fmaxs(out, mem("shifted"), Const(_LEAST), n),
        *exp_ops(out, mem("scratch"), mem("whole"), power, n),
        fmovs(total, Const(0.0), batch),
        fadds(total, total, power, n),
        *reciprocal_ops(mem("total"), mem("narrow"), mem("inverse"), batch),
        fmuls(out, power, per_class("inverse"), n),
        fsubs(out, out, labels, n),
    ]


def loss_ops(labels: Mem, loss: Mem, classes: int, batch: int) -> list[Op]:
    """Add every sample's ``log(total) - shifted[label]`` to one word, after `gradient_ops`."""
    n = classes * batch
    target = mem("target", 0, 1, inner=batch)
    return [
        fmuls(mem("scratch"), mem("shifted"), labels, n),
        fmovs(target, Const(0.0), batch),
        fadds(target, target, mem("scratch"), n),
        *log_ops(mem("total"), float(max(2, classes)), mem, mem("series"), batch),
        fsubs(mem("series"), mem("series"), mem("target"), batch),
        fadds(loss, loss, mem("series"), batch),
    ]
