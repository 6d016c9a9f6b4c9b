"""Routes, switches, pop modes, teardown, color swap, filters and their cycles."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register, switch_register

from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

NOP, ADV, RST, TD = 0, 1, 2, 3
ALWAYS, ON_ADVANCE, ON_ADVANCE_NOP = 1, 2, 3


def payload(*commands, task=31, data=0):
    """A control wavelet; a command is its number, or (number, False) for the CE to see it."""
    field = 0
    for k in range(8):
        command = commands[k] if k < len(commands) else NOP
        opcode, hidden = command if isinstance(command, tuple) else (command, True)
        field |= (opcode | hidden << 2) << 3 * k
    low = field >> 8 | data
    return (field & 0xFF) << 22 | task << 16 | low


SENDER = """
.active 8
.fabric sends=1 queue=2 color=0
.fabric sends=1 queue=2 color=0 control=1
local 8:
"""
RECEIVER = """
.space count 4
.space got 64
data 0:
  const r1 0
  load.u16 r2 r1 0
  const r3 4
  mul.u16 r4 r2 r3
  store.u32 r4 r0 4
  const r3 1
  add.u16 r2 r2 r3
  store.u16 r1 r2 0
  return
"""


def sender(*words):
    """Sends numbers as data, and (number,) as control wavelets."""
    lines = [SENDER]
    for word in words:
        control = isinstance(word, tuple)
        lines += [f"fabric r0 {int(control)} 1", f"const r1 {word[0] if control else word}"]
        lines += ["operate MOV32 dest=FABRIC src0=SCALAR at=r0"]
    return assemble("\n".join([*lines, "return"]), name="sender.csl", memory=128)


def received(machine, x, y=0):
    count = machine.read(x, y, 0, 2).view(np.uint16)[0]
    return machine.read(x, y, 4, 4 * count).view(np.uint32).tolist()


def row(words, width, routes, switches=(), filters=(), **options):
    """PE 0 sends, the others collect what reaches them."""
    tiles = [[0] + [1] * (width - 1)]
    named = lambda table: {(x, 0, c): value for (x, c), value in dict(table).items()}
    image = build(
        [sender(*words), assemble(RECEIVER, name="receiver.csl")],
        tiles,
        routes=named(routes),
        switches=named(switches),
        filters=named(filters),
        **options,
    )
    machine = Machine(image)
    status = machine.run(100_000)
    assert status == Status.QUIET, machine.fault
    return machine


def test_a_multicast_leaves_by_all_its_ports():
    routes = {(0, 0): color_register("R", "E"), (3, 0): color_register("W", "R")}
    routes |= {(x, 0): color_register("W", "RE") for x in (1, 2)}
    machine = row([5, 6, 7], 4, routes)
    assert [received(machine, x) for x in (1, 2, 3)] == [[5, 6, 7]] * 3
    assert machine.links[0, :, 1].tolist() == [3, 3, 3, 0]  # to the east
    assert machine.links[0, :, 4].tolist() == [0, 3, 3, 3]  # down the ramp


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_a_word_takes_five_cycles_of_ramps_and_one_per_hop(hops):
    start = """
    .active 8
    local 8:
      const r9 1
      intrinsic.timer -1 r9
    """
    first = assemble(
        ".fabric sends=1 queue=2 color=0\n" + start + """
      fabric r0 0 1
      const r1 42
      intrinsic.timestamp r5 -1
      send.u32 r0 r1
      const r2 0
      store.u16 r2 r5 0
      return
    """, memory=4)  # fmt: skip
    last = assemble(
        ".fabric queue=2\n.queue in 2 color=0\n" + start + """
      fabric r0 0 1
      receive.u32 r1 r0
      intrinsic.timestamp r5 -1
      const r2 0
      store.u16 r2 r5 0
      store.u16 r2 r1 2
      return
    """, memory=4)  # fmt: skip
    routes = {(x, 0, 0): color_register("W", "E") for x in range(1, hops)}
    routes |= {(0, 0, 0): color_register("R", "E"), (hops, 0, 0): color_register("W", "R")}
    tiles = [[0] + [-1] * (hops - 1) + [1]]
    machine = Machine(build([first, last], tiles, routes=routes))
    assert machine.run(1000) == Status.QUIET
    sent, (taken, value) = (
        machine.read(0, 0, 0, 2).view(np.uint16)[0],
        machine.read(hops, 0, 0, 4).view(np.uint16),
    )
    # The stamp, then SEND one cycle later; the receiver goes on, and takes its stamp, in the cycle
    # behind RECEIVE.
    assert value == 42
    assert (taken - 1) - (sent + 1) == 5 + hops


def test_words_wait_in_routers_while_nobody_takes_them():
    """Six in the queue, one in the ramp, two in each router, two in the sender's ramp and queue."""
    slow = assemble(".queue in 0 color=0\n.fabric queue=0\n.active 8\nlocal 8:\n return", memory=4)
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    machine = Machine(build([sender(*range(30)), slow], [[0, 1]], routes=routes))
    assert machine.run(10_000) == Status.QUIET
    assert machine.links[0, 0, 1] == 6 + 1 + 2
    report = [str(line) for line in machine.waiting()]
    assert any("room in output queue 2 (sender.csl:" in line for line in report)
    assert any("PE (1, 0): router waits for" in line and "color 0" in line for line in report)


def test_a_switch_advances_behind_the_control_wavelet():
    """Topic 6 and 7's rule: the wavelet leaves by the position that it found."""
    routes = {(0, 0): color_register("R", "E"), (1, 0): color_register("W", "R")}
    routes |= {(2, 0): color_register("W", "R")}
    switches = {(1, 0): switch_register("tx=E", ring=True)}
    words = [1, (payload(ADV),), 2, (payload(ADV),), 3]
    machine = row(words, 3, routes, switches)
    assert received(machine, 1) == [1, 3]
    assert received(machine, 2) == [2]


def test_without_a_ring_the_last_position_stays_and_a_reset_goes_back():
    routes = {(0, 0): color_register("R", "E"), (1, 0): color_register("W", "R")}
    routes |= {(2, 0): color_register("W", "R")}
    switches = {(1, 0): switch_register("tx=E")}
    words = [1, (payload(ADV),), 2, (payload(ADV),), 3, (payload(RST),), 4]
    machine = row(words, 3, routes, switches)
    assert received(machine, 1) == [1, 4]
    assert received(machine, 2) == [2, 3]


def test_positions_add_up():
    """Position 2 changes rx only: tx is still that of position 1."""
    routes = {(0, 0): color_register("R", "E"), (1, 0): color_register("E", "R")}
    routes |= {(2, 0): color_register("W", "R")}
    switches = {(1, 0): switch_register("tx=E", "rx=W", current=2)}
    machine = row([1], 3, routes, switches)
    assert received(machine, 2) == [1]


@pytest.mark.parametrize(
    ("mode", "commands", "advanced"),
    [
        (0, [ADV], {1, 2}),  # every router gets the first command
        (ALWAYS, [ADV], {1}),  # router k gets command k
        (ALWAYS, [NOP, ADV], {2}),
        (ON_ADVANCE, [ADV, ADV], {1, 2}),  # each that advances takes one off
        (ON_ADVANCE, [ADV, NOP], {1}),
        (ON_ADVANCE, [NOP, ADV], set()),  # the NOP stays in front
        (ON_ADVANCE_NOP, [NOP, ADV, ADV], {2}),
    ],
)
def test_pop_modes(mode, commands, advanced):
    """Routers 1 and 2 deliver to their own CE too until they have advanced."""
    routes = {(0, 0): color_register("R", "E"), (3, 0): color_register("W", "R")}
    routes |= {(x, 0): color_register("W", "RE", pop=mode) for x in (1, 2)}
    switches = {(x, 0): switch_register("tx=E") for x in (1, 2)}
    machine = row([1, (payload(*commands),), 2], 4, routes, switches)
    assert [received(machine, x) for x in (1, 2)] == [
        [1] if x in advanced else [1, 2] for x in (1, 2)
    ]
    assert received(machine, 3) == [1, 2]


def test_what_follows_the_last_command_is_a_nop_that_the_ce_sees_if_it_saw_that():
    """Nine hops with always_pop and eight commands: the ninth router finds a hidden NOP."""
    routes = {(0, 0): color_register("R", "E"), (10, 0): color_register("W", "R", pop=ALWAYS)}
    routes |= {(x, 0): color_register("W", "RE", pop=ALWAYS) for x in range(1, 10)}
    machine = row([(payload(),), 4], 11, routes)
    assert [received(machine, x) for x in range(1, 11)] == [[4]] * 10


def test_a_control_wavelet_that_the_ce_sees_names_a_task():
    receiver = assemble(
        """
        .space got 8
        control 5:
          const r1 0
          store.u32 r1 r0 0
          return
        data 0:
          const r1 0
          store.u32 r1 r0 4
          return
        """
    )
    word = payload((NOP, False), task=5, data=77)
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    machine = Machine(build([sender((word,), 9), receiver], [[0, 1]], routes=routes))
    assert machine.run(1000) == Status.QUIET, machine.fault
    control, data = machine.read(1, 0, 0, 8).view(np.uint32)
    assert (control, data) == (word, 9)
    assert control & 0xFFFF == 77 | word & 0xFFFF


def test_colors_swap_on_their_way():
    """What comes to PE 1 from the west as color 0 goes on as color 1."""
    receiver = RECEIVER + "data 1:\n const r1 0\n store.u32 r1 r0 60\n return\n"
    routes = {(0, 0, 0): color_register("R", "E"), (2, 0, 1): color_register("W", "R")}
    routes |= {(1, 0, 0): color_register("W", "", swap_x=True)}
    routes |= {(1, 0, 1): color_register("W", "E")}
    image = build([sender(33), assemble(receiver)], [[0, -1, 1]], routes=routes)
    machine = Machine(image)
    assert machine.run(1000) == Status.QUIET, machine.fault
    assert machine.read(2, 0, 60, 4).view(np.uint32) == [33]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # Of periods of limit1 + 1, the first most + 1 pass; start sets the phase.
        ({"kind": 1, "counts_data": 1, "limit1": 3, "most": 1}, [0, 1, 4, 5, 8, 9]),
        ({"kind": 1, "counts_data": 1, "limit1": 3, "most": 1, "start": 2}, [2, 3, 6, 7]),
        ({"kind": 1, "limit1": 3, "most": 1, "start": 2}, []),  # nothing counts
        # The first period ends at limit1, the second at limit2; then the filter is off.
        (
            {"kind": 2, "counts_data": 1, "limit1": 1, "limit2": 2, "most": 0},
            [0, 2, 5, 6, 7, 8, 9],
        ),
        ({"kind": 2, "counts_data": 1, "limit1": 3, "most": 0}, [0, 4, 5, 6, 7, 8, 9]),
        ({"kind": 3, "low": 2, "high": 4}, [2, 3, 4]),
    ],
)
def test_filters_at_the_ramp(rule, expected):
    routes = {(0, 0): color_register("R", "E"), (1, 0): color_register("W", "RE")}
    routes |= {(2, 0): color_register("W", "R")}
    machine = row([k << 16 | k for k in range(10)], 3, routes, filters={(1, 0): rule})
    assert [word & 0xFFFF for word in received(machine, 1)] == expected
    assert len(received(machine, 2)) == 10  # a filter is its own PE's


def test_a_filter_may_let_through_controls_only_at_its_most():
    rule = {"kind": 1, "counts_data": 1, "limit1": 2, "most": 1, "controls_filtered": 1}
    receiver = RECEIVER + "control 3:\n const r1 0\n load.u16 r2 r1 64\n const r3 1\n"
    receiver += " add.u16 r2 r2 r3\n store.u16 r1 r2 64\n return\n"
    seen = (payload((NOP, False), task=3),)
    words = [seen, 0, seen, 1, seen, 2, seen]  # at counters 0, 1, 2, 0
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    machine = Machine(
        build(
            [sender(*words), assemble(receiver, memory=68)],
            [[0, 1]],
            routes=routes,
            filters={(1, 0, 0): rule},
        )
    )
    assert machine.run(1000) == Status.QUIET, machine.fault
    assert received(machine, 1) == [0, 1]
    assert machine.read(1, 0, 64, 2).view(np.uint16) == [1]


TORN = """
.space count 4
.space got 60
.queue in 2 color=0
.data colors u16 0
data 0:
  const r1 0
  load.u16 r2 r1 0
  const r3 4
  mul.u16 r4 r2 r3
  store.u32 r4 r0 4
  const r3 1
  add.u16 r2 r2 r3
  store.u16 r1 r2 0
  return
teardown 0:
  const r5 0x7f20          # the color register of color 0
  config_get r6 r5
  const r1 0
  store.u16 r1 r6 60       # bit 14 says that it is torn down
  const r7 0x210           # tx RAMP, rx RAMP: no more from the west
  const r8 0x4000
  or.u16 r7 r7 r8
  config_set r5 r7         # still torn
  const r9 900
again:                     # a while later
  const r10 1
  sub.u16 r9 r9 r10
  jump_if again r9
  const r7 0x110           # tx RAMP, rx W
  const r7 {last}
  config_set r5 r7
  return
"""


def test_a_teardown_is_forwarded_tears_and_what_follows_waits_for_the_handler():
    west = color_register("W", "RE")
    program = assemble(TORN.format(last=west))
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): west, (2, 0, 0): west}
    routes |= {(3, 0, 0): color_register("W", "R")}
    tiles = [[0, 1, 1, 2]]
    free = "teardown 0:\n const r0 0\n intrinsic.teardown_exit -1 r0\n return"
    first = sender(1, (payload(TD),), 2, 3)
    handler = assemble(free)
    code = np.concatenate([first.code, handler.code])
    lines = np.concatenate([first.lines, handler.lines])
    handlers = np.where(handler.teardown_handlers < 0, -1, len(first.code))
    first = first._replace(code=code, lines=lines, teardown_handlers=handlers)
    machine = Machine(build([first, program, assemble(RECEIVER)], tiles, routes=routes))
    assert machine.run(700) == Status.LIMIT
    assert [received(machine, x) for x in (1, 2, 3)] == [[1], [1], [1]]
    assert machine.run(100_000) == Status.QUIET, machine.fault
    assert all(machine.read(x, 0, 60, 2).view(np.uint16) & 0x4000 for x in (1, 2))
    # PE 3 has no handler: nothing goes in there any more, and PE 2 sends both ways or not at all.
    assert [received(machine, x) for x in (1, 2, 3)] == [[1, 2, 3], [1], [1]]


def test_a_color_that_starts_torn_carries_nothing_until_it_is_freed():
    free = "local 8:\n const r0 0\n intrinsic.teardown_exit -1 r0\n return\n.blocked LOCAL 8\n"
    routes = {(0, 0, 0): color_register("R", "E")}
    routes |= {(1, 0, 0): color_register("W", "R", torn=True)}
    blocked = assemble(RECEIVER + ".active 8\n" + free)
    machine = Machine(build([sender(4), blocked], [[0, 1]], routes=routes))
    machine.run(1000)
    assert received(machine, 1) == []
    freed = assemble(RECEIVER + ".active 8\n" + free.replace(".blocked LOCAL 8\n", ""))
    machine = Machine(build([sender(4), freed], [[0, 1]], routes=routes))
    assert machine.run(1000) == Status.QUIET
    assert received(machine, 1) == [4]


def test_the_switch_register_shows_and_sets_the_position():
    program = assemble(
        """
        .active 8
        .space out 8
        local 8:
          const r0 0x7f40
          config_get r1 r0
          const r2 0
          store.u16 r2 r1 0
          const r3 0x2000      # position 1
          or.u16 r1 r1 r3
          config_set r0 r1
          load.u16 r4 r5 0     # the same register by a pointer, at twice its address
          const r5 0xfe80
          load.u16 r4 r5 0
          store.u16 r2 r4 2
          return
        """,
        memory=8,
    )
    register = switch_register("tx=E")
    routes = {(0, 0, 0): color_register("R", "R")}
    machine = Machine(build([program], routes=routes, switches={(0, 0, 0): register}))
    assert machine.run(1000) == Status.QUIET, machine.fault
    assert machine.read(0, 0, 0, 4).view(np.uint16).tolist() == [register, register | 0x2000]


def test_the_lowest_color_goes_first_on_a_link():
    """Both colors use PE 1's link to the east; color 0 never waits, color 1 takes the rest."""
    text = SENDER + "\n".join(
        f"fabric r0 0 1\nconst r1 {k}\noperate MOV32 dest=FABRIC src0=SCALAR at=r0"
        for k in range(4)
    )
    both = {(1, 0, c): color_register("W" if c == 0 else "S", "E") for c in (0, 1)}
    routes = both | {(0, 0, 0): color_register("R", "E"), (1, 1, 1): color_register("R", "N")}
    routes |= {(2, 0, c): color_register("W", "R") for c in (0, 1)}
    receiver = RECEIVER + RECEIVER.split("data 0:")[1].join(["data 1:\n", ""])
    programs = [
        assemble(text + "\nreturn"),
        assemble(text.replace("color=0", "color=1") + "\nreturn"),
        assemble(receiver),
    ]
    machine = Machine(build(programs, [[0, -1, 2], [-1, 1, -1]], routes=routes))
    assert machine.run(1000) == Status.QUIET, machine.fault
    assert sorted(received(machine, 2)) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert machine.links[0, 1, 1] == 8
