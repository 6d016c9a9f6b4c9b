"""What the machine says of wrong programs, images, calls and descriptors: where and what."""

import jax
import numpy as np
import pytest
from helpers.assembly import assemble, build

from wafer.errors import CompileError
from wafer.machine import reference
from wafer.machine.base import Rectangle, Status
from wafer.machine.engine import Machine
from wafer.machine.image import COLUMNS

pytestmark = pytest.mark.native

TASK = ".active 8\nlocal 8:\n"
OPERATES = (
    TASK + "memory r0 0 2\nmemory r1 4 2\noperate MOV16 dest=MEMORY src0=MEMORY at=r0\nreturn"
)
AT = "test.csl:{}: PE (0, 0), local task 8: "
NO_DESCRIPTOR = "an output descriptor is read, an input descriptor is written, or there is no such"
# Lines of a task -> its fault, with the line (behind five of the program's head).
FAULTS = {
    "const r0 13\nload.i32 r1 r0 100": AT.format(7) + "byte address 113 is outside of the 16 bytes",
    "const r0 13\nstore.i32 r0 r0 0": AT.format(7) + "byte ad",
    "memory r0 12 4\nmemory r1 0 4\noperate MOV16 dest=MEMORY src0=MEMORY at=r0": AT.format(8)
    + "byte address 16 is outside of the 16 bytes",
    ".shape n0=2 n2=0 n3=4\nconst r0 0\ndsd_set.shape r0 r0 r0\nmemory r1 0 6\n"
    "operate MOV16 dest=SHAPED src0=MEMORY at=r0": AT.format(10)
    + "an operand has an extent of 0 beside operands",
    "const r0 0\ndiv.i16 r1 r0 r0": "integer division by zero",
    "again:\n call again r4": "more than 64 calls within each other",
    ".message 'sum == 3 (a.csl:7)'\nfault 0": "local task 8: sum == 3 (a.csl:7)",
    "const r0 0x7f3f\nconfig_set r0 r0": "register at word address 0x7f3f",
    "const r0 0x7f20\nconst r1 0xC00\nconfig_set r0 r1": "register at word address 0x7f20",
    "const r0 5\nconst r1 0x103\nload_dsr file=1 id=4 kind=MEMORY at=r0\n"
    "operate FMOVS dest=DSR src0=DSR at=r0": "DSR dest 5 was used before",
    "fabric r0 1 1\nreceive.u16 r1 r0": "no color is bound to input queue",
    # Descriptors that are not known before the run.
    "fabric r0 7 1\nreceive.u16 r1 r0": AT.format(7) + NO_DESCRIPTOR,
    "fabric r0 7 1\nsend.u16 r0 r1": NO_DESCRIPTOR,
    "fabric r0 0 1\nsend.u16 r0 r1": NO_DESCRIPTOR,  # one for input
    "fabric r0 7 1\noperate MOV16 dest=NONE src0=FABRIC at=r0": NO_DESCRIPTOR,
    "const r0 0x70000\noperate MOV16 dest=SHAPED src0=SCALAR at=r0": NO_DESCRIPTOR,
    "const r0 9\noperate MOV16 dest=NONE src0=FIFO at=r0": NO_DESCRIPTOR,
    "const r0 9\nconst r1 9\noperate MOV16 dest=SCALAR src0=SCALAR at=r0": NO_DESCRIPTOR,
    "const r0 0\nconst r1 0\noperate ADD16 dest=NONE src0=FIFO src1=FIFO at=r0": NO_DESCRIPTOR,
    "const r0 18\nintrinsic.fifo_length -1 r0 r0": NO_DESCRIPTOR,
}


@pytest.mark.parametrize("lines", FAULTS)
def test_faults_name_pe_task_file_and_line(lines):
    head = ".fabric queue=1 color=0\n.fabric queue=2\n.fifo address=0 bytes=16\n"
    program = assemble(head + TASK[:-1] + "\n" + lines + "\nreturn", memory=16)
    machine = Machine(build([program], routes={(0, 0, 0): 0x210}))
    assert machine.run(1000) == Status.FAULT
    assert machine.run(1) == Status.FAULT  # it stays
    assert FAULTS[lines] in machine.fault
    machine.waiting()


def program(text=OPERATES, **fields):
    return assemble(text, memory=64)._replace(**fields)


def row(table, **columns):
    """A program with one more row in a table."""
    one = program()
    values = np.array([[columns.get(name, -1) for name in COLUMNS[table]]], np.int32)
    tables = one.tables | {table: np.concatenate([one.tables[table], values])}
    return one._replace(tables=tables)


def code(at, column, value):
    rows = program().code.copy()
    rows[at, column] = value
    return program(code=rows)


SHAPE = {"n0": 1 << 16, "n1": 1 << 16, "n2": 1, "n3": 1}
TWO_SUMS = {"address": 2**31 - 8, "bytes": 16}  # the sum of int32 is negative


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (code(0, 0, 48), "operation codes outside of 0..47"),
        (code(0, 2, -1), "a negative register"),
        (code(0, 1, 11), "a type that there is not"),
        (code(-1, 0, 1), "no end behind its last instruction"),
        (code(2, 2, 1), "OPERATE of a row that operations does not have"),
        (program(TASK + "jump 99\nreturn"), "a jump behind the end"),
        (row("fifos", **TWO_SUMS), "a FIFO outside of the memory"),
        (row("shapes", **SHAPE), "a shape of more elements than are counted"),
        (row("fabrics", queue=8), "queue of fabrics outside of -1 to 7"),
        (row("fabrics", clears=0, control_action=1), "control_action of fabrics without a"),
        (row("dsr_loads", file=3), "file of dsr_loads outside of 0 to 2"),
        (program(blocked=np.zeros(4, np.int32)), "other than 5 words of gates"),
        (program(local_tasks=np.zeros(32, np.int32)), "local_tasks of shape (32,); at most 31"),
        (program(code=np.zeros((1, 4), np.int32)), "instructions that are not five whole numbers"),
        (program(memory=np.zeros(4)), "memory that is not bytes"),
        (program(functions={"go": 99}), "a jump behind the end"),
        (program(frame=-1), "frames of no or too many registers"),
        (program(TASK + "wait.0 8 0 1\nreturn"), "a wait for a microthread that there is not"),
        (program(TASK + "wait.1 -1 0 -3\nreturn"), "a wait of too many cycles"),
        (program(TASK + "wait.2 -1 0 1\nreturn"), "a type that there is not"),
    ],
)
def test_programs(wrong, message):
    with pytest.raises(CompileError) as error:
        Machine(build([wrong]))
    assert str(error.value).startswith("test.csl: the compiled code has ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tiles": np.array([[1]])}, "PEs whose program is not there"),
        ({"tiles": np.zeros(0, np.int32)}, "tiles that are no rectangle of PEs"),
        ({"tiles": np.zeros((1, 1), bool)}, "tiles that are no whole numbers"),
        ({"colors": np.zeros((1, 1, 23), np.int32)}, "colors of shape (1, 1, 23); (1, 1, 24)"),
        ({"routed": np.zeros((1, 1, 24))}, "routed of shape (1, 1, 24); (1, 1, 24) truth values"),
        ({"streams": {24: "MEMCPYH2D_1"}}, "streams on other colors than 0 to 23"),
        ({"arch": "wse1"}, "'wse1'; there are wse2, wse3"),
    ],
)
def test_images(fields, message):
    with pytest.raises(CompileError) as error:
        Machine(build([program()])._replace(**fields))
    assert message in str(error.value)


RAMP, ONE = (0, 0, "RAMP"), Rectangle(0, 0, 1, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.launch(ONE, "go", [0] * 5000), "'go' on PE (0, 0) was given 5000 arguments"),
        (lambda m: m.launch(ONE, "sub"), "exports go, not a function 'sub'"),
        (lambda m: m.read(1, 0, 0, 4), "PE (1, 0) is outside of the 1 x 1 rectangle"),
        (lambda m: m.write(0, 0, 62, np.zeros(1, np.float32)), "bytes 62 to 66 are outside"),
        (lambda m: m.read(0, 0, 56, 73), "bytes 56 to 129 are outside"),  # 64 more are zero
        *(
            (lambda m, at=at: m.read(0, 0, at, 64), "are outside of what its program declares")
            for at in (-1, 2**63 - 1, 2**64)
        ),
        (lambda m: m.send(3, RAMP, np.zeros(1)), "no words of color 3 with the host by RAMP"),
        (lambda m: m.receivable(99, RAMP), "no words of color 99 with the host by RAMP"),
    ],
)
def test_calls(call, message):
    one = program(TASK + "return\nfunction go:\n  return")
    machine = Machine(build([one], streams={9: "MEMCPYH2D_1"}), threads=-3)
    with pytest.raises(CompileError) as error:
        call(machine)
    assert message in str(error.value)
    assert machine.read(0, 0, 56, 72).tolist() == [0] * 72
    machine.send(9, RAMP, np.zeros((2, 3), np.uint32))
    assert machine.run(1000) == Status.QUIET


@pytest.mark.parametrize("name", ["print", "exp"])
def test_what_the_jax_machine_does_not_run(name):
    with jax.enable_x64(True), pytest.raises(CompileError, match=f"calls {name}"):
        reference.start(build([program(f"{TASK}intrinsic.{name} r1 r2\nreturn")]))


def test_the_jax_machine_needs_registers_of_64_bits():
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="enable_x64"):
        reference.start(build([program()]))
