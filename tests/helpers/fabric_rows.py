"""Random programs of a row of PEs in which one sends to the next, or words pass on."""

import hypothesis.strategies as st

from wafer import fabric
from wafer.fabric.program.ops import fabin, fabout, fmovs, mem, work


def random_row(words, delays, hops):
    layout = fabric.Layout(5, overheads=False)
    layout.array("a", 16)
    layout.array("b", 16)
    x = layout.x
    for index, (start, length) in enumerate(hops):
        c = layout.color(index)
        layout.route(c, "RAMP", "E", x == start)
        layout.route(c, "W", "E", (x > start) & (x < start + length))
        layout.route(c, "W", "RAMP", x == start + length)
    for pe in range(5):
        ops = [work(delays[pe])]
        for index, (start, length) in enumerate(hops):
            if pe == start:
                ops.append(fmovs(fabout(index), mem("a"), words[index]))
            if pe == start + length:
                ops.append(fmovs(mem("b"), fabin(index), words[index]))
        layout.task("main", [*ops, *[work(1)] * (3 - len(ops))][:3], x == pe, active=True)
    return layout.build()


ROW = st.tuples(
    st.lists(st.integers(1, 16), min_size=2, max_size=2),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.sampled_from([((0, 1), (2, 2)), ((0, 2), (1, 3)), ((0, 4), (1, 1)), ((0, 3), (1, 3))]),
)
