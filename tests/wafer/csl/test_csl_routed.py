"""Operations on colors that lead nowhere: errors of the layout where every run executes them."""

import numpy as np
import pytest

import wafer.csl
from wafer.csl import CslError

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 3, .height = 1 });
const c = @get_color(4);
layout {
  @set_rectangle(3, 1);
  for (@range(i16, 3)) |x| {
    @set_tile_code(x, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(x), .x = x, .c = c });
  }
ROUTES
  @export_name("go", fn()void);
  @export_name("y", [*]u16, true);
}
"""
PE = """
param memcpy_params;
param x: i16;
param c: color;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const tile_config = @import_module("<tile_config>");
var y = @constants([40]u16, 7);
var ptr: [*]u16 = &y;
var turn: u16 = 0;
const iq = @get_input_queue(2);
const oq = @get_output_queue(3);
const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{WORDS} -> y[i] });
const in = @get_dsd(fabin_dsd, .{ .extent = WORDS, .fabric_color = c, .input_queue = iq });
const out = @get_dsd(fabout_dsd, .{ .extent = WORDS, .fabric_color = c, .output_queue = oq });
fn send() void { SEND }
fn receive() void { if (x == 2) { @mov16(d, in); } }
fn go() void {
  if (x == 0) { send(); } else { receive(); }
  sys_mod.unblock_cmd_stream();
}
comptime {
  @initialize_queue(iq, .{ .color = c });
  if (@is_arch("wse3")) @initialize_queue(oq, .{ .color = c });
  @export_symbol(go);
  @export_symbol(ptr, "y");
}
"""
SEND = "@mov16(out, d);"


def route(x, rx, tx, more=""):
    routes = f".{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"
    return f"  @set_color_config({x}, 0, c, .{{ .routes = {routes}{more} }});\n"


FIRST, MIDDLE, LAST = route(0, "RAMP", "EAST"), route(1, "WEST", "EAST"), route(2, "WEST", "RAMP")


def compiled(tmp_path, routes, arch="wse2", send=SEND, words=40):
    (tmp_path / "layout.csl").write_text(LAYOUT.replace("ROUTES", routes), encoding="utf-8")
    (tmp_path / "pe.csl").write_text(
        PE.replace("SEND", send).replace("WORDS", str(words)), encoding="utf-8"
    )
    return wafer.csl.compile(tmp_path / "layout.csl", arch=arch)


def problem(tmp_path, routes, arch="wse2"):
    with pytest.raises(CslError) as caught:
        compiled(tmp_path, routes, arch)
    return caught.value.problems[0]


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(
    ("routes", "line", "message", "hint"),
    [
        (
            MIDDLE + LAST,
            15,
            "PE (0, 0) sends on color 4, and its router has no route for it",
            "add RAMP to .rx of the color's .routes at this PE (@set_color_config)",
        ),
        (
            route(0, "WEST", "EAST") + MIDDLE + LAST,
            15,
            "PE (0, 0) sends on color 4, and its router has no RAMP in .rx",
            "add RAMP to .rx of the color's .routes at this PE (@set_color_config)",
        ),
        (
            FIRST + MIDDLE,
            15,
            "PE (0, 0) sends on color 4, which PE (1, 0) routes to the EAST, and PE (2, 0) has no"
            " route for it",
            "add WEST to .rx of color 4 at PE (2, 0)",
        ),
        (
            FIRST + route(1, "NORTH", "EAST") + LAST,
            15,
            "PE (0, 0) sends on color 4, which PE (0, 0) routes to the EAST, and PE (1, 0) takes it"
            " from NORTH",
            "add WEST to .rx of color 4 at PE (1, 0)",
        ),
        (
            FIRST + MIDDLE + route(2, "WEST", "EAST"),
            16,
            "PE (2, 0) receives from color 4, and its router has no RAMP in .tx",
            "add RAMP to .tx of the color's .routes at this PE (@set_color_config)",
        ),
    ],
)
def test_a_color_that_leads_nowhere(tmp_path, arch, routes, line, message, hint):
    found = problem(tmp_path, routes, arch)
    assert (found.at.file, found.at.line) == (str(tmp_path / "pe.csl"), line)
    assert (found.message, found.hint) == (message, hint)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_route_that_carries_words(tmp_path, arch):
    runtime = wafer.csl.Runtime(compiled(tmp_path, FIRST + MIDDLE + LAST, arch))
    runtime.launch("go", nonblock=False)
    words = np.zeros(20, np.uint32)
    runtime.memcpy_d2h(words, runtime.get_id("y"), 2, 0, 1, 1, 20)
    assert words.view(np.uint16).tolist() == [7] * 40


def test_words_that_queue_and_routers_hold_end_nowhere(tmp_path):
    """6 of a WSE-2's longest queue, 2 of its ramp, 2 of each router on the way."""
    compiled(tmp_path, MIDDLE + LAST, words=8)
    turned = FIRST + MIDDLE + route(2, "SOUTH", "RAMP")
    compiled(tmp_path, turned, words=12)
    for routes, words in ((MIDDLE + LAST, 9), (turned, 13)):
        with pytest.raises(CslError, match="sends on color 4"):
            compiled(tmp_path, routes, words=words)


@pytest.mark.parametrize(
    ("send", "why"),
    [
        ("if (turn == 1) @mov16(out, d);", "no run executes it"),
        ("while (turn > 0) { @mov16(out, d); turn -= 1; }", "a loop of no rounds"),
        ("if (turn == 0) return; @mov16(out, d);", "behind a return"),
        ("@mov16(out, d, .{ .async = true });", "nothing waits for its end"),
    ],
)
def test_code_for_a_route_that_carries_nothing(tmp_path, send, why):
    del why
    runtime = wafer.csl.Runtime(compiled(tmp_path, MIDDLE + LAST, send=send))
    assert runtime.get_id("y") >= 0


def test_a_way_that_changes_is_not_followed(tmp_path):
    """A switch position that takes it, one on the way, and a program that writes its routes."""
    switch = ", .switches = .{ .pos1 = .{ .rx = WEST } }"
    compiled(tmp_path, FIRST + route(1, "NORTH", "EAST", switch) + LAST)
    turns = ", .switches = .{ .pos1 = .{ .tx = RAMP } }"
    compiled(tmp_path, route(0, "RAMP", "EAST", turns) + LAST)
    writes = "tile_config.switch_config.clear_current_position(c); @mov16(out, d);"
    compiled(tmp_path, MIDDLE + LAST, send=writes)


def test_words_may_leave_the_rectangle(tmp_path):
    compiled(tmp_path, route(0, "RAMP", "WEST") + LAST)
