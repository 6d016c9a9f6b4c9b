"""Division by constants: exact against Python, and what it costs."""

import numpy as np
import pytest
from helpers.csl_program import compiled, ran, results

pytestmark = pytest.mark.native

VALUES = [0, 1, 2, 6, 7, 8, 99, 100, 255, 641, 1000, 12345]
SIGNED = [*VALUES, *(-value for value in VALUES)]
ENDS = {
    "i16": [-(1 << 15), (1 << 15) - 1],
    "u16": [(1 << 16) - 1],
    "i32": [-(1 << 31), (1 << 31) - 1],
    "u32": [(1 << 32) - 1, 1 << 31],
}
DIVISORS = [1, 2, 3, 7, 10, 16, 641]


def toward_zero(x, divisor):
    """Quotient and remainder as CSL has them."""
    quotient = abs(x) // abs(divisor) * (1 if (x < 0) == (divisor < 0) else -1)
    return quotient, x - quotient * divisor


@pytest.mark.parametrize("kind", ["i16", "u16", "i32", "u32"])
def test_quotients_and_remainders_are_those_of_python(tmp_path, kind):
    signed = kind[0] == "i"
    numbers = [*(SIGNED if signed else VALUES), *ENDS[kind]]
    divisors = [*DIVISORS, *([-d for d in DIVISORS[1:]] if signed else [])]
    lines = [f"from[{k}] = {n};" for k, n in enumerate(numbers)]
    for k, d in enumerate(divisors):
        at = f"{k} * 2 * {len(numbers)} + 2 * i"
        lines.append(f"for (@range(u16, {len(numbers)})) |i| {{ y[{at}] = from[i] / {d};"
                     f" y[{at} + 1] = from[i] % {d}; }}")  # fmt: skip
    text = f"var from = @zeros([{len(numbers)}]{kind});\nfn go() void {{ {' '.join(lines)} }}"
    count = 2 * len(numbers) * len(divisors)
    got = results(tmp_path, text, kind=kind, count=count)[0]
    want = [part for d in divisors for n in numbers for part in toward_zero(n, d)]
    np.testing.assert_array_equal(got, np.array(want).astype(got.dtype))


@pytest.mark.parametrize(
    ("kind", "expression", "cycles"),
    [
        ("u16", "/ 8", 1),  # a shift
        ("u16", "% 8", 1),  # a mask
        ("u16", "/ 7", 4),  # a product of 32 bits 2, its shift 2
        ("u16", "% 7", 6),  # and a product and a difference of 16
        ("i16", "/ 8", 4),  # sign, mask, sum, shift
        ("i16", "/ -8", 5),  # and the other sign
        ("i16", "/ 7", 6),  # 4, sign, difference
        ("i16", "/ -1", 1),
        ("i16", "% -1", 0),
        ("u32", "/ 8", 2),  # twice 16 bits
        ("u32", "/ 7", 5),  # a product of 64 bits 4, its shift 1
        ("i32", "% 7", 13),  # 5, sign and difference 4, product 2 and difference 2
        ("i32", "/ y[2]", 50 + 1),  # the machine divides; a load
    ],
)
def test_what_a_quotient_costs(tmp_path, kind, expression, cycles):
    """Of a line that loads, divides and stores; a load of 32 bits costs no more here."""
    text = "fn go() void {{\n y[2] = 1;\n y[1] = y[0] {};\n}}"
    plain, divided = (
        sum(ran(compiled(tmp_path, text.format(part), kind=kind)).profile.values())
        for part in ("/ 1", expression)
    )
    assert divided - plain == cycles
