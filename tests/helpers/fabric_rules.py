"""A program of 1 to 4 PEs for every rule of the machine."""

import numpy as np

from wafer import fabric
from wafer.fabric.program.ops import (
    Const,
    Op,
    WaveletArg,
    activate,
    block,
    control_wavelet,
    exit_teardown,
    fabin,
    fabout,
    faddh,
    fadds,
    fmacs,
    fmaxs,
    fmovs,
    fmulh,
    fmuls,
    fsubs,
    mem,
    mov32,
    unblock,
    work,
)

CASES = {}


def case(**values):
    """Register a program builder; ``values`` are its initial arrays."""

    def register(build):
        CASES[build.__name__] = (build(), values)
        return build

    return register


def line(width, height=1):
    """A layout with one array of 32 float32 words."""
    layout = fabric.Layout(width, height, overheads=False)
    layout.array("a", 32)
    return layout


def wire(layout, start=0, hops=1, color=None):
    """A color that leads east from a PE over ``hops`` hops into the last PE's CE."""
    color, x, end = layout.color(color), layout.x, start + hops
    layout.route(color, "RAMP", "E", x == start)
    if hops > 1:
        layout.route(color, "W", "E", (x > start) & (x < end))
    layout.route(color, "W", "RAMP", x == end)
    return color


def built(layout, *mains):
    """The program with main tasks of PEs, from the west on; None has no task."""
    for x, ops in enumerate(mains):
        if ops is not None:
            layout.task("main", ops, layout.x == x, active=True)
    return layout.build()


RAMP32 = np.arange(32, dtype=np.float32) + 1


@case(a=RAMP32)
def straight_code():
    ops = [fmovs(mem("a", 8), mem("a"), 5), fadds(mem("a"), mem("a"), mem("a", 8), 4)]
    return built(line(1), ops)


@case(a=RAMP32)
def launch_overheads():
    layout = fabric.Layout(1, overheads=True)
    layout.array("a", 32)
    return built(layout, [fmovs(mem("a", 8), mem("a"), 5)] * 2)


@case(h=np.arange(10))
def sixteen_bit_simd():
    layout = fabric.Layout(1, overheads=False)
    layout.array("h", 10, "float16")
    return built(layout, [faddh(mem("h"), mem("h"), Const(0.5), 10)])


@case(a=RAMP32)
def strides():
    rows = mem("a", 0, 1, inner=2, outer=4)  # columns 0, 1 of a 3 x 4 matrix
    ops = [fmovs(mem("a", 16), rows, 6), fmovs(mem("a", 24), mem("a", 3, -1), 4)]
    return built(line(1), ops)


@case(a=RAMP32)
def arithmetic():
    ops = [
        fsubs(mem("a", 8), mem("a", 1), mem("a"), 1),
        fmuls(mem("a", 9), mem("a", 1), mem("a", 2), 1),
        fmacs(mem("a", 10), mem("a"), mem("a", 1), mem("a", 3, 0), 2),
        fmaxs(mem("a", 12), mem("a"), Const(2.5), 4),
        Op("add", mem("a", 20), mem("a"), Const(2.0**-24), n=1),
    ]
    return built(line(1), ops)


@case(u=np.array([7, 2**31, 2**32 - 1, 3]))
def integers():
    """Of 32 bits, without a sign; sums and products wrap."""
    layout = fabric.Layout(1, overheads=False)
    layout.array("u", 4, "uint32")
    layout.array("out", 20, "uint32")
    u, kinds = mem("u"), ("add", "sub", "mul", "max")
    ops = [
        Op(kind, mem("out", 4 * k), u, Const(3), n=4, dtype="uint32")
        for k, kind in enumerate(kinds)
    ]
    ops.append(Op("mac", mem("out", 16), u, u, Const(2), n=4, dtype="uint32"))
    return built(layout, ops)


@case(a=RAMP32)
def one_hop():
    c = wire(layout := line(2))
    return built(layout, [fmovs(fabout(c), mem("a"), 4)], [fmovs(mem("a", 16), fabin(c), 4)])


@case(a=RAMP32)
def multicast():
    layout = line(4)
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "W", ("RAMP", "E"), (layout.x > 0) & (layout.x < 3))
    layout.route(c, "W", "RAMP", layout.x == 3)
    layout.task("main", [fmovs(fabout(c), mem("a"), 3)], layout.x == 0, active=True)
    layout.task("main", [fmovs(mem("a", 16), fabin(c), 3)], layout.x > 0, active=True)
    return layout.build()


@case(a=RAMP32)
def back_pressure():
    c = wire(layout := line(2))
    receive = [work(30), fmovs(mem("a"), fabin(c), 20)]
    return built(layout, [fmovs(fabout(c), mem("a"), 20)], receive)


@case(a=RAMP32)
def never_received():
    c = wire(layout := line(2))
    return built(layout, [fmovs(fabout(c), mem("a"), 20)])


@case()
def never_sent():
    c = wire(layout := line(2), color=7)
    return built(layout, None, [fmovs(mem("a"), fabin(c), 3)])


@case(a=RAMP32)
def shared_link():
    """Colors a (0 -> 2) and b (1 -> 2) share the link from PE 1 to PE 2 and its ramp."""
    layout = line(3)
    a, b = wire(layout, hops=2), wire(layout, 1)
    both = [fmovs(mem("a"), fabin(a), 8, thread=0), fmovs(mem("a", 8), fabin(b), 8, thread=1)]
    return built(layout, *([fmovs(fabout(c), mem("a"), 8)] for c in (a, b)), both)


def merging(delay):
    layout = line(3)
    c = layout.color(5)
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, ("RAMP", "W"), "E", layout.x == 1)
    layout.route(c, "W", "RAMP", layout.x == 2)
    send = lambda at: fmovs(fabout(c), mem("a", at), 1)
    own = [*([work(delay)] if delay else []), send(1)]
    return built(layout, [send(0)], own, [fmovs(mem("a"), fabin(c), 2)])


@case(a=RAMP32)
def merge_apart():
    return merging(0)


@case(a=RAMP32)
def merge_collides():
    return merging(1)


def compass(layout, color, **switches):
    """The centre of a 3 x 3 grid sends to its four neighbours over one color."""
    x, y = layout.x, layout.y
    centre = (x == 1) & (y == 1)
    positions = [{"tx": "W"}, {"tx": "E"}, {"tx": "S"}]
    layout.route(color, "RAMP", "N", centre, switches=positions, **switches)
    layout.route(color, "S", "RAMP", (x == 1) & (y == 0))
    layout.route(color, "E", "RAMP", (x == 0) & (y == 1))
    layout.route(color, "W", "RAMP", (x == 2) & (y == 1))
    layout.route(color, "N", "RAMP", (x == 1) & (y == 2))
    return centre, (abs(x - 1) + abs(y - 1)) == 1


@case()
def topic_06_switches():
    """The tutorial: ADV, 0, ADV, 2, ADV, 4, ADV, 6 on one color, from position 1 in ring mode."""
    layout = fabric.Layout(3, 3, overheads=False)
    layout.array("result", 1, "uint32")
    c = layout.color()
    centre, around = compass(layout, c, ring=True, start=1)
    ops = []
    for value in (0, 2, 4, 6):
        ops += [mov32(fabout(c, control=True), control_wavelet("SWITCH_ADV"))]
        ops += [mov32(fabout(c), Const(value + 1))]
    layout.task("main", ops, centre, active=True)
    layout.task("rx", [mov32(mem("result"), WaveletArg())], around, color=c)
    return layout.build()


@case()
def switch_saturates():
    layout = fabric.Layout(3, 3, overheads=False)
    layout.array("result", 8, "uint32")
    c = layout.color()
    centre, around = compass(layout, c)
    ops = []
    for value in range(1, 7):
        ops += [mov32(fabout(c, advance_switch=True), Const(value))]
    layout.task("main", ops, centre, active=True)
    south = (layout.x == 1) & (layout.y == 2)
    layout.task("rx", [mov32(mem("result"), fabin(c), 1)], around & ~south, active=True)
    layout.task("rx", [mov32(mem("result"), fabin(c), 3)], south, active=True)
    return layout.build()


@case()
def topic_07_control_tasks():
    layout = fabric.Layout(3, 3, overheads=False)
    layout.array("result", 1, "uint32")
    c = layout.color()
    centre, around = compass(layout, c, ring=True, start=1)
    ops = [
        mov32(
            fabout(c, control=True),
            control_wavelet("SWITCH_ADV", task=40, data=value, to_ce=True),
        )
        for value in (10, 12, 14, 16)
    ]
    layout.task("main", ops, centre, active=True)
    layout.task("ctrl", [mov32(mem("result"), WaveletArg())], around, control=40)
    return layout.build()


@case()
def topic_08_range_filter():
    """12 wavelets with indices 0..11; PE p keeps 3p .. 3p + 2 (p = 1, 2, 3)."""
    layout = fabric.Layout(4, overheads=False)
    layout.array("result", 4, "uint32")
    layout.array("wave", 12, "uint32")
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    for p in (1, 2, 3):
        keep = fabric.Filter(kind="range", low=3 * p, high=3 * p + 2)
        layout.route(c, "W", ("RAMP", "E")[: 4 - p], layout.x == p, filter=keep)
    layout.task("main", [mov32(fabout(c), mem("wave"), 12)], layout.x == 0, active=True)
    layout.task("main", [mov32(mem("result"), fabin(c), 3)], layout.x > 0, active=True)
    return layout.build()


@case(a=RAMP32)
def counter_filter():
    """Of every four wavelets the CE sees the first two."""
    layout = line(2)
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    keep = fabric.Filter(kind="counter", high=1, limit=3)
    layout.route(c, "W", "RAMP", layout.x == 1, filter=keep)
    return built(layout, [fmovs(fabout(c), mem("a"), 8)], [fmovs(mem("a", 16), fabin(c), 4)])


@case(a=RAMP32)
def data_task():
    """Each wavelet runs the task once: a running sum and a copy of the last one."""
    c = wire(layout := line(2))
    layout.task("main", [fmovs(fabout(c), mem("a"), 5)], layout.x == 0, active=True)
    total = Op("add", mem("a", 20), mem("a", 20), WaveletArg())
    body = [total, Op("mov", mem("a", 21), WaveletArg())]
    layout.task("on_data", body, layout.x == 1, color=c)
    return layout.build()


@case()
def activation_order():
    """Task ids decide, then priority; each appends its number through a running shift."""
    layout = line(1)
    tens = lambda value: [fmacs(mem("a"), Const(value), mem("a"), Const(10.0))]
    layout.task("start", [activate("low"), activate("high"), activate("mid")], active=True)
    layout.task("low", [*tens(1.0)])
    layout.task("mid", tens(2.0))
    layout.task("high", tens(3.0), high=True)
    return layout.build()


@case()
def block_and_unblock():
    layout = line(1)
    tens = lambda value: [fmacs(mem("a"), Const(value), mem("a"), Const(10.0))]
    layout.task("first", [*tens(1.0), block("second"), activate("third")], active=True)
    layout.task("second", tens(2.0), active=True)
    layout.task("third", [*tens(3.0), unblock("second")])
    return layout.build()


@case(a=RAMP32)
def microthread_overlaps():
    """Receiving 8 words by a microthread hides behind 20 cycles of work, which it delays."""
    c = wire(layout := line(2))
    layout.task("main", [fmovs(fabout(c), mem("a"), 8)], layout.x == 0, active=True)
    receive = fmovs(mem("a", 8), fabin(c), 8, thread=2).then("activate", "after")
    layout.task("main", [receive, work(20)], layout.x == 1, active=True)
    layout.task("after", [fmuls(mem("a", 8), mem("a", 8), Const(2.0), 8)], layout.x == 1)
    return layout.build()


@case(a=RAMP32)
def switched_merge():
    """PE 1 sends 3 words of its own, then its router takes the color from PE 0."""
    layout = line(3)
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "RAMP", "E", layout.x == 1, switches=[{"rx": "W"}])
    layout.route(c, "W", "RAMP", layout.x == 2)
    send, take = [fmovs(fabout(c), mem("a"), 4)], [fmovs(mem("a", 16), fabin(c), 7)]
    return built(layout, send, [fmovs(fabout(c, advance_switch=True), mem("a", 8), 3)], take)


@case()
def topic_14_color_swap():
    """Blue leaves PE 0 as red, PE 1 as blue, ...; red adds the word, blue twice the word."""
    layout = fabric.Layout(4, overheads=False)
    layout.array("sum", 1, "uint32")
    red, blue, x = layout.color(0), layout.color(1), layout.x
    for color in (red, blue):
        layout.route(color, "RAMP", ("RAMP", "E"), x == 0, swap="x")
        layout.route(color, "W", ("RAMP", "E"), (x > 0) & (x < 3), swap="x")
        layout.route(color, "W", "RAMP", x == 3, swap="x")
    add = Op("add", mem("sum"), mem("sum"), WaveletArg(), dtype="uint32")
    layout.task("send", [mov32(fabout(blue), Const(v)) for v in (1, 10, 100)], x == 0, active=True)
    layout.task("red", [add], color=red)
    layout.task("blue", [add, add], color=blue)
    return layout.build()


@case(a=RAMP32)
def teardown():
    """One color, two phases: east from PE 0, torn down by it, then west from PE 2."""
    layout = line(3)
    c, x = layout.color(), layout.x
    layout.route(c, "RAMP", "E", x == 0, reroutes=[("E", "RAMP")])
    layout.route(c, "W", ("RAMP", "E"), x == 1, reroutes=[("E", ("RAMP", "W"))])
    layout.route(c, "W", "RAMP", x == 2, reroutes=[("RAMP", "W")])
    ends = mov32(fabout(c, control=True), control_wavelet("TEARDOWN"))
    layout.task("first", [fmovs(fabout(c), mem("a"), 2), ends], x == 0, active=True)
    layout.task("first", [fmovs(mem("a", 8), fabin(c), 2)], x > 0, active=True)
    layout.task("down", [exit_teardown(c, 4), activate("second")], teardown=c)
    layout.task("second", [fmovs(fabout(c), mem("a", 3), 3)], x == 2)
    layout.task("second", [fmovs(mem("a", 16), fabin(c), 3)], x < 2)
    return layout.build()


@case(a=RAMP32)
def torn_from_the_start():
    """Nobody exits: the word stays on PE 0's ramp."""
    layout = line(2)
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "W", "RAMP", layout.x == 1, torn=True)
    return built(layout, [fmovs(fabout(c), mem("a"), 1)], [fmovs(mem("a"), fabin(c), 1)])


@case(h=np.arange(8))
def sixteen_bit_payloads():
    """16-bit types travel in wavelets and round after every operation."""
    layout = fabric.Layout(2, overheads=False)
    layout.array("h", 8, "float16")
    c = wire(layout)
    send = [faddh(fabout(c), mem("h"), Const(0.01), 8)]
    take = [fmulh(mem("h"), mem("h"), fabin(c), 8)]
    return built(layout, send, take)


VALUES = {"topic_08_range_filter": {"wave": np.arange(12) << 16 | np.arange(100, 112)}}
