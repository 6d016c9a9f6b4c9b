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


def case(width=1, height=1, arrays=None, overheads=False, **values):
    """Register what a function writes into a layout; ``values`` are the initial arrays.

    Without ``arrays`` (name -> size and type) it has one, ``a``, of 32 float32 words.
    """

    def register(write):
        layout = fabric.Layout(width, height, overheads=overheads)
        for name, described in (arrays or {"a": (32,)}).items():
            layout.array(name, *described)
        write(layout)
        CASES[write.__name__] = (layout.build(), values)
        return write

    return register


def wire(layout, color, hops=1):
    """Route a color east from PE 0 over ``hops`` hops into the last PE's CE."""
    layout.route(color, "RAMP", "E", layout.x == 0)
    if hops > 1:
        layout.route(color, "W", "E", (layout.x > 0) & (layout.x < hops))
    layout.route(color, "W", "RAMP", layout.x == hops)


RAMP32 = np.arange(32, dtype=np.float32) + 1


@case(a=RAMP32)
def straight_code(layout):
    ops = [fmovs(mem("a", 8), mem("a"), 5), fadds(mem("a"), mem("a"), mem("a", 8), 4)]
    layout.task("main", ops, active=True)


@case(overheads=True, a=RAMP32)
def launch_overheads(layout):
    layout.task("main", [fmovs(mem("a", 8), mem("a"), 5)] * 2, active=True)


@case(arrays={"h": (10, "float16")}, h=np.arange(10))
def sixteen_bit_simd(layout):
    layout.task("main", [faddh(mem("h"), mem("h"), Const(0.5), 10)], active=True)


@case(a=RAMP32)
def strides(layout):
    rows = mem("a", 0, 1, inner=2, outer=4)  # columns 0, 1 of a 3 x 4 matrix
    ops = [fmovs(mem("a", 16), rows, 6), fmovs(mem("a", 24), mem("a", 3, -1), 4)]
    layout.task("main", ops, active=True)


@case(a=RAMP32)
def arithmetic(layout):
    ops = [
        fsubs(mem("a", 8), mem("a", 1), mem("a"), 1),
        fmuls(mem("a", 9), mem("a", 1), mem("a", 2), 1),
        fmacs(mem("a", 10), mem("a"), mem("a", 1), mem("a", 3, 0), 2),
        fmaxs(mem("a", 12), mem("a"), Const(2.5), 4),
        Op("add", mem("a", 20), mem("a"), Const(2.0**-24), n=1),
    ]
    layout.task("main", ops, active=True)


@case(arrays={"u": (4, "uint32"), "out": (20, "uint32")}, u=np.array([7, 2**31, 2**32 - 1, 3]))
def integers(layout):
    """Of 32 bits, without a sign; sums and products wrap."""
    u, kinds = mem("u"), ("add", "sub", "mul", "max")
    ops = [
        Op(kind, mem("out", 4 * k), u, Const(3), n=4, dtype="uint32")
        for k, kind in enumerate(kinds)
    ]
    ops.append(Op("mac", mem("out", 16), u, u, Const(2), n=4, dtype="uint32"))
    layout.task("main", ops, active=True)


@case(2, a=RAMP32)
def one_hop(layout):
    c = layout.color()
    wire(layout, c)
    layout.task("main", [fmovs(fabout(c), mem("a"), 4)], layout.x == 0, active=True)
    layout.task("main", [fmovs(mem("a", 16), fabin(c), 4)], layout.x == 1, active=True)


@case(4, a=RAMP32)
def multicast(layout):
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "W", ("RAMP", "E"), (layout.x > 0) & (layout.x < 3))
    layout.route(c, "W", "RAMP", layout.x == 3)
    layout.task("main", [fmovs(fabout(c), mem("a"), 3)], layout.x == 0, active=True)
    layout.task("main", [fmovs(mem("a", 16), fabin(c), 3)], layout.x > 0, active=True)


@case(2, a=RAMP32)
def back_pressure(layout):
    c = layout.color()
    wire(layout, c)
    layout.task("main", [fmovs(fabout(c), mem("a"), 20)], layout.x == 0, active=True)
    receive = [work(30), fmovs(mem("a"), fabin(c), 20)]
    layout.task("main", receive, layout.x == 1, active=True)


@case(2, a=RAMP32)
def never_received(layout):
    c = layout.color()
    wire(layout, c)
    layout.task("main", [fmovs(fabout(c), mem("a"), 20)], layout.x == 0, active=True)


@case(2)
def never_sent(layout):
    c = layout.color(7)
    wire(layout, c)
    layout.task("main", [fmovs(mem("a"), fabin(c), 3)], layout.x == 1, active=True)


@case(3, a=RAMP32)
def shared_link(layout):
    """Colors a (0 -> 2) and b (1 -> 2) share the link from PE 1 to PE 2 and its ramp."""
    a, b = layout.color(), layout.color()
    wire(layout, a, 2)
    layout.route(b, "RAMP", "E", layout.x == 1)
    layout.route(b, "W", "RAMP", layout.x == 2)
    layout.task("main", [fmovs(fabout(a), mem("a"), 8)], layout.x == 0, active=True)
    layout.task("main", [fmovs(fabout(b), mem("a"), 8)], layout.x == 1, active=True)
    both = [fmovs(mem("a"), fabin(a), 8, thread=0), fmovs(mem("a", 8), fabin(b), 8, thread=1)]
    layout.task("main", both, layout.x == 2, active=True)


def merging(layout, delay):
    c = layout.color(5)
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, ("RAMP", "W"), "E", layout.x == 1)
    layout.route(c, "W", "RAMP", layout.x == 2)
    layout.task("main", [fmovs(fabout(c), mem("a"), 1)], layout.x == 0, active=True)
    own = [*([work(delay)] if delay else []), fmovs(fabout(c), mem("a", 1), 1)]
    layout.task("main", own, layout.x == 1, active=True)
    layout.task("main", [fmovs(mem("a"), fabin(c), 2)], layout.x == 2, active=True)


@case(3, a=RAMP32)
def merge_apart(layout):
    merging(layout, 0)


@case(3, a=RAMP32)
def merge_collides(layout):
    merging(layout, 1)


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


@case(3, 3, arrays={"result": (1, "uint32")})
def topic_06_switches(layout):
    """The tutorial: ADV, 0, ADV, 2, ADV, 4, ADV, 6 on one color, from position 1 in ring mode."""
    c = layout.color()
    centre, around = compass(layout, c, ring=True, start=1)
    ops = []
    for value in (0, 2, 4, 6):
        ops += [mov32(fabout(c, control=True), control_wavelet("SWITCH_ADV"))]
        ops += [mov32(fabout(c), Const(value + 1))]
    layout.task("main", ops, centre, active=True)
    layout.task("rx", [mov32(mem("result"), WaveletArg())], around, color=c)


@case(3, 3, arrays={"result": (8, "uint32")})
def switch_saturates(layout):
    c = layout.color()
    centre, around = compass(layout, c)
    ops = []
    for value in range(1, 7):
        ops += [mov32(fabout(c, advance_switch=True), Const(value))]
    layout.task("main", ops, centre, active=True)
    south = (layout.x == 1) & (layout.y == 2)
    layout.task("rx", [mov32(mem("result"), fabin(c), 1)], around & ~south, active=True)
    layout.task("rx", [mov32(mem("result"), fabin(c), 3)], south, active=True)


@case(3, 3, arrays={"result": (1, "uint32")})
def topic_07_control_tasks(layout):
    c = layout.color()
    centre, around = compass(layout, c, ring=True, start=1)
    ops = [
        mov32(
            fabout(c, control=True), control_wavelet("SWITCH_ADV", task=40, data=value, to_ce=True)
        )
        for value in (10, 12, 14, 16)
    ]
    layout.task("main", ops, centre, active=True)
    layout.task("ctrl", [mov32(mem("result"), WaveletArg())], around, control=40)


@case(4, arrays={"result": (4, "uint32"), "wave": (12, "uint32")})
def topic_08_range_filter(layout):
    """12 wavelets with indices 0..11; PE p keeps 3p .. 3p + 2 (p = 1, 2, 3)."""
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    for p in (1, 2, 3):
        keep = fabric.Filter(kind="range", low=3 * p, high=3 * p + 2)
        layout.route(c, "W", ("RAMP", "E")[: 4 - p], layout.x == p, filter=keep)
    layout.task("main", [mov32(fabout(c), mem("wave"), 12)], layout.x == 0, active=True)
    layout.task("main", [mov32(mem("result"), fabin(c), 3)], layout.x > 0, active=True)


@case(2, a=RAMP32)
def counter_filter(layout):
    """Of every four wavelets the CE sees the first two."""
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    keep = fabric.Filter(kind="counter", high=1, limit=3)
    layout.route(c, "W", "RAMP", layout.x == 1, filter=keep)
    layout.task("main", [fmovs(fabout(c), mem("a"), 8)], layout.x == 0, active=True)
    layout.task("main", [fmovs(mem("a", 16), fabin(c), 4)], layout.x == 1, active=True)


@case(2, a=RAMP32)
def data_task(layout):
    """Each wavelet runs the task once: a running sum and a copy of the last one."""
    c = layout.color()
    wire(layout, c)
    layout.task("main", [fmovs(fabout(c), mem("a"), 5)], layout.x == 0, active=True)
    body = [
        Op("add", mem("a", 20), mem("a", 20), WaveletArg()),
        Op("mov", mem("a", 21), WaveletArg()),
    ]
    layout.task("on_data", body, layout.x == 1, color=c)


@case()
def activation_order(layout):
    """Task ids decide, then priority; each appends its number through a running shift."""
    tens = lambda value: [fmacs(mem("a"), Const(value), mem("a"), Const(10.0))]
    layout.task("start", [activate("low"), activate("high"), activate("mid")], active=True)
    layout.task("low", [*tens(1.0)])
    layout.task("mid", tens(2.0))
    layout.task("high", tens(3.0), high=True)


@case()
def block_and_unblock(layout):
    tens = lambda value: [fmacs(mem("a"), Const(value), mem("a"), Const(10.0))]
    layout.task("first", [*tens(1.0), block("second"), activate("third")], active=True)
    layout.task("second", tens(2.0), active=True)
    layout.task("third", [*tens(3.0), unblock("second")])


@case(2, a=RAMP32)
def microthread_overlaps(layout):
    """Receiving 8 words by a microthread hides behind 20 cycles of work, which it delays."""
    c = layout.color()
    wire(layout, c)
    layout.task("main", [fmovs(fabout(c), mem("a"), 8)], layout.x == 0, active=True)
    receive = fmovs(mem("a", 8), fabin(c), 8, thread=2).then("activate", "after")
    layout.task("main", [receive, work(20)], layout.x == 1, active=True)
    layout.task("after", [fmuls(mem("a", 8), mem("a", 8), Const(2.0), 8)], layout.x == 1)


@case(3, a=RAMP32)
def switched_merge(layout):
    """PE 1 sends 3 words of its own, then its router takes the color from PE 0."""
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "RAMP", "E", layout.x == 1, switches=[{"rx": "W"}])
    layout.route(c, "W", "RAMP", layout.x == 2)
    layout.task("main", [fmovs(fabout(c), mem("a"), 4)], layout.x == 0, active=True)
    own = [fmovs(fabout(c, advance_switch=True), mem("a", 8), 3)]
    layout.task("main", own, layout.x == 1, active=True)
    layout.task("main", [fmovs(mem("a", 16), fabin(c), 7)], layout.x == 2, active=True)


@case(4, arrays={"sum": (1, "uint32")})
def topic_14_color_swap(layout):
    """Blue leaves PE 0 as red, PE 1 as blue, ...; red adds the word, blue twice the word."""
    red, blue, x = layout.color(0), layout.color(1), layout.x
    for color in (red, blue):
        layout.route(color, "RAMP", ("RAMP", "E"), x == 0, swap="x")
        layout.route(color, "W", ("RAMP", "E"), (x > 0) & (x < 3), swap="x")
        layout.route(color, "W", "RAMP", x == 3, swap="x")
    add = Op("add", mem("sum"), mem("sum"), WaveletArg(), dtype="uint32")
    layout.task("send", [mov32(fabout(blue), Const(v)) for v in (1, 10, 100)], x == 0, active=True)
    layout.task("red", [add], color=red)
    layout.task("blue", [add, add], color=blue)


@case(3, a=RAMP32)
def teardown(layout):
    """One color, two phases: east from PE 0, torn down by it, then west from PE 2."""
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


@case(2, a=RAMP32)
def torn_from_the_start(layout):
    """Nobody exits: the word stays on PE 0's ramp."""
    c = layout.color()
    layout.route(c, "RAMP", "E", layout.x == 0)
    layout.route(c, "W", "RAMP", layout.x == 1, torn=True)
    layout.task("main", [fmovs(fabout(c), mem("a"), 1)], layout.x == 0, active=True)
    layout.task("main", [fmovs(mem("a"), fabin(c), 1)], layout.x == 1, active=True)


@case(2, arrays={"h": (8, "float16")}, h=np.arange(8))
def sixteen_bit_payloads(layout):
    """16-bit types travel in wavelets and round after every operation."""
    c = layout.color()
    wire(layout, c)
    send = [faddh(fabout(c), mem("h"), Const(0.01), 8)]
    take = [fmulh(mem("h"), mem("h"), fabin(c), 8)]
    layout.task("main", send, layout.x == 0, active=True)
    layout.task("main", take, layout.x == 1, active=True)


VALUES = {"topic_08_range_filter": {"wave": np.arange(12) << 16 | np.arange(100, 112)}}
