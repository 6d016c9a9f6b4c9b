"""Microthreads beside the task that runs, counted by hand on both machines.

PE 0 sends to PE 1, whose cost is that of their waits alone. A word that is sent in cycle t is taken
in cycle t + 6 at the earliest.
"""

import pytest
from helpers.assembly import assemble, build, color_register

from wafer.machine.base import Status
from wafer.machine.engine import Machine
from wafer.machine.reference.machine import ReferenceMachine

MACHINES = [
    pytest.param(Machine, marks=pytest.mark.native),
    pytest.param(ReferenceMachine, marks=pytest.mark.slow),  # compiles a step of all PEs
]
LOW, NONE, MEDIUM, HIGH = 0, -1, 1, 2
OWN, TAKEN, SEEN = 0, 16, 32  # addresses of four words each
PE = f"""
.data own u32 1 2 3 4
.data taken u32 0 0 0 0
.data seen u32 0 0 0 0
.queue in 2 color=1
.queue out 0 color=1
.fabric sends=1 queue=0 color=1
.fabric sends=0 queue=2 color=1
.active 8
local 8:
fabric r0 0 4
memory r1 {OWN} 4
memory r2 {TAKEN} 4
fabric r3 1 4
memory r4 {TAKEN} 2
fabric r5 1 2
const r6 0
const r7 9
"""
SEND = "operate MOV32 at=r0 dest=fabric src0=memory"
TAKE = "operate MOV32 at=r2 dest=memory src0=fabric"
TAKE_TWO = "operate MOV32 at=r4 dest=memory src0=fabric"
APART = "asynchronous=1 thread=3"
WORK = "wait.1 -1 0"
ROUTES = {(0, 0, 1): color_register("R", "E"), (1, 0, 1): color_register("W", "R")}


def ended(kind, *codes, level=3, status=Status.QUIET):
    """The machine after two PEs have run their code."""
    programs = [assemble(f"{PE}{code}\nreturn")._replace(waits=True, level=level) for code in codes]
    machine = kind(build(programs, [[0, 1]], routes=ROUTES))
    assert machine.run() is status, machine.fault
    return machine


def words(machine, x, address):
    return machine.read(x, 0, address, 16).view("u4").tolist()


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(
    ("priority", "level", "last"),
    [(LOW, 3, 14), (NONE, 3, 4), (MEDIUM, 3, 4), (HIGH, 3, 4), (MEDIUM, 4, 14), (HIGH, 6, 14)],
)
def test_words_leave_while_the_task_works(kind, priority, level, last):
    """Four words beside ten cycles of work: before them; behind, where the task is above."""
    code = f"{SEND} {APART} priority={priority}\n{WORK} 10"
    worked, ends = ended(kind, code, TAKE, level=level).worked
    assert worked.tolist() == [[4 + 10, 4]]
    assert ends.tolist() == [[14, last + 6]]


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(
    ("priority", "work", "seen"), [(MEDIUM, 36, 0), (MEDIUM, 37, 4), (LOW, 37, 0)]
)
def test_a_load_sees_the_words_that_have_come(kind, priority, work, seen):
    """Words come in cycles 36 to 39; the last cycle of the work is 35, or behind the words."""
    look = f"{WORK} {work}\nload.u32 r8 r6 {TAKEN + 12}\nstore.u32 r6 r8 {SEEN}\n{WORK} 10"
    machine = ended(kind, f"{WORK} 30\n{SEND}", f"{TAKE} {APART} priority={priority}\n{look}")
    assert words(machine, 1, TAKEN) == [1, 2, 3, 4]
    assert words(machine, 1, SEEN)[0] == seen
    assert machine.worked[0].tolist() == [[34, work + 10 + 4]]


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(("priority", "sent"), [(LOW, 9), (MEDIUM, 4)])
def test_a_store_comes_before_or_behind_the_words(kind, priority, sent):
    """Word 3 is written after two cycles of work: those before four words, or behind them."""
    code = f"{SEND} {APART} priority={priority}\n{WORK} 2\nstore.u32 r6 r7 {OWN + 12}\n{WORK} 10"
    assert words(ended(kind, code, TAKE), 1, TAKEN) == [1, 2, 3, sent]


@pytest.mark.parametrize("kind", MACHINES)
def test_the_next_operation_waits_for_its_microthread(kind):
    """Words 36 and 37 end the first one; the second one begins in 38, and two cycles of work."""
    machine = ended(kind, f"{WORK} 30\n{SEND}", f"{TAKE_TWO} {APART}\n{TAKE_TWO} {APART}\n{WORK} 2")
    assert words(machine, 1, TAKEN) == [3, 4, 0, 0]
    worked, ends = machine.worked
    assert worked.tolist() == [[34, 4 + 2]]
    assert ends.tolist() == [[34, 38 + 2 + 2]]


@pytest.mark.native
def test_a_microthread_that_never_ends_is_named_with_its_operation_and_the_task():
    machine = ended(Machine, SEND, f"{TAKE} {APART}\n{TAKE_TWO} {APART}\n{TAKE_TWO} {APART}")
    assert words(machine, 1, TAKEN) == [1, 2, 3, 4]
    line = len(PE.split("\n"))
    assert [str(each) for each in machine.waiting()] == [
        f"PE (1, 0): microthread 3 of local task 8 waits for data of color 1 (test.csl:{line + 1})",
        "PE (1, 0): local task 8 waits for microthread 3 to end its operation"
        f" (test.csl:{line + 2})",
    ]
