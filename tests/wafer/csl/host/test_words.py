"""Arguments as registers hold them, and types as texts."""

import numpy as np
import pytest

from wafer.csl.host.errors import HostError
from wafer.csl.host.words import argument_types, arguments, dtype_of, raw_arguments


def test_types():
    assert argument_types("fn(i16, f32)void") == ("i16", "f32")
    assert argument_types("fn()void") == ()
    assert argument_types("[*]f32") is None
    assert dtype_of("[*]f32") == np.float32
    assert dtype_of("[4, 2]i16") == np.int16
    assert dtype_of("*[3]const u32") == np.uint32
    assert dtype_of("struct {x: u16}") is None


def test_arguments():
    kind = "fn(i16, u16, f32, f16)void"
    values = (np.int16(-3), 65535, np.float32(1.0), 2.0)
    assert arguments("f", kind, values) == [-3, 65535, 0x3F800000, 0x4000]


def test_raw_arguments_take_lower_bits():
    assert raw_arguments("f", "fn(i16, f32)void", [0xFFFFFFFD, 0x3F800000]) == [-3, 0x3F800000]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("fn(i16)void", (40000,), "'f' takes a i16, which cannot be 40000"),
        ("fn(u16)void", (1.5,), "'f' takes a u16, which cannot be 1.5"),
        ("fn(u16)void", ("1",), "'f' takes a u16, found '1'"),
        ("fn(u16)void", (), r"'f' is a fn\(u16\)void: it takes 1 argument\(s\), found 0"),
        ("[*]f32", (), r"'f' is a \[\*\]f32, not a function; copy"),
    ],
)
def test_wrong_arguments(kind, values, message):
    with pytest.raises(HostError, match=message):
        arguments("f", kind, values)
