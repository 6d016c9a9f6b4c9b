"""Instructions of a task, against Python's integers and NumPy's floats."""

import numpy as np
import pytest
from helpers.assembly import assemble, build
from hypothesis import given, settings, strategies as st

from wafer.machine.codes import Op, Type
from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

INTEGERS = [Type.I8, Type.I16, Type.I32, Type.I64, Type.U8, Type.U16, Type.U32, Type.U64]
FLOATS = [Type.F16, Type.F32]
ARITHMETIC = [op for op in Op if Op.ADD <= op <= Op.SHR]
COMPARISONS = [op for op in Op if Op.EQ <= op <= Op.GE]
NUMPY = {Type.F16: (np.float16, np.uint16), Type.F32: (np.float32, np.uint32)}


def wrap(kind, value):
    width = int(kind.name[1:])
    value %= 1 << width
    return value - (1 << width) if kind.name[0] == "I" and value >> (width - 1) else value


def integer_result(op, kind, x, y):
    """What the codes' description says, on unbounded integers."""
    width = int(kind.name[1:])
    late = not 0 <= y < width
    quotient = abs(x) // abs(y or 1) * (1 if (x < 0) == (y < 0) else -1)
    results = {
        Op.ADD: x + y,
        Op.SUB: x - y,
        Op.MUL: x * y,
        Op.DIV: quotient,
        Op.REM: x - quotient * y,
        Op.AND: x & y,
        Op.OR: x | y,
        Op.XOR: x ^ y,
        Op.SHL: 0 if late else x << y,
        Op.SHR: (-1 if x < 0 else 0) if late else x >> y,
    }
    return wrap(kind, results[op])


def compared(op, x, y):
    return {
        Op.EQ: x == y, Op.NE: x != y, Op.LT: x < y, Op.LE: x <= y, Op.GT: x > y, Op.GE: x >= y
    }[op]  # fmt: skip


def run(text, memory=0):
    program = assemble(text, memory=memory)
    machine = Machine(build([program]))
    status = machine.run(1_000_000)
    assert status == Status.QUIET, (status, machine.fault)
    return machine


def values(bodies, kinds):
    """Run lines that leave a result in r2 each; the results as the memory holds them."""
    text = [".active 8", "local 8:", "const r30 0"]
    for body, kind in zip(bodies, kinds, strict=True):
        text += [*body, f"store.{kind.name} r30 r2 0", "const r29 8", "add.u16 r30 r30 r29"]
    machine = run("\n".join([*text, "return"]), memory=8 * len(bodies))
    return machine.read(0, 0, 0, 8 * len(bodies)).reshape(-1, 8)


def as_integer(row, kind):
    width = {"BOOL": 16, "F16": 16, "F32": 32}.get(kind.name) or int(kind.name[1:])
    value = int.from_bytes(bytes(row[: width // 8]), "little")
    return wrap(kind, value) if kind in INTEGERS else value


def a_value(kind):
    low = 0 if kind.name[0] == "U" else -(1 << (int(kind.name[1:]) - 1))
    return st.one_of(st.integers(low, low + (1 << int(kind.name[1:])) - 1), st.integers(0, 20))


@settings(max_examples=60)
@given(st.data())
def test_integers_wrap_round_and_shift_as_described(data):
    bodies, kinds, expected = [], [], []
    for _ in range(20):
        kind = data.draw(st.sampled_from(INTEGERS))
        op = data.draw(st.sampled_from(ARITHMETIC + COMPARISONS))
        x, y = data.draw(a_value(kind)), data.draw(a_value(kind))
        if op in {Op.DIV, Op.REM} and y == 0:
            y = 7
        bodies.append([f"const r0 {x}", f"const r1 {y}", f"{op.name}.{kind.name} r2 r0 r1"])
        compares = op in COMPARISONS
        kinds.append(Type.BOOL if compares else kind)
        expected.append(int(compared(op, x, y)) if compares else integer_result(op, kind, x, y))
    rows = values(bodies, kinds)
    assert [as_integer(row, kind) for row, kind in zip(rows, kinds, strict=True)] == expected


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_round_to_nearest_even_and_keep_what_numpy_keeps(kind):
    floating, raw = NUMPY[kind]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << (8 * np.dtype(raw).itemsize), (60, 2), dtype=np.uint64).astype(raw)
    bits[:20] = (rng.standard_normal((20, 2)) * 3).astype(floating).view(raw)
    bodies, expected, kinds = [], [], []
    with np.errstate(all="ignore"):
        for x, y in bits:
            a, b = x.view(floating), y.view(floating)
            results = {"ADD": a + b, "SUB": a - b, "MUL": a * b, "DIV": a / b, "REM": np.fmod(a, b)}
            for op, result in results.items():
                bodies.append([f"const r0 {x}", f"const r1 {y}", f"{op}.{kind.name} r2 r0 r1"])
                expected.append(result)
                kinds.append(kind)
            for op in COMPARISONS:
                bodies.append([f"const r0 {x}", f"const r1 {y}", f"{op.name}.{kind.name} r2 r0 r1"])
                expected.append(compared(op, a, b))
                kinds.append(Type.BOOL)
    for row, want, kind_ in zip(values(bodies, kinds), expected, kinds, strict=True):
        got = as_integer(row, kind_)
        if kind_ == Type.BOOL:
            assert got == int(want)
        elif np.isnan(want):
            assert np.isnan(raw(got).view(floating))
        else:
            assert got == int(floating(want).view(raw))


@pytest.mark.parametrize(
    ("to", "source", "bits", "expected"),
    [
        ("i8", "i32", "0x1ff", -1),  # the low bits
        ("u16", "i16", "-1", 0xFFFF),
        ("i64", "u32", "0xffffffff", 0xFFFFFFFF),
        ("i16", "f32", "f32:-2.75", -2),  # toward zero
        ("u8", "f32", "f32:300.0", 255),  # to the nearest end
        ("u8", "f32", "f32:-3.0", 0),
        ("i16", "f32", "f32:1e9", 32767),
        ("i16", "f32", "f32:-1e9", -32768),
        ("i64", "f32", "f32:1e30", (1 << 63) - 1),
        ("u64", "f32", "f32:1e30", (1 << 64) - 1),
        ("i32", "f32", "f32:nan", 0),
        ("f16", "f32", "f32:2049.0", 0x6800),  # a tie goes to the even 2048
        ("f16", "i32", "70000", 0x7C00),
        ("f32", "u32", "0xffffffff", 0x4F800000),
        ("f32", "i64", "-3", 0xC0400000),
        ("f32", "f16", "f16:0.1", 0x3DCCC000),
        ("bool", "f32", "f32:0.5", 1),
        ("bool", "f32", "0x80000000", 0),  # -0
        ("bool", "i32", "256", 1),
        ("f16", "bool", "1", 0x3C00),
    ],
)
def test_casts(to, source, bits, expected):
    kind = Type[to.upper()]
    (row,) = values([[f"const r0 {bits}", f"cast.{to} r2 r0 {source}"]], [kind])
    assert as_integer(row, kind) == expected


def test_unary_instructions():
    bodies = [
        ["const r0 -128", "neg.i8 r2 r0"],
        ["const r0 f16:1.5", "neg.f16 r2 r0"],
        ["const r0 0x0f", "invert.u8 r2 r0"],
        ["const r0 0x0f", "invert.i16 r2 r0"],
        ["const r0 0", "not r2 r0"],
        ["const r0 5", "copy r1 r0", "not r2 r1"],
    ]
    kinds = [Type.I8, Type.F16, Type.U8, Type.I16, Type.BOOL, Type.BOOL]
    got = [as_integer(row, kind) for row, kind in zip(values(bodies, kinds), kinds, strict=True)]
    assert got == [-128, 0xBE00, 0xF0, -16, 1, 0]


def test_functions_of_the_library():
    names = {"sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin, "tanh": np.tanh}
    names |= {"cos": np.cos, "floor": np.floor, "ceil": np.ceil}
    bodies = [[f"const r0 f32:{x}", f"intrinsic.{name} r2 r0 f32"]
              for name in names for x in (0.7, 2.25)]  # fmt: skip
    rows = values(bodies, [Type.F32] * len(bodies))
    got = [row[:4].view(np.float32)[0] for row in rows]
    want = [np.float32(f(np.float64(np.float32(x)))) for f in names.values() for x in (0.7, 2.25)]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", [0xDEADBEEF, 77])
def test_random_bits_repeat_for_a_seed(seed):
    next_two = "intrinsic.random16 r2 -1\nstore.u16 r9 r2 {}\n"
    machine = run(
        f".active 8\nlocal 8:\nconst r9 0\nconst r1 {seed}\nintrinsic.seed -1 r1\n"
        + next_two.format(0) + next_two.format(2) + "return", 4
    )  # fmt: skip
    expected, state = [], seed
    for _ in range(2):
        for _ in range(128):  # x^23 + x^18 + 1
            state = (state << 1 | (state >> 22 ^ state >> 17) & 1) & 0xFFFFFFFF
        expected.append(state & 0xFFFF)
    assert machine.read(0, 0, 0, 4).view(np.uint16).tolist() == expected
