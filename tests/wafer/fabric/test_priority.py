"""Who goes first in a PE: the task's own thread or its microthreads."""

import dataclasses

import numpy as np
import pytest

from wafer import fabric
from wafer.fabric.program.ops import Const, fabin, fabout, fmovs, fmuls, mem, work

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


def hop(grid, start):
    """A color from a column to the next."""
    color = grid.color()
    grid.route(color, "RAMP", "E", grid.x == start)
    grid.route(color, "W", "RAMP", grid.x == start + 1)
    return color


def at(op, priority):
    return dataclasses.replace(op, priority=priority)


def passing_on(main, level):
    """PE 1 passes 8 words on by a microthread while its task computes 20 products."""
    grid = layout(main, 3)
    into, out = hop(grid, 0), hop(grid, 1)
    grid.task("main", [fmovs(fabout(into), mem("a"), 8)], grid.x == 0, active=True)
    forward = at(fmovs(fabout(out), fabin(into), 8, thread=0), level)
    products = fmuls(mem("a"), mem("a"), Const(2.0), 20)
    grid.task("main", [forward, products], grid.x == 1, active=True)
    grid.task("main", [fmovs(mem("a", 8), fabin(out), 8)], grid.x == 2, active=True)
    return grid.build()


def two_senders(levels):
    """PE 0 sends five words to PE 1 by microthread 0, and five to PE 2 by microthread 1."""
    grid = layout(width=3)
    near, far, x = hop(grid, 0), grid.color(), grid.x
    grid.route(far, "RAMP", "E", x == 0)
    grid.route(far, "W", "E", x == 1)
    grid.route(far, "W", "RAMP", x == 2)
    sends = [fmovs(fabout(c), mem("a"), 5, thread=k) for k, c in enumerate((near, far))]
    sends = [at(op, level) for op, level in zip(sends, levels, strict=True)]
    grid.task("main", sends, x == 0, active=True)
    grid.task("main", [fmovs(mem("a"), fabin(near), 5)], x == 1, active=True)
    grid.task("main", [fmovs(mem("a"), fabin(far), 5)], x == 2, active=True)
    return grid.build()


@pytest.mark.native
@pytest.mark.parametrize("levels", LEVELS)
def test_the_higher_level_goes_first_and_the_task_of_equals(levels):
    """Task first: words pass after its 21 cycles. Microthread first: as if there were no task."""
    program = passing_on(*levels)
    state = fabric.simulate(program, {"a": RAMP})
    np.testing.assert_array_equal(fabric.read(program, state, "a")[0, 2, 8:16], RAMP[:8])
    assert int(state.end[0, 2]) == (6 if LEVELS[levels] is FIRST else 21) + 8 + 6
    if LEVELS[levels] is FIRST:
        assert int(state.end[0, 1]) == 21 + 8


@pytest.mark.native
@pytest.mark.parametrize(
    ("levels", "ends"), [(("low", "low"), (7 + 6, 12 + 7)), (("low", "high"), (12 + 6, 7 + 7))]
)
def test_microthreads_of_one_level_go_by_their_ids(levels, ends):
    """Two cycles to start both; then five words of one, and five of the other."""
    state = fabric.simulate(two_senders(levels), {"a": RAMP})
    assert tuple(state.end[0, 1:].tolist()) == ends


@pytest.mark.native
def test_a_microthread_that_still_runs_is_waited_for():
    """The second use of microthread 0 begins once its first words are there; then what follows."""
    grid = layout(width=2)
    c, x = hop(grid, 0), grid.x
    send = [work(30), fmovs(fabout(c), mem("a"), 4)]
    grid.task("main", send, x == 0, active=True)
    take = [fmovs(mem("a", 8 * k), fabin(c), 2, thread=0) for k in (1, 2)]
    take += [work(1, thread=0), fmuls(mem("a", 16), mem("a", 16), Const(2.0), 2)]
    grid.task("main", take, x == 1, active=True)
    program = grid.build()
    state = fabric.simulate(program, {"a": RAMP})
    assert fabric.read(program, state, "a")[0, 1, [8, 9, 16, 17]].tolist() == [1, 2, 6, 8]
    # Four words from cycle 36 on, a cycle more for the second start; one of work, two products.
    assert int(fabric.cycles(state)) == 36 + 4 + 1 + 1 + 2


@pytest.mark.native
def test_what_waits_for_a_microthread_says_so():
    grid = layout(width=2)
    take = fmovs(mem("a"), fabin(hop(grid, 0)), 2, thread=3)
    grid.task("main", [take, work(1, thread=3)], grid.x == 1, active=True)
    with pytest.raises(fabric.DeadlockError, match=r"main .* waits for microthread 3 to end"):
        fabric.simulate(grid.build())


def test_unknown_levels():
    message = "one of .*'low', 'medium', 'high'.* of the task"
    for grid, op in ((layout("low"), work(1)), (layout(), at(work(1, thread=0), "medium_high"))):
        grid.task("main", [op], active=True)
        with pytest.raises(fabric.FabricError, match=message):
            grid.build()
