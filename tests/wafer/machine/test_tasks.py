"""Which task runs when: activation, blocking, data tasks, microthreads, FIFOs, the host's calls."""

import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register

from wafer.errors import CompileError
from wafer.machine.base import Print, Rectangle, Status
from wafer.machine.engine import Machine, available

RAMP = (0, 0, "RAMP")  # of the PE, for streams

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

H2D, D2H = {20: "MEMCPYH2D_1"}, {21: "MEMCPYD2H_1"}
# Appends a number to a log: its place is kept in the first two bytes.
LOG = """
  const r20 0
  load.u16 r21 r20 0
  store.u16 r21 r{value} 2
  const r22 2
  add.u16 r21 r21 r22
  store.u16 r20 r21 0
"""


def note(number):
    return f"const r19 {number}" + LOG.format(value=19)


def log(machine, x=0, y=0):
    count = machine.read(x, y, 0, 2).view(np.uint16)[0]
    return machine.read(x, y, 2, count).view(np.uint16).tolist()


def machine_of(text, arch="wse2", memory=64, cycles=100_000, **tables):
    machine = Machine(build([assemble(text, memory=memory)], arch=arch, **tables))
    machine.run(cycles)
    assert not machine.fault, machine.fault
    return machine


def test_ready_tasks_take_turns_by_id_and_activations_coalesce():
    machine = machine_of(
        f"""
        .active 12
        local 12:
          const r0 20
          activate r0
          activate r0
          const r0 9
          activate r0
          {note(12)}
          return
        local 9:
          {note(9)}
          return
        local 20:
          {note(20)}
          return
        """
    )
    assert log(machine) == [12, 20, 9]  # on from 12, then from the lowest again


@pytest.mark.parametrize("unblock_first", [False, True])
def test_a_blocked_task_runs_once_it_is_both_active_and_free(unblock_first):
    """The two-event join: activate then unblock, or unblock then activate."""
    first, second = ("unblock.local", "activate")[:: 1 if unblock_first else -1]
    machine = machine_of(
        f"""
        .active 8
        .blocked LOCAL 9
        local 8:
          const r0 9
          {first} r0
          const r1 10
          activate r1
          {note(8)}
          return
        local 10:
          {note(10)}
          const r0 9
          {second} r0
          return
        local 9:
          {note(9)}
          const r0 9
          block.local r0        # blocked and activated again: waits
          activate r0
          return
        """
    )
    assert log(machine) == [8, 10, 9]
    assert [str(line) for line in machine.waiting()] == [
        "PE (0, 0): local task 9 waits for being unblocked (it is activated)"
    ]


def test_a_data_task_runs_once_per_word_and_a_blocked_one_holds_the_words():
    text = f"""
    .blocked DATA 20
    .active 8
    data 20:
      {LOG.format(value=0)}
      return
    local 8:
      const r0 20
      {note(8)}
      unblock.data r0
      return
    """
    image = build([assemble(text, memory=64)], streams=H2D)
    machine = Machine(image)
    machine.send(20, RAMP, np.array([7, 8, 0x10009]))
    assert machine.run(10_000) == Status.QUIET
    assert log(machine) == [8, 7, 8, 9]


def test_on_wse3_data_tasks_go_by_input_queue():
    text = f"""
    .queue in 4 color=20
    data 4:
      {LOG.format(value=0)}
      return
    """
    machine = Machine(build([assemble(text, memory=64)], arch="wse3", streams=H2D))
    machine.send(20, RAMP, np.arange(3))
    assert machine.run(10_000) == Status.QUIET
    assert log(machine) == [0, 1, 2]


ECHO = """
.fabric queue=0
.fabric sends=1 queue=3 color=21
.queue in 0 color=20
.active 8
local 8:
  fabric r0 1 4
  fabric r1 0 4
"""


def echo(tail, words, **settings):
    machine = Machine(build([assemble(ECHO + tail, memory=64)], streams=H2D | D2H, **settings))
    machine.send(20, RAMP, np.array(words))
    machine.run(10_000)
    assert not machine.fault, machine.fault
    return machine


def test_an_asynchronous_operation_lets_the_task_go_on_and_activates_another():
    machine = echo(
        f"""
          operate FNEGS dest=FABRIC src0=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
          {note(8)}
          return
        local 9:
          {note(9)}
          return
        """,
        np.array([1, 2, 3, 4], np.float32).view(np.uint32),
    )
    assert log(machine) == [8, 9]
    assert machine.receive(21, RAMP).view(np.float32).tolist() == [-1, -2, -3, -4]
    assert machine.receive(21, RAMP).size == 0


def test_words_of_16_bits_travel_in_the_low_half_with_an_index_if_asked():
    text = """
    .fabric sends=1 queue=3 color=21 indexed=5
    .data x i16 -1 2
    .active 8
    local 8:
      fabric r0 0 2
      memory r1 x 2
      operate MOV16 dest=FABRIC src0=MEMORY at=r0
      fabric r0 0 2
      const r1 f16:1.0
      const r2 0x40
      operate FMOVH dest=FABRIC src0=SCALAR index=1 at=r0
      return
    """
    machine = machine_of(text, streams=D2H)
    assert machine.receive(21, RAMP).tolist() == [
        *(0x5FFFF, 0x60002),
        *(0x453C00, 0x463C00),
    ]


def test_the_index_of_a_wavelet_says_where_it_goes():
    text = """
    .fabric queue=0
    .queue in 0 color=20
    .space y 4
    .space z 12
    .active 8
    local 8:
      memory r0 z 3 0 1      # indexed, no step of its own
      fabric r1 0 3
      operate MOV16 dest=MEMORY src0=FABRIC at=r0
      return
    """
    machine = Machine(build([assemble(text)], streams=H2D))
    machine.send(20, RAMP, np.array([0x30007, 0x00008, 0x50009]))
    machine.run()
    assert machine.read(0, 0, 0, 16).view(np.uint16).tolist() == [0, 0, 8, 0, 0, 7, 0, 9]


def test_a_descriptor_without_end_is_left_by_a_control_wavelet_alone():
    sender = """
    .active 8
    .fabric sends=1 queue=2 color=0
    .fabric sends=1 queue=2 color=0 control=1
    .data x f32 1 2 3
    local 8:
      fabric r0 0 3
      memory r1 x 3
      operate FMOVS dest=FABRIC src0=MEMORY at=r0
      fabric r0 1 1
      const r1 {payload}
      operate MOV32 dest=FABRIC src0=SCALAR at=r0
      return
    """
    receiver = f"""
    .space log 64
    .data sum f32 0
    .fabric queue=2 {{ends}}
    .queue in 2 color=0
    .active 8
    local 8:
      const r0 sum
      const r1 sum
      fabric r2 0 0x7fff
      operate FADDS dest=POINTER src0=POINTER src1=FABRIC at=r0 into=r9
      {LOG.format(value=9)}
      return
    local 9:
      {note(9)}
      return
    """
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}

    def run(ends):
        programs = [assemble(sender.format(payload=0)), assemble(receiver.format(ends=ends))]
        machine = Machine(build(programs, [[0, 1]], routes=routes))
        machine.run(1000)
        return machine

    machine = run("control_ends=1 control_action=ACTIVATE control_target=9")
    assert log(machine, 1) == [0, 9]  # the operation says that its length did not end it
    assert machine.read(1, 0, 64, 4).view(np.float32) == [6]
    machine = run("")
    assert log(machine, 1) == []
    (line,) = [str(line) for line in machine.waiting()]
    assert line.startswith("PE (1, 0): local task 8 waits for data of color 0 (test.csl:")


FIFO = """
.space log 32
.space buffer 8
.fifo address=32 bytes=8 {ends}
.fabric queue=0
.fabric sends=1 queue=3 color=21
.queue in 0 color=20
"""


def test_a_fifo_buffers_between_two_microthreads():
    machine = Machine(
        build(
            [
                assemble(
                    FIFO.format(ends="")
                    + """
                    .active 8 9
                    local 8:                 # in: into the FIFO of two words
                      const r0 0
                      fabric r1 0 6
                      operate MOV32 dest=FIFO src0=FABRIC asynchronous=1 at=r0
                      return
                    local 9:                 # out of it
                      fabric r0 1 6
                      const r1 0
                      const r2 0
                      const r3 6
                      intrinsic.fifo_length -1 r2 r3
                      operate FNEGS dest=FABRIC src0=FIFO asynchronous=1 at=r0
                      return
                    """
                )
            ],
            streams=H2D | D2H,
        )
    )
    words = np.arange(1, 7, dtype=np.float32)
    machine.send(20, RAMP, words.view(np.uint32))
    assert machine.run(10_000) == Status.QUIET, machine.fault
    assert machine.waiting() == []
    assert machine.receive(21, RAMP).view(np.float32).tolist() == (-words).tolist()


@pytest.mark.parametrize(("ends", "expected"), [(1, [1, 0]), (0, [1, 0])])
def test_a_full_fifo_ends_an_operation_that_the_task_waits_for(ends, expected):
    machine = machine_of(
        FIFO.format(ends=f"full_ends={ends} empty_ends={ends} push_task=10 pop_task=11")
        + f"""
        .data x u32 1 2 3 4
        .active 8
        local 8:
          const r0 0
          memory r1 x 2
          operate MOV32 dest=FIFO src0=MEMORY at=r0 into=r9
          {LOG.format(value=9)}
          const r0 0
          memory r1 x 2
          operate MOV32 dest=FIFO src0=MEMORY at=r0 into=r9     # full
          {LOG.format(value=9)}
          memory r0 x 1
          const r1 0
          operate MOV32 dest=MEMORY src0=FIFO at=r0             # makes room: task 10
          return
        local 10:
          {note(10)}
          return
        local 11:
          {note(11)}
          return
        """
    )
    assert log(machine) == [*expected, 10]


def test_a_task_that_waits_for_a_fifo_is_in_the_report():
    machine = machine_of(
        FIFO.format(ends="empty_ends=2")
        + """
        .active 8
        local 8:
          memory r0 0 1
          const r1 0
          operate MOV32 dest=MEMORY src0=FIFO at=r0
          return
        """
    )
    (line,) = machine.waiting()
    assert (line.who, line.reason) == ("local task 8", "data in FIFO 0")


def test_of_two_microthreads_the_one_of_higher_priority_goes_first():
    """Both have their words; the second one has priority and takes every cycle until it is done."""
    text = """
    .fabric sends=1 queue=1 color=21
    .fabric sends=1 queue=2 color=22 priority=2
    .active 8
    local 8:
      fabric r0 0 40
      const r1 1
      fabric r2 1 40
      const r3 2
      operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
      operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r2
      return
    """
    streams = {21: "MEMCPYD2H_1", 22: "MEMCPYD2H_2"}
    machine = Machine(build([assemble(text, memory=4)], streams=streams))
    machine.run(70)
    assert machine.receivable(22, RAMP) == 40 > machine.receivable(21, RAMP)
    machine.run()
    assert machine.receivable(21, RAMP) == 40


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize(("priority", "first"), [("", "fabric"), ("priority=0", "memory")])
def test_a_microthread_goes_before_the_task_unless_it_has_low_priority(arch, priority, first):
    """60 words against 80 elements in memory, one a cycle: who goes first is done by cycle 100."""
    text = f"""
    .data x f32 1
    .fabric sends=1 queue=1 color=21 {priority}
    .active 8
    local 8:
      fabric r0 0 60
      const r1 1
      memory r2 x 80 0
      const r3 f32:1
      operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
      memory r2 x 80 0
      memory r3 x 80 0
      const r4 f32:1
      operate FMULS dest=MEMORY src0=MEMORY src1=SCALAR at=r2
      return
    """
    streams = {21: "MEMCPYD2H_1"}
    machine = Machine(build([assemble(text, memory=4)], arch=arch, streams=streams))
    machine.run(100)
    assert not machine.fault, machine.fault
    assert (machine.receivable(21, RAMP) == 60) == (first == "fabric")
    machine.run()
    assert machine.receivable(21, RAMP) == 60


@pytest.mark.parametrize("held", [True, False])
def test_what_an_operation_names_counts_unless_its_fabric_descriptor_is_in_a_dsr(held):
    destination = "DSR" if held else "FABRIC"
    machine = machine_of(
        f"""
        .space log 32
        .data x f32 1 2 3
        .fabric sends=1 queue=3 color=21
        .active 8
        local 8:
          fabric r5 0 3
          load_dsr file=0 id=2 kind=FABRIC asynchronous=1 at=r5
          memory r1 x 3
          load_dsr file=1 id=2 kind=MEMORY at=r1
          {"const r5 0x002" if held else ""}
          const r6 0x102
          operate FMOVS dest={destination} src0=DSR asynchronous=1 action=ACTIVATE target=9 at=r5
          {note(8)}
          return
        local 9:
          {note(9)}
          return
        """,
        streams=D2H,
    )
    assert log(machine) == ([8] if held else [8, 9])
    assert machine.receivable(21, RAMP) == 3


def test_an_operation_by_dsrs_takes_completion_and_asynchrony_from_their_loads():
    machine = machine_of(
        f"""
        .space log 32
        .data x f32 1 2 3
        .fabric sends=1 queue=3 color=21
        .active 8
        local 8:
          fabric r0 0 3
          load_dsr file=0 id=2 kind=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
          memory r1 x 3
          load_dsr file=1 id=2 kind=MEMORY at=r1
          const r5 0x002
          const r6 0x102
          operate FMOVS dest=DSR src0=DSR asynchronous=1 at=r5
          {note(8)}
          return
        local 9:
          {note(9)}
          return
        """,
        streams=D2H,
    )
    assert log(machine) == [8, 9]
    assert machine.receive(21, RAMP).view(np.float32).tolist() == [1, 2, 3]


def test_a_queue_bound_anew_takes_the_other_colors_words():
    """Topic 16: words of the second color wait until the queue is bound to it (WSE-3)."""
    text = f"""
    .queue in 2 color=18
    .fabric queue=2
    .active 8
    local 8:
      fabric r0 0 1
      receive.u16 r1 r0
      {LOG.format(value=1)}
      const r3 0x7f62           # input queue 2
      const r4 {19 | 1 << 5}
      config_set r3 r4
      receive.u16 r1 r0
      {LOG.format(value=1)}
      return
    """
    streams = {18: "MEMCPYH2D_1", 19: "MEMCPYH2D_2"}
    machine = Machine(build([assemble(text, memory=64)], arch="wse3", streams=streams))
    machine.send(19, RAMP, np.array([2]))
    machine.run(1000)
    assert log(machine) == []
    machine.send(18, RAMP, np.array([1]))
    assert machine.run(1000) == Status.QUIET
    assert log(machine) == [1, 2]


def test_an_output_queue_is_flushed_before_its_handler_runs():
    """The words wait for the neighbour, which takes them late; then the queue is empty."""
    sender = f"""
    .queue out 2 color=0
    .fabric sends=1 queue=2
    .active 8
    local 8:
      fabric r0 0 12
      const r1 5
      operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 action=ACTIVATE target=9 at=r0
      return
    local 9:
      const r0 2
      intrinsic.queue_empty r1 r0
      {LOG.format(value=1)}
      intrinsic.queue_flush -1 r0
      {note(9)}
      return
    empty 2:
      {note(2)}
      return
    """
    late = """
    .queue in 4 color=0
    .fabric queue=4
    .active 8
    local 8:
      const r0 400  # times two cycles
    again:
      const r1 1
      sub.u16 r0 r0 r1
      jump_if again r0
      intrinsic.coordinate r3 r0
      fabric r1 0 12
      memory r0 0 12
      operate MOV32 dest=MEMORY src0=FABRIC at=r0
      return
    """
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    programs = [assemble(sender, memory=64), assemble(late, memory=64)]
    machine = Machine(build(programs, [[0, 1]], arch="wse3", routes=routes))
    machine.run(600)
    assert log(machine) == [0, 9]
    assert machine.run() == Status.QUIET
    assert log(machine) == [0, 9, 2]


CALLED = f"""
.space log 32
function add:
  add.i16 r0 r0 r1
  {LOG.format(value=0)}
  intrinsic.next_command -1 -1
  return
function forgets:
  return
function late:                  # frees the stream from another task
  const r0 9
  activate r0
  return
local 9:
  {note(9)}
  intrinsic.next_command -1 -1
  return
"""


def test_the_host_calls_functions_one_after_another():
    machine = Machine(build([assemble(CALLED)], [[0, 0], [0, 0]]))
    everywhere = Rectangle(0, 0, 2, 2)
    machine.launch(everywhere, "add", [2, -5])
    machine.launch(everywhere, "late")
    machine.launch(Rectangle(1, 0, 1, 2), "add", [1, 1])
    assert machine.commands_waiting(everywhere) == 4
    assert machine.run() == Status.READY
    assert machine.commands_waiting(everywhere) == 0
    assert log(machine, 0, 1) == [0xFFFD, 9]
    assert log(machine, 1, 1) == [0xFFFD, 9, 2]


def test_what_runs_before_the_first_task_is_no_call_of_the_host():
    program = assemble(CALLED.replace("local 9:", "function start:\n return\nlocal 9:"))
    machine = Machine(build([program._replace(start=program.functions["start"])]))
    assert machine.run() == Status.QUIET
    machine.launch(Rectangle(0, 0, 1, 1), "late")
    assert machine.run() == Status.READY
    assert log(machine) == [9]


def test_a_function_that_never_frees_the_stream_stalls_with_a_report():
    machine = Machine(build([assemble(CALLED)]))
    machine.launch(Rectangle(0, 0, 1, 1), "forgets")
    machine.launch(Rectangle(0, 0, 1, 1), "add", [1, 1])
    assert machine.run() == Status.QUIET
    assert machine.commands_waiting(Rectangle(0, 0, 1, 1)) == 1
    line = CALLED.split("\n").index("function forgets:") + 2
    assert [str(line) for line in machine.waiting()] == [
        f"PE (0, 0): host waits for unblock_cmd_stream() after function forgets (test.csl:{line})"
    ]


def test_what_the_host_may_not_do():
    machine = Machine(build([assemble(CALLED)]))
    with pytest.raises(CompileError, match="exports add, forgets, late, not a function 'sub'"):
        machine.launch(Rectangle(0, 0, 1, 1), "sub")
    with pytest.raises(CompileError, match=r"PE \(1, 0\) is outside of the 1 x 1 rectangle"):
        machine.read(1, 0, 0, 4)
    with pytest.raises(CompileError, match="bytes 30 to 34 are outside"):
        machine.write(0, 0, 30, np.zeros(1, np.float32))
    with pytest.raises(CompileError, match="exchanges no words of color 3 with the host by RAMP"):
        machine.send(3, RAMP, np.zeros(1))
    assert machine.read(0, 0, 24, 72).tolist() == [0] * 72  # 64 bytes behind the 32 are zero
    with pytest.raises(CompileError, match="bytes 24 to 97 are outside"):
        machine.read(0, 0, 24, 73)


def test_prints_come_by_cycle_with_their_pe():
    text = """
    .active 8
    local 8:
      const r0 0
      intrinsic.coordinate r1 r0
      const r2 120               # 'x'
      intrinsic.print -1 r2 bool
      intrinsic.print -1 r1 u16
      const r3 f32:1.5
      intrinsic.print -1 r3 f32
      const r2 10
      intrinsic.print -1 r2 bool
      return
    """
    machine = Machine(build([assemble(text, memory=4)], [[0, 0]]))
    machine.run()
    # The task switch, the coordinate, four prints; constants cost nothing.
    cycle = 2 + 1 + 4 * 4
    assert machine.prints == [Print(cycle, x, 0, f"x{x}1.5") for x in (0, 1)]


def test_random_bits_repeat_for_a_seed():
    text = """
    .active 8
    local 8:
      const r9 0
      const r1 {seed}
      intrinsic.seed -1 r1
      intrinsic.random16 r2 -1
      store.u16 r9 r2 0
      intrinsic.random16 r2 -1
      store.u16 r9 r2 2
      return
    """
    run = lambda seed: machine_of(text.format(seed=seed)).read(0, 0, 0, 4).view(np.uint16)

    def reference(state):
        out = []
        for _ in range(2):
            for _ in range(128):  # x^23 + x^18 + 1
                state = (state << 1 | (state >> 22 ^ state >> 17) & 1) & 0xFFFFFFFF
            out.append(state & 0xFFFF)
        return out

    assert run(0xDEADBEEF).tolist() == reference(0xDEADBEEF)
    assert run(77).tolist() == reference(77)
