"""The guide's table of mistakes: one right program, a change that spoils it, what is said of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.csl_wire import wire
from helpers.paths import ROOT

import wafer.csl
from wafer.csl import CslError, CslWarning, DeadlockError, FaultError, HostError
from wafer.csl.host.region import MemcpyDataType
from wafer.errors import CompileError

TAKES = "    @mov16(d, in, .{ .async = true, .activate = done });\n"
UNBLOCK = "  sys_mod.unblock_cmd_stream();\n"
GO = "fn go() void {\n"
NO_ROWS = (
    "const e = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{0, 4} -> y[i + j] });\n"
    + GO
    + "  @add16(d, %s, d);\n"
)
FROM_RAMP = ".rx = .{ RAMP }, .tx = .{ EAST }"
FROM_WEST = ".rx = .{ WEST }, .tx = .{ RAMP }"
SECOND_ROUTE = f"  @set_color_config(1, 0, c, .{{ .routes = .{{ {FROM_WEST} }} }});\n"


# The change of the program, and words of the message that the guide quotes.
MISTAKES = [
    (FROM_RAMP, ".rx = .{ NORTH }, .tx = .{ EAST }", DeadlockError,
     "the router to let in color 4 from RAMP, which takes it from NORTH"),
    (SECOND_ROUTE, "", CslError,
     "PE (1, 0) receives from color 4, and its router has no route for it"),
    (FROM_WEST, ".rx = .{ SOUTH }, .tx = .{ RAMP }", DeadlockError,
     "to take color 4 from its WEST, which takes it from SOUTH"),
    (FROM_RAMP, ".rx = .{ RAMP }, .tx = .{ SOUTH }", DeadlockError,
     "function go waits for data of color 4"),
    (UNBLOCK, "", DeadlockError, "host waits for unblock_cmd_stream() after function go"),
    (TAKES, "    sys_mod.unblock_cmd_stream();\n", None,
     "a task or operation that takes the wavelet of color 4 at the head of its queue"),
    ("@export_symbol(go);", "@block(done); @export_symbol(go);", DeadlockError,
     "end (local task 9) waits for being unblocked (it is activated)"),
    (TAKES, 3 * TAKES, DeadlockError, "function go waits for microthread 2 to end its operation"),
    (GO, GO + "  @fmach(d, d, d, d);\n", CslError, "the last operand of @fmach is a number"),
    (GO, "var sum: f16 = 0.0;\n" + GO + "  @fmach(&sum, sum, d, 2.0);\n", CslError,
     "the destination of @fmach is no pointer"),
    ("@initialize_queue(iq, .{ .color = c });", "", CslError,
     "no color is bound to input queue 2 of PE (1, 0)"),
    ("task end()", "task end(x: u16)", CslError, "a local task has no parameters; 'end' has"),
    (".fabric_color = c, .input_queue", ".fabric_color = @get_color(5), .input_queue",
     CslError, "input_queue 2 has color 4, and its descriptor says 5"),
    (".extent = words, .fabric_color = c, .input_queue",
     ".extent = 5, .fabric_color = c, .input_queue",
     CslError, "5 elements of 2 bytes reach beyond 'y' of type [4]u16"),
    (GO, NO_ROWS % "e", CslError,
     "a mem4d_dsd has an extent of 0 beside operands of 4 elements"),
    (GO, NO_ROWS % "@increment_dsd_offset(e, @as(i16, y[0]), u16)", FaultError,
     "an operand has an extent of 0 beside operands that have elements"),
    (UNBLOCK, "  @assert(y[0] == 9);\n", FaultError, "@assert failed at "),
    (UNBLOCK, "  y[y[0] * 9000] = 1;\n", FaultError, "is outside of the "),
    ("fn()void", "fn(i16)void", CslError, "'go' is a fn()void, and the layout exports a fn"),
    (".x = x,", "", CslError, "pe.csl has no value"),
    ("@mov16(d, in,", "@mov16(d, out,", CslError, "a fabout_dsd cannot be read"),
    ("@mov16(out, d,", "@mov16(in, d,", CslError, "a fabin_dsd cannot be written"),
    ("@get_local_task_id(9)", "@get_local_task_id(5)", CslError, "ids go from 8 to 30, found 5"),
]  # fmt: skip


SHORT = """var two = @zeros([2]u16);
const e = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{2} -> two[i] });
fn go() void {
  @mov16(d, e);
"""
# The change, the file and line that are named, and words of the warning that the guide quotes.
WARNINGS = [
    ("@get_color(4)", "@get_color(21)", "layout.csl:12", "memcpy keeps color 21 on wse3"),
    ("@get_input_queue(2)", "@get_input_queue(1)", "pe.csl:30",
     "memcpy keeps input queue 1 on wse3"),
    ("@get_output_queue(3)", "@get_output_queue(0)", "pe.csl:31",
     "memcpy keeps output queue 0 on wse3"),
    ("@get_local_task_id(9)", "@get_local_task_id(27)", "pe.csl:29",
     "memcpy keeps local task 27 on wse3"),
    ("@bind_local_task(end, done);", "", "pe.csl:23",
     "local task 9 is activated here, and no task is bound to it"),
    (UNBLOCK, "  @activate(@get_local_task_id(11));\n", "pe.csl:19",
     "local task 11 is activated here, and no task is bound to it"),
    (".extent = words, .fabric_color = c, .input_queue",
     ".extent = 5, .fabric_color = c, .input_queue", "pe.csl:25",
     "5 elements of 2 bytes reach beyond 'y' of type [4]u16"),
    ("@initialize_queue(iq, .{ .color = c });", "", "pe.csl:25",
     "no color is bound to input queue 2 of PE (1, 0)"),
    (GO, SHORT, "pe.csl:24", "operands in memory of different lengths (4, 2)"),
    ('@export_name("go", fn()void);', '@export_name("go", fn()void); @export_name("g", fn()void);',
     "layout.csl:14", "no PE exports 'g', which the layout exports"),
    (".x = x,", ".x = x, .words_of = 4,", "layout.csl:8", "pe.csl has no param 'words_of'"),
    ("task end()", "fn end()", "pe.csl:29", "expected a task, found the function 'end'"),
    ("@export_symbol(go);", "@export_symbol(go); @block(@get_data_task_id(c));", "pe.csl:32",
     "a data task of wse3 has the id of its input_queue, found 4 of type color"),
]  # fmt: skip
# Of WSE-2.
OLDER = [
    ("@get_output_queue(3)", "@get_output_queue(6)", "@get_output_queue(6): ids go from 0 to 5"),
    ("@bind_local_task(end, done);",
     "@bind_local_task(end, done); @bind_data_task(word, @get_data_task_id(@get_color(9)));",
     "id 9 is bound to 'end' and to 'word'"),
]  # fmt: skip
# Options, and words of the error.
OPTIONS = [
    ({"width": "two"}, "--params=width:two: the param 'width' is of type i16, found 'two'"),
    ({"width": "70000"}, "--params=width:70000: the param 'width' is of type i16, found 70000"),
    ({"c": "red"}, "there is no param 'c' in this file"),
]


def run(tmp_path, *changes, strict=False):
    """What the program does, up to the second PE's words."""
    runtime = wafer.csl.Runtime(wire(tmp_path, changes, arch="wse3", strict=strict))
    runtime.launch("go", nonblock=True)
    result, short = np.zeros(8, np.uint32), MemcpyDataType.MEMCPY_16BIT
    runtime.memcpy_d2h(result, runtime.get_id("y"), 0, 0, 2, 1, 4, data_type=short)
    return runtime, result


def test_the_program_is_right(tmp_path):
    assert run(tmp_path)[1].tolist() == [7] * 8


@pytest.mark.parametrize(("old", "new", "error", "said"), MISTAKES)
def test_what_is_said(tmp_path, old, new, error, said):
    if error is None:
        runtime, _ = run(tmp_path, (old, new))
        assert said in "\n".join(map(str, runtime.machine.waiting()))
        return
    with pytest.raises(error) as caught:
        run(tmp_path, (old, new), strict=error is CslError)
    assert said in str(caught.value)


@pytest.mark.parametrize(("old", "new", "place", "said"), WARNINGS)
def test_what_is_warned_of(tmp_path, old, new, place, said):
    with pytest.warns(CslWarning) as caught:
        wire(tmp_path, [(old, new)], arch="wse3")
    first = caught[0]
    assert said in str(first.message)
    assert f"{Path(first.filename).name}:{first.lineno}" == place
    with pytest.raises(CslError) as refused:
        wire(tmp_path, [(old, new)], arch="wse3", strict=True)
    assert said in str(refused.value)


@pytest.mark.parametrize(("old", "new", "said"), OLDER)
def test_what_is_said_of_wse2(tmp_path, old, new, said):
    task = ("fn go()", "task word(value: u16) void {}\nfn go()")
    with pytest.raises(CslError) as caught:
        wire(tmp_path, [(old, new), task])
    assert said in str(caught.value)


@pytest.mark.parametrize(("params", "said"), OPTIONS)
def test_params_of_another_type(tmp_path, params, said):
    with pytest.raises(CslError) as caught:
        wire(tmp_path, **params)
    assert said in str(caught.value)


def test_a_fabric_larger_than_the_wafer_and_an_unknown_release(tmp_path):
    wire(tmp_path)
    layout = tmp_path / "layout.csl"
    with pytest.raises(CslError, match=f"a fabric of {10**20 - 1} x 1 PEs; that of wse2 has 757 x"):
        wafer.csl.compile(layout, fabric=(10**20 - 1, 1))
    with pytest.raises(CompileError, match=r"'9\.9' is no release of the SDK; there are 0\.4 to"):
        wafer.csl.compile(layout, sdk="9.9")
    with pytest.raises(CompileError, match="no architecture 'wse4'; expected one of wse2, wse3"):
        wafer.csl.compile(layout, arch="wse4")


def test_the_hosts_mistakes(tmp_path):
    runtime, _ = run(tmp_path)
    with pytest.raises(HostError, match="9 items of 32 bits for each PE; 'y' of type"):
        runtime.memcpy_h2d(runtime.get_id("y"), np.zeros(9, np.uint32), 0, 0, 1, 1, 9)
    with pytest.raises(HostError, match=r"did you mean 'y'\?|The layout exports go, y"):
        runtime.get_id("yy")
    with pytest.raises(HostError, match="there is no symbol 'y': get_id gives 0 to 1"):
        runtime.memcpy_h2d("y", np.zeros(4, np.uint32), 0, 0, 1, 1, 4)
    fixed = np.zeros(2, np.uint32)
    fixed.flags.writeable = False
    with pytest.raises(HostError, match=r"array of shape \(2,\) is read-only; pass"):
        runtime.memcpy_d2h(fixed, runtime.get_id("y"), 0, 0, 1, 1, 2)


def test_what_the_host_writes_is_mutable(tmp_path):
    mutable = '"y", [*]u16, true'
    runtime, _ = run(tmp_path, (mutable, mutable.replace("true", "false")))
    with pytest.warns(CslWarning, match="the layout exports 'y' as not mutable"):
        runtime.memcpy_h2d(runtime.get_id("y"), np.zeros(2, np.uint32), 0, 0, 1, 1, 2)


def test_the_guide_quotes_what_is_said():
    text = (ROOT / "docs" / "guides" / "csl.md").read_text(encoding="utf-8")
    for *_, said in (*MISTAKES, *WARNINGS, *OLDER):
        assert said in text, said
    assert re.search("9 items of 32 bits for each PE", text)


@pytest.mark.parametrize("verb", ["writes", "reads"])
def test_an_operation_beyond_its_variable(tmp_path, verb):
    """Six words of four: the next variable's too, or a fault at the descriptor if that is asked."""
    operation = {"writes": "@mov16(long, x);", "reads": "@mov16(&sum, long);"}[verb]
    long = "    const long = @set_dsd_length(d, six);\n"
    changes = [
        ("var ptr", "var next = @zeros([4]u16);\nvar sum: u16 = 1;\nvar six: u16 = 6;\nvar ptr"),
        ("= @constants([words]u16, 7)", "= @zeros([4]u16)"),  # beside the other zeros
        (TAKES, f"{long}    {operation}\n    next[0] += 1;\n" + UNBLOCK),
    ]
    image = wire(tmp_path, changes)
    runtime = wafer.csl.Runtime(image)
    runtime.launch("go")
    runtime.stop()
    assert (
        runtime.read_symbol(1, 0, "next").tolist()
        == {"writes": [2, 1, 0, 0], "reads": [1, 0, 0, 0]}[verb]
    )
    runtime = wafer.csl.Runtime(image, check_bounds=True)
    with pytest.raises(FaultError) as caught:
        runtime.launch("go")
    assert re.search(
        rf"pe\.csl:\d+: PE \(1, 0\), function go: an operation {verb} beyond 'y' of type \[4\]u16:"
        r" bytes 0 to 11 of 8; shorten its descriptor",
        str(caught.value),
    )


def test_a_copy_of_other_sizes_than_its_array_or_variable(tmp_path):
    """A host array of more items than are copied, and a read beyond the variable, are warned of."""
    runtime, _ = run(tmp_path)
    y, short = runtime.get_id("y"), MemcpyDataType.MEMCPY_16BIT
    with pytest.warns(CslWarning, match=r"array has 9 item\(s\); 4 for each PE in .* are 4, and"):
        runtime.memcpy_h2d(y, np.arange(9, dtype=np.uint32), 0, 0, 1, 1, 4, data_type=short)
    with pytest.raises(HostError, match=r"array has 3 item\(s\); 4 for each PE in .* are 4"):
        runtime.memcpy_h2d(y, np.zeros(3, np.uint32), 0, 0, 1, 1, 4, data_type=short)
    with pytest.warns(CslWarning, match=r"has room for 4, and the rest is read from") as caught:
        runtime.memcpy_d2h(np.zeros(5, np.uint32), y, 0, 0, 1, 1, 5, data_type=short)
    assert Path(caught[0].filename) == Path(__file__)
