"""Routes, switches, pop modes, teardown, color swap, filters and their cycles."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register, switch_register

from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

NOP, ADV, RST = 0, 1, 2
ALWAYS = 1


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


def sent(*words):
    """The program that sends numbers as data, and (number,) as control wavelets."""
    lines = [SENDER]
    for word in words:
        control = isinstance(word, tuple)
        lines += [f"fabric r0 {int(control)} 1", f"const r1 {word[0] if control else word}"]
        lines += ["operate MOV32 dest=FABRIC src0=SCALAR at=r0"]
    return "\n".join([*lines, "return"])


def sender(*words):
    return assemble(sent(*words), name="sender.csl", memory=128)


def received(machine, x, y=0):
    count = machine.read(x, y, 0, 2).view(np.uint16)[0]
    return machine.read(x, y, 4, 4 * count).view(np.uint32).tolist()


def row(words, width, routes, switches=(), filters=()):
    """PE 0 sends, the others collect what reaches them."""
    named = lambda table: {(x, 0, 0): value for x, value in dict(table).items()}
    tables = {"switches": named(switches), "filters": named(filters), "routes": named(routes)}
    programs = [sender(*words), assemble(RECEIVER, name="receiver.csl")]
    machine = Machine(build(programs, [[0] + [1] * (width - 1)], **tables))
    assert machine.run(100_000) == Status.QUIET, machine.fault
    return machine


@pytest.mark.parametrize("hops", [1, 2, 5])
def test_a_word_takes_five_cycles_of_ramps_and_one_per_hop(hops):
    timed = """
    .active 8
    local 8:
      const r9 1
      intrinsic.timer -1 r9
      fabric r0 0 1
      {}
      store.u16 r2 r5 0
      return
    """
    send = "const r1 42\nintrinsic.timestamp r5 -1\nsend.u32 r0 r1\nconst r2 0"
    take = "receive.u32 r1 r0\nintrinsic.timestamp r5 -1\nconst r2 0\nstore.u16 r2 r1 2"
    first = ".fabric sends=1 queue=2 color=0\n" + timed.format(send)
    last = ".fabric queue=2\n.queue in 2 color=0\n" + timed.format(take)
    routes = {(x, 0, 0): color_register("W", "E") for x in range(1, hops)}
    routes |= {(0, 0, 0): color_register("R", "E"), (hops, 0, 0): color_register("W", "R")}
    tiles = [[0] + [-1] * (hops - 1) + [1]]
    programs = [assemble(first, memory=4), assemble(last, memory=4)]
    machine = Machine(build(programs, tiles, routes=routes))
    assert machine.run(1000) == Status.QUIET
    (sent,) = machine.read(0, 0, 0, 2).view(np.uint16)
    taken, value = machine.read(hops, 0, 0, 4).view(np.uint16)
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


def test_without_a_ring_the_last_position_stays_and_a_reset_goes_back():
    routes = {0: color_register("R", "E"), 1: color_register("W", "R")}
    routes |= {2: color_register("W", "R")}
    switches = {1: switch_register("tx=E")}
    words = [1, (payload(ADV),), 2, (payload(ADV),), 3, (payload(RST),), 4]
    machine = row(words, 3, routes, switches)
    assert received(machine, 1) == [1, 4]
    assert received(machine, 2) == [2, 3]


def test_what_follows_the_last_command_is_a_nop_that_the_ce_sees_if_it_saw_that():
    """Nine hops with always_pop and eight commands: the ninth router finds a hidden NOP."""
    routes = {0: color_register("R", "E"), 10: color_register("W", "R", pop=ALWAYS)}
    routes |= {x: color_register("W", "RE", pop=ALWAYS) for x in range(1, 10)}
    machine = row([(payload(),), 4], 11, routes)
    assert [received(machine, x) for x in range(1, 11)] == [[4]] * 10


def test_a_counter_filter_that_counts_nothing_lets_nothing_through_to_its_own_pe():
    rule = {"kind": 1, "limit1": 3, "most": 1, "start": 2}
    routes = {0: color_register("R", "E"), 1: color_register("W", "RE")}
    routes |= {2: color_register("W", "R")}
    machine = row(range(10), 3, routes, filters={1: rule})
    assert received(machine, 1) == []
    assert received(machine, 2) == list(range(10))


def test_a_filter_may_let_through_controls_only_at_its_most():
    rule = {"kind": 1, "counts_data": 1, "limit1": 2, "most": 1, "controls_filtered": 1}
    receiver = RECEIVER + "control 3:\n const r1 0\n load.u16 r2 r1 64\n const r3 1\n"
    receiver += " add.u16 r2 r2 r3\n store.u16 r1 r2 64\n return\n"
    seen = (payload((NOP, False), task=3),)
    words = [seen, 0, seen, 1, seen, 2, seen]  # at counters 0, 1, 2, 0
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    programs = [sender(*words), assemble(receiver, memory=68)]
    machine = Machine(build(programs, [[0, 1]], routes=routes, filters={(1, 0, 0): rule}))
    assert machine.run(1000) == Status.QUIET, machine.fault
    assert received(machine, 1) == [0, 1]
    assert machine.read(1, 0, 64, 2).view(np.uint16) == [1]
