"""Arguments as registers hold them, and types as texts."""

import numpy as np
import pytest

from wafer.csl.host.errors import HostError
from wafer.csl.host.words import argument_types, arguments, dtype_of, raw_arguments
from wafer.csl.syntax.source import CslWarning


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


def test_a_raw_word_that_is_no_likely_float():
    with pytest.warns(CslWarning, match=r"call\('f', …\): the word 1 is 1.*e-45 as the f32"):
        assert raw_arguments("f", "fn(f32)void", [np.int32(1)]) == [1]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("fn(i16)void", (40000,), "'f' takes a i16, which cannot be 40000"),
        ("fn(u16)void", (1.5,), "'f' takes a u16, which cannot be 1.5"),
        ("fn(u16)void", ("1",), "'f' takes a u16, found '1'"),
        ("fn(u16)void", (), r"'f' is a fn\(u16\)void: it takes 1 argument\(s\), found 0"),
        (
            "fn(f32)void",
            (np.int32(1),),
            r"takes a f32, found np.int32\(1\), whose bits are 1.*e-45",
        ),
        ("fn(f16)void", (np.int16(15360),), r"whose bits are 1.0 as f16; give np.float16\(15360\)"),
        ("fn(i16)void", (np.float32(2),), r"found np.float32\(2.0\), whose bits are"),
        ("[*]f32", (), r"'f' is a \[\*\]f32, not a function; copy"),
    ],
)
def test_wrong_arguments(kind, values, message):
    with pytest.raises(HostError, match=message):
        arguments("f", kind, values)
