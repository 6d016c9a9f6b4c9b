"""The language: what small programs leave in memory by hand, and what they may not say."""

import numpy as np
import pytest
from helpers.csl_program import compiled, results

import wafer.csl
from wafer.csl import CslError

# Name -> (options, text, what y holds).
RULES = {
    "loops and locals": (
        {},
        "fn go() void { var s: i32 = 0; for (@range(i32, 5)) |i| { s += i * i; } y[0] = s; }",
        [30, 0, 0, 0],
    ),
    "while with a step, continue and break": (
        {},
        """fn go() void {
          var i: i32 = 0;
          while (i < 100) : (i += 1) {
            if (i % 2 == 0) { continue; }
            if (i > 7) { break; }
            y[0] += i;
          }
          y[1] = i;
        }""",
        [16, 9, 0, 0],
    ),
    "a labelled break leaves both loops": (
        {},
        """fn go() void {
          outer: for (@range(i32, 3)) |i| {
            for (@range(i32, 3)) |j| {
              if (j == 2) { continue; }
              if (i == 2) { break :outer; }
              y[i] += j + 1;
            }
          }
        }""",
        [3, 3, 0, 0],
    ),
    "integers wrap and divide toward zero": (
        {"kind": "i16"},
        """fn go() void {
          var a: i16 = 32767; var b: i16 = -7; var c: i16 = 2;
          y[0] = a + 1; y[1] = b / c; y[2] = b % c; y[3] = b >> @as(u16, 1);
        }""",
        [-32768, -3, -1, -4],
    ),
    "a mask binds closer than a comparison": (
        {},
        "fn go() void { var a: i32 = 6; if (a & 4 == 4) { y[0] = 1; } }",
        [1, 0, 0, 0],
    ),
    "and and or stop early": (
        {},
        """fn count() bool { y[3] += 1; return true; }
        fn go() void {
          var no: i32 = 0;
          if (no == 1 and count()) { y[0] = 1; }
          if (no == 0 or count()) { y[1] = 1; }
          if (no == 0 and count()) { y[2] = 1; }
        }""",
        [0, 1, 1, 1],
    ),
    "dead branches need only be grammar": (
        {},
        """fn go() void {
          if (@is_arch("wse9")) { y[0] = nothing_of_this(1, 2); } else { y[0] = 5; }
          const chosen: i32 = if (@is_arch("wse2")) 7 else if (@is_arch("wse3")) 8;
          y[1] = chosen;
        }""",
        [5, 7, 0, 0],
    ),
    "a function of compile time fills a table": (
        {},
        """const squares = table(4);
        fn table(comptime n: i16) [n]i32 {
          var out = @zeros([n]i32);
          var k: i16 = 0;
          while (k < n) : (k += 1) { out[k] = @as(i32, k) * k; }
          return out;
        }
        fn go() void { for (squares) |v, k| { y[k] = v + 1; } }""",
        [1, 2, 5, 10],
    ),
    "structs are values": (
        {},
        """const P = struct { a: i32, b: i16 = 4 };
        var kept: P = .{ .a = 1 };
        fn moved(p: P) P { var q = p; q.a += 10; return q; }
        fn go() void {
          const other = moved(kept);
          kept.a = 2;
          y[0] = other.a; y[1] = kept.a; y[2] = other.b;
        }""",
        [11, 2, 4, 0],
    ),
    "enums count on from 0 around given numbers": (
        {},
        """const E = enum(u16) { a, b = 1, c };
        fn go() void {
          var e: E = E.c;
          switch (e) { E.a => { y[0] = 1; }, E.b => { y[0] = 2; }, E.c => { y[0] = 3; } }
          y[1] = @as(i32, @get_int(e));
        }""",
        [3, 2, 0, 0],
    ),
    "a switch on several values, and else": (
        {},
        """fn f(k: i32) i32 { switch (k) { 0, 1 => return 10, 2 => return 20, else => return 30 } }
        fn go() void { for (@range(i32, 4)) |i| { y[i] = f(i); } }""",
        [10, 10, 20, 30],
    ),
    "pointers to arrays, elements and unknown lengths": (
        {},
        """var a = [3]i32{ 1, 2, 3 };
        fn total(p: *[3]i32) i32 { return p[0] + (p.*)[1] + p.*[2]; }
        fn set(p: *i32) void { p.* = 9; }
        fn go() void {
          var many: [*]i32 = &a;
          y[0] = total(&a);
          set(&a[1]);
          y[1] = many[1];
          var local: i32 = 4;
          set(&local);
          y[2] = local;
        }""",
        [6, 9, 9, 0],
    ),
    "rows and columns lie row by row": (
        {},
        """var a = [2, 3]i32{ 0, 1, 2, 3, 4, 5 };
        fn go() void {
          var p: [*]i32 = @ptrcast([*]i32, &a);
          var i: i16 = 1;
          y[0] = a[i, 2]; y[1] = p[4];
        }""",
        [5, 4, 0, 0],
    ),
    "bits of a float": (
        {"kind": "u32"},
        """fn go() void {
          var f: f32 = -1.5;
          y[0] = @bitcast(u32, f); y[1] = @as(u32, @as(i32, f) + 3);
          var h: f16 = 1.0; y[2] = @as(u32, @bitcast(u16, h));
        }""",
        [0xBFC00000, 2, 0x3C00, 0],
    ),
    "generic functions are made for each type": (
        {"kind": "f32"},
        """fn twice(v: anytype) @type_of(v) { return v + v; }
        fn go() void {
          var f: f32 = 1.25; var i: i16 = 3;
          y[0] = twice(f); y[1] = @as(f32, twice(i));
        }""",
        [2.5, 6, 0, 0],
    ),
    "inline loops unroll over what differs in type": (
        {},
        """fn go() void { inline for (.{ 1, 2, 3 }) |v| { y[0] += v; } }""",
        [6, 0, 0, 0],
    ),
    "functions as params and in variables": (
        {},
        """fn one() i32 { return 1; }
        fn two() i32 { return 2; }
        var chosen: fn()i32 = two;
        fn go() void { y[0] = chosen(); chosen = one; y[1] = chosen(); }""",
        [2, 1, 0, 0],
    ),
    "a descriptor walks a diagonal": (
        {"kind": "f32"},
        """var a = [4, 4]f32{ 1., 0., 0., 0., 0., 2., 0., 0., 0., 0., 3., 0., 0., 0., 0., 4. };
        const diagonal = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i, i] });
        const out = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
        fn go() void { @fadds(out, diagonal, 0.5); }""".replace(". ", ".0 ").replace(".,", ".0,"),
        [1.5, 2.5, 3.5, 4.5],
    ),
    "descriptors move, shorten and stride": (
        {"kind": "i16"},
        """var a = [8]i16{ 0, 1, 2, 3, 4, 5, 6, 7 };
        const whole = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> a[i] });
        const out = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
        fn go() void {
          var d = @increment_dsd_offset(whole, 1, i16);
          d = @set_dsd_stride(d, 2);
          d = @set_dsd_length(d, 3);
          @mov16(out, d);
        }""",
        [1, 3, 5, 0],
    ),
    "a reduction reads its accumulator anew": (
        {"kind": "f32"},
        """var a = [4]f32{ 1.0, 5.0, 2.0, 3.0 };
        const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
        var m: f32 = 0.0;
        fn add(v: f32, s: *f32) f32 { return s.* + v; }
        fn go() void { @fmaxs(&m, m, d); y[0] = m; y[1] = 0.0; @map(add, d, &y[1], &y[1]); }""",
        [5, 11, 0, 0],
    ),
    "four dimensions, the last fastest": (
        {"kind": "i16", "count": 6},
        """var a = [2, 3]i16{ 0, 1, 2, 3, 4, 5 };
        const turned = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{3, 2} -> a[j, i] });
        const out = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{6} -> y[i] });
        fn go() void { @mov16(out, turned); }""",
        [0, 3, 1, 4, 2, 5],
    ),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("arch", ["wse2"])
def test_rules(tmp_path, name, arch):
    options, text, expected = RULES[name]
    found = results(tmp_path, text, arch=arch, **options)
    np.testing.assert_array_equal(found[0], np.array(expected, found.dtype))


def test_a_word_goes_to_the_neighbour(tmp_path):
    """A colour, a data task and an activation: PE 1 holds what PE 0 sent, plus 1."""
    text = """const c = @get_color(3);
    const iq = @get_input_queue(2);
    const oq = @get_output_queue(2);
    const taken = @get_data_task_id(if (@is_arch("wse2")) c else iq);
    const done = @get_local_task_id(9);
    const out = @get_dsd(fabout_dsd, if (@is_arch("wse2"))
      .{ .extent = 1, .output_queue = oq, .fabric_color = c }
      else .{ .extent = 1, .output_queue = oq });
    task take(word: i32) void { y[0] = word + 1; }
    task note() void { y[1] = 7; }
    fn go() void { if (x == 0) { @mov32(out, 41, .{ .async = true, .activate = note }); } }
    comptime {
      @bind_data_task(take, taken);
      @bind_local_task(note, done);
      @initialize_queue(iq, .{ .color = c });
      if (@is_arch("wse3")) @initialize_queue(oq, .{ .color = c });
    }"""
    routes = """const color = @get_color(3);
    @set_color_config(0, 0, color, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    @set_color_config(1, 0, color, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });"""
    for arch in ("wse2", "wse3"):
        found = results(tmp_path, text, width=2, routes=routes, arch=arch)
        np.testing.assert_array_equal(found, [[0, 7, 0, 0], [42, 0, 0, 0]])


def test_variables_are_neighbours_in_memory_as_declared(tmp_path):
    text = "var a = [2]i32{ 1, 2 };\nvar b = [2]i32{ 3, 4 };\nfn go() void { y[0] = b[0] + a[0]; }"
    symbols = compiled(tmp_path, text).programs[0].symbols
    assert symbols["b"].address == symbols["a"].address + 8


def test_equal_params_share_a_program_and_others_do_not(tmp_path):
    same = compiled(tmp_path, "fn go() void {}", width=1)
    assert len(same.programs) == 1
    each = compiled(tmp_path, "fn go() void {}", width=3)  # the layout gives each its column
    assert each.tiles.tolist() == [[0, 1, 2]]


ERRORS = {
    "fn go() void { y[0] = z; }": "'z' is not declared",
    "fn go() void { y[4] = 1; }": "index 4 is outside of [4]i32, which has 4",
    "fn go() void { var a: i8 = 200; }": "200 does not fit i8, which reaches from -128 to 127",
    "const a: i16 = 32767 + @as(i16, 1);\nfn go() void { y[0] = a; }": (
        "32767 + 1 is 32768, and i16 reaches from -32768 to 32767"
    ),
    "fn go() void { var f: f32 = 1.0; y[0] = f; }": "expected i32, found a value of type f32",
    "fn go() void { if (y[0]) {} }": "a condition is a bool, found a value of type i32",
    "fn f(a: i32) void {}\nfn go() void { f(1, 2); }": "f takes 1 argument(s), found 2",
    "const s = .{ .height = 1 };\nfn go() void { y[0] = s.hight; }": "did you mean 'height'?",
    "fn go() void { y = y; const k = 1; k = 2; }": "'k' is a constant",
    "fn go() void { var a = @zeros([2]i16); a[0] = 1; go(); }": (
        "'go' may call itself, and all its calls would share 'a'"
    ),
    "fn go() void { const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i * i] }); }": (
        "a variable is multiplied with a variable"
    ),
    "task t() void {}\nfn go() void { @activate(t); }": "the task 't' is bound to no id",
    'fn go() void { @comptime_assert(1 == 2, "sizes differ"); }': "@comptime_assert: sizes differ",
    "const a = b;\nconst b = a;\nfn go() void { y[0] = a; }": "'a' depends on itself",
    'const m = @import_module("no.csl");\nfn go() void {}': "there is no file no.csl",
    'const m = @import_module("<maths>");\nfn go() void {}': "there is no system module <maths>",
}


@pytest.mark.parametrize("text", ERRORS, ids=list(ERRORS.values()))
def test_errors(tmp_path, text):
    with pytest.raises(CslError) as caught:
        compiled(tmp_path, text)
    assert ERRORS[text] in str(caught.value)
    assert "pe.csl:" in str(caught.value)


def test_functions_may_call_themselves(tmp_path):
    """3! + the sum of even and odd steps down from 5, each calling the other."""
    text = """
    fn factorial(n: i32) i32 { if (n < 2) { return 1; } return n * factorial(n - 1); }
    fn even(n: i32) i32 { if (n == 0) { return 0; } const rest = odd(n - 1); return n + rest; }
    fn odd(n: i32) i32 { return 10 * n + even(n - 1); }
    fn go() void { y[0] = factorial(5); y[1] = even(4); }
    """
    assert results(tmp_path, text).tolist() == [[120, 4 + 30 + 2 + 10, 0, 0]]


def test_a_recursion_without_end_is_a_fault(tmp_path):
    image = compiled(tmp_path, "fn go() void { y[0] += 1; go(); }")
    machine = wafer.csl.Machine(image)
    machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
    assert machine.run() is wafer.csl.Status.FAULT
    assert "more than 64 calls within each other" in machine.fault


def test_all_errors_of_a_program_come_at_once(tmp_path):
    text = "fn go() void {\n  y[0] = one;\n  y[1] = two;\n}\nfn other() void {}"
    with pytest.raises(CslError) as caught:
        compiled(tmp_path, text)
    assert [problem.message for problem in caught.value.problems] == [
        "'one' is not declared",
        "'two' is not declared",
    ]


LAYOUT_ERRORS = {
    "@set_tile_code(0, 0, 'pe.csl', .{});": "@set_tile_code before @set_rectangle",
    "@set_rectangle(0, 1);": "a rectangle of 0 x 1 PEs has none",
    "@set_rectangle(2, 2); @set_tile_code(2, 0);": "PE (2, 0) is outside of the rectangle",
    "@set_rectangle(1, 1); @set_tile_code(0, 0); @set_tile_code(0, 0);": "gets its code twice",
    "@set_rectangle(1, 1); const c = @get_color(24);"
    " @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });": (
        "colour 24 has no routes"
    ),
    "@set_rectangle(1, 1); const c = @get_color(1);"
    " @set_color_config(0, 0, c, .{ .routes = .{ .rx = 1.5, .tx = .{EAST} } });": (
        "expected directions, found 1.5"
    ),
}


@pytest.mark.parametrize("body", LAYOUT_ERRORS, ids=list(LAYOUT_ERRORS.values()))
def test_errors_of_the_layout(tmp_path, body):
    import wafer.csl

    (tmp_path / "pe.csl").write_text("", encoding="utf-8")
    text = f"layout {{ {body} }}".replace("'", '"')
    (tmp_path / "layout.csl").write_text(text, encoding="utf-8")
    with pytest.raises(CslError) as caught:
        wafer.csl.compile(tmp_path / "layout.csl")
    assert LAYOUT_ERRORS[body] in str(caught.value)


def test_an_old_output_descriptor_names_its_colour_alone(tmp_path):
    """On WSE-2 such words leave by queue 0."""
    text = """
    const c = @get_color(1);
    const to_east = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = c });
    const from_west = @get_dsd(fabin_dsd, .{
      .extent = 4, .input_queue = @get_input_queue(2), .fabric_color = c,
    });
    const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    fn go() void {
      if (x == 0) { @mov32(to_east, 7); } else { @mov32(all, from_west); }
    }
    """
    routes = """
      const c = @get_color(1);
      @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
      @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
    """
    assert results(tmp_path, text, width=2, routes=routes).tolist() == [[0] * 4, [7] * 4]
