"""The guide's table of mistakes: one right program, a change that spoils it, what is said of it."""

import re

import numpy as np
import pytest
from helpers.csl_wire import wire
from helpers.paths import ROOT

import wafer.csl
from wafer.csl import CslError, DeadlockError, FaultError, HostError
from wafer.csl.host.region import MemcpyDataType

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
    ("@initialize_queue(iq, .{ .color = c });", "", FaultError,
     "no color is bound to input queue 2; call @initialize_queue first"),
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
]  # fmt: skip


def run(tmp_path, *changes):
    """What the program does, up to the second PE's words."""
    runtime = wafer.csl.Runtime(wire(tmp_path, changes, arch="wse3"))
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
        run(tmp_path, (old, new))
    assert said in str(caught.value)


def test_the_hosts_mistakes(tmp_path):
    runtime, _ = run(tmp_path)
    with pytest.raises(HostError, match="9 items of 32 bits for each PE; 'y' of type"):
        runtime.memcpy_h2d(runtime.get_id("y"), np.zeros(9, np.uint32), 0, 0, 1, 1, 9)
    with pytest.raises(HostError, match=r"did you mean 'y'\?|The layout exports go, y"):
        runtime.get_id("yy")


def test_the_guide_quotes_what_is_said():
    text = (ROOT / "docs" / "guides" / "csl.md").read_text(encoding="utf-8")
    for *_, said in MISTAKES:
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
