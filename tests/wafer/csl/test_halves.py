"""16-bit floats of each format, bit for bit against exact arithmetic."""

import math
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import wafer.csl
from wafer.csl.semantics.core.numbers import half_bits, half_value
from wafer.machine.codes import HALVES, DsdOp
from wafer.machine.reference import scalar

COUNT = 400
PROGRAM = Path(__file__).parent / "programs" / "halves.csl"
LAYOUT = f"""layout {{
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "halves.csl", .{{ .n = {COUNT} }});
  @export_name("go", fn() void);
}}
"""


def nearest(name, exact):
    """Bits of the 16-bit float nearest to a fraction that is not 0, even in a tie."""
    width, bias = HALVES[name]
    size = abs(exact)
    exponent = math.floor(math.log2(size.numerator) - math.log2(size.denominator))
    exponent += (size >= Fraction(2) ** (exponent + 1)) - (size < Fraction(2) ** exponent)
    exponent = max(exponent, 1 - bias)
    kept = round(size / Fraction(2) ** (exponent - width))
    bits = (exponent + bias - 1 << width) + kept
    return (exact < 0) << 15 | min(bits, 0x7FFF >> width << width)


def numbers(name, seed):
    """[COUNT] bits of finite numbers that are not 0, of near exponents and of far ones."""
    rng, (width, bias) = np.random.default_rng(seed), HALVES[name]
    top = 0x7FFF >> width
    near = rng.integers(bias - 4, bias + 5, COUNT)
    exponent = np.where(rng.random(COUNT) < 0.6, near, rng.integers(0, top, COUNT))
    fraction = rng.integers(1, 1 << width, COUNT)
    return (rng.integers(0, 2, COUNT) << 15 | exponent << width | fraction).astype(np.uint16)


@pytest.fixture(scope="module", params=HALVES)
def case(request, tmp_path_factory):
    """The format's name, the operands' bits and what the C++ machine makes of them."""
    name, folder = request.param, tmp_path_factory.mktemp("halves")
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "halves.csl").write_text(PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
    image = wafer.csl.compile(folder / "layout.csl", fp16_format=name)
    symbols = image.programs[0].symbols
    a, b, s = numbers(name, 1), numbers(name, 2), numbers(name, 3)[:1]
    singles = np.random.default_rng(4).integers(0, 1 << 32, COUNT, np.uint32)
    singles = singles[np.isfinite(singles.view(np.float32))]
    x = np.resize(singles, COUNT)
    machine = wafer.csl.Machine(image)
    for symbol, data in (("a", a), ("b", b), ("s", s), ("x", x)):
        machine.write(0, 0, symbols[symbol].address, data)
    machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
    machine.run(1_000_000)
    assert not machine.fault, machine.fault

    def read(symbol):
        place = symbols[symbol]
        kind = np.uint32 if symbol == "wide" else np.uint16
        return machine.read(0, 0, place.address, place.bytes).view(kind)

    return name, (a, b, s, x), read


def exact(name, bits):
    return [Fraction(half_value(name, int(each))) for each in bits]


@pytest.mark.native
def test_the_machine_rounds_once(case):
    name, (a, b, s, x), read = case
    u, v, (w,) = exact(name, a), exact(name, b), exact(name, s)
    of = lambda values: [nearest(name, value) if value else 0 for value in values]
    pairs = list(zip(u, v, strict=True))
    assert read("sums").tolist() == of(p + q for p, q in pairs)
    assert read("differences").tolist() == of(p - q for p, q in pairs)
    assert read("products").tolist() == of(p * q for p, q in pairs)
    assert read("fused").tolist() == of(p + q * w for p, q in pairs)
    assert read("quotients").tolist() == of(p / q for p, q in pairs)
    assert read("greatest").tolist() == of(max(p, q) for p, q in pairs)
    assert read("less").tolist() == [p < q for p, q in pairs]
    singles = [Fraction(float(value)) for value in x.view(np.float32)]
    assert read("narrow").tolist() == of(singles)
    assert read("wide").view(np.float32).tolist() == [float(value) for value in u]


@pytest.mark.native
def test_both_machines_agree(case):
    name, (a, b, s, x), read = case
    half = [*HALVES].index(name)
    wide = lambda bits: jnp.asarray(bits.astype(np.int64))
    with jax.enable_x64(True):
        run = jax.jit(scalar.element)
        zeros = jnp.zeros(COUNT, jnp.int64)
        for op, first, result in (
            ("FADDH", a, "sums"), ("FMULH", a, "products"), ("FMACH", a, "fused"),
            ("FS2H", x, "narrow"), ("FH2S", a, "wide"), ("FMAXH", a, "greatest"),
        ):  # fmt: skip
            operands = wide(first), wide(b), zeros + int(s[0])
            bits, _ = run(zeros + DsdOp[op], *operands, zeros, half=half)
            np.testing.assert_array_equal(bits, read(result), op)


def test_known_numbers_are_those_of_ml_dtypes():
    bits = np.random.default_rng(0).integers(0, 1 << 32, 20_000, np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    for name, kind in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        with np.errstate(over="ignore"):
            want = values.astype(kind).view(np.uint16).tolist()
        assert [half_bits(name, float(value)) for value in values] == want
        back = np.array(want, np.uint16).view(kind).astype(np.float64).tolist()
        assert [half_value(name, each) for each in want] == back
