"""Each fault names the PE, the task, the file and the line."""

import pytest
from helpers.assembly import assemble, build, color_register

from wafer.errors import CompileError
from wafer.machine.engine import Machine, Status, available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

TASK = ".active 8\nlocal 8:\n"
SENDS = ".fabric sends=1 queue=2 color=0\n" + TASK
ONE = "fabric r0 0 1\nconst r1 7\noperate MOV32 dest=FABRIC src0=SCALAR at=r0\nreturn"


def fault(text, programs=(), tiles=((0,),), **tables):
    image = build([assemble(text, memory=16), *map(assemble, programs)], tiles, **tables)
    machine = Machine(image)
    assert machine.run(100_000) == Status.FAULT
    assert machine.run(1) == Status.FAULT  # it stays
    return machine.fault


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            "const r0 13\nload.i32 r1 r0 100\nreturn",
            "test.csl:4: PE (0, 0), local task 8: byte address 113 is outside of the 16 bytes",
        ),
        ("const r0 13\nstore.i32 r0 r0 0\nreturn", "test.csl:4: PE (0, 0), local task 8: byte ad"),
        (
            "memory r0 12 4\nmemory r1 0 4\noperate MOV16 dest=MEMORY src0=MEMORY at=r0\nreturn",
            "test.csl:5: PE (0, 0), local task 8: byte address 16 is outside of the 16 bytes",
        ),
        (
            ".shape n0=2 n2=0 n3=4\nconst r0 0\ndsd_set.shape r0 r0 r0\nmemory r1 0 6\n"
            "operate MOV16 dest=SHAPED src0=MEMORY at=r0\nreturn",
            "test.csl:7: PE (0, 0), local task 8: an operand has an extent of 0 beside operands",
        ),
        ("const r0 0\ndiv.i16 r1 r0 r0\nreturn", "integer division by zero"),
        ("again:\n call again r4\n return", "more than 64 calls within each other"),
        (".message 'sum == 3 (a.csl:7)'\nfault 0", "local task 8: sum == 3 (a.csl:7)"),
        ("const r0 0x7f3f\nconfig_set r0 r0\nreturn", "register at word address 0x7f3f"),
        (
            "const r0 5\nconst r1 0x103\nload_dsr file=1 id=4 kind=MEMORY at=r0\n"
            "operate FMOVS dest=DSR src0=DSR at=r0\nreturn",
            "DSR dest 5 was used before",
        ),
        (
            ".fabric queue=1\nfabric r0 0 1\nreceive.u16 r1 r0\nreturn",
            "no color is bound to input queue",
        ),
    ],
)
def test_faults_of_a_task(lines, message):
    assert message in fault(TASK + lines)


def test_a_microthread_used_twice():
    twice = """
    fabric r0 0 100
    const r1 7
    operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
    operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
    return
    """
    text = fault(SENDS + twice, routes={(0, 0, 0): color_register("R", "R")})
    assert text.startswith("test.csl:8: PE (0, 0), local task 8: microthread 2 still runs")


def test_two_arrivals_in_one_cycle():
    routes = {(0, 0, 0): color_register("R", "E"), (2, 0, 0): color_register("R", "W")}
    routes |= {(1, 0, 0): color_register("EW", "R")}
    text = fault(SENDS + ONE, tiles=[[0, -1, 0]], routes=routes)
    assert text.startswith("PE (1, 0): two wavelets of color 0 arrived in one cycle")


def test_a_wavelet_off_the_wafer():
    """The program's own edge is no edge of the wafer: there the word goes on, and is gone."""
    routes = {(0, 0, 0): color_register("R", "N")}
    text = fault(SENDS + ONE, routes=routes, edges=8)
    assert text.startswith("PE (0, 0): a wavelet of color 0 was routed off the wafer's edge")
    machine = Machine(build([assemble(SENDS + ONE, memory=16)], routes=routes, edges=7))
    assert machine.run(100_000) == Status.QUIET
    assert machine.links[0, 0].tolist() == [0, 0, 0, 1, 0]
    assert not machine.waiting()


def test_a_control_task_that_is_not_bound():
    sends = SENDS.replace("color=0", "color=0 control=1")
    word = ONE.replace("const r1 7", f"const r1 {9 << 16}")
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    receiver = "control 5:\n return"
    text = fault(sends + word, [receiver], [[0, 1]], routes=routes)
    assert text.startswith("PE (1, 0): a control wavelet of color 0 asks for control task 9")


def test_code_that_cannot_run_is_refused():
    with pytest.raises(CompileError, match="no end behind its last instruction"):
        Machine(build([assemble(TASK + "const r0 1")]))
    with pytest.raises(CompileError, match="a jump behind the end"):
        Machine(build([assemble(TASK + "jump 99\nreturn")]))
    program = assemble(TASK + "operate MOV16 dest=MEMORY src0=MEMORY at=r0\nreturn")
    program.code[0, 2] = 4
    with pytest.raises(CompileError, match="OPERATE of a row that operations does not have"):
        Machine(build([program]))
    with pytest.raises(CompileError, match="'wse1'; there are wse2, wse3"):
        Machine(build([assemble(TASK + "return")], arch="wse1"))
