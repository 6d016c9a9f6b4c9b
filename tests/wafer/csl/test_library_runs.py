"""System modules on one PE: what their functions return, against Python and NumPy."""

import numpy as np
import pytest
from scipy import stats

from wafer.csl.host.runtime import Runtime
from wafer.csl.semantics.compile import compile_layout
from wafer.vendor.sdk.debug_util import decode_trace
from wafer.vendor.sdk.sdk_utils import make_u48

engine = pytest.importorskip("wafer.machine.engine")
pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not engine.available(), reason="no compiled machine"),
]
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
        image = compile_layout(tmp_path / "layout.csl", arch=request.param)
        runtime = Runtime(image, engine.Machine(image))
        runtime.launch("main")
        return runtime

    return run


UNARY = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "abs": np.abs,
    "inv": np.reciprocal,
    "invsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_math_by_type_and_by_name(run, dtype):
    numpy = {"f16": np.float16, "f32": np.float32}[dtype]
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


def test_more_math(run):
    runtime = run(
        """
        const math = @import_module("<math>");
        var f = [3]f32{ -1.5, 0.0, 2.0 };
        var i = [3]i16{ -7, 0, 5 };
        var floats = @zeros([11]f32);
        var ints = @zeros([9]i16);
        var bits = @zeros([3]bool);
        """,
        """
        for (@range(u16, 3)) |k| {
          ints[k] = math.abs(i[k]);
          ints[3 + k] = math.sign(i[k]);
          ints[6 + k] = math.max(i[k], 1);
          floats[k] = math.min(f[k], 1.0);
          floats[3 + k] = math.sign(f[k]);
          floats[6 + k] = math.pow(f[2], f[k]);
        }
        floats[9] = math.pow_f32(f[0], 3.0);
        floats[10] = math.NEGATIVE_INF_f32;
        bits[0] = math.isNaN(math.pow_f32(f[0], 0.5));
        bits[1] = math.isInf(floats[10]);
        bits[2] = math.isFinite(floats[10]);
        """,
    )
    assert runtime.read_symbol(0, 0, "ints").tolist() == [7, 0, 5, -1, 0, 1, 1, 1, 5]
    expected = [-1.5, 0, 1, -1, 0, 1, 2**-1.5, 1, 4, -3.375, -np.inf]
    np.testing.assert_allclose(runtime.read_symbol(0, 0, "floats"), expected, rtol=1e-6)
    assert runtime.read_symbol(0, 0, "bits").tolist() == [1, 1, 0]


def test_control_wavelets(run):
    """The check values of three public programs and of the language's pages."""
    runtime = run(
        """
        const control = @import_module("<control>");
        const switches = @import_module("<memcpy/memcpy_switches>");
        const id = @get_control_task_id(43);
        const ADV = control.opcode.SWITCH_ADV;
        const words = [3]u32{
          switches.ctrl(switches.teardown_cmd_1()),
          switches.ctrl(switches.switch_cmd_11()),
          control.encode_single_payload(ADV, true, {}, 0),
        };
        var known = @zeros([3]u32);
        var run = @zeros([3]u32);
        var data: u16 = 6;
        """,
        """
        for (@range(u16, 3)) |k| {
          known[k] = words[k];
        }
        run[0] = control.encode_control_task_payload(id);
        run[1] = control.encode_single_payload(ADV, false, id, data);
        run[2] = control.encode_single_payload(control.opcode.TEARDOWN, true, {}, data);
        """,
    )
    nothing = 0x1F0000 | 0x9249  # NOPs that the CE does not see, from the third command on
    two = 5 << 22 | 5 << 25 | nothing
    assert runtime.read_symbol(0, 0, "known").tolist() == [0x09DF9249, two, 5 << 22 | 31 << 16]
    ids = 43 << 16
    assert runtime.read_symbol(0, 0, "run").tolist() == [
        ids,
        1 << 22 | ids | 6,
        7 << 22 | 31 << 16 | 6,
    ]


def test_directions(run):
    runtime = run(
        """
        const directions = @import_module("<directions>");
        var tx = @zeros([5]u16);
        var rx = @zeros([5]u16);
        var ramp = @zeros([2]u16);
        """,
        "ramp[0] = directions.TX_RAMP; ramp[1] = directions.RX_RAMP;"
        + "".join(
            f"tx[{k}] = directions.dirToTxBits(directions.flip({side}));"
            f"rx[{k}] = directions.dirToRxBits({side});"
            for k, side in enumerate(("WEST", "EAST", "SOUTH", "NORTH", "RAMP"))
        ),
    )
    assert runtime.read_symbol(0, 0, "tx").tolist() == [2, 1, 8, 4, 16]
    assert runtime.read_symbol(0, 0, "rx").tolist() == [32, 64, 128, 256, 512]
    assert runtime.read_symbol(0, 0, "ramp").tolist() == [16, 512]


def test_registers(run):
    """Routes, switches and queues as CONFIG lays them out."""
    runtime = run(
        """
        const config = @import_module("<tile_config>");
        const c = @get_color(3);
        var seen = @zeros([7]u16);
        comptime {
          @set_local_color_config(c, .{
            .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } },
            .switches = .{ .pos1 = .{ .tx = EAST }, .current_switch_pos = 1, .ring_mode = true },
          });
          @initialize_queue(@get_input_queue(2), .{ .color = c });
        }
        """,
        """
        const address = config.color_config.get_color_config_addr(c);
        const two = [2]direction{ WEST, RAMP };
        config.color_config.reset_routes(address, .{ .tx = two, .rx = SOUTH });
        seen[0] = @get_config(address);
        config.switch_config.clear_current_position(c);
        config.switch_config.set_invalid_for_all_switch_positions(c);
        seen[1] = @get_config(0x7f43);
        config.switch_config.set_rx_switch_pos1(c, RAMP);
        seen[2] = @get_config(0x7f43);
        config.input_queue_config.encode_input_queue(2, @get_int(c), true);
        seen[3] = @get_config(0x7f62);
        seen[4] = @get_int(config.teardown.get_task_id());
        const io = config.color_config.fabric_io;
        config.color_config.set_io_direction(c, io.TX_EAST);
        config.color_config.clear_io_direction(address, io.TX_WEST);
        config.color_config.toggle_io_direction(c, io.RX_NORTH);
        seen[5] = @get_config(address);
        config.color_config.reset_routes(c, .{ .tx = EAST, .rx = WEST });
        seen[6] = @get_config(address);
        """,
    )
    seen = runtime.read_symbol(0, 0, "seen").tolist()
    assert [hex(word) for word in seen] == [
        "0x91",
        "0x1555",
        "0x155c",
        "0x23",
        "0x1d",
        "0x192",
        "0x22",
    ]  # no filter to turn on


def test_time_and_place(run):
    runtime = run(
        """
        const time = @import_module("<time>");
        const place = @import_module("<layout>");
        var stamps = @zeros([3, time.tsc_size_words]u16);
        var at = [2]u16{ 9, 9 };
        var one = @zeros([time.tsc_size_words]u16);
        var first = @zeros([time.tsc_size_words]u16);
        var total: u16 = 0;
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
        """,
    )
    assert runtime.read_symbol(0, 0, "at").tolist() == [0, 0]
    between = [make_u48(runtime.read_symbol(0, 0, name)) for name in ("first", "one")]
    assert 100 < between[1] - between[0] < runtime.machine.cycle


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


def test_prints(run):
    runtime = run(
        """
        const out = @import_module("<simprint>");
        const silent = @import_module("<simprint>", .{ .enable = false });
        var n: u16 = 65535;
        """,
        r"""
        silent.print_string("nothing\n");
        out.print_string("n = ");
        out.print_u16_decimal(n);
        out.print_string(", ");
        out.print_i16_decimal(@as(i16, n));
        out.print_string(", 0x");
        out.print_u32_hex(@as(u32, n) << 4);
        out.print_string("\n");
        out.print_string("no end of line");
        """,
    )
    assert [line.text for line in runtime.machine.prints] == ["n = 65535, -1, 0x000ffff0"]


def test_formatted_prints(run):
    runtime = run(
        """
        const out = @import_module("<simprint>");
        const silent = @import_module("<simprint>", .{ .enable = false });
        var n: u16 = 42;
        var w: u32 = 0xbeef0001;
        var h: f16 = 42.0;
        """,
        r"""
        silent.fmt("nothing {d}", .{n});
        out.fmt("{d} {x} {X} {b} {f}", .{ n, n, n, n, h });
        out.fmt("({d},{X}) {b}", .{ w, w, @as(u32, 5) });
        out.fmt_no_nl("{{hello}", .{});
        out.fmt_no_nl(" {d}", .{n});
        out.print_string("\n");
        out.fmt_with_coords("{f}", .{@as(f32, -0.5)});
        """,
    )
    assert [line.text for line in runtime.machine.prints] == [
        "42 002a 002A 0000000000101010 42.0",
        "(3203334145,BEEF0001) 00000000000000000000000000000101",
        "{hello} 42",
        "PE(0,0): -0.5",
    ]


def test_traces(run):
    runtime = run(
        """
        const events = @import_module("<debug>", .{ .key = "events", .buffer_size = 50 });
        const small = @import_module("<debug>", .{ .key = "small", .buffer_size = 3 });
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
        """,
    )
    traces = {
        key: decode_trace(runtime.read_symbol(0, 0, f"<debug>.{key}"))
        for key in ("events", "small")
    }
    assert traces["events"][:-1] == ["begin", 70000, -5, 1.5, 1]
    assert traces["small"] == [1, 2]


def test_switches_by_color_and_by_address(run):
    """Pop modes are bits 12 and 13 of the routes; the rest is in the switch word."""
    runtime = run(
        """
        const config = @import_module("<tile_config>");
        const switches = config.switch_config;
        const c = @get_color(3);
        var seen = @zeros([8]u16);
        comptime {
          @set_local_color_config(c, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ RAMP } } });
        }
        """,
        """
        const pops = switches.get_switch_config_addr(c, switches.pop_mode);
        const word = switches.get_switch_config_addr(c, switches.switch_status);
        seen[0] = pops;
        seen[1] = word;
        switches.set_pop_mode(c, switches.pop_mode.POP_ON_ADVANCE);
        seen[2] = @get_config(pops);
        switches.set_pop_mode(pops, switches.pop_mode.NO_POP);
        seen[3] = @get_config(pops);
        switches.set_switch_pos(switches.switch_pos.POS2, c, EAST, switches.switch_select.INPUT);
        switches.set_tx_switch_pos1(c, NORTH);
        switches.set_ring_mode(c, switches.ring_mode.RING_MODE);
        switches.set_current_switch_position(word, 2);
        seen[4] = @get_config(word);
        seen[5] = config.get_fabric_coord(config.fabric_coord.Y);
        seen[6] = @as(u16, config.target.addresses.COLOR_CONFIG) + 3 * config.target.word_size;
        seen[7] = @as(u16, config.teardown.is_pending(config.teardown.get_pending(), c));
        config.main_thread_priority.update_main_thread_priority(
            config.main_thread_priority.level.HIGH);
        """,
    )
    seen = [hex(word) for word in runtime.read_symbol(0, 0, "seen").tolist()]
    assert seen == ["0x7f23", "0x7f43", "0x2210", "0x210", "0x5593", "0x0", "0xfe46", "0x0"]


def test_output_queues_that_are_empty(run):
    runtime = run(
        """
        const config = @import_module("<tile_config>");
        var seen = @zeros([2]u16);
        """,
        """
        const queues = config.output_queue_status;
        const now = queues.get();
        seen[0] = @as(u16, queues.all_empty(now));
        seen[1] = @as(u16, queues.is_empty(now, @get_output_queue(3)));
        """,
    )
    assert runtime.read_symbol(0, 0, "seen").tolist() == [1, 1]


def test_sides_that_turn(run):
    """Clockwise from WEST: NORTH, EAST, SOUTH; a side's number is its place in W E S N."""
    runtime = run(
        """
        const directions = @import_module("<directions>");
        var seen = @zeros([4, 4]u16);
        fn number(side: direction) u16 {
          return if (side == WEST) 0 else if (side == EAST) 1 else if (side == SOUTH) 2 else 3;
        }
        """,
        """
        const sides = [4]direction{ WEST, EAST, SOUTH, NORTH };
        inline for (@range(u16, 4)) |k| {
          seen[0, k] = number(directions.rotate_clockwise(sides[k]));
          seen[1, k] = number(directions.rotate_counterclockwise(sides[k]));
          seen[2, k] = number(directions.flip_horizontal(sides[k]));
          seen[3, k] = number(directions.flip_vertical(sides[k]));
        }
        """,
    )
    assert runtime.read_symbol(0, 0, "seen").reshape(4, 4).tolist() == [
        [3, 2, 0, 1],
        [2, 3, 1, 0],
        [1, 0, 2, 3],
        [0, 1, 3, 2],
    ]


def test_halves_types_and_timers(run):
    runtime = run(
        """
        const data = @import_module("<data_utils>");
        const types = @import_module("<types>");
        const timer = @import_module("<timer>", .{ .timerCount = 2 });
        const a = [10]f32{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
        var seen = @zeros([8]u16);
        var b = @zeros([10]f32);
        var took = @zeros([3]u16);
        const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{10} -> b[i] });
        comptime {
          @comptime_assert(types.is_unsigned_int(u16) and !types.is_unsigned_int(i16));
          @comptime_assert(types.is_signed(f32) and types.is_numeric(i8));
          @comptime_assert(!types.is_numeric(bool));
          @comptime_assert(types.has_dsd_type(d) and !types.is_dsr(mem1d_dsd));
          @comptime_assert(types.byte_size_of(i64) == 8 and types.word_size_of(u8) == 1);
          @comptime_assert(types.bit_size_of(f16) == 16);
        }
        """,
        """
        const word: u32 = 0xdeadbeef;
        seen[0] = data.lo16(word);
        seen[1] = data.hi16(word);
        const long = @as(u64, word) << 32 | 7;
        seen[2] = data.hi16(data.hi32(long));
        seen[3] = data.lo16(data.lo32(long));
        timer.start(1);
        @fadds(d, d, 1.0);
        timer.stop(1);
        timer.elapsed(1, &took);
        """,
    )
    assert runtime.read_symbol(0, 0, "seen").tolist()[:4] == [0xBEEF, 0xDEAD, 0xDEAD, 7]
    low, middle, high = runtime.read_symbol(0, 0, "took").tolist()
    assert 5 <= low < 60  # ten elements
    assert (middle, high) == (0, 0)


def test_any_value_is_traced(run):
    runtime = run(
        """
        const trace = @import_module("<debug>", .{ .key = "t", .buffer_size = 40 });
        """,
        """
        trace.trace(@as(u16, 7));
        trace.trace(@as(i8, -3));
        trace.trace(@as(f32, 0.5));
        trace.trace(true);
        trace.trace(@as(i32, -70000));
        """,
    )
    records = decode_trace(runtime.read_symbol(0, 0, "<debug>.t", dtype=np.uint16))
    assert records == [7, -3, 0.5, 1, -70000]


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
