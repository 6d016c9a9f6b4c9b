"""docs/howto/fabric-program.md, as a stranger would do it: public names alone."""

import numpy as np
import pytest

from wafer import fabric
from wafer.fabric import fabin, fabout, fadds, fmovs, mem


def vector_addition():
    """PE 0 sends its vector through PE 1's router to PE 2, which adds it to its own."""
    layout = fabric.Layout(width=3, overheads=False)
    layout.array("a", 4)
    color = layout.color()
    layout.route(color, rx="RAMP", tx="E", where=layout.x == 0)
    layout.route(color, rx="W", tx="E", where=layout.x == 1)
    layout.route(color, rx="W", tx="RAMP", where=layout.x == 2)
    send = [fmovs(fabout(color), mem("a"), 4)]
    add = [fadds(mem("a"), mem("a"), fabin(color), 4)]
    layout.task("main", send, layout.x == 0, active=True)
    layout.task("main", add, layout.x == 2, active=True)
    return layout.build()


def test_the_sum_and_its_cycles():
    program = vector_addition()
    values = np.array([[[1, 2, 3, 4], [5, 5, 5, 5], [10, 20, 30, 40]]], np.float32)
    state = fabric.simulate(program, {"a": values})
    assert fabric.read(program, state, "a")[0, 2].tolist() == [11, 22, 33, 44]
    # Cycle 0: issued. Ramp 2, router 1, two hops 2, ramp 2: used in cycle 7. Four words: 7 to 10.
    assert int(fabric.cycles(state)) == fabric.count_cycles(program) == 11


def test_a_program_that_waits_is_named():
    lonely = fabric.Layout(width=1, overheads=False)
    lonely.array("a", 1)
    lonely.task("main", [fmovs(mem("a"), fabin(lonely.color()))], active=True)
    with pytest.raises(fabric.RouteError, match=r"PE \(0, 0\), color 0.*no tx RAMP"):
        lonely.build()
