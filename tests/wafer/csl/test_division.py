"""Division by known numbers: the factor that replaces it, and what it costs."""

import numpy as np
import pytest
from helpers.csl_program import compiled

import wafer.csl
from wafer.csl.meaning.language.division import factor_of


@pytest.mark.parametrize("divisor", [3, 5, 7, 10, 641, 32767, 65535])
def test_a_factor_divides_all_numbers_of_16_bits(divisor):
    """Against NumPy, as 16 unsigned bits in 64 and 15 with a sign in 31."""
    number, shift = factor_of(16, 64, divisor)
    x = np.arange(1 << 16, dtype=np.int64)
    np.testing.assert_array_equal(x * number >> shift, x // divisor)
    if divisor < 1 << 15:
        number, shift = factor_of(15, 31, divisor)
        x = np.arange(-(1 << 15), 1 << 15)
        assert np.abs(x * number).max() < 1 << 31
        np.testing.assert_array_equal((x * number >> shift) + (x < 0), np.trunc(x / divisor))


def test_a_product_without_room_has_no_factor():
    assert factor_of(32, 64, 7) is None  # needs 33 bits
    assert factor_of(32, 64, 5) == (0xCCCCCCCD, 34)


@pytest.mark.native
@pytest.mark.parametrize(
    ("kind", "divisor", "cycles"),
    [
        ("u16", 8, 1),  # a shift
        ("u16", 5, 4),  # a product of 32 bits 2, its shift 2
        ("u16", 7, 5),  # of 64 bits 4, its shift 1
        ("i16", 8, 4),  # sign, mask, sum, shift
        ("i16", 7, 6),  # 2 + 2, sign, difference
        ("u32", 7, 50),  # the machine divides
    ],
)
def test_what_a_quotient_costs(tmp_path, kind, divisor, cycles):
    """Of a line that loads, divides and stores; a load of 32 bits costs no more here."""
    text = "fn go() void {{\n y[1] = y[0] / {};\n}}"
    took = []
    for n in (1, divisor):
        image = compiled(tmp_path, text.format(n), kind=kind)
        machine = wafer.csl.Machine(image)
        machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
        machine.run(1000)
        took.append(sum(machine.profile.values()))
    assert took[1] - took[0] == cycles
