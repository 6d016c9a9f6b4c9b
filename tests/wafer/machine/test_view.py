"""What the view's recording holds: states, words, queues, routes, memory; and its block."""

import base64
import gzip
import re

import numpy as np
import pytest
from helpers.csl_program import compiled, ran
from helpers.paths import ROOT
from helpers.view_lines import LINES, TURNS, lines_executed, lines_shown

import wafer.csl
from wafer import fabric
from wafer.csl import trace
from wafer.errors import CompileError
from wafer.fabric.library import lowering
from wafer.machine.costs import ARCHS
from wafer.machine.engine import available
from wafer.machine.tools.recording import TASK, VIEW
from wafer.machine.tools.view.block import pack, page, unpack

SENDING = ROOT / "tests" / "wafer" / "csl" / "programs" / "sending" / "layout.csl"
COMPUTES, FOR_WORD, TO_SEND = 1, 2, 3
LEAVES, ENTERS, QUEUED, TAKEN, RISES, CLIMBS = range(6)
native = pytest.mark.skipif(not available(), reason="the machine is not built")


def test_a_block_keeps_every_number():
    columns = {
        "up": np.arange(5) * 70_000,
        "any": np.array([3, -(2**31) + 1, 2**31 - 1, 0]),
        "zero": np.zeros(4, int),
        "none": np.zeros(0, int),
    }
    header, again = unpack(pack({"title": "ä"}, columns))
    assert (header["title"], header["version"]) == ("ä", 2)
    assert again.keys() == columns.keys()
    for name, values in columns.items():
        np.testing.assert_array_equal(again[name], values)
    assert pack({}, columns) == pack({}, columns)
    with pytest.raises(CompileError, match="'up' has more than 32 bits"):
        pack({}, {"up": np.array([2**31])})


SHORT = gzip.compress(gzip.decompress(pack({}, {"k": np.arange(9)}))[:-1])


@pytest.mark.parametrize("block", [b"", b"\x1f\x8b", pack({})[:-4], SHORT, page(pack({})).encode()])
def test_other_bytes_are_no_recording(block):
    with pytest.raises(CompileError, match="no recording"):
        unpack(block)


def test_a_damaged_byte_is_refused():
    whole = pack({"title": "a run"}, {"k": np.arange(50) ** 2})
    for at in range(10, len(whole)):  # behind gzip's head
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        with pytest.raises(CompileError, match="no recording"):
            unpack(bytes(damaged))


@pytest.fixture(scope="module")
def sending():
    return wafer.csl.compile(SENDING)


def parts(detail):
    """PE, lane, step and ports of each run, all PEs recorded."""
    key, lanes = detail.runs["key"].astype(int), len(detail.colors) + 8
    return (key >> 5) // (6 * lanes), (key >> 5) // 6 % lanes, (key >> 5) % 6, key & 31


def counted(detail, image, lane, step, ports=None):
    """[PEs] words of a step at a lane."""
    cells, lanes, steps, by = parts(detail)
    rows = (lanes == lane) & (steps == step)
    if ports is not None:
        rows &= by >> ports & 1 == 1
    return np.bincount(cells[rows], detail.runs["count"][rows], image.tiles.size)


@native
def test_words_go_the_way_that_the_cycles_of_the_machine_say(sending):
    seen = ran(sending, record=VIEW).trace
    (out,) = np.flatnonzero(seen.thread == 2)
    begin = int(seen.begin[out])
    cells, lanes, steps, ports = parts(seen.detail)
    numbers = [seen.detail.runs[name] for name in ("begin", "count", "stride")]
    lane = lanes == seen.detail.colors.index(0)
    # Up two cycles, a hop, down two: docs/concepts/machine.md.
    rows = np.stack([numbers[0], cells, *numbers[1:], steps, ports], axis=1)[lane]
    assert [*map(tuple, rows.tolist())] == [
        (begin + 3, 0, 4, 1, LEAVES, 2),
        (begin + 2, 0, 4, 1, ENTERS, 0),
        (begin, 0, 4, 1, RISES, 0),
        (begin + 2, 0, 4, 1, CLIMBS, 0),
        (begin + 4, 1, 4, 1, LEAVES, 16),
        (begin + 3, 1, 4, 1, ENTERS, 0),
        (begin + 5, 1, 4, 1, QUEUED, 0),
        (begin + 6, 1, 4, 1, TAKEN, 0),
    ]
    assert seen.detail.values["word"].tolist() == [1, 2, 3, 4]
    assert seen.detail.routes[["cell", "rx", "tx"]].tolist() == [(0, 16, 2), (1, 1, 16)]


@native
@pytest.mark.parametrize("limit", [9, 40, 100_000])
def test_words_recorded_are_those_of_the_links(sending, limit):
    """Also when a run ends in the middle: no word is lost or counted twice."""
    machine = ran(sending, cycles=limit, record=VIEW)
    detail = machine.trace.detail
    links = machine.links.reshape(-1, 5)
    lane = detail.colors.index(0)
    for port in range(5):
        np.testing.assert_array_equal(counted(detail, sending, lane, LEAVES, port), links[:, port])
    enters, leaves = (counted(detail, sending, lane, step) for step in (ENTERS, LEAVES))
    assert ((enters - leaves >= 0) & (enters - leaves <= 2)).all()  # a router holds two words


@native
@pytest.mark.parametrize(("begin", "windows"), [(0, 2), (0, 3), (13, 4), (0, 256)])
def test_windows_of_links_have_the_words_that_leave_in_their_cycles(sending, begin, windows):
    seen = ran(sending, record=VIEW._replace(begin=begin, windows=windows)).trace
    runs, expected = seen.detail.runs, np.zeros(seen.links.shape, int)
    cells, _, steps, ports = parts(seen.detail)
    for k in np.flatnonzero((steps == LEAVES) & (runs["begin"] >= begin)):
        cycles = runs["begin"][k] + np.arange(runs["count"][k]) * int(runs["stride"][k])
        for port in range(5):
            where = (cycles - begin) // seen.every, 0, cells[k], port
            np.add.at(expected, where, int(ports[k]) >> port & 1)
    np.testing.assert_array_equal(seen.links, expected)


@native
def test_words_of_the_first_cycle_are_recorded():
    """A Layout sends from cycle 0 on: three words of the first column, to the others."""
    state, seen = fabric.trace.record(lowering.broadcast_program(4, 2, 3))
    (color,) = seen.detail.colors
    image, lane = state.machine.image, seen.detail.colors.index(color)
    assert counted(seen.detail, image, lane, RISES).tolist() == [3, 0, 0, 0] * 2
    assert counted(seen.detail, image, lane, TAKEN).tolist() == [0, 3, 3, 3] * 2
    leaves = [counted(seen.detail, image, lane, LEAVES, port) for port in range(5)]
    np.testing.assert_array_equal(np.stack(leaves), state.links.reshape(5, -1))


@native
@pytest.mark.parametrize("drops", ["the filter", "a control wavelet that the CE does not see"])
def test_words_that_a_router_drops_leave_it(drops):
    """PE 1's filter keeps two words of four; or the first one of four is hidden from its CE."""
    filtered = drops == "the filter"
    layout = fabric.Layout(width=2, overheads=False)
    layout.array("a", 4)
    color = layout.color()
    keep = fabric.Filter(kind="range", low=1, high=2) if filtered else None
    layout.route(color, "RAMP", "E", layout.x == 0)
    layout.route(color, "W", "RAMP", layout.x == 1, filter=keep)
    hidden = fabric.mov32(fabric.fabout(color, control=True), fabric.control_wavelet("NOP"), 1)
    words = fabric.mov32(fabric.fabout(color), fabric.mem("a"), 4 if filtered else 3)
    layout.task("main", [words] if filtered else [hidden, words], layout.x == 0, active=True)
    taken = 2 if filtered else 3
    into = fabric.mov32(fabric.mem("a"), fabric.fabin(color), taken)
    layout.task("main", [into], layout.x == 1, active=True)
    values = (np.arange(8, dtype=np.uint32) << 16).view(np.float32).reshape(1, 2, 4)
    state, seen = fabric.trace.record(layout.build(), {"a": values})
    count = lambda *step: counted(seen.detail, state.machine.image, 0, *step).tolist()
    assert (count(ENTERS), count(LEAVES)) == ([4, 4], [4, 4])
    assert (count(LEAVES, 1), count(LEAVES, 4), count(TAKEN)) == ([4, 0], [0, taken], [0, taken])


@native
def test_a_window_counts_the_words_before_it(sending):
    whole, part = (ran(sending, record=VIEW._replace(begin=k)).trace.detail for k in (0, 12))
    lane = whole.colors.index(0)
    for step in range(6):
        before, after = (counted(detail, sending, lane, step) for detail in (whole, part))
        np.testing.assert_array_equal(before, after)
    assert part.runs["begin"].min() >= 11
    states = part.states[part.states["cycle"] < 12]  # what a PE does already
    assert len(states) == len(np.unique(states["cell"])) > 0


def cycles_in(seen, state, cell):
    """Cycles of a PE in a state."""
    rows = seen.detail.states[seen.detail.states["cell"] == cell]
    ends = np.append(rows["cycle"][1:], seen.cycles[1])
    return int((ends - rows["cycle"])[rows["state"] == state].sum())


@native
def test_states_are_the_cycles_that_the_machine_counts(sending, tmp_path):
    machine = ran(sending, record=VIEW)
    seen, switch = machine.trace, ARCHS["wse2"].switch_task
    tasks = np.bincount(seen.x[seen.thread == TASK], minlength=2)
    for cell, worked in enumerate(machine.worked[0][0].tolist()):
        assert cycles_in(seen, COMPUTES, cell) == worked + switch * tasks[cell]
    (into,) = np.flatnonzero(seen.thread == 3)
    rows = seen.detail.states[seen.detail.states["cell"] == 1]
    waits = rows[rows["state"] == FOR_WORD]
    assert sending.programs[1].lines[waits["pc"][0], 1] == seen.line[into]


def shown(machine):
    """[cycles] (file, line) of the first PE, None for no line, as the view's block has them."""
    header, columns = unpack(trace.view(machine).block)
    lines = [(header["files"][file][0], line) for file, line in header["lines"]]
    return [lines[k] if k >= 0 else None for k in lines_shown(header, columns).tolist()]


@native
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", LINES)
def test_each_cycle_has_the_line_that_is_executed(tmp_path, name, arch):
    """A task runs ahead of the clock; the page has each line in the cycles that it takes."""
    image = compiled(tmp_path, LINES[name], arch=arch)
    machine = ran(image, record=VIEW)
    executed, lines = lines_executed(image), shown(machine)
    assert len(set(executed)) >= 4
    rows = machine.trace.detail.states
    begin = int(rows["cycle"][rows["path"] > 0][0])
    assert begin == machine.trace.begin[0] + ARCHS[arch].switch_task
    assert lines[begin : begin + len(executed)] == executed


@native
def test_turns_of_a_loop_are_few_rows(tmp_path):
    machine = ran(compiled(tmp_path, LINES["loop"]), record=VIEW)
    states = machine.trace.detail.states
    assert states["turns"].max() > 5
    assert machine.cycle > 20 * TURNS > 200 * len(states)


@native
@pytest.mark.parametrize("begin", [37, 1_000])
def test_a_window_has_the_lines_of_the_whole_run(tmp_path, begin):
    image = compiled(tmp_path, LINES["branches"])
    whole, part = (shown(ran(image, record=VIEW._replace(begin=k))) for k in (0, begin))
    assert part == whole[begin:]
    assert len(set(part)) >= 4


@native
def test_sampled_states_have_the_lines_of_their_cycles(tmp_path):
    image = compiled(tmp_path, LINES["branches"])
    whole = shown(ran(image, record=VIEW))
    machine = ran(image, cycles=100, record=VIEW._replace(states=12))
    while machine.run(100) == wafer.csl.Status.LIMIT:
        pass
    every, lines = machine.trace.detail.sampled, shown(machine)
    assert 1 < every < 1_000
    assert lines[::every] == whole[::every]


@native
def test_lines_of_scalar_code_have_the_cycles_of_the_profile(tmp_path):
    machine = ran(compiled(tmp_path, LINES["branches"]), record=VIEW)
    profile = {line: count for line, count in machine.profile.items() if count}
    lines, seen = shown(machine), machine.trace
    # The switch to a task is no line's cycle in the profile.
    begins = [(seen.files[k], line) for k, line in zip(seen.file, seen.line.tolist(), strict=True)]
    switches = {line: begins.count(line) * ARCHS["wse2"].switch_task for line in profile}
    assert {line: lines.count(line) - switches[line] for line in profile} == profile


@native
def test_what_has_not_ended_lasts_until_the_end(tmp_path):
    """An operation that waits for ever, and a task in the cycle of its fault."""
    waits = """
const c = @get_color(4);
const iq = @get_input_queue(2);
const IN = @get_dsd(fabin_dsd, .{ .fabric_color = c, .extent = 1, .input_queue = iq });
const Y = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{1} -> y[i] });
fn go() void { @mov32(Y, IN, .{ .async = true }); }
comptime { @initialize_queue(iq, .{ .color = c }); }
"""
    route = ".{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } }"
    routes = f"@set_color_config(0, 0, @get_color(4), {route});"
    seen = ran(compiled(tmp_path, waits, routes=routes), record=VIEW).trace
    assert seen.end[seen.thread == 2].tolist() == [seen.cycles[1]]
    fault = "fn go() void {\n  var k: u16 = 5;\n  y[k * 5000] = 3;\n}\n"
    machine = wafer.csl.Machine(compiled(tmp_path, fault), record=VIEW)
    machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
    machine.run()
    assert machine.fault
    assert machine.trace.end.tolist() == [machine.cycle + 1]


@native
def test_a_pe_that_can_not_send_waits_to_send(tmp_path):
    text = """
const c = @get_color(4);
const OUT = @get_dsd(fabout_dsd, .{
  .fabric_color = c, .extent = 40, .output_queue = @get_output_queue(2) });
fn go() void { @mov32(OUT, 7, .{ .async = true }); } // refused while compiling if the task waited
"""
    route = ".{ .routes = .{ .rx = .{ EAST }, .tx = .{ WEST } } }"
    routes = f"@set_color_config(0, 0, @get_color(4), {route});"
    image = compiled(tmp_path, text, routes=routes)
    machine = ran(image, cycles=200, record=VIEW)
    seen = machine.trace
    assert seen.detail.states["state"][-1] == TO_SEND
    lane = seen.detail.colors.index(4)
    held = counted(seen.detail, image, lane, RISES) - counted(seen.detail, image, lane, CLIMBS)
    queue = len(seen.detail.colors) + 2
    queued = counted(seen.detail, image, queue, QUEUED) - counted(seen.detail, image, queue, TAKEN)
    assert (held.tolist(), queued.tolist()) == ([2], [6])  # the ramp, and output queue 2 of WSE-2


@native
def test_limits_are_kept_and_said(sending):
    small = VIEW._replace(states=6, words=3, values=2)
    machine = ran(sending, record=small)
    view = trace.view(machine)
    header, columns = unpack(view.block)
    assert header["sampled"] > 1
    assert len(columns["state"]) <= 6
    assert 0 < header["words_until"] < header["cycles"][1]
    assert 0 < header["values_until"] < header["cycles"][1]
    said = " ".join(header["notes"])
    for text in ("states every", "single words until cycle", "values of words until cycle"):
        assert text in said
    whole = ran(sending, record=VIEW).trace.detail.states
    sampled = machine.trace.detail.states
    for cell in (0, 1):  # what is kept is the state of its cycle
        rows, own = (s[s["cell"] == cell] for s in (sampled, whole))
        at = np.searchsorted(own["cycle"], rows["cycle"], side="right") - 1
        np.testing.assert_array_equal(rows["state"], own["state"][at])
    moved = np.zeros(10)
    np.add.at(moved, columns["link_index"] % 10, columns["link_words"])
    assert moved.sum() <= machine.links.sum()


@native
def test_a_recording_of_a_part_names_the_end_of_the_run(sending):
    """The report and memory are of the end, which is not on the page then."""
    whole = ran(sending, record=VIEW)
    part = ran(sending, record=VIEW._replace(end=whole.cycle // 2))
    notes = [unpack(trace.view(machine).block)[0]["notes"] for machine in (whole, part)]
    texts = [[text for text in lines if text.startswith("until cycle")] for lines in notes]
    end = f"until cycle {whole.cycle // 2:,}; the run ended in cycle {whole.cycle:,} (--to)"
    assert texts == [[], [end]]


@native
def test_a_recording_of_the_view_does_not_depend_on_the_threads(sending):
    tall = sending._replace(
        tiles=np.tile(sending.tiles, (4, 1)),
        **{n: np.tile(getattr(sending, n), (4, 1, *[1] * (getattr(sending, n).ndim - 2)))
           for n in ("colors", "switches", "routed", "filters", "route_lines")},
    )  # fmt: skip
    one, other = (trace.view(ran(tall, threads=n, record=VIEW)).block for n in (1, 3))
    assert one == other


@native
def test_memory_is_what_the_machine_reads(sending):
    machine = ran(sending, record=VIEW)
    header, columns = unpack(trace.view(machine).block)
    program = header["programs"][int(columns["tile"][1])]
    (at, kept) = next((s[2], s[3]) for s in program["symbols"] if s[0] == "y")
    start = int(columns["memory_start"][1]) + at
    held = columns["memory"][start : start + kept].astype(np.uint8).view("<i4")
    assert held.tolist() == [11, 2, 3, 4]


@native
def test_without_its_limits_nothing_of_the_view_is_kept(sending):
    detail = ran(sending, record=wafer.csl.Recording()).trace.detail
    assert [len(rows) for rows in detail[:4]] == [0, 0, 0, 0]


@native
def test_scripts_that_make_many_machines_record_the_first(sending):
    from wafer.machine.engine import machine_for
    from wafer.machine.tools.recording import recorded

    with recorded(VIEW) as machines:
        for _ in range(10):
            machine_for(sending)
    assert len(machines) == 8
    assert machines[0].trace.detail.colors


def test_the_live_page_of_the_docs_is_the_page_as_it_is():
    text = (ROOT / "docs" / "pictures" / "find-the-mistake.html").read_text(encoding="utf-8")
    (block,) = re.findall(r'id="block">([^<]+)<', text)
    header, _ = unpack(base64.b64decode(block))
    assert "nothing can move any more" in header["ending"]
    assert page(base64.b64decode(block)) == text, (
        "run docs/howto/find-the-mistake.md, copy its page"
    )


def test_the_page_needs_no_network_and_little_room():
    text = page(pack({}))
    assert len(text) <= 300_000
    assert not re.findall(r"(?:src|href)=[\"']?https?:|@import|fetch\(|XMLHttpRequest", text)
