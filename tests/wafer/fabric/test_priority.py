"""Who goes first in a PE: the task's own thread or its microthreads, in both engines."""

import dataclasses

import numpy as np
import pytest
from helpers.fabric_stack import run_stacked

from wafer import fabric
from wafer.fabric.program.ops import fabin, fabout, fmovs, mem, work

RAMP = np.arange(32, dtype=np.float32) + 1
FIRST, LAST = True, False

# (main_thread_priority, priority of the microthread) -> whether the microthread goes first
LEVELS = {
    ("high", "low"): LAST,
    ("high", "high"): LAST,
    ("medium_high", "medium"): LAST,
    ("medium_high", "high"): FIRST,
    ("medium", "medium"): LAST,
    ("medium", "high"): FIRST,
    ("medium_low", "low"): LAST,
    ("medium_low", "medium"): FIRST,
}


def layout(main="high", width=1):
    grid = fabric.Layout(width, main_thread_priority=main, overheads=False)
    grid.array("a", 32)
    return grid


def at(op, priority):
    return dataclasses.replace(op, priority=priority)


def beside_a_task(main, level):
    """The microthread writes words 8..12, which the task reads from the next cycle on."""
    grid = layout(main)
    copy = at(fmovs(mem("a", 8), mem("a"), 5, thread=0), level)
    grid.task("main", [copy, fmovs(mem("a", 16), mem("a", 8), 5)], active=True)
    return grid.build()


def beside_each_other(levels):
    """Thread 0 writes words 8..12, thread 1 reads them; the task ends as they begin."""
    grid = layout()
    copies = [
        fmovs(mem("a", 8), mem("a"), 5, thread=0),
        fmovs(mem("a", 16), mem("a", 8), 5, thread=1),
    ]
    grid.task(
        "main", [at(op, level) for op, level in zip(copies, levels, strict=True)], active=True
    )
    return grid.build()


def passing_on(main, level):
    """PE 1 passes 8 words on by a microthread while its task computes 20 cycles."""
    grid = layout(main, 3)
    into, out = grid.color(), grid.color()
    grid.route(into, "RAMP", "E", grid.x == 0)
    grid.route(into, "W", "RAMP", grid.x == 1)
    grid.route(out, "RAMP", "E", grid.x == 1)
    grid.route(out, "W", "RAMP", grid.x == 2)
    grid.task("main", [fmovs(fabout(into), mem("a"), 8)], grid.x == 0, active=True)
    forward = at(fmovs(fabout(out), fabin(into), 8, thread=0), level)
    grid.task("main", [forward, work(20)], grid.x == 1, active=True)
    grid.task("main", [fmovs(mem("a", 8), fabin(out), 8)], grid.x == 2, active=True)
    return grid.build()


CASES = (
    {f"task {a}, microthread {b}": beside_a_task(a, b) for a, b in LEVELS}
    | {
        f"microthreads {a}, {b}": beside_each_other((a, b))
        for a, b in (("low", "low"), ("low", "high"))
    }
    | {f"passing on, {a}": passing_on(a, "high") for a in ("high", "medium")}
)


def run(implementation):
    values = [{"a": RAMP}] * len(CASES)
    programs = list(CASES.values())
    if implementation == "jax":
        states = run_stacked(programs, values, 400)
    else:
        states = fabric.run_many(programs, values, 400, implementation)
    return dict(zip(CASES, states, strict=True))


@pytest.fixture(scope="module")
def reference():
    return run("jax")


def words(states, name):
    return np.asarray(fabric.read(CASES[name], states[name], "a"))[0]


@pytest.mark.parametrize(
    "levels",
    [
        ("medium", "medium"),
        ("medium", "high"),
        *(pytest.param(two, marks=pytest.mark.slow) for two in LEVELS if two[0] != "medium"),
    ],
)
def test_the_higher_level_goes_first_and_the_task_of_equals(reference, levels):
    got = words(reference, f"task {levels[0]}, microthread {levels[1]}")[0, 16:21]
    np.testing.assert_array_equal(got, RAMP[:5] if LEVELS[levels] is FIRST else RAMP[8:13])


def test_microthreads_of_one_level_go_by_their_ids(reference):
    np.testing.assert_array_equal(words(reference, "microthreads low, low")[0, 16:21], RAMP[:5])
    got = words(reference, "microthreads low, high")[0, 16:21]
    np.testing.assert_array_equal(got, RAMP[8:13])


def test_a_stream_through_a_busy_pe_waits_for_its_task_or_does_not(reference):
    """Task first: words pass after its 21 cycles. Microthread first: as if there were no task."""
    for main, cycles in (("high", 21 + 8 + 6), ("medium", 6 + 8 + 6)):
        state, name = reference[f"passing on, {main}"], f"passing on, {main}"
        np.testing.assert_array_equal(words(reference, name)[2, 8:16], RAMP[:8])
        assert int(state.end[0, 2]) == cycles
    assert int(reference["passing on, medium"].end[0, 1]) == 21 + 8


@pytest.mark.native
def test_both_engines_leave_the_same_state(reference):
    for name, state in run("native").items():
        want = reference[name]
        for leaf in ("mem", "busy", "end", "links", "cycle", "progress", "fault"):
            np.testing.assert_array_equal(
                getattr(state, leaf), getattr(want, leaf), f"{name}: {leaf}"
            )


def test_unknown_levels():
    for grid, op in (
        (layout("low"), work(1)),
        (layout(), at(work(1, thread=0), "medium_high")),
    ):
        grid.task("main", [op], active=True)
        with pytest.raises(
            fabric.FabricError, match=r"one of .*'low', 'medium', 'high'.* of the task"
        ):
            grid.build()
