"""Cycles of single operations and instructions, counted by hand from the rules in costs.py."""

import numpy as np
import pytest
from csl_cycles import own_rows
from helpers.assembly import assemble, build, color_register

from wafer.errors import CompileError
from wafer.machine.codes import Op, Operand
from wafer.machine.costs import ARCHS, TIMINGS, costs_for, op_costs, uncertainty
from wafer.machine.engine import Machine
from wafer.machine.timing import instruction_cycles

# Of an architecture: between two stamps, with nothing between.
_STAMPS = {name: int(op_costs(arch)[Op.INTRINSIC, 11]) for name, arch in ARCHS.items()}


def between(code, setup="", arch="wse2", memory=48_000):
    """Cycles between two stamps around ``code``, without those of the second one."""
    text = f"""
        .active 8
        .space store 8
        {setup}
        local 8:
          const r29 1
          const r28 store
          intrinsic.timer -1 r29
    """
    stamps = """
          intrinsic.timestamp r30 -1
          {code}
          intrinsic.timestamp r31 -1
          sub.i64 r31 r31 r30
          store.u32 r28 r31 0
          return
    """
    before, _, timed = code.rpartition("---")
    return stored(text + before + stamps.format(code=timed), arch, memory) - _STAMPS[arch]


def started(text, arch="wse2", memory=8000):
    """The machine after a program, whose words of color 0 leave to the east."""
    routes = {(0, 0, 0): color_register("R", "E")}
    machine = Machine(build([assemble(text, memory=memory)], arch=arch, routes=routes))
    machine.run(1_000_000)
    return machine


def stored(text, arch="wse2", memory=8000):
    """The number that a program leaves in its first bytes."""
    return int(started(text, arch, memory).read(0, 0, 0, 4).view(np.uint32)[0])


def steps(op, length, places, strides=(1, 1, 1), arch="wse2", sources=2):
    """Cycles of an operation's steps on descriptors in DSRs (issue 1); places: byte addresses."""
    at = [4000 + place for place in places]
    names = ("dest", "src0", "src1")[: 1 + sources]
    loads = "\n".join(
        f"memory r0 {at[k]} {length} {strides[k]}\nload_dsr file={k} id=0 kind=MEMORY at=r0\n"
        f"const r{10 + k} {k << 8}"
        for k in range(1 + sources)
    )
    if op.startswith("FMAC"):
        loads, names = loads + "\nconst r13 0", (*names, "scalar")
    kinds = " ".join(f"{name}={'SCALAR' if name == 'scalar' else 'DSR'}" for name in names)
    return between(f"{loads}\n---\noperate {op} {kinds} at=r10", arch=arch) - 1


@pytest.mark.parametrize(
    ("arch", "op", "cycles"),
    [
        # 24 elements; the second source 8 bytes behind the first one in its line of 16
        ("wse2", "FADDS", 12),  # 2 a step: 8 bytes of each source, two banks of four
        ("wse2", "FADDH", 6),  # 4 a step: 8 bytes again
        ("wse2", "FMULS", 24),
        ("wse2", "FMAXH", 24),
        ("wse2", "FMACS", 24),
        ("wse2", "FMACH", 6),
        ("wse3", "FADDS", 12),  # 4 a step: 16 bytes of each source fill all banks: 6 steps of 2
        ("wse3", "FADDH", 6),  # 8 a step, 3 steps of 2
        ("wse3", "FMAXS", 12),
        ("wse3", "FMULS", 24),
    ],
)
def test_widths_of_operations_with_two_sources(arch, op, cycles):
    places = (0, 2048, 4096 + 8)
    assert steps(op, 24, places, arch=arch) == cycles
    # one element more is one step more
    per_step = 2 if arch == "wse3" and op != "FMULS" else 1
    assert steps(op, 25, places, arch=arch) == cycles + per_step


@pytest.mark.parametrize(
    ("arch", "cycles"),
    [
        ("wse2", {"FMOVS": 12, "FMOVH": 6, "FS2H": 24, "CLZ": 24}),
        ("wse3", {"FMOVS": 6, "MOV16": 3, "FS2H": 6}),
    ],
)
def test_one_source_never_waits_for_another(arch, cycles):
    assert {op: steps(op, 24, (0, 2048), arch=arch, sources=1) for op in cycles} == cycles


@pytest.mark.parametrize(("apart", "turns"), [(0, 2), (4, 1), (8, 1), (12, 1), (16, 2), (20, 1)])
def test_a_width_of_one_waits_for_the_same_bank(apart, turns):
    """@fmacs of 5,124 f32 reads one bank of four for each source, again after 16 bytes."""
    assert steps("FMACS", 5124, (0, 0, 20_500 - 4 + apart)) == 5124 * turns


@pytest.mark.parametrize(("apart", "turns"), [(0, 2), (4, 2), (8, 1), (12, 2), (16, 2), (24, 1)])
def test_a_width_of_two_waits_unless_its_banks_are_the_other_half(apart, turns):
    assert steps("FADDS", 100, (0, 2048, 4096 + apart)) == 50 * turns


@pytest.mark.parametrize(
    ("stride", "cycles"),
    # 24 halves: 4 a step, by stride mod 8
    [*enumerate((6, 6, 6, 6, 12, 6, 6, 12, 24, 12)), (-1, 12), (-8, 24), (-3, 6)],
)
def test_strides_limit_the_width(stride, cycles):
    assert steps("FMOVH", 24, (0, 4096), (1, stride), sources=1) == cycles
    assert steps("FMOVH", 24, (4096, 0), (stride, 1), sources=1) == cycles


def test_addresses_that_4_does_not_divide_and_unequal_strides():
    assert steps("FADDH", 24, (2, 2048, 4096 + 8)) == 24
    assert steps("FADDH", 24, (0, 2050, 4096 + 10)) == 24
    # one bank at first, but the strides differ: conflicts come and go
    assert steps("FMACS", 24, (0, 2048, 4096), (1, 1, 2)) == 24
    assert steps("FMACS", 24, (0, 2048, 4096), (2, 2, 2)) == 48
    assert steps("FMACS", 24, (0, 2048, 4096 + 4), (2, 2, 2)) == 24
    assert steps("FMACS", 24, (0, 2048, 4096), (1, 1, 5)) == 48  # 20 bytes are 4 modulo 16


@pytest.mark.parametrize(
    ("dest", "src1", "turns"),
    # a column of a matrix with rows of whole lines stays in one bank: here src0's is 0; a write
    # meets a read after 32 bytes, a read another one after 16
    [(0, 4, 2), (0, 0, 3), (4, 8, 1), (4, 4, 2), (4, 0, 2), (0, 16, 2), (0, 32, 3), (16, 4, 1)],
)
def test_columns_are_written_where_they_are_read(dest, src1, turns):
    assert steps("FMACS", 24, (dest, 0, 8192 + src1), (64, 64, 12)) == 24 * turns


def test_products_of_32_bits_and_addresses_of_registers():
    assert between("const r1 3\n---\nmul.i32 r2 r1 r1") == 2
    assert between("const r1 3\n---\nmul.u16 r2 r1 r1") == 1
    load = "memory r0 4000 8\nload_dsr file=1 id=0 kind=MEMORY at=r0"
    assert between(f"{load}\nconst r1 4\n---\ndsr_base.1 0 0 r1") == 8


@pytest.mark.parametrize(
    ("kind", "setting"), [("MEMORY", "memory r{k} {at} 10"), ("SHAPED", "const r{k} {at}")]
)
def test_descriptors_are_loaded_first(kind, setting):
    places = enumerate((4000, 5000, 6000 + 4), 10)
    code = "\n".join(setting.format(k=k, at=at) for k, at in places)
    code += f"\n---\noperate FMULS dest={kind} src0={kind} src1={kind} at=r10"
    cost = ARCHS["wse2"].operands[Operand[kind]]
    assert between(code, setup=".shape n3=10 s3=1") == 1 + 3 * cost + 10


def test_the_innermost_stride_of_several_dimensions_counts():
    """Three rows of eight halves, neighbours side by side or two apart, and a row's stride of 8."""
    for inner, cycles in ((1, 6), (2, 6), (4, 12), (8, 24)):
        table = f".shape n2=3 n3=8 s2=64 s3={inner}"
        code = "const r10 4000\nconst r11 9000\n---\noperate FMOVH dest=SHAPED src0=SHAPED at=r10"
        issue = 1 + 2 * ARCHS["wse2"].operands[Operand.SHAPED]
        assert between(code, setup=table) == issue + cycles


def test_a_pointer_takes_one_element_a_step():
    code = "const r10 4000\nmemory r11 5000 24\n---\noperate FMOVS dest=POINTER src0=MEMORY at=r10"
    costs = ARCHS["wse2"].operands
    assert between(code) == 1 + costs[Operand.POINTER] + costs[Operand.MEMORY] + 24


def test_every_operation_loads_its_descriptors_and_a_computed_one_takes_longer():
    load, computed = ARCHS["wse2"].operands[Operand.MEMORY], ARCHS["wse2"].computed
    first = "memory r10 4000 5\nmemory r11 5000 5\nmemory r12 6004 5\n"
    operate = "operate FMULS dest=MEMORY src0=MEMORY src1=MEMORY at=r10\n"
    once = 1 + 3 * load + 5
    assert between(first + "---\n" + operate) == once
    assert between(first + "---\n" + operate + operate) == 2 * once
    # another first source, which a copy brings
    other = "memory r13 7000 5\ncopy r11 r13\n"
    assert between(first + "---\n" + operate + other + operate) == 2 * once
    # computed: its value is not known before the program runs; the sum itself costs 4
    same = "const r13 0\nadd.i64 r11 r11 r13\n"
    assert between(first + "---\n" + operate + same + operate) == 2 * once + 4 + computed
    # what is behind a jump's target is known of no register
    jump = "jump next\nnext:\n"
    assert between(first + "---\n" + jump + operate) == 1 + once + 3 * computed


def test_a_descriptor_computed_at_run_time_takes_longer_to_load_into_a_dsr():
    """On WSE-3 3 cycles; 1 if it is known before."""
    known = "memory r10 4000 5\nfabric r11 0 5\nconst r12 0\n"
    computed = "add.i64 r10 r10 r12\nadd.i64 r11 r11 r12\n---\n"
    loads = "load_dsr file=1 id=0 kind=MEMORY at=r10\nload_dsr file=0 id=0 kind=FABRIC at=r11"
    fabric = ".fabric sends=1 queue=2 color=0"
    for arch, once in (("wse2", 1), ("wse3", 3)):
        assert between(known + "---\n" + loads, fabric, arch) == 2
        assert between(known + computed + loads, fabric, arch) == 2 * once


BEFORE = "const r5 20\nadd.u16 r6 r5 r5\nconst r1 40\nconst r4 60\nconst r7 1\nconst r8 8\n---\n"


@pytest.mark.parametrize(
    ("code", "wse2", "wse3"),
    [
        ("load.u16 r2 r1 0\nload.u16 r3 r4 0\nadd.u16 r2 r2 r3\nstore.u16 r1 r2 0", 4, 4),
        ("load.u16 r2 r1 0\nload.u16 r3 r1 0", 2, 1),  # it is in a register
        ("load.u16 r2 r1 0\nstore.u16 r4 r6 0\nload.u16 r3 r1 0", 3, 2),  # of another variable
        ("load.u16 r2 r1 0\nstore.u16 r6 r4 0\nload.u16 r3 r1 0", 3, 3),  # it may have changed
        ("store.u16 r1 r6 0\nload.u16 r3 r1 0\nload.u16 r3 r1 2", 3, 2),  # what was stored there
        ("store.u32 r1 r6 0\nload.u16 r3 r1 0", 2, 2),  # in part
        ("add.u16 r2 r5 r6\nadd.u16 r3 r5 r6", 2, 1),
        ("add.u16 r2 r5 r6\nadd.u16 r5 r7 r7\nadd.u16 r3 r5 r6", 3, 3),  # of another r5
        ("mul.f32 r2 r5 r6\nadd.f32 r3 r2 r6", 2, 3),  # it waits for the product
        ("mul.f32 r2 r5 r6\nadd.u16 r9 r5 r7\nadd.f32 r3 r2 r6", 3, 3),  # something is between
        ("mul.f32 r2 r5 r6\nadd.f32 r3 r5 r6", 2, 2),
        ("mul.u16 r2 r5 r8\nadd.u16 r3 r1 r2\nload.u32 r9 r3 0", 3, 5),  # the address waits
        ("mul.u32 r2 r5 r8", 2, 2),  # a shift
        ("div.u16 r2 r5 r6", 50, 18),
        ("div.f32 r2 r5 r6", 50, 109),
    ],
)
def test_straight_code(code, wse2, wse3):
    assert between(BEFORE + code, memory=400) == wse2
    assert between(BEFORE + code, arch="wse3", memory=400) == wse3


IF = "jump_unless no r9\n{body}no:\nconst r2 0"
ELSE = "jump_unless no r9\n{body}jump on\nno:\n{body}on:\nconst r2 0"


@pytest.mark.parametrize("holds", [0, 1])
@pytest.mark.parametrize(
    ("code", "sums", "wse3"),
    [
        (IF, 6, (6, 6)),  # predicated: it takes as long whether it is done or not
        (IF, 7, (6, 3 + 7)),  # jumps: 6 cycles if taken, 3 if not
        (IF.replace("{body}", "activate r5\n"), 0, (6, 3 + 1)),  # it is not predicated
        (ELSE, 3, (6, 6)),
        (ELSE, 7, (6 + 7, 3 + 7 + 6)),  # the jump over the else is taken
    ],
)
def test_jumps_of_wse3(code, sums, wse3, holds):
    body = "".join(f"add.u16 r{10 + k} r5 r{10 + k}\n" for k in range(sums))
    before = f"const r5 20\nconst r9 {holds}\n---\n"
    sums += "activate" in code
    wse2 = (1 + sums, 1 + sums + 1) if code == ELSE else (1, 1 + sums)
    assert between(before + code.format(body=body)) == wse2[holds]
    assert between(before + code.format(body=body), arch="wse3") == wse3[holds]


def test_a_sum_into_a_scalar_waits_for_the_one_before():
    code = "const r10 4000\nconst r11 4000\nmemory r12 5000 40\n---\n"
    for arch, cycles in (("wse2", 1), ("wse3", 2)):
        operands = ARCHS[arch].operands
        issue = 1 + 2 * operands[Operand.POINTER] + operands[Operand.MEMORY]
        text = code + "operate FADDS dest=POINTER src0=POINTER src1=MEMORY at=r10"
        assert between(text, arch=arch) == issue + 40 * cycles


@pytest.mark.parametrize(
    ("op", "sources", "cycles"),
    [
        ("FMOVS", 1, 16 * 105),  # 64 elements, 4 a step
        ("FADDS", 2, 2 * 16 * 88),  # two rows of 16 bytes meet at each bank
        ("FMULS", 2, 64 * 64),  # one element a step: no slower than the simulator's
    ],
)
def test_memory_of_silicon(op, sources, cycles):
    kinds = "".join(f" src{k}=MEMORY" for k in range(sources))
    rows = "".join(f"memory r{10 + k} {4000 + 1000 * k + 4 * k} 64\n" for k in range(3))
    if op == "FADDS":
        rows = rows.replace("6008", "6004")
    program = ".active 8\nlocal 8:\n" + rows + f"operate {op} dest=MEMORY{kinds} at=r10\nreturn"
    image = build([assemble(program, memory=8000)], arch="wse3")
    ends = []
    for timing in TIMINGS:
        machine = Machine(image._replace(timing=timing))
        machine.run(10_000)
        ends.append(machine.cycle)
    simulated = 16 * (2 if op == "FADDS" else 1) if op != "FMULS" else 64
    assert ends[1] - ends[0] == -(-cycles // 64) - simulated


def test_silicon_is_known_of_wse3_alone():
    with pytest.raises(CompileError, match="expected --arch wse3"):
        costs_for("wse2", "silicon")
    with pytest.raises(CompileError, match="expected one of simulator, silicon"):
        costs_for("wse3", "chip")


def test_configuration_registers_take_four_cycles_on_wse3():
    code = "const r1 0x7f20\n---\nconfig_get r2 r1\nconfig_set r1 r2"
    fabric = ".fabric sends=1 queue=2 color=0"
    assert between(code, fabric) == 2
    assert between(code, fabric, arch="wse3") == 8


def test_a_teardown_handler_begins_when_a_task_has_found_its_color():
    handler = "teardown 0:\nconst r0 0\nintrinsic.teardown_exit -1 r0\nreturn\n"
    program = assemble(handler + "local 8:\nconst r0 0\nreturn")
    for arch, leave in (("wse2", 1), ("wse3", 8)):
        assert instruction_cycles(program, ARCHS[arch]).own.tolist() == [15, leave, 0, 0, 0]


SENDER = """
    .fabric sends=1 queue=2 color=0
    .queue out 2 color=0
    .active 8
    local 8:
      fabric r0 0 {words}
      const r1 7
      operate MOV32 dest=FABRIC src0=SCALAR at=r0
      return
"""


@pytest.mark.parametrize("words", [1, 3])
def test_a_data_task_of_wse3_begins_later_where_nothing_ran_before(words, monkeypatch):
    """The first word's, not those of words that come while it runs."""
    receiver = ".queue in 2 color=0\ndata 2:\n" + 20 * "add.u16 r1 r1 r0\n" + "return"
    routes = {(0, 0, 0): color_register("R", "E"), (1, 0, 0): color_register("W", "R")}
    programs = [assemble(text, memory=8000) for text in (SENDER.format(words=words), receiver)]
    ends = []
    for wait in (0, ARCHS["wse3"].data_task):
        monkeypatch.setitem(ARCHS, "wse3", ARCHS["wse3"]._replace(data_task=wait))
        machine = Machine(build(programs, [[0, 1]], arch="wse3", routes=routes))
        machine.run(1000)
        ends.append(int(machine.cycle))
    assert ARCHS["wse2"].data_task == 0
    assert ends[1] - ends[0] == 5


def test_on_wse3_a_fabric_descriptor_is_loaded_if_it_is_a_source():
    text = ".fabric sends={} queue=2 color=0\nlocal 8:\nfabric r0 0 5\nmemory r1 4000 5\n"
    sent = text.format(1) + "operate MOV32 dest=FABRIC src0=MEMORY at=r0"
    received = text.format(0) + "copy r2 r0\noperate MOV32 dest=MEMORY src0=FABRIC at=r1"
    for arch, source in (("wse2", 0), ("wse3", 6)):
        issue = [instruction_cycles(assemble(t), ARCHS[arch]).own[-1] for t in (sent, received)]
        assert issue == [1 + 3, 1 + 3 + source]


def test_a_step_ends_with_a_row():
    """Rows of 6 in steps of 4: two of each row. Rows of 8 in steps of 8 and of all elements."""
    issue = 1 + 2 * ARCHS["wse3"].operands[Operand.SHAPED]
    for columns, per_row in ((6, 2), (8, 2), (10, 3)):
        table = f".shape n2=5 n3={columns} s2=64 s3=1"
        code = "const r10 4000\nconst r11 9000\n---\noperate FMOVS dest=SHAPED src0=SHAPED at=r10"
        assert between(code, setup=table, arch="wse3") == issue + 5 * per_row
    # in one row the 30 elements take 8 steps
    assert steps("FMOVS", 30, (0, 5000), arch="wse3", sources=1) == 8


@pytest.mark.parametrize(("rounds", "cycles"), [(0, 0), (54, 54 * 5), (55, 55 * 9 + 2)])
def test_a_short_loop_over_constants_is_unrolled(rounds, cycles):
    """A round is one division by 8 of i16 and a subtraction: 5; its test, step and jumps 4 more.

    All together may be 150 * 9 / 5.
    """
    text = f"""
          const r1 77
          const r9 0
          ---
          const r2 0
          const r3 {rounds}
          const r4 1
        again:
          lt.i16 r5 r2 r3
          jump_unless done r5
          const r6 8
          div.i16 r7 r1 r6
          sub.i16 r1 r1 r9
          add.i16 r2 r2 r4
          jump again
        done:
    """
    assert between(text) == cycles


@pytest.mark.parametrize(("rounds", "cycles"), [(600, 600), (601, 601 * 9 + 2)])
def test_an_index_in_an_unrolled_loop_is_an_offset(rounds, cycles):
    """A round loads the element r1 + r2: 2 (i32), 1 (scaled), 1 (base), 1; loop 4."""
    text = f"""
        const r10 4000
        load.i32 r1 r10 0
        ---
        const r2 0
        const r3 {rounds}
        const r4 1
      again:
        lt.i16 r5 r2 r3
        jump_unless done r5
        add.i32 r6 r1 r2
        const r7 4
        mul.u16 r8 r6 r7
        add.u16 r9 r10 r8
        load.f32 r11 r9 0
        add.i16 r2 r2 r4
        jump again
      done:
    """
    assert between(text) == cycles


def test_a_round_around_another_loop_keeps_what_it_computes():
    """8 rounds of a product and a loop of 100 rounds of 5, whose last test and jump take 2."""
    text = """
        const r2 0
        const r3 8
        const r4 1
      again:
        lt.i16 r5 r2 r3
        jump_unless done r5
        mul.i16 r6 r2 r2
        const r12 0
        const r13 100
      inner:
        lt.i16 r15 r12 r13
        jump_unless on r15
        add.i16 r6 r6 r6
        add.i16 r12 r12 r4
        jump inner
      on:
        add.i16 r2 r2 r4
        jump again
      done:
    """
    assert between("const r9 0\n---\n" + text) == 8 * (1 + 100 * 5 + 2)


_LOOP = """
        const r1 100
        const r4 1
        const r9 1
        const r3 99
        add.i16 r3 r3 r4  # the rounds are not known before
        ---
        const r2 0
      again:
        lt.i16 r5 r2 r3
        jump_unless done r5
        const r8 40
        {body}
        add.i16 r2 r2 r4
        jump again
      done:
"""


@pytest.mark.parametrize(
    ("body", "once", "round_"),
    [
        # test, step and both jumps of a round: 4
        ("load.i16 r6 r8 0", 1, 0),  # nothing writes to bytes 40 and 41: loaded before the loop
        ("load.i16 r6 r8 0\nload.i16 r7 r8 0", 1, 0),  # once, for both
        ("load.i16 r6 r8 0\nload.i16 r7 r8 2", 2, 0),
        ("load.i16 r6 r8 0\nstore.i16 r8 r9 2", 1, 1),  # the variable behind is written
        ("load.i16 r6 r8 0\nstore.i16 r8 r9 0", 0, 2),  # it is written itself
        ("load.i16 r6 r8 0\nstore.i32 r8 r9 -2", 0, 2),  # and so its lower byte
        ("load.i16 r6 r8 0\nmove r8 r1 2", 0, 2),
        ("load.i16 r6 r2 0", 0, 1),  # its address changes
        ("load.i16 r6 r8 0\nstore.i16 r2 r9 0", 0, 2),  # nobody knows what is written
    ],
)
def test_what_does_not_change_is_loaded_before_a_loop(body, once, round_):
    rounds = 100 * (4 + round_) + 2  # and the last test, with its jump
    assert between(_LOOP.format(body=body), memory=400) == once + rounds


def test_loads_of_functions_and_of_loops_within_each_other():
    """A function that only a loop calls is a part of it; an operation writes to its descriptor."""
    code, reads = (
        _LOOP.format(body="call reads r10"),
        "reads:\nconst r1 40\nload.i16 r2 r1 0\nreturn",
    )
    assert between(code, reads, memory=400) == 1 + 100 * 4 + 2
    again = code + "call reads r10"  # from elsewhere, too
    assert between(again, reads, memory=400) == 100 * 5 + 2 + 1
    inner = """
        const r11 0
        const r12 50
      inner:
        const r8 40
        load.i16 r13 r8 0
        sub.i16 r12 r12 r4
        jump_if inner r12
        store.i16 r8 r9 0
    """  # written by the outer loop's round: loaded in each one, before 50 rounds of 2 cycles
    assert between(_LOOP.format(body=inner), memory=400) == 100 * (4 + 1 + 100 + 1) + 2
    operation = "load.i16 r6 r8 0\nmemory r20 {} 4\nconst r21 0\n"
    operation += "operate MOV16 dest=MEMORY src0=SCALAR at=r20"
    cycles = 1 + ARCHS["wse2"].operands[Operand.MEMORY] + 1
    for place, once in ((100, 1), (36, 0)):  # four words from byte 100, or from 36 on
        expected = once + 100 * (4 + cycles + 1 - once) + 2
        assert between(_LOOP.format(body=operation.format(place)), memory=400) == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_instructions_of_a_task_and_steps_of_operations_take_turns(arch):
    """A microthread of 5 elements beside 30 instructions: none of them in the same cycle."""
    program = """
        .fabric sends=1 queue=2 color=0
        .active 8
        .space store 8
        local 8:
          const r29 1
          intrinsic.timer -1 r29
          fabric r0 0 5
          memory r1 4000 5
          const r2 9
          intrinsic.timestamp r3 -1
          operate FMOVS dest=FABRIC src0=MEMORY at=r0 asynchronous=1 action=1 target=9
          INSTRUCTIONS
          return
        local 9:
          intrinsic.timestamp r4 -1
          const r5 store
          store.u32 r5 r4 0
          return
    """
    none, some = (
        stored(program.replace("INSTRUCTIONS", "sub.i16 r2 r2 r29\n" * count), arch)
        for count in (1, 31)
    )
    assert some - none == 30


@pytest.mark.parametrize(("arch", "switch"), [("wse2", 1), ("wse3", 2)])
def test_a_loop_and_a_task_switch(arch, switch):
    """100 times one subtraction and one jump; then local task 9, which stamps."""
    text = """
        .active 8
        .space store 8
        local 8:
          const r29 1
          intrinsic.timer -1 r29
          const r0 100
        again:
          sub.u16 r0 r0 r29
          jump_if again r0
          const r1 9
          activate r1
          return
        local 9:
          intrinsic.timestamp r3 -1
          const r1 store
          store.u32 r1 r3 0
          return
    """
    # ACTIVATE is 1; task 9 begins in the cycle behind, the switch follows.
    # WSE-3: a round's subtraction and jump back are 9, of the last one 6; a stamp takes 5.
    loop = 100 * 2 if arch == "wse2" else 100 * 9 - 3 + _STAMPS[arch]
    assert stored(text, arch) == loop + 1 + 1 + switch


def test_the_cost_of_instructions_by_class():
    first = "const r1 7\nconst r2 3\nconst r3 1000\n---\n"
    cases = {
        "add.u16 r4 r1 r2": 1,
        "add.u32 r4 r1 r2": 2,
        "add.f32 r4 r1 r2": 1,
        "add.i64 r4 r1 r2": 4,
        "shr.u64 r4 r1 r2": 1,
        "div.f32 r4 r1 r2": 50,
        "cast.u16 r4 r1 6": 0,
        "load.u16 r4 r3 0": 1,
        "store.u16 r3 r1 0": 1,
        "copy r4 r1": 0,
    }
    assert {code: between(first + code) for code in cases} == cases


@pytest.mark.parametrize(("apart", "turns"), [(0, 2), (4, 1)])
def test_the_fabric_takes_a_wavelet_a_cycle_and_waits_for_banks(apart, turns):
    setting = f"fabric r0 0 5\nmemory r1 4000 5\nmemory r2 {5008 + apart} 5\n---\n"
    operands = ARCHS["wse2"].operands
    issue = 1 + operands[Operand.FABRIC] + 2 * operands[Operand.MEMORY]
    code = setting + "operate FADDS dest=FABRIC src0=MEMORY src1=MEMORY at=r0"
    assert between(code, ".fabric sends=1 queue=2 color=0") == issue + 5 * turns


@pytest.mark.parametrize("words", [1, 3])
def test_words_wait_in_output_queues_of_wse3_side_by_side(words, monkeypatch):
    """As long as ``output_wait`` says, but one leaves in each cycle."""
    ends = []
    for wait in (0, ARCHS["wse3"].output_wait):
        monkeypatch.setitem(ARCHS, "wse3", ARCHS["wse3"]._replace(output_wait=wait))
        machine = started(SENDER.format(words=words), "wse3")
        assert machine.links[0, 0, 1] == words
        ends.append(machine.cycle)
    assert ARCHS["wse2"].output_wait == 0
    assert ends[1] - ends[0] == 3


def test_an_operation_takes_its_elements_its_issue_and_the_stamps():
    other_banks, same_bank, *_ = own_rows()
    assert other_banks.ours == 5124 + 1 + 5
    assert same_bank.ours == 2 * 5124 + 1 + 5  # two reads of a bank in each step


def test_what_is_stated_grows_with_scalar_code():
    assert uncertainty(0) == 0.02  # a row of scalar code alone may be 27 % off
    assert uncertainty(1) == 0.27
