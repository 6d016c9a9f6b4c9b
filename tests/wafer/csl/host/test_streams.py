"""Streams on the machine: in the order of the host's commands, as far as queues hold them."""

import numpy as np
import pytest
from helpers.paths import ROOT

import wafer.csl
from wafer.csl.host.errors import DeadlockError

LAYOUT = ROOT / "tests" / "wafer" / "csl" / "programs" / "streams" / "layout.csl"
STRAIGHT, OUT, WEIGHTS, INPUTS, PRODUCTS = 3, 4, 5, 6, 7  # colors
pytestmark = pytest.mark.native


@pytest.fixture(params=["wse2", "wse3"])
def runtime(request):
    return wafer.csl.Runtime(wafer.csl.compile(LAYOUT, arch=request.param))


def send(runtime, color, words, *, nonblock=True):
    array = np.array(words, np.uint32)
    return runtime.memcpy_h2d(
        color, array, 0, 0, 1, 1, len(array), streaming=True, nonblock=nonblock
    )


def received(runtime, color, count, *, nonblock=False):
    array = np.zeros(count, np.uint32)
    task = runtime.memcpy_d2h(array, color, 0, 0, 1, 1, count, streaming=True, nonblock=nonblock)
    return task if nonblock else array.tolist()


@pytest.mark.parametrize("nonblock", [False, True])
def test_a_stream_begins_once_the_one_before_it_is_used_up(runtime, nonblock):
    """The program drops inputs that come before all weights, 1 + 2 + 3 + 4."""
    send(runtime, WEIGHTS, [1, 2, 3, 4], nonblock=nonblock)
    send(runtime, INPUTS, [5, 6], nonblock=nonblock)
    assert received(runtime, PRODUCTS, 2) == [50, 60]


def test_the_order_of_streams_matters(runtime):
    send(runtime, INPUTS, [5, 6])
    send(runtime, WEIGHTS, [1, 2, 3, 4])
    with pytest.raises(DeadlockError, match=r"PE \(0, 0\) has sent 0 of 2"):
        received(runtime, PRODUCTS, 2)


def test_as_many_words_as_queues_routers_and_ramps_hold(runtime):
    """3 in flight, 4 of input queue 2, 6 or 8 of output queue 3, 3 in flight."""
    most = {"wse2": 3 + 4 + 6 + 3, "wse3": 3 + 4 + 8 + 3}[runtime.image.arch]
    words = list(range(most + 1))
    send(runtime, STRAIGHT, words[:most])
    assert received(runtime, OUT, most) == words[:most]
    with pytest.raises(DeadlockError) as error:
        send(runtime, STRAIGHT, words, nonblock=False)
    lines = str(error.value).split("\n  ")
    assert lines[0].endswith("the host waits for the stream of color 3 to PEs (0, 0) to (0, 0)")
    assert lines[1].startswith(
        "words that the host does not read: PE (0, 0): microthread 3 of pass"
    )
    assert lines[2] == f"PE (0, 0) has taken {most - 3} of {most + 1}"


def test_a_color_without_a_queue_holds_six_words(tmp_path):
    """Of a data task that is blocked; three more are in flight."""
    (tmp_path / "layout.csl").write_text("""
const memcpy = @import_module("<memcpy/get_params>", .{
  .width = 1, .height = 1, .MEMCPYH2D_1 = @get_color(3) });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
}""")
    (tmp_path / "pe.csl").write_text("""
param memcpy_params;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const id = @get_data_task_id(@get_color(3));
task take(v: u32) void {}
comptime { @bind_data_task(take, id); @block(id); }
""")
    runtime = wafer.csl.Runtime(wafer.csl.compile(tmp_path / "layout.csl", arch="wse2"))
    send(runtime, STRAIGHT, range(9), nonblock=False)
    with pytest.raises(DeadlockError, match="has taken 0 of 1"):
        send(runtime, STRAIGHT, [9], nonblock=False)


def test_what_comes_later_waits_for_a_stream_that_nothing_can_answer(runtime):
    first = received(runtime, OUT, 1, nonblock=True)
    later = send(runtime, STRAIGHT, [1])
    with pytest.raises(DeadlockError) as error:
        runtime.task_wait(later)
    lines = str(error.value).split("\n  ")
    assert lines[2].startswith("a stream that waits for an earlier command of the host: PE (0, 0)")
    assert [lines[1], lines[3]] == [
        "the host's commands run in order, and 1 word(s) of each PE in (0, 0) to (0, 0) from the"
        " stream of color 4 comes before it",
        "PE (0, 0) has sent 0 of 1",
    ]
    assert not first.finished


def test_a_stream_waits_for_unblock_cmd_stream(runtime):
    runtime.launch("never")
    with pytest.raises(DeadlockError, match="must lead to unblock_cmd_stream"):
        send(runtime, WEIGHTS, [1], nonblock=False)
