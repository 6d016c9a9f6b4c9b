"""System modules on one PE: functions and random numbers by NumPy, times by bounds, traces."""

import numpy as np
import pytest
from scipy import stats

import wafer.csl
from wafer.vendor.sdk.debug_util import decode_trace
from wafer.vendor.sdk.sdk_utils import make_u48

pytestmark = pytest.mark.native

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("main", fn() void);
}
"""
FRAME = """
param memcpy_params;
const memcpy = @import_module("<memcpy/memcpy>", memcpy_params);
%s
fn main() void {
  %s
  memcpy.unblock_cmd_stream();
}
comptime {
  @export_symbol(main);
}
"""


@pytest.fixture(params=["wse2", "wse3"])
def run(tmp_path, request):
    """Runs a program of declarations and statements; gives its runtime, after ``main``."""

    def run(declarations, statements):
        (tmp_path / "layout.csl").write_text(LAYOUT, encoding="utf-8")
        (tmp_path / "pe.csl").write_text(FRAME % (declarations, statements), encoding="utf-8")
        image = wafer.csl.compile(tmp_path / "layout.csl", arch=request.param)
        runtime = wafer.csl.Runtime(image, wafer.csl.Machine(image))
        runtime.launch("main")
        return runtime

    return run


UNARY = {name: getattr(np, name) for name in ("sqrt", "exp", "log", "sin", "cos", "tanh", "floor")}
UNARY |= {"ceil": np.ceil, "abs": np.abs, "inv": np.reciprocal}
UNARY |= {"invsqrt": lambda x: 1 / np.sqrt(x)}


@pytest.mark.parametrize(("dtype", "numpy"), [("f16", np.float16), ("f32", np.float32)])
def test_math_by_type_and_by_name(run, dtype, numpy):
    x = numpy([0.25, 0.7, 1.0, 2.5, 9.0])
    values = ", ".join(map(str, x.tolist()))
    size = len(UNARY)
    lines = [
        f"out[{k} * 10 + i] = math.{f}(x[i]); out[{k} * 10 + 5 + i] = math.{f}_{dtype}(x[i]);"
        for k, f in enumerate(UNARY)
    ]
    runtime = run(
        f'const math = @import_module("<math>");\n var x = [5]{dtype}{{ {values} }};\n'
        f"var out = @zeros([{10 * size}]{dtype});",
        "for (@range(u16, 5)) |i| {\n" + "\n".join(lines) + "\n}",
    )
    outputs = runtime.read_symbol(0, 0, "out").reshape(size, 2, 5)
    tolerance = {"f16": 2e-3, "f32": 4e-7}[dtype]
    for row, function in zip(outputs, UNARY.values(), strict=True):
        np.testing.assert_array_equal(row[0], row[1])
        np.testing.assert_allclose(row[0], function(x.astype(np.float64)), tolerance, tolerance)
    np.testing.assert_array_equal(outputs[0, 0], np.sqrt(x))  # rounded correctly


def test_time_and_place(run):
    runtime = run(
        """
        const time = @import_module("<time>");
        const place = @import_module("<layout>");
        const timer = @import_module("<timer>", .{ .timerCount = 2 });
        var at = [2]u16{ 9, 9 };
        var one = @zeros([time.tsc_size_words]u16);
        var first = @zeros([time.tsc_size_words]u16);
        var took = @zeros([3]u16);
        var total: u16 = 0;
        var b = @zeros([10]f32);
        const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{10} -> b[i] });
        """,
        """
        time.enable_tsc();
        time.get_timestamp(&first);
        for (@range(u16, 100)) |k| {
          total += k;
        }
        time.get_timestamp(&one);
        at[0] = place.get_x_coord();
        at[1] = place.get_y_coord();
        timer.start(1);
        @fadds(d, d, 1.0);
        timer.stop(1);
        timer.elapsed(1, &took);
        """,
    )
    assert runtime.read_symbol(0, 0, "at").tolist() == [0, 0]
    between = [make_u48(runtime.read_symbol(0, 0, name)) for name in ("first", "one")]
    assert 100 < between[1] - between[0] < runtime.machine.cycle
    assert 5 <= make_u48(runtime.read_symbol(0, 0, "took")) < 60  # ten elements


def test_random(run):
    runtime = run(
        """
        const random = @import_module("<random>");
        var uniform = @zeros([500]f32);
        var normal = @zeros([500]f32);
        var again = @zeros([2]f32);
        """,
        """
        for (@range(u16, 500)) |k| {
          uniform[k] = random.random_f32(-1.0, 3.0);
          normal[k] = random.random_normal_f32();
        }
        random.set_seed(5);
        again[0] = random.random_f32(0.0, 1.0);
        random.set_seed(5);
        again[1] = random.random_f32(0.0, 1.0);
        """,
    )
    uniform, normal = (runtime.read_symbol(0, 0, name) for name in ("uniform", "normal"))
    assert -1 <= uniform.min() < uniform.max() < 3
    assert stats.kstest(uniform, "uniform", args=(-1, 4)).pvalue > 0.05
    assert stats.kstest(normal, "norm").pvalue > 0.05
    assert len(set(uniform.tolist())) > 490
    assert len(set(runtime.read_symbol(0, 0, "again").tolist())) == 1


def test_traces(run):
    """By functions for each type, and by one for any value; what does not fit is left out."""
    values = {"u16, 7": 7, "i8, -3": -3, "f32, 0.5": 0.5, "bool, true": 1, "i32, -70000": -70000}
    runtime = run(
        """
        const events = @import_module("<debug>", .{ .key = "events", .buffer_size = 50 });
        const small = @import_module("<debug>", .{ .key = "small", .buffer_size = 3 });
        const any = @import_module("<debug>", .{ .key = "any", .buffer_size = 40 });
        """,
        """
        events.trace_string("begin");
        events.trace_u32(70000);
        events.trace_i16(-5);
        events.trace_f32(1.5);
        events.trace_bool(true);
        events.trace_timestamp();
        small.trace_u32(1);
        small.trace_u32(2);
        small.trace_u16(3);
        """
        + "".join(f"any.trace(@as({value}));" for value in values),
    )
    read = lambda key: decode_trace(runtime.read_symbol(0, 0, f"<debug>.{key}", dtype=np.uint16))
    assert read("events")[:-1] == ["begin", 70000, -5, 1.5, 1]
    assert read("small") == [1, 2]
    assert read("any") == list(values.values())


def test_the_counter_by_its_registers(run):
    """As <time> reads it: started, at 0, later by the cycles of ten elements, stopped."""
    runtime = run(
        """
        const config = @import_module("<tile_config>");
        const registers = config.addresses;
        var b = @zeros([10]f32);
        var seen = @zeros([5]u16);
        const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{10} -> b[i] });
        fn word(k: u16) u16 {
          const base = @as(u16, registers.TIMESTAMP_COUNTER);
          return @bitcast(*u16, base + config.word_size * k).*;
        }
        fn control(value: u16) void {
          @bitcast(*u16, @as(u16, registers.PERF_COUNTER_CONTROL)).* = value;
        }
        """,
        """
        control(7);
        @fadds(d, d, 1.0);
        @bitcast(*u16, @as(u16, registers.TIMESTAMP_COUNTER)).* = 1000;
        @fadds(d, d, 1.0);
        seen[0] = word(0);
        seen[1] = word(1);
        control(0);
        seen[2] = word(0);
        @fadds(d, d, 1.0);
        seen[3] = word(0);
        seen[4] = config.target.tsc_size_words;
        """,
    )
    running, high, stopped, later, words = runtime.read_symbol(0, 0, "seen").tolist()
    assert 1005 <= running < 1060
    assert running < stopped == later < 1080
    assert (high, words) == (0, 3)
