"""Checks before the run, traces, the timing plane, and invariants on random programs."""

import dataclasses
import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from helpers.fabric_rows import ROW, random_row

from wafer import fabric
from wafer.fabric import count_cycles, planes, trace
from wafer.fabric.library import kernel_programs, lowering
from wafer.fabric.program.ops import (
    control_wavelet,
    exit_teardown,
    fabin,
    fabout,
    faddh,
    fmovs,
    mem,
    mov32,
    work,
)
from wafer.machine.base import Status
from wafer.machine.tools.recording import OWN_THREAD, TASK
from wafer.spec import WSE2, WSE3, WaferSpec

EAST = {"rx": "RAMP", "tx": "E"}
WRONG = {
    r"PE \(2, 0\), color 0: tx E points off the grid of 3x2": (
        lambda g: g.route(g.color(), **EAST) or g.build()
    ),
    r"PE \(0, 0\), color 4: sent E, but the neighbour there never takes": (
        lambda g: g.route(g.color(4), **EAST, where=g.x == 0) or g.build()
    ),
    r"color 24 is not routable: use 0..23": lambda g: g.color(24),
    r"no color left: wse2 routes 24": lambda g: [g.color() for _ in range(25)],
    r"PE \(0, 0\), color 0: switch position 1 changes rx and tx": (
        lambda g: g.route(g.color(), **EAST, switches=[{"rx": "W", "tx": "RAMP"}])
    ),
    r"5 switch positions": lambda g: g.route(g.color(), **EAST, switches=[{"tx": "W"}] * 4),
    r"unknown port 'UP'": lambda g: g.route(g.color(), "RAMP", "UP"),
    r"PE \(0, 0\), color 0: fmovs uses it, but the PE's router has no tx RAMP": (
        lambda g: with_task(g, fmovs(mem("a"), fabin(g.color()), 4), active=True)
    ),
    r"PE \(0, 0\), color 0: data task 't' waits for a color": (
        lambda g: with_task(g, work(1), color=g.color())
    ),
    "control wavelets are uint32; use mov32": (
        lambda g: with_task(g, fmovs(fabout(g.color(), control=True), control_wavelet("NOP")))
    ),
    r"PE \(0, 0\), task 't': fmovs: words 2 to 5 of array 'a', which has 4": (
        lambda g: with_task(g, fmovs(mem("a", 2), mem("a"), 4))
    ),
    "microthread 9; a PE has 8": lambda g: with_task(g, work(1, thread=9)),
    "wse2 offers 750x994": lambda g: fabric.Layout(757, 996, host_io=True),
}


def with_task(layout, op, **options):
    """Build a program of one operation on an array of four words."""
    layout.array("a", 4)
    layout.task("t", [op], **options)
    layout.build()


@pytest.mark.parametrize("match", WRONG)
def test_routes_memory_and_operations_are_checked_before_the_run(match):
    with pytest.raises(fabric.FabricError, match=match):
        WRONG[match](fabric.Layout(3, 2, overheads=False))


def test_figures_of_the_wafers():
    with pytest.raises(fabric.SramError, match=r"PE \(0, 0\): 49156 bytes"):
        fabric.Layout(3, 2).array("a", 12289)
    with pytest.raises(ValueError, match="at least 2 words"):
        WaferSpec(input_queue_depths=(1,) * 8)
    assert WSE3.switch_both_sides
    assert WSE2.hop_to_hop == 6
    assert WSE2.seconds(850) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("op", "match"),
    [
        (work(1).then("activate", "u"), r"work: activate 'u': bound tasks are \['t'\]"),
        (faddh(mem("a"), mem("b"), mem("a"), 2), "faddh: no array 'b'"),
        (mov32(fabout(7), mem("a"), 2), "mov32: color 7 is not declared"),
        (fmovs(mem("a"), 3.0), "fmovs: source 3.0; expected one of Mem, FabIn, Const"),
        (fmovs(fabin(0), mem("a"), 4), r"fmovs: destination FabIn\(color=0\); expected one of Mem"),
        (fmovs(mem("a"), mem("a"), 2.0), "n=2.0: unknown or empty"),
        (exit_teardown(0, 4), r"exit_teardown: position 4 of color 0; it has 0..3"),
        (exit_teardown(1), "exit_teardown: color 1 is not declared"),
    ],
)
def test_operations_are_checked_by_name_pe_and_task(op, match):
    layout = fabric.Layout(3, 2)
    layout.array("a", 4)
    layout.route(layout.color(), "RAMP", "RAMP")
    layout.task("t", [op], (layout.x == 1) & (layout.y == 1), active=True)
    with pytest.raises(fabric.FabricError, match=r"^PE \(1, 1\), task 't': .*" + match):
        layout.build()


def test_values_have_the_shape_of_all_pes_or_of_one():
    layout = fabric.Layout(3, 2)
    layout.array("a", 4)
    layout.array("u", 2, "uint32")
    layout.task("t", [work(1)], active=True)
    program = layout.build()
    full = np.arange(24).reshape(2, 3, 4)
    for values in (full, full[0, 0], 5):
        read = fabric.simulate(program, {"a": values}).arrays["a"]
        np.testing.assert_array_equal(read, np.broadcast_to(values, full.shape))
    for shape in ((3, 4), (1, 3, 4), (2, 1, 4), (2, 3, 1), (1,), (2, 3, 5), (3, 2, 4)):
        with pytest.raises(
            fabric.FabricError, match=rf"'a': got.*{shape[0]}.*expected \[2, 3, 4\]"
        ):
            fabric.simulate(program, {"a": np.zeros(shape)})
    for values in ([0.5, 1], [-1, 2], [2**32, 0]):
        with pytest.raises(fabric.FabricError, match=r"'u': .* that uint32 does not hold"):
            fabric.simulate(program, {"u": np.array(values)})


@pytest.mark.native
@pytest.mark.parametrize("overheads", [False, True])
def test_words_agree_with_closed_forms(overheads):
    """Two blocks of 512 PEs, so that words carry into their neighbours."""
    program = lowering.chain_program(700, 3, 40, overheads=overheads)
    want = 40 + 6 * 699 + (WSE2.task_start if overheads else 0)
    assert count_cycles(program) == want
    assert count_cycles(lowering.broadcast_program(600, 40, 33, 520)) == 33 + 520 + 5


@pytest.mark.native
def test_words_may_lie_at_any_multiple_of_8_bytes():
    header, (part,) = planes.plane_parts(lowering.chain_program(20, 1, 5, overheads=False))
    room = np.empty(part.size + 8, part.dtype)
    for offset in range(8):
        moved = room[offset : offset + part.size].reshape(part.shape)
        moved[:] = part
        assert planes.run_parts(header, [moved]) == 5 + 6 * 19


@pytest.mark.native
def test_rows_that_differ_are_all_counted():
    """The last of three rows alone has a launch of 9 cycles; a fourth one does nothing."""
    layout = fabric.Layout(2, 4, overheads=False)
    layout.array("a", 4)
    c = layout.color()
    layout.route(c, "RAMP", "E", (layout.x == 0) & (layout.y < 3))
    layout.route(c, "W", "RAMP", (layout.x == 1) & (layout.y < 3))
    for where, launch in ((layout.y < 2, 0), (layout.y == 2, 9)):
        send = dataclasses.replace(fmovs(fabout(c), mem("a"), 4), launch=launch)
        layout.task("t", [send], where & (layout.x == 0), active=True)
        take = fmovs(mem("a"), fabin(c), 4)
        layout.task("t", [take], where & (layout.x == 1), active=True)
    program = layout.build()
    assert count_cycles(program) == int(fabric.cycles(fabric.simulate(program))) == 9 + 4 + 6


@pytest.mark.slow
@pytest.mark.native
def test_scalar_allreduce_of_the_bicgstab_paper():
    """V2: 602 x 595 PEs, 1.5 us within 10 % (Rocki et al., SC'20)."""
    cycles = count_cycles(lowering.quadrant_allreduce_program(602, 595))
    assert cycles == 1228
    assert abs(WSE2.seconds(cycles) / 1.5e-6 - 1) < 0.1


@pytest.mark.native
def test_without_the_plane_the_machine_counts(monkeypatch):
    program = lowering.chain_program(3, 1, 2)
    assert count_cycles(program) == 2 + 6 * 2
    monkeypatch.setattr(planes, "available", lambda: False)
    assert count_cycles(program) == 2 + 6 * 2


def test_faults_and_deadlocks_of_the_plane():
    def line(senders, receive):
        """The west of three PEs sends two words to the east; the middle one passes them on."""
        layout = fabric.Layout(3, overheads=False)
        layout.array("a", 4)
        c, x = layout.color(), layout.x
        layout.route(c, "RAMP", "E", x == 0)
        layout.route(c, ("RAMP", "W"), "E", x == 1)
        layout.route(c, "W", "RAMP", x == 2)
        layout.task("t", [fmovs(fabout(c), mem("a"), 2)], x < senders, active=True)
        layout.task("t", [fmovs(mem("a"), fabin(c), receive)], x == 2, active=True)
        return layout.build()

    with pytest.raises(fabric.FaultError):
        count_cycles(line(2, 4))
    with pytest.raises(fabric.DeadlockError):
        count_cycles(line(1, 4))


@pytest.mark.native  # the JAX machine records nothing
def test_traces(tmp_path):
    """Column 0 sends three words, the others receive them: one task and one operation of a PE."""
    program = lowering.broadcast_program(4, 2, 3)
    state, film = trace.record(program)
    own = film.thread == OWN_THREAD
    assert film.x[own].tolist() == [0, 1, 2, 3] * 2
    assert film.end[own].tolist() == [3, 9, 10, 11] * 2  # a hop later in each column
    assert film.end[film.thread == TASK].tolist() == [3, 9, 10, 11] * 2
    assert film.elements[own].tolist() == [3] * 8
    np.testing.assert_array_equal(film.links.sum(axis=0), np.moveaxis(state.links, 0, -1))
    events = trace.chrome_trace(film, str(tmp_path / "t.json"))["traceEvents"]
    (sent, *_) = [e for e in events if e["name"] == "fmovs(fabout(0), x, n=3)"]
    assert (sent["ts"], sent["dur"], sent["args"]["of"]) == (0, 3, "main (local task 0)")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == events
    trace.timeline(film, str(tmp_path / "l.png"))
    figure = trace.heat_map(state, "east", str(tmp_path / "h.png"))
    assert figure.axes[0].images[0].get_array()[0, 0] == pytest.approx(3 / 11)
    trace.heat_map(film, "task", str(tmp_path / "h.png"))
    with pytest.raises(ValueError, match="'up'; there are"):
        trace.heat_map(state, "up")


@pytest.mark.native
def test_a_recording_of_some_cycles_and_pes():
    """Operations by their text, microthreads apart; PE (0, 0) alone, up to a cycle."""
    program = kernel_programs.summa_program(2, 2, 2, 2)
    state, whole = trace.record(program, cycles=200)
    assert state.status is Status.LIMIT
    assert whole.cycles == (0, 200)
    spent = {line.text: line.cycles for line in trace.profile(whole)}
    assert {0, 1} <= {*whole.thread.tolist()}  # microthreads
    assert "fmacs(c, c, a[0], b[0], n=2)" not in spent
    assert "fmovs(fabout(0), a, n=4)" in spent
    _, corner = trace.record(program, rectangle=(0, 0, 1, 1), end=77)
    assert {*corner.x.tolist(), *corner.y.tolist()} == {0}
    assert corner.cycles == (0, 77)


@hypothesis.settings(max_examples=6)
@hypothesis.given(rows=st.lists(ROW, min_size=4, max_size=4), seed=st.integers(0, 99))
def test_wavelets_are_conserved_in_order_and_links_never_exceed_one(rows, seed):
    a = np.random.default_rng(seed).standard_normal((1, 5, 16)).astype(np.float32)
    programs = [random_row(*row) for row in rows]
    states = [fabric.simulate(program, {"a": a}, 500) for program in programs]
    for (words, _, hops), program, state in zip(rows, programs, states, strict=True):
        total = int(fabric.cycles(state))
        assert int(state.links.max()) <= total  # never above one word per link and cycle
        for n, (start, length) in zip(words, hops, strict=True):
            got = np.asarray(fabric.read(program, state, "b"))[0, start + length, :n]
            np.testing.assert_array_equal(got, a[0, start, :n])  # none lost, none reordered
        assert int(state.links[4].sum()) == sum(words)
        assert int(state.links[1].sum()) == sum(
            n * length for n, (_, length) in zip(words, hops, strict=True)
        )
        assert count_cycles(program) == total
