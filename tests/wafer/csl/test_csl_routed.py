"""Operations on colors that lead nowhere: errors of the layout where every run executes them."""

import numpy as np
import pytest
from helpers.csl_wire import TEXTS, route, wire

import wafer.csl
from wafer.csl import CslError

SEND = "@mov16(out, d);"
GO = TEXTS["pe.csl"].partition("fn go() void {\n")[2].partition("}\ncomptime")[0]


FIRST, MIDDLE, LAST = route(0, "RAMP", "EAST"), route(1, "WEST", "EAST"), route(2, "WEST", "RAMP")


def compiled(tmp_path, routes, arch="wse2", send=SEND, words=40):
    """PE 0 sends, PE 2 takes, and nothing goes on before."""
    send = f"fn send() void {{ {send} }}\n"
    take = "fn take() void { if (x == 2) { @mov16(d, in); } }\n"
    body = "  if (x == 0) { send(); } else { take(); }\n  sys_mod.unblock_cmd_stream();\n"
    changes = [(GO, body), ("fn go()", f"{send}{take}fn go()")]
    return wire(tmp_path, changes, routes=routes, arch=arch, strict=True, width=3, words=words)


OWN = "add RAMP to {} of the color's .routes at this PE (@set_color_config)"
NEXT = "add WEST to .rx of color 4 at PE ({}, 0)"
OF_PE_0 = "PE (0, 0) sends on color 4, "
WRONG = [
    (MIDDLE + LAST, OF_PE_0 + "and its router has no route for it", OWN.format(".rx")),
    (route(0, "WEST", "EAST") + MIDDLE + LAST, OF_PE_0 + "and its router has no RAMP in .rx",
     OWN.format(".rx")),
    (FIRST + MIDDLE, OF_PE_0
     + "which PE (1, 0) routes to the EAST, and PE (2, 0) has no route for it", NEXT.format(2)),
    (FIRST + route(1, "NORTH", "EAST") + LAST, OF_PE_0
     + "which PE (0, 0) routes to the EAST, and PE (1, 0) takes it from NORTH", NEXT.format(1)),
    (FIRST + MIDDLE + route(2, "WEST", "EAST"),
     "PE (2, 0) receives from color 4, and its router has no RAMP in .tx", OWN.format(".tx")),
]  # fmt: skip


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("routes", "message", "hint"), WRONG)
def test_a_color_that_leads_nowhere(tmp_path, arch, routes, message, hint):
    with pytest.raises(CslError) as caught:
        compiled(tmp_path, routes, arch)
    found = caught.value.problems[0]
    line = 22 if "receives" in message else 21
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
    "send",
    [
        "if (turn == 1) @mov16(out, d);",  # no run executes it
        "while (turn > 0) { @mov16(out, d); turn -= 1; }",  # a loop of no rounds
        "if (turn == 0) return; @mov16(out, d);",
        "@mov16(out, d, .{ .async = true });",  # nothing waits for its end
    ],
)
def test_code_for_a_route_that_carries_nothing(tmp_path, send):
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
