"""Layouts written in Python: programs run and read back, paths and colors by hand, errors."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from wafer.csl import CslError, DeadlockError, HostError
from wafer.csl.host.artifacts import load
from wafer.csl.regions import (
    FP16TYPE,
    Color,
    Edge,
    IntRectangle,
    IntVector,
    Route,
    RoutingPosition,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_edge_routing,
    get_platform,
)
from wafer.csl.regions.colors import AllocationError, ColorGroup, allocate, joined, meetings
from wafer.csl.regions.paths import Hop, find_exit, find_lanes, find_path
from wafer.csl.regions.routing import Sides, registers_of
from wafer.machine.tools.recording import Recording, recorded
from wafer.vendor.sdk.sdk import SdkRuntime

W, E, S, N, RAMP = Route
PROGRAMS = Path(__file__).parent / "programs" / "regions"


@pytest.fixture(params=SdkTarget)
def layout(request, tmp_path, monkeypatch):
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return SdkLayout(get_platform(None, SimfabConfig(dump_core=True), request.param))


def inward(*routes):
    return RoutingPosition().set_output(routes or (RAMP,))


def outward(*routes):
    return RoutingPosition().set_input(routes or (RAMP,))


def sender(layout, name, height, edge=Edge.RIGHT, size=None):
    region = layout.create_code_region("send.csl", name, 1, height)
    for y in range(height):
        region.set_param(IntVector(0, y), "base", 10 * y)
    tx = region.color("tx")
    region.set_param_all(tx)
    return region, region.create_output_port(tx, edge, [outward()], size or 3 * height)


def taker(layout, name, width, height, edge, size=None):
    region = layout.create_code_region("take.csl", name, width, height)
    rx = region.color("rx")
    region.set_param_all(rx)
    return region, region.create_input_port(rx, edge, [inward()], size or 3 * width * height)


def finished(layout):
    runtime = SdkRuntime(layout.compile(), get_platform(None), memcpy_required=False)
    runtime.load()
    runtime.run()
    runtime.stop()
    return runtime


def test_the_kth_pe_of_a_port_sends_to_the_kth_pe_of_the_other(layout):
    """Three paths of one color around a corner, whose first one must not block the others."""
    region, out = sender(layout, "from", 3)
    region.place(0, 4)
    other, into = taker(layout, "to", 3, 1, Edge.BOTTOM)
    other.place(3, 1)
    layout.connect(out, into)
    runtime = finished(layout)
    for k in range(3):
        assert runtime.read_symbol(3 + k, 1, "data").tolist() == [10 * k, 10 * k + 1, 10 * k + 2]
    numbers = json.loads((runtime._folder / "colors.json").read_text(encoding="utf-8"))
    assert numbers["from.tx"] == numbers["to.rx"]


def test_neighboring_ports_need_no_path(layout):
    _, out = sender(layout, "from", 2)
    other, into = taker(layout, "to", 1, 2, Edge.LEFT)
    other.place(1, 0)
    layout.connect(out, into)
    runtime = finished(layout)
    assert runtime.read_symbol(1, 1, "data").tolist() == [10, 11, 12]


def echo(layout):
    region = layout.create_code_region("negate.csl", "neg", 1, 1)
    rx, tx = Color("rx"), Color("tx")
    region.set_param_all(rx)
    region.set_param_all(tx)
    region.place(2, 1)
    into = region.create_input_port(rx, Edge.RIGHT, [inward()], 5)
    out = region.create_output_port(tx, Edge.TOP, [outward()], 5)
    return layout.create_input_stream(into), layout.create_output_stream(out)


def test_streams_of_the_host_pass_the_fabrics_edge(layout):
    to, back = echo(layout)
    runtime = SdkRuntime(layout.compile("o"), get_platform(None)).__enter__()
    data, result = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    runtime.send(to, data[:2])
    runtime.receive(back, result, 2)
    assert result.tolist() == [0, -1, 0, 0, 0]
    last = runtime.receive(back, result[2:], 3, nonblock=True)
    assert not runtime.is_task_done(last)
    runtime.send(runtime.get_port_id(to), data[2:], nonblock=True)
    runtime.stop()
    assert result.tolist() == [0, -1, -2, -3, -4]


def test_a_stream_that_brings_too_little_is_a_deadlock(layout):
    to, back = echo(layout)
    runtime = SdkRuntime(layout.compile(), get_platform(None)).__enter__()
    runtime.send(to, np.zeros(2, np.float32))
    zeros = np.zeros(5, np.float32)
    with pytest.raises(
        DeadlockError, match=r"'neg.tx'\n  fewer words .*\n  PE \(\d, 0\) has sent 2 of 5"
    ):
        runtime.receive(back, zeros, 5)
    for match, call in {
        r"'neg.rx' takes words from the host: send": lambda: runtime.receive(to, zeros, 5),
        r"'neg.tx' sends words to the host: receive": lambda: runtime.send(back, zeros),
        r"no stream 'x' of a .* there are 'neg.rx'": lambda: runtime.send("x", zeros),
        "5 words for an array of 4": lambda: runtime.receive(back, zeros[:4], 5),
    }.items():
        with pytest.raises(HostError, match=match):
            call()


def test_a_matrix_is_cut_into_tiles_for_the_pes(layout):
    region = layout.create_code_region("hold.csl", "h", 2, 2)
    region.place(1, 0)
    matrix = np.arange(24, dtype=np.float32).reshape(4, 6)
    region.set_symbol_all("m", matrix.ravel(), 6, 4)
    runtime = finished(layout)
    image = load("out")
    assert image.presets[0].values.shape == (2, 2, 24)
    for x in range(2):
        for y in range(2):
            tile = matrix[2 * y : 2 * y + 2, 3 * x : 3 * x + 3]
            found = runtime.read_symbol(1 + x, y, "m").view(np.float32)
            assert found.tolist() == tile.ravel().tolist()


def test_runs_are_recorded_like_others(layout):
    _, out = sender(layout, "from", 1)
    other, into = taker(layout, "to", 1, 1, Edge.LEFT)
    other.place(3, 0)
    layout.connect(out, into)
    with recorded(Recording()) as runtimes:
        finished(layout)
    assert runtimes[0].trace.begin.size
    assert runtimes[0].trace.links.sum() == 3 * 4  # words over 3 links and down the ramp


def test_painted_routes_and_params_of_parts(layout):
    """Sender and receiver of one region: params of one PE, a rectangle, all; edges replace."""
    region = layout.create_code_region("take.csl", "r", 3, 1)
    color = Color("rx", 5)
    start = layout.create_code_region("send.csl", "s", 1, 1)
    start.set_param_all("base", 7)
    start.set_param_all("tx", color)
    start.paint_all(color, [RoutingPosition().set_input([RAMP]).set_output([E])])
    region.place(1, 0)
    region.set_param_range(IntRectangle(IntVector(0, 0), IntVector(3, 1)), color)
    both = RoutingPosition().set_input([W]).set_output([RAMP, E])
    last = RoutingPosition().set_input([W]).set_output([RAMP])
    region.paint_all(color, [both], [get_edge_routing(Edge.RIGHT, [last])])
    runtime = finished(layout)
    assert [runtime.read_symbol(x, 0, "data").tolist() for x in (1, 2, 3)] == [[7, 8, 9]] * 3
    assert load("out").routed[0, 3, 5]


def test_switch_positions_as_registers():
    """By hand: rx WEST, tx RAMP; then tx EAST; then rx NORTH. Codes: input bit 8, then the side."""
    first, second, third = Sides(1 << W, 1 << RAMP), Sides(1 << W, 1 << E), Sides(1 << N, 1 << E)
    assert registers_of([first]) == (1 << 4 | 1 << 5, 0x555)
    assert registers_of([first, second, third]) == (1 << 4 | 1 << 5, 0x500 | (8 | N) << 4 | E)
    with pytest.raises(ValueError, match="position 1 changes inputs and outputs"):
        registers_of([first, third])
    on_wse3 = registers_of([first, third], both=True)
    assert on_wse3 == (1 << 4 | 1 << 5, 0x550 | 8 | N | (1 + E) << 16)
    with pytest.raises(ValueError, match="position 1 has 2 outputs"):
        registers_of([first, Sides(1 << W, 3)])
    with pytest.raises(ValueError, match="4 switch positions, found 5"):
        registers_of([first, second] * 2 + [first])


def test_paths_by_hand():
    inside = lambda cell: 0 <= cell[0] < 4 and 0 <= cell[1] < 3
    assert find_path((0, 0), E, (1, 0), W, inside) == []
    around = find_path((0, 0), E, (0, 2), E, inside)
    assert around == [Hop((1, 0), W, S), Hop((1, 1), N, S), Hop((1, 2), N, W)]
    assert find_path((0, 0), W, (0, 2), E, inside) is None
    wall = lambda cell: inside(cell) and cell[0] != 2
    assert find_path((0, 0), E, (3, 0), W, wall) is None
    outside = lambda cell: not inside(cell)
    assert find_exit((0, 1), W, inside, outside) == []
    assert find_exit((1, 1), E, inside, outside) == [Hop((2, 1), W, E), Hop((3, 1), W, E)]


def test_lanes_share_no_router():
    inside = lambda cell: 0 <= cell[0] < 6 and 0 <= cell[1] < 6
    ends = [((0, k), (5, k)) for k in range(4)]
    lanes = find_lanes(ends, E, W, lambda cell: inside(cell) and cell not in {(2, 1), (2, 2)})
    cells = [hop.cell for lane in lanes for hop in lane or ()]
    assert len(cells) == len(set(cells))
    assert None in lanes  # two of them would cross the others


def test_colors_by_hand():
    groups = joined("abcd", [("a", "b"), ("b", "c")])
    assert groups["a"] == groups["c"] == ("a", "b", "c")
    assert groups["d"] == ("d",)
    a, b, c = ColorGroup(("a",), None), ColorGroup(("b",), 0), ColorGroup(("c",), None)
    right, left = (Sides(1 << RAMP, 1 << E),), (Sides(1 << RAMP, 1 << W),)
    used = {(0, 0): {a: right}, (1, 0): {b: left}, (2, 0): {c: left}}
    meets = meetings(used)
    assert meets == {a: {b: (1, 0)}, b: {a: (1, 0), c: (1, 0)}, c: {b: (1, 0)}}
    assert allocate(meets, [], "wse2") == {b: 0, a: 1, c: 1}
    crowd = {ColorGroup((str(k),), None): {} for k in range(21)}
    crowd = {net: {other: (3, 4) for other in crowd if other != net} for net in crowd}
    assert sorted(allocate(crowd, crowd, "wse2").values()) == list(range(21))
    with pytest.raises(AllocationError, match=r"no color is left .* 20 others, .* 16 with switch"):
        allocate(crowd, crowd, "wse3")
    with pytest.raises(AllocationError, match=r"color 10 of 'x' is none of 0, .* on WSE-3"):
        allocate({ColorGroup(("x",), 10): {}}, [ColorGroup(("x",), 10)], "wse3")
    clash = {
        ColorGroup(("x",), 3): {ColorGroup(("y",), 3): (1, 2)},
        ColorGroup(("y",), 3): {ColorGroup(("x",), 3): (1, 2)},
    }
    with pytest.raises(AllocationError, match=r"color 3 is given to .* meet at PE \(1, 2\)"):
        allocate(clash, [], "wse2")


def hold(layout, width=1, height=1, name="a", file="hold.csl"):
    return layout.create_code_region(file, name, width, height)


def join(layout, start, end, column=0):
    """Place a taker in a column and connect a sender's port with its port."""
    end[0].place(column, 0)
    layout.connect(start[1], end[1])


def meet(layout):
    """Two colors of one PE that a connection makes one."""
    region = hold(layout, file="negate.csl")
    into = region.create_input_port(Color("rx"), Edge.LEFT, [inward()], 5)
    layout.connect(region.create_output_port(Color("tx"), Edge.RIGHT, [outward()], 5), into)


def recolor(layout):
    region = hold(layout)
    region.paint_all(Color("c", 3), [inward().set_input([W])])
    region.create_input_port(Color("c", 4), Edge.LEFT, [inward()], 1)


def take(layout, height=1, **options):
    return taker(layout, "b", 1, height, Edge.LEFT, **options)


BOTH = RoutingPosition().set_input([W]).set_output([RAMP])


WRONG = {
    r"regions 'a' and 'b' both have PE \(0, 0\)\n.*\n.*\n.*b\.place": (
        lambda g: [sender(g, "a", 2), sender(g, "b", 1)]
    ),
    "'a.tx' has 4 words, and 'b.rx' 3": (lambda g: join(g, sender(g, "a", 1, size=4), take(g), 3)),
    "'a.tx' has 2 PEs, and 'b.rx' 3": lambda g: join(g, sender(g, "a", 2), take(g, 3, size=6)),
    r"no path from 'a.tx' at PE \(0, 0\) to 'b.rx' at .*[^$]*looks out": (
        lambda g: join(g, sender(g, "a", 1, Edge.LEFT), take(g), 3)
    ),
    "[^$]*'b.rx' looks at region 'wall'; leave PEs between": (
        lambda g: hold(g, name="wall").place(3, 0) or join(g, sender(g, "a", 1), take(g), 4)
    ),
    "'a.tx' has 2 PEs, and a stream of the host goes to one": (
        lambda g: g.create_output_stream(sender(g, "a", 2)[1])
    ),
    "'a.rx' is an input port; expected an output port": (
        lambda g: g.create_output_stream(taker(g, "a", 1, 1, Edge.LEFT)[1])
    ),
    r"port 'a.tx' is used twice, first at .*test_csl_layouts\.py": (
        lambda g: [g.create_output_stream(port) for port in [sender(g, "a", 1)[1]] * 2]
    ),
    "hold.csl has no param 'siz'": lambda g: hold(g).set_param_all("siz", 1),
    "'n' of PE .* is a u16 of 2 bytes, and gets 1 values of float64, 8 bytes": (
        lambda g: hold(g).set_symbol_all("n", np.zeros(1), 1, 1)
    ),
    "9 values as 3 x 3 cannot be cut into equal tiles for 1 x 2 PEs": (
        lambda g: hold(g, 2).set_symbol_all("m", np.zeros(9), 3, 3)
    ),
    "position 0 of color 'c' has no outputs": (
        lambda g: hold(g).paint_all(Color("c"), [outward()])
    ),
    "a position of port 'a.c' has outputs and no inputs": (
        lambda g: hold(g).create_input_port(Color("c"), Edge.LEFT, [BOTH], 1)
    ),
    "color 'c' is given as 3 and as 4": recolor,
    r"color 3 is given to 'd' and to 'c', which meet at PE \(0, 0\)": (
        lambda g: [r.paint_all(Color(c, 3), [BOTH]) for r in [hold(g)] for c in "cd"]
    ),
    r"'rx' and 'tx' meet at PE \(0, 0\), and connections make them one color": meet,
    "there is no file nothing.csl": lambda g: hold(g, file="nothing.csl"),
    r"\(2, 0\) to \(3, 1\) is not inside of region 'a' of 2 x 2 PEs": (
        lambda g: hold(g, 2, 2).set_param(IntVector(2, 0), "n", 1)
    ),
}


@pytest.mark.parametrize("match", WRONG)
@pytest.mark.parametrize("layout", [SdkTarget.WSE3], indirect=True)
def test_errors_name_the_line_of_the_script(layout, match):
    with pytest.raises(CslError, match=match) as error:  # noqa: PT012 -- by one or the other
        WRONG[match](layout)
        layout.compile()
    assert "test_csl_layouts.py:" in str(error.value)


def test_there_is_no_system(layout):
    with pytest.raises(HostError, match="only the simulator"):
        get_platform("10.0.0.1:9000")
    with pytest.raises(HostError, match="no region"):
        layout.compile()


@pytest.mark.native
def test_the_format_of_16_bit_floats(layout, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "six.csl").write_text("const six = 6.0;", encoding="utf-8")
    text = """const six: @fp16() = @import_module("<six>").six;
    export var word: u16 = @bitcast(u16, six);"""
    (tmp_path / "six_pe.csl").write_text(text, encoding="utf-8")
    layout.create_code_region("six_pe.csl", "p", 1, 1)
    folder = layout.compile(libs=["lib"], f16_type=FP16TYPE.BF16)
    assert load(folder).half == "bf16"
    runtime = SdkRuntime(folder, get_platform(None))
    assert runtime.read_symbol(0, 0, "word", "uint16").tolist() == [0x40C0]
    with pytest.raises(TypeError, match=r"compile\(\) got .* 'f16_tipe'; did you mean 'f16_type'"):
        layout.compile(f16_tipe=FP16TYPE.BF16)
    with pytest.raises(TypeError, match=r"^SdkRuntime\(\) got .* 'mesg_level'; did you mean 'msg_"):
        SdkRuntime(folder, get_platform(None), mesg_level="INFO")
    with pytest.raises(TypeError, match=r"argument 'num_thread'; did you mean 'num_threads'"):
        SimfabConfig(num_thread=1)
