"""Images and calls that lead out of what there is are refused before the machine reads them."""

import numpy as np
import pytest
from helpers.assembly import assemble, build

from wafer.errors import CompileError
from wafer.machine.base import Rectangle, Status
from wafer.machine.engine import Machine, available
from wafer.machine.image import COLUMNS

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

TASK = ".active 8\nlocal 8:\n"
OPERATES = (
    TASK + "memory r0 0 2\nmemory r1 4 2\noperate MOV16 dest=MEMORY src0=MEMORY at=r0\nreturn"
)


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
    ],
)
def test_images(fields, message):
    with pytest.raises(CompileError) as error:
        Machine(build([program()])._replace(**fields))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "lines",
    [
        "fabric r0 7 1\nreceive.u16 r1 r0",
        "fabric r0 7 1\nsend.u16 r0 r1",
        "fabric r0 0 1\nsend.u16 r0 r1",  # a descriptor for input
        "fabric r0 7 1\noperate MOV16 dest=NONE src0=FABRIC at=r0",
        "const r0 0x70000\noperate MOV16 dest=SHAPED src0=SCALAR at=r0",
        "const r0 9\noperate MOV16 dest=NONE src0=FIFO at=r0",
        "const r0 9\nconst r1 9\noperate MOV16 dest=SCALAR src0=SCALAR at=r0",
        "const r0 0\nconst r1 0\noperate ADD16 dest=NONE src0=FIFO src1=FIFO at=r0",
        "const r0 18\nintrinsic.fifo_length -1 r0 r0",
    ],
)
def test_descriptors_that_a_program_or_the_host_writes(lines):
    """They are not known before the run: its fault names their line."""
    text = f".fabric queue=1 color=0\n.fifo address=0 bytes=16\n{TASK}{lines}\nreturn"
    machine = Machine(build([program(text)]))
    assert machine.run(1000) == Status.FAULT
    assert "an output descriptor is read, an input descriptor is written, or there is no such" in (
        machine.fault
    )
    assert "test.csl:" in machine.fault
    machine.waiting()


def test_a_color_is_not_swapped_with_one_that_there_is_not():
    lines = "const r0 0x7f20\nconst r1 0xC00\nconfig_set r0 r1\nreturn"
    image = build([program(TASK + lines)], routes={(0, 0, 0): 0x210})
    machine = Machine(image)
    assert machine.run(1000) == Status.FAULT
    assert "no configuration register at word address 0x7f20" in machine.fault


def test_calls():
    one = program(TASK + "return\nfunction go:\n  return")
    machine = Machine(build([one], streams={9: "MEMCPYH2D_1"}), threads=-3)
    with pytest.raises(CompileError, match=r"'go' on PE \(0, 0\) was given 5000 arguments, more"):
        machine.launch(Rectangle(0, 0, 1, 1), "go", [0] * 5000)
    for address in (-1, 2**63 - 1, 2**64):
        with pytest.raises(CompileError, match="are outside of what its program declares"):
            machine.read(0, 0, address, 64)
    machine.send(9, (0, 0, "RAMP"), np.zeros((2, 3), np.uint32))
    with pytest.raises(CompileError, match="no words of color 99 with the host by RAMP"):
        machine.receivable(99, (0, 0, "RAMP"))
    assert machine.run(1000) == Status.QUIET
