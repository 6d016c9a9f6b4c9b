"""Mistakes that end in a deadlock: the report's first lines name the kind and the line.

Each row has the routes and the code of PEs whose column is in ``role``; ``// HERE`` ends the line
that is to be named. The words of the rest of the program are in ``PE``.
"""

import re
import warnings

import numpy as np
import pytest

import wafer.csl
from wafer.csl.host.region import MemcpyDataType
from wafer.machine.tools.causes import HELD

LAYOUT = """const memcpy = @import_module("<memcpy/get_params>", .{{
  .width = 3, .height = 1, .MEMCPYH2D_1 = 6, .MEMCPYD2H_1 = 7,
}});
const c = @get_color(4);
const e = @get_color(5);
layout {{
  @set_rectangle(3, 1);
  for (@range(u16, 3)) |x| {{
    @set_tile_code(x, 0, "pe.csl", .{{ .memcpy_params = memcpy.get_params(x), .x = x }});
  }}
{routes}
  @export_name("go", fn()void);
  @export_name("y", [*]u16, true);
}}
"""
TILES = LAYOUT[LAYOUT.index("layout {{") : LAYOUT.index("{routes}")]
PE = """param memcpy_params;
param x: u16;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
var role: u16 = x; // not known while compiling
var many: u16 = 8;
var y = @zeros([8]u16);
var long = @zeros([64]u16);
var ptr: [*]u16 = &y;
const c = @get_color(4);
const e = @get_color(5);
const from_host = @get_color(6);
const to_host = @get_color(7);
const c_in = @get_input_queue(2);
const e_in = @get_input_queue(3);
const h_in = @get_input_queue(4);
const c_out = @get_output_queue(2);
const e_out = @get_output_queue(3);
const h_out = @get_output_queue(4);
const Q = struct { color: color };
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{8} -> y[i] });
const half = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
const most = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{64} -> long[i] });
const c8 = @get_dsd(fabin_dsd, .{ .extent = 8, .fabric_color = c, .input_queue = c_in });
const c4 = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = c, .input_queue = c_in });
const c64 = @get_dsd(fabin_dsd, .{ .extent = 64, .fabric_color = c, .input_queue = c_in });
const e8 = @get_dsd(fabin_dsd, .{ .extent = 8, .fabric_color = e, .input_queue = e_in });
const e64 = @get_dsd(fabin_dsd, .{ .extent = 64, .fabric_color = e, .input_queue = e_in });
const h8 = @get_dsd(fabin_dsd, .{ .extent = 8, .fabric_color = from_host, .input_queue = h_in });
const h4 = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = from_host, .input_queue = h_in });
const to_c = @get_dsd(fabout_dsd, .{ .extent = 8, .fabric_color = c, .output_queue = c_out });
const to_e = @get_dsd(fabout_dsd, .{ .extent = 8, .fabric_color = e, .output_queue = e_out });
const to_h = @get_dsd(fabout_dsd, .{ .extent = 8, .fabric_color = to_host, .output_queue = h_out });
const control = @import_module("<control>");
const end_c = @get_dsd(fabout_dsd,
  .{ .extent = 1, .fabric_color = c, .output_queue = c_out, .control = true });
var buffer = @zeros([4]u16);
const fifo = @allocate_fifo(buffer);
const end_id = @get_local_task_id(9);
const next_id = @get_local_task_id(10);
task end() void {
  sys_mod.unblock_cmd_stream();
}
%s
comptime {
  @bind_local_task(end, end_id);
  @initialize_queue(c_in, .{ .color = c });
  @initialize_queue(e_in, .{ .color = e });
  @initialize_queue(h_in, .{ .color = from_host });
  if (@is_arch("wse3")) {
    @initialize_queue(c_out, .{ .color = c });
    @initialize_queue(e_out, .{ .color = e });
    @initialize_queue(h_out, .{ .color = to_host });
  }
  @export_symbol(go);
  @export_symbol(ptr, "y");
}
"""
FREE = "sys_mod.unblock_cmd_stream();"


def route(x, rx, tx, color="c", more=""):
    sides = f".{{ .rx = .{{ {rx} }}, .tx = .{{ {tx} }} }}"
    return f"  @set_color_config({x}, 0, {color}, .{{ .routes = {sides} }});{more}"


def switched(rx, tx, then, more=""):
    """Route color c at PE 1, with another side at the next position of a switch."""
    then = (
        f".{{ .routes = .{{ .rx = {rx}, .tx = {tx} }}, .switches = .{{ .pos1 = .{{ {then} }} }} }}"
    )
    return f"  @set_color_config(1, 0, c, {then});{more}"


HERE = " // HERE"
START, TAKEN = route(0, "RAMP", "EAST"), route(1, "WEST", "RAMP")
WIRE = [START, TAKEN]
BACK = [*WIRE, route(1, "RAMP", "WEST", "e"), route(0, "EAST", "RAMP", "e")]
E_WIRE = [*WIRE, route(0, "RAMP", "EAST", "e"), route(1, "WEST", "RAMP", "e")]
PASSED = route(1, "WEST", "EAST")
INDEX = ".filter = .{ .kind = .{ .range = true }, .min_idx = 5, .max_idx = 6 }"
FILTERED = TAKEN.replace(" });", f", {INDEX} }});") + HERE
BOTH = [START, route(1, "WEST, EAST", "RAMP", more=HERE), route(2, "RAMP", "WEST")]
LOOP = [route(0, "RAMP", "RAMP")]
LATER = "for (@range(u16, 900)) |i| { many += i; }"


def go(*parts, entry="", more="", set_up=""):
    """What PEs 0, 1, … do when the host calls; the others free the command stream."""
    cases = "".join(f"  if (role == {x}) {{{entry}\n{p}\n  }}\n" for x, p in enumerate(parts))
    rest = f"  if (role >= {len(parts)}) {{\n    {FREE}\n  }}\n"
    return f"{more}\nfn go() void {{\n{cases}{rest}}}\ncomptime {{\n{set_up}\n}}"


def async_(how="", then="end_id", action="activate"):
    return f".{{ .async = true, .{action} = {then}{how} }}"


SEND, SEND_4 = f"@mov16(to_c, mem); {FREE}", f"@mov16(to_c, half); {FREE}"
SEND_64 = f"@mov16(to_c, most);\n{FREE}"
TAKE = f"@mov16(mem, c8);{HERE}\n{FREE}"
TAKE_64 = f"@mov16(most, c64);\n{FREE}"
NEXT = f"task next() void {{\n  {FREE}{HERE}\n}}"
TWICE = f"task next() void {{\n  many += 1;\n  if (many == 10) {FREE}\n}}"
BIND = "@bind_local_task(next, next_id);"
DATA = f"task words(word: u16) void {{{HERE}\n  y[0] = word;\n  {FREE}\n}}"
DATA_ID = '@get_data_task_id(if (@is_arch("wse3")) c_in else c)'
BIND_DATA = f"@bind_data_task(words, {DATA_ID});"

# Kind in the report, routes, the host's function; "-" begins what the host does, if no copy.
ROWS = [
    ("no route from the PE", [route(0, "NORTH", "EAST", more=HERE), TAKEN], go(SEND_64, TAKE_64)),
    ("no route from the PE", [TAKEN], go(f"@mov16(to_c, most);{HERE}\n{FREE}", TAKE_64)),
    ("no route from the PE", [route(0, "EAST", "RAMP", more=HERE)], go(SEND_64)),
    ("no route from the PE", [START, route(1, "WEST", "RAMP", more=HERE)], go(SEND_64, SEND_64)),
    ("a neighbor that takes no word", [START, route(1, "SOUTH", "RAMP", more=HERE)],
     go(SEND_64, TAKE_64)),
    ("a neighbor that takes no word", [route(0, "RAMP", "EAST", more=HERE)], go(SEND_64)),
    ("a neighbor that takes no word", [START, PASSED, route(2, "NORTH", "RAMP", more=HERE)],
     go(SEND_64, FREE, TAKE_64)),
    ("a neighbor that takes no word", [START, route(1, "WEST", "EAST", more=HERE)],
     go(SEND_64, FREE, TAKE_64)),
    ("a neighbor that takes no word", [START, route(1, "RAMP", "WEST", more=HERE)],
     go(SEND_64, SEND_64)),
    ("a switch that is not advanced", [START, switched("EAST", "RAMP", ".rx = WEST", HERE)],
     go(SEND_64, TAKE_64)),
    ("a switch that is not advanced", [switched("WEST", "EAST", ".rx = RAMP", HERE),
                                       route(2, "WEST", "RAMP")], go(FREE, SEND_64, TAKE_64)),
    ("no RAMP in the route", [START, route(1, "WEST", "SOUTH")], go(SEND, TAKE)),
    ("no RAMP in the route", [route(0, "RAMP", "SOUTH")], go(SEND, TAKE)),
    ("no route to the PE", [route(0, "RAMP", "SOUTH"), TAKEN], go(SEND, TAKE)),
    ("no route to the PE", [route(0, "RAMP", "WEST"), route(1, "NORTH", "RAMP")], go(SEND, TAKE)),
    ("no route to the PE", [route(1, "EAST", "RAMP")], go(FREE, TAKE)),
    ("fewer words sent than taken", WIRE, go(SEND_4, TAKE)),
    ("fewer words sent than taken", WIRE, go(f"if (many == 0) {{ {SEND} }}\n{FREE}", TAKE)),
    ("fewer words sent than taken", WIRE, go(SEND, f"@mov16(most, c64);{HERE}\n{FREE}")),
    ("fewer words sent than taken", [START, PASSED, route(2, "WEST", "RAMP")],
     go(SEND_4, FREE, TAKE)),
    ("fewer words sent than taken", WIRE, go(SEND_4, f"@mov16(mem, c8, {async_()});{HERE}")),
    ("fewer words sent than taken", [START, switched("WEST", "SOUTH", ".tx = RAMP", HERE)],
     go(SEND, f"@mov16(mem, c8);\n{FREE}")),
    ("fewer words sent than taken", [START, FILTERED], go(SEND, f"@mov16(mem, c8);\n{FREE}")),
    ("a color that no PE sends", E_WIRE, go(f"@mov16(to_e, half); {FREE}", TAKE)),
    ("a color that no PE sends", WIRE, go(FREE, TAKE)),
    ("more words sent than taken", WIRE, go(SEND_64, f"@mov16(half, c4);{HERE}\n{FREE}")),
    ("more words sent than taken", [START, PASSED, route(2, "WEST", "RAMP")],
     go(SEND_64, FREE, f"@mov16(mem, c8);{HERE}\n{FREE}")),
    ("words that nothing takes", WIRE, go(f"@mov16(to_c, most);{HERE}\n{FREE}")),
    ("words that nothing takes", E_WIRE, go(f"@mov16(to_e, most);{HERE}\n{FREE}", FREE)),
    ("two senders into one router", BOTH, go(SEND_64, TAKE_64, f"{LATER}\n{SEND_64}")),
    ("a blocked local task", WIRE, go("@activate(next_id);", more=NEXT,
                                      set_up=f"{BIND} @block(next_id);")),
    ("a blocked local task", WIRE, go(f"@mov16(to_c, mem, {async_(then='next_id')});",
                                      f"@mov16(mem, c8); {FREE}", more=NEXT,
                                      set_up=f"{BIND} @block(next_id);")),
    ("a blocked local task", WIRE, go(
        "@activate(next_id);\nif (many == 0) @unblock(next_id);", more=NEXT,
        set_up=f"{BIND} @block(next_id);")),
    ("a blocked data task", WIRE, go(SEND_64, "", more=DATA,
                                     set_up=f"{BIND_DATA} @block({DATA_ID});")),
    ("a control wavelet without a task", WIRE, go(
        f"@mov32(end_c, control.encode_single_payload(control.opcode.NOP, false, {{}}, 0)); {SEND}",
        "", more=DATA, set_up=BIND_DATA)),
    ("a blocked microthread", WIRE, go(
        f"@mov16(to_c, mem, {async_(', .ut_id = @get_ut_id(5)')});{HERE}",
        set_up='if (@is_arch("wse3")) @block(@get_ut_id(5));')),
    ("a microthread that still runs", [], go(
        f"@mov16(mem, h8, {async_()});\n@mov16(half, h4, {async_()});{HERE}")),
    ("a local task without code", WIRE, go(f"@activate(next_id);{HERE}")),
    ("a local task without code", WIRE, go(f"@mov16(to_c, mem, {async_(then='next_id')});{HERE}",
                                           f"@mov16(mem, c8); {FREE}")),
    ("no unblock_cmd_stream()", WIRE, go("y[0] = 1;", entry=HERE)),
    ("no unblock_cmd_stream()", WIRE, go("@mov16(to_c, mem);", "@mov16(mem, c8);", entry=HERE)),
    ("no unblock_cmd_stream()", WIRE, go(f"if (many == 0) {{ {FREE} }}", entry=HERE)),
    ("no unblock_cmd_stream()", WIRE, go(f"@activate(next_id);{HERE}\n@activate(next_id);",
                                         more=TWICE, set_up=BIND)),
    ("a circle of waits", BACK, go(f"@mov16(mem, e8);{HERE}\n@mov16(to_c, mem);\n{FREE}",
                                   f"@mov16(mem, c8);\n@mov16(to_e, mem);\n{FREE}")),
    ("a circle of waits", BACK, go(f"@mov16(to_c, most);{HERE}\n@mov16(most, e64);\n{FREE}",
                                   f"@mov16(to_e, most);\n@mov16(most, c64);\n{FREE}")),
    ("a circle of waits", LOOP, go(f"@mov16(to_c, most);{HERE}\n@mov16(most, c64);\n{FREE}")),
    ("an empty FIFO", WIRE, go(f"@mov16(to_c, fifo, {async_()});{HERE}")),
    ("a full FIFO", WIRE, go(SEND, f"@mov16(fifo, c8, {async_()});{HERE}")),
    ("fewer words from the host than taken", [], go(f"@mov16(mem, h8, {async_()});{HERE}")),
    ("fewer words sent than the host reads", [],
     go(f"@mov16(to_h, mem, .{{ .async = true }});{HERE}\n{FREE}")),
    (HELD, [], go(f"@mov16(to_h, most);{HERE}\n{FREE}")),
    (HELD, [], go(f"@mov16(mem, h8);{HERE}\n{FREE}")),
    ("more words sent than taken", [], go(f"@mov16(half, h4);{HERE}\n{FREE}")),
    ("a stream that no PE sends", [], go(FREE)),
]  # fmt: skip


COLLECTIVE = """const c2d = @import_module("<collectives_2d/params>");
layout {{
  @set_rectangle(3, 1);
  for (@range(u16, 3)) |x| {{
    const ids = .{{ @get_local_task_id(14), @get_local_task_id(15) }};
    const row = c2d.get_params(x, 0, .{{
      .x_colors = .{{ @get_color(0), @get_color(1) }}, .x_entrypoints = ids,
    }});
    @set_tile_code(x, 0, "pe.csl",
      .{{ .memcpy_params = memcpy.get_params(x), .x = x, .row = row }});
  }}
"""
LIBRARY = f"""param row;
const mpi = @import_module("<collectives_2d/pe>", .{{
  .dim_params = row.x, .queues = .{{ 5, 6 }},
}});
fn go() void {{
  mpi.init();
  if (x == 0) {{
    @activate(end_id);
  }} else {{
    mpi.broadcast(0, @ptrcast([*]u32, &long), 8, end_id);{HERE}
  }}
}}"""


def report(folder, kind, routes, code, arch):
    """The report of the deadlock, and the place that is marked."""
    layout = LAYOUT.replace(TILES, COLLECTIVE) if "<collectives_2d/pe>" in code else LAYOUT
    texts = {"layout.csl": layout.format(routes="\n".join(routes)), "pe.csl": PE % code}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    marked = [f"{folder / name}:{number}" for name, text in texts.items()
              for number, line in enumerate(text.split("\n"), 1) if HERE in line]  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wafer.csl.CslWarning)
        runtime = wafer.csl.Runtime(wafer.csl.compile(folder / "layout.csl", arch=arch))
    with pytest.raises(wafer.csl.DeadlockError) as caught:
        drive(runtime, kind, code)
    return str(caught.value), marked


def drive(runtime, kind, code):
    """Send what the kind is about, call the function, and read what it is about, or memory."""
    result, short = np.zeros(24, np.uint32), MemcpyDataType.MEMCPY_16BIT
    if "from the host" in kind:
        runtime.memcpy_h2d(6, result[:4], 0, 0, 1, 1, 4, streaming=True, nonblock=True)
    if "(half, h4)" in code:
        runtime.memcpy_h2d(6, result, 0, 0, 1, 1, 24, streaming=True, nonblock=True)
    runtime.launch("go", nonblock=True)
    if "(mem, h8);" in code:
        runtime.memcpy_h2d(6, result, 0, 0, 1, 1, 24, streaming=True, nonblock=True)
    if "(to_h" in code or kind == "a stream that no PE sends":
        runtime.memcpy_d2h(result[:16], 7, 0, 0, 1, 1, 16, streaming=True)
    runtime.memcpy_d2h(result, runtime.get_id("y"), 0, 0, 3, 1, 8, data_type=short)


@pytest.mark.parametrize(("kind", "routes", "code"), ROWS)
def test_the_first_lines_name_the_kind_and_the_line(tmp_path, kind, routes, code):
    arch = "wse3" if kind == "a blocked microthread" or len(code) % 2 else "wse2"
    text, marked = report(tmp_path, kind, routes, code, arch)
    first = "\n".join(text.split("\n")[:3])
    assert f"  {kind}: " in first, text
    assert any(re.search(rf"{re.escape(place)}\b", first) for place in marked) or not marked, text


def test_a_call_of_a_library_is_named(tmp_path):
    """The root of a broadcast does not call it: the others' calls are named, not library lines."""
    text, (marked,) = report(tmp_path, "", [], LIBRARY, "wse3")
    cause = text.split("\n")[1]
    assert "  fewer words sent than taken: PE (1, 0)" in cause, text
    assert f"; called at {marked.rpartition(':')[0]}:" in cause, text
    assert marked in cause, text


@pytest.mark.parametrize(
    ("pes", "said"), [(1, ""), (2, ", and 1 more PE"), (3, ", and 2 more PEs")]
)
def test_other_pes_are_counted_once(tmp_path, pes, said):
    """On each PE a microthread and its task wait at one line for words that no route brings."""
    receive = f"fn receive() void {{ @mov16(mem, c8, {async_()}); @mov16(mem, c8); }}"
    routes = [route(x, "WEST", "RAMP") for x in range(3)]
    text, _ = report(tmp_path, "", routes, go(*["receive();"] * pes, more=receive), "wse3")
    assert re.search(rf"pe\.csl:\d+\){said}$", text.split("\n")[1]), text


def test_the_table_is_wide_enough():
    assert len(ROWS) >= 40
    assert len({kind for kind, *_ in ROWS}) >= 21
