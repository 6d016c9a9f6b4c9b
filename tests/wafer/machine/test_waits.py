"""WAIT, by hand on both machines: cycles of work, and cycles that leave the CE to microthreads."""

import pytest
from helpers.assembly import assemble, build

from wafer.machine.base import Status
from wafer.machine.engine import Machine
from wafer.machine.reference.machine import ReferenceMachine

MACHINES = [
    pytest.param(Machine, marks=pytest.mark.native),
    pytest.param(ReferenceMachine, marks=pytest.mark.slow),  # compiles a step of all PEs
]
# 4 values of 0.0, two a cycle
WRITE = "memory r0 0 4\nconst r1 0\noperate FMOVS at=r0 dest=memory src0=scalar"
# PE 0 sends 4 words after 30 cycles; microthread 3 of PE 1 takes them.
SEND = """
.queue out 0 color=1
.fabric sends=1 queue=0 color=1
.active 8
local 8:
wait.1 -1 0 30
fabric r0 0 4
const r1 7
operate MOV32 at=r0 dest=fabric src0=scalar
return
"""
TAKE = """
.queue in 2 color=1
.fabric sends=0 queue=2 color=1
.active 8
local 8:
memory r0 0 4
fabric r1 0 4
operate MOV32 at=r0 dest=memory src0=fabric asynchronous=1 thread=3
wait.0 3 0 {cycles}
wait.1 -1 0 2
return
"""


def image_of(*texts, **options):
    """A row of PEs whose waits are all that their code costs."""
    programs = [assemble(text, memory=16)._replace(waits=True) for text in texts]
    return build(programs, [range(len(texts))], **options)


def by_wire(cycles):
    routes = {(0, 0, 1): 16 << 5 | 2, (1, 0, 1): 1 << 5 | 16}
    return image_of(SEND, TAKE.format(cycles=cycles), routes=routes)


@pytest.mark.parametrize("kind", MACHINES)
def test_cycles_of_work_and_others(kind):
    text = f".active 8\nlocal 8:\nwait.1 -1 0 5\nwait.0 -1 0 7\n{WRITE}\nreturn"
    machine = kind(image_of(text))
    assert machine.run() is Status.QUIET
    worked, ended = machine.worked
    assert worked.tolist() == [[5 + 2]]
    assert ended.tolist() == [[5 + 7 + 2]]


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize(("cycles", "goes_on"), [(0, 40), (38, 40), (50, 50)])
def test_a_task_waits_for_a_microthread_and_its_cycles(kind, cycles, goes_on):
    """Words are there in cycles 36 to 39, whatever the task waits for; then it works for two."""
    machine = kind(by_wire(cycles))
    assert machine.run() is Status.QUIET
    assert machine.read(1, 0, 0, 16).view("u4").tolist() == [7] * 4
    worked, ended = machine.worked
    assert worked.tolist() == [[30 + 4, 4 + 2]]
    assert ended.tolist() == [[34, goes_on + 2]]
    assert machine.links[0, 0].tolist() == [0, 4, 0, 0, 0]


@pytest.mark.native
def test_compiled_code_pays_for_its_instructions_besides():
    """Without ``waits`` a program's operands, tasks and banks cost what they cost in CSL."""
    text = f".active 8\nlocal 8:\nwait.1 -1 0 5\n{WRITE}\nreturn"
    paid, free = (Machine(build([assemble(text, memory=16)._replace(waits=w)])) for w in (0, 1))
    for machine in (paid, free):
        machine.run()
    assert free.worked[1].tolist() == [[5 + 2]]
    assert paid.worked[1] > free.worked[1]
