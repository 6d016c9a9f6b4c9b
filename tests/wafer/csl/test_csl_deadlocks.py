"""Reports of deadlocks: sides and layout lines of routers, causes before what they hold up."""

import re

import numpy as np
import pytest
from helpers.csl_wire import route, wire

import wafer.csl
from wafer.machine.tools.causes import by_cause
from wafer.machine.tools.reports import Reason, Waiting


def deadlock(tmp_path, *routes, width=2, arch="wse2"):
    """The error of the wire's program, in which every PE has code for both ends."""
    roles = [("x == 0", "role == 0")]
    runtime = wafer.csl.Runtime(
        wire(tmp_path, roles, routes="".join(routes), width=width, words=20, arch=arch)
    )
    runtime.launch("go", nonblock=True)
    with pytest.raises(wafer.csl.DeadlockError) as caught:
        runtime.memcpy_d2h(np.zeros(width, np.uint32), runtime.get_id("y"), 0, 0, width, 1, 1)
    return caught.value


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_color_without_a_route_is_named_at_its_sender(tmp_path, arch):
    error = deadlock(tmp_path, route(1, "WEST", "RAMP"), arch=arch)
    first = error.waiting[0]
    assert (first.x, first.y, first.outside) == (0, 0, True)
    assert str(first) == (
        "PE (0, 0): router waits for the router to let in color 4 from RAMP, which has no route"
        " for color 4"
    )


RIGHT = route(0, "RAMP", "EAST")


@pytest.mark.parametrize(
    ("routes", "refused", "said"),
    [
        ((route(0, "NORTH", "EAST"), route(1, "WEST", "RAMP")), None,
         r"the router to let in color 4 from RAMP, which takes it from NORTH \("
         r".*layout\.csl:12\).*layout\.csl:12\)"),  # said there, and its own line
        ((RIGHT, route(1, "NORTH", "RAMP")), "EAST",
         r"PE \(1, 0\) to the EAST to take color 4 from its WEST, which takes it from NORTH \("
         r".*layout\.csl:13\).*layout\.csl:12\)$"),
        ((RIGHT,), "EAST", r"to take color 4 from its WEST, which has no route for color 4 \("),
    ],
)  # fmt: skip
def test_a_way_that_ends(tmp_path, routes, refused, said):
    first = deadlock(tmp_path, *routes).waiting[0]
    assert (first.x, first.refused) == (0, (refused,) if refused else first.refused)
    assert re.match(rf"PE \(0, 0\): router waits for .*{said}", str(first)), str(first)


def test_the_cause_comes_first_and_all_are_kept(tmp_path):
    """A chain of 30 PEs, each passing on and taking; the last but one sends back: one cause."""
    routes = [route(0, "RAMP", "EAST")]
    routes += [route(x, "WEST", "RAMP, EAST") for x in range(1, 28)]
    routes += [route(28, "NORTH", "RAMP"), route(29, "WEST", "RAMP")]
    error = deadlock(tmp_path, *routes, width=30)
    lines = str(error).split("\n")
    assert len(error.waiting) > 30
    said = "PE (27, 0): router waits for PE (28, 0) to the EAST to take"
    assert lines[1].startswith(f"  a neighbor that takes no word: {said}")
    shown = [line for line in lines if line.startswith("  PE ")]
    assert shown[0].startswith(f"  {said}")
    assert lines[-1] == f"  and {len(error.waiting) - len(shown)} more: see .waiting"
    assert {27, 28, 29} <= {each.x for each in error.waiting}


def test_chains_by_hand():
    """Two PEs; color 4 goes from the first one's ramp to the second's."""
    colors = np.zeros((1, 2, 24), np.int32)
    colors[0, 0, 4], colors[0, 1, 4] = 16 << 5 | 2, 1 << 5 | 16
    none = np.zeros((1, 2), np.int32)
    image = wafer.csl.Image(
        arch="wse2", programs=(), tiles=none - 1, colors=colors,
        switches=np.full_like(colors, 0x555),
        routed=none, filters=none, exports=(), streams={}, params={},
    )  # fmt: skip
    data = Waiting(1, 0, "task", "data", "", 0, 1, 4)
    blocked = Waiting(0, 0, "task", "being unblocked", "", 0, 6, 9)
    assert by_cause(image, [data, blocked]) == [blocked, data]
    router = Waiting(0, 0, "router", "room", "", 0, Reason.IN_ROUTER, 4, full=("EAST",))
    unread = Waiting(1, 0, "queue", "a task", "", 0, 7, 4)
    last = Waiting(1, 0, "router", "room", "", 0, Reason.IN_ROUTER, 4, full=("RAMP",))
    assert by_cause(image, [router, last, unread]) == [unread, router, last]
    room = Waiting(0, 0, "task", "room", "", 0, 2, 3)
    never = router._replace(full=(), refused=("EAST",))
    assert by_cause(image, [blocked, room, never]) == [never, blocked, room]
    assert by_cause(image, ["b", "a"]) == ["b", "a"]  # of the JAX machine


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_a_receiver_that_no_route_leads_to(tmp_path, arch):
    error = deadlock(tmp_path, route(0, "RAMP", "WEST"), arch=arch)
    waits = next(each for each in error.waiting if "data of color 4" in each.reason)
    assert waits.reason == "data of color 4, which no route of this PE brings to RAMP"
