"""The machine in JAX against the one in C++: cycles, memory, links and faults."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.assembly import assemble, build, color_register
from helpers.csl_program import compiled
from helpers.paths import ROOT

import wafer.csl
from wafer.errors import CompileError
from wafer.machine import reference
from wafer.machine.codes import DsdOp, Op, Type
from wafer.machine.reference import scalar
from wafer.machine.reference.machine import ReferenceMachine

LIMIT = 20_000
RULES = ROOT / "tests" / "wafer" / "csl" / "rules"


@pytest.fixture(autouse=True)
def registers_of_64_bits():
    with jax.enable_x64(True):
        yield


def agree(image, calls="", every=LIMIT):
    """Run both, compare them every so many cycles and at the end; the JAX machine."""
    both = wafer.csl.Machine(image), ReferenceMachine(image)
    height, width = image.tiles.shape
    ended = False
    if calls:
        for machine in both:
            machine.launch(wafer.csl.Rectangle(0, 0, width, height), calls)
    while not ended:
        ends = {machine.run(every) for machine in both}
        assert len(ends) == 1
        assert len({(machine.cycle, machine.fault) for machine in both}) == 1
        arrays = [(machine.links, *machine.worked) for machine in both]
        memories = [
            [machine.read(x, y, 0, len(image.programs[tile].memory)) for machine in both]
            for (y, x), tile in np.ndenumerate(image.tiles)
        ]
        for pair in (*zip(*arrays, strict=True), *memories):
            np.testing.assert_array_equal(*pair)
        ended = ends != {wafer.csl.Status.LIMIT}
    return both[1]


def floats(machine, x, count=4, name="y"):
    program = machine.image.programs[machine.image.tiles[0, x]]
    return machine.read(x, 0, program.symbols[name].address, 4 * count).view(np.float32).tolist()


SUMS = """
param x: i16;
const colors = [2]color{ @get_color(1), @get_color(2) };
const into = @get_dsd(fabin_dsd, .{ .extent = 4, .fabric_color = colors[@as(u16, (x + 1) % 2)],
  .input_queue = @get_input_queue(2) });
const out = @get_dsd(fabout_dsd, .{ .extent = 4, .fabric_color = colors[@as(u16, x % 2)],
  .output_queue = @get_output_queue(3) });
const own = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
var ended: u32 = 0;
task finish() void { ended += 1; }
fn go() void {
  for (@range(u16, 4)) |i| { y[i] = @as(f32, x) * 2.5 + @as(f32, i); }
  if (x == 0) { @fmovs(out, own, .{ .async = true, .activate = finish }); }
  else if (x == 2) { @fadds(own, own, into, .{ .async = true, .activate = finish }); }
  else { @fadds(out, own, into, .{ .async = true, .activate = finish }); }
}
comptime { @bind_local_task(finish, @get_local_task_id(9)); }
"""
ROUTES = """
  const one = @get_color(1);
  const two = @get_color(2);
  @set_color_config(0, 0, one, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(1, 0, one, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
  @set_color_config(1, 0, two, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
  @set_color_config(2, 0, two, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });
"""


@pytest.mark.slow  # compiles the step of the whole wafer
@pytest.mark.native
@pytest.mark.parametrize("arch", ["wse2"])
def test_a_chain_of_sums_agrees_in_every_cycle(tmp_path, arch):
    text = SUMS.replace("param x: i16;\n", "")
    image = compiled(tmp_path, text, kind="f32", width=3, routes=ROUTES, arch=arch)
    machine = agree(image, "go", every=7)
    assert floats(machine, 2) == [7.5, 10.5, 13.5, 16.5]  # 0 + 2.5 + 5, and 3 i


@pytest.mark.slow
@pytest.mark.native
def test_rows_of_tiles_and_instructions_beside_microthreads_agree(tmp_path):
    """WSE-3: steps end with rows; instructions of the task, sends, and a receive that it awaits."""
    text = """
    const c = @get_color(1);
    const oq = @get_output_queue(2);
    const iq = @get_input_queue(3);
    var a = @zeros([4, 7]f32);
    var b = @zeros([4, 7]f32);
    const tile = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{4, 6} -> a[i, j] });
    const other = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{4, 6} -> b[i, j] });
    const row = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    const out = @get_dsd(fabout_dsd, .{ .extent = 4, .output_queue = oq });
    const into = @get_dsd(fabin_dsd, .{ .extent = 4, .input_queue = iq });
    fn go() void {
      for (@range(u16, 4)) |i| { y[i] = @as(f32, i); a[i, i] = 2.0; }
      if (x == 0) {
        @fmovs(out, row, .{ .async = true });
        for (@range(i16, 40)) |k| { b[0, 0] += 1.0; }
        @fadds(other, other, tile);
      } else {
        @fadds(row, row, into);
        @fmovs(other, tile);
      }
    }
    comptime {
      @initialize_queue(oq, .{ .color = c });
      @initialize_queue(iq, .{ .color = c });
    }"""
    routes = """const c = @get_color(1);
    @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });"""
    image = compiled(tmp_path, text, kind="f32", width=2, routes=routes, arch="wse3")
    machine = agree(image, "go", every=1)
    assert floats(machine, 1) == [0.0, 2.0, 4.0, 6.0]


@pytest.mark.slow
@pytest.mark.native
def test_inputs_side_by_side(tmp_path):
    """vmap: four inputs through one program are each as by themselves."""
    text = """
    var scaled = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    fn go() void { @fmacs(scaled, scaled, scaled, 0.5); y[0] = y[0] * y[1] - 1.0; }
    """
    image = compiled(tmp_path, text, kind="f32")
    tables, state = reference.start(image)
    address = image.programs[0].symbols["y"].address
    values = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)

    def result(data):
        loaded = reference.store(state, 0, address, data)
        ended = reference.run(tables, reference.launch(image, loaded, "go"), LIMIT)
        return reference.load(ended, 0, address, 16), ended.cycle

    results, cycles = jax.jit(jax.vmap(result))(jnp.asarray(values).view(jnp.uint8))
    for data, memory, cycle in zip(values, np.asarray(results), cycles, strict=True):
        machine = wafer.csl.Machine(image)
        machine.write(0, 0, address, data)
        machine.launch(wafer.csl.Rectangle(0, 0, 1, 1), "go")
        machine.run()
        assert memory.tobytes() == machine.read(0, 0, address, 16).tobytes()
        assert int(cycle) == machine.cycle


@pytest.mark.slow
@pytest.mark.native
def test_completion_priorities_and_words_that_leave_agree(tmp_path):
    """WSE-3: a DSR's load names the end; a microthread goes first; two words go beyond the row."""
    text = """
    const c = @get_color(1);
    const oq = @get_output_queue(2);
    const out = @get_dsd(fabout_dsd, .{ .extent = 4, .output_queue = oq });
    const row = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    const to = @get_dsr(dsr_dest, 1);
    var ends: f32 = 0.0;
    task loaded() void { y[0] += 10.0; }
    task named() void { y[0] += 100.0; }
    fn go() void {
      @load_to_dsr(to, out, .{ .async = true, .activate = loaded });
      @fmovs(to, row, .{ .async = true, .activate = named });
      @fmuls(row, row, 2.0);
    }
    comptime {
      @bind_local_task(loaded, @get_local_task_id(9));
      @bind_local_task(named, @get_local_task_id(10));
      @initialize_queue(oq, .{ .color = c });
    }"""
    routes = """const c = @get_color(1);
    @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{WEST} } });
    @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST, SOUTH} } });"""
    image = compiled(tmp_path, text, kind="f32", width=2, routes=routes, arch="wse3")
    machine = agree(image, "go")
    assert floats(machine, 0, 1) == [10.0]


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_functions_of_elements_that_come_and_go_agree(tmp_path, arch):
    """@map takes and sends wavelets as values; the receiver lags behind, then its sum is scaled."""
    text = """
    const c = @get_color(1);
    const oq = @get_output_queue(2);
    const iq = @get_input_queue(3);
    const out = @get_dsd(fabout_dsd, .{ .extent = 12, .fabric_color = c, .output_queue = oq });
    const into = @get_dsd(fabin_dsd, .{ .extent = 12, .fabric_color = c, .input_queue = iq });
    var a = @zeros([12]f32);
    const all = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{12} -> a[i] });
    const row = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
    fn half(v: f32) f32 { return 0.5 * v; }
    fn sum(v: f32, so_far: *f32) f32 { return so_far.* + v / 3.0; }
    fn go() void {
      for (@range(u16, 12)) |i| { a[i] = @as(f32, i); }
      if (x == 0) { @map(half, all, out); } else { @map(sum, into, &y[0], &y[0]); }
      @fscales(row, row, @as(i16, -3));
    }
    comptime {
      @initialize_queue(iq, .{ .color = c });
      if (@is_arch("wse3")) { @initialize_queue(oq, .{ .color = c }); }
    }"""
    routes = """const c = @get_color(1);
    @set_color_config(0, 0, c, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    @set_color_config(1, 0, c, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });"""
    image = compiled(tmp_path, text, kind="f32", width=2, routes=routes, arch=arch)
    machine = agree(image, "go", every=1)
    assert floats(machine, 1, 1) == [pytest.approx(11 / 8)]


@pytest.mark.slow
@pytest.mark.native
def test_a_fault_stops_both(tmp_path):
    machine = agree(compiled(tmp_path, "fn go() void { var n: i32 = 0; y[0] = 1 / n; }"), "go")
    assert "integer division by zero" in machine.fault


TWO = {(0, 0, c): color_register("R", "E") for c in (0, 1)}
TWO |= {(1, 0, c): color_register("W", "R") for c in (0, 1)}
SENDS = """
.active 8
.fabric sends=1 queue=2 color=0 indexed=3
.fabric sends=1 queue=3 color=1
.fabric sends=1 queue=2 color=0 control=1
.queue out 2 color=0
.data words u16 11 12 13 14
"""
TAKES = """
.active 8
.fabric queue=2 color=0
.fabric queue=3 color=1
.fabric queue=4
.queue in 2 color=0
.space into 128
"""
# Name -> what the sender and the receiver do, and what begins the fault of one.
PROGRAMS = {
    "wavelets with an index, and addresses by it": (
        """
        fabric r0 0 3
        memory r1 words 3
        const r2 5
        operate MOV16 dest=FABRIC src0=MEMORY asynchronous=1 index=1 at=r0
        memory r3 words 4 1 1
        const r4 words
        const r5 2
        operate ADD16 dest=MEMORY src0=POINTER src1=SCALAR index=1 at=r3
        return
        """,
        """
        memory r0 into 3 0 1
        fabric r1 0 3
        operate MOV16 dest=MEMORY src0=FABRIC at=r0
        return
        """,
        "",
    ),
    "registers": (
        """
        const r0 0x7f69
        const r1 0x21
        config_set r0 r1
        config_get r2 r0
        const r3 0xfee2
        load.u16 r4 r3 0
        const r5 words
        store.u16 r5 r2 0
        store.u16 r5 r4 2
        const r6 0x7f73
        config_set r6 r1
        const r7 0x7f20
        config_get r8 r7
        store.u16 r5 r8 4
        const r9 0x7f70
        config_get r10 r9
        store.u16 r5 r10 6
        const r11 0x7f5b
        const r12 0x200
        config_set r11 r12
        fabric r13 1 4
        memory r14 words 4
        operate MOV16 dest=FABRIC src0=MEMORY asynchronous=1 at=r13
        return
        """,
        """
        const r0 0x7f62
        const r1 0x21
        config_set r0 r1
        const r2 0x7f41
        config_get r3 r2
        const r4 into
        store.u16 r4 r3 32
        const r5 0xfe82
        store.u16 r5 r3 0
        memory r6 into 4
        fabric r7 0 4
        operate MOV16 dest=MEMORY src0=FABRIC at=r6
        config_get r8 r0
        store.u16 r4 r8 34
        const r9 0x7f00
        config_set r9 r1
        return
        """,
        "no configuration register at word address 0x7f00",
    ),
    "a control task that there is not": (
        """
        fabric r0 2 1
        const r1 0x40050000
        operate MOV32 dest=FABRIC src0=SCALAR asynchronous=1 at=r0
        return
        """,
        "return\ncontrol 1:\nreturn",
        "asks for control task 5",
    ),
    "values as wavelets, to a PE that takes them late": (
        """
        const r0 0
        const r1 1
        const r2 20
        fabric r3 0 1
        again:
        send.i16 r3 r0
        add.i16 r0 r0 r1
        lt.i16 r4 r0 r2
        jump_if again r4
        fabric r5 2 1
        const r6 0x1000000      # a control wavelet that the CE does not see
        send.u32 r5 r6
        const r6 0
        send.u32 r5 r6
        const r7 f32:-1.5
        send.f32 r3 r7
        fabric r8 9 1
        send.u32 r8 r0
        return
        """,
        """
        wait.1 0 0 90
        const r0 0
        const r1 1
        const r2 20
        const r3 into
        fabric r4 0 1
        again:
        receive.i16 r5 r4
        store.i16 r3 r5 0
        add.u16 r3 r3 r1
        add.u16 r3 r3 r1
        add.i16 r0 r0 r1
        lt.i16 r6 r0 r2
        jump_if again r6
        receive.f32 r7 r4
        store.f32 r3 r7 0
        receive.u32 r7 r4
        return
        """,
        "local task 8: an output descriptor is read",
    ),
    "a value from a queue without a color": (
        "return",
        """
        fabric r0 2 1
        receive.u16 r1 r0
        return
        """,
        "no color is bound to input queue 0",
    ),
    "significands and other exponents, without a full significand and beyond the range too": (
        """
        .data s u32 0x40C00000 0xBEC00000 0 0x00000007 0x7F7FFFFF 0x7F800000
        .data h u16 0x4600 0xB600 0x8000 0x0003 0x7BFF 0xFC00
        .data by i16 -2 3 7 -1 4 100
        .data by_more i16 -148 -127 -30000 5 30000 -1
        .space out 120
        memory r0 out 6
        memory r1 s 6
        operate FNORMS dest=MEMORY src0=MEMORY at=r0
        const r9 24
        """
        + "".join(
            f"""
        add.u64 r0 r0 r9
        memory r1 {source} 6
        memory r2 {by} 6
        operate {op} dest=MEMORY src0=MEMORY {more} at=r0
        """
            for op, source, by, more in (
                ("FSCALES", "s", "by", "src1=MEMORY"),
                ("FSCALES", "s", "by_more", "src1=MEMORY"),
                ("FNORMH", "h", "by", ""),
                ("FSCALEH", "h", "by", "src1=MEMORY"),
            )
        )
        + "return",
        "return",
        "",
    ),
    "data dropped until two control wavelets have come": (
        """
        fabric r0 0 3
        memory r1 words 3
        fabric r2 2 1
        const r3 0x1000000      # NOCE: the CE does not see it
        const r4 0
        operate MOV16 dest=FABRIC src0=MEMORY at=r0
        send.u32 r2 r4
        operate MOV16 dest=FABRIC src0=MEMORY at=r0
        send.u32 r2 r3
        send.u32 r2 r4
        operate MOV16 dest=FABRIC src0=MEMORY at=r0
        return
        """,
        """
        fabric r0 0 2
        operate DFILT src0=FABRIC asynchronous=1 action=ACTIVATE target=9 at=r0
        return
        local 9:
        fabric r2 0 2
        memory r1 into 2
        operate MOV16 dest=MEMORY src0=FABRIC at=r1
        return
        """,
        "",
    ),
    "an operation alone that leaves the memory": (
        """
        memory r0 words 200
        memory r1 words 200
        const r2 1
        operate ADD16 dest=MEMORY src0=MEMORY src1=SCALAR at=r0
        return
        """,
        "return",
        "byte address 256 is outside of the 256 bytes",
    ),
    **{
        f"no elements in operand {k} of a shape": (
            f"""
            .shape n0=2 n2=0 n3=4 s3=1
            memory r0 words 4
            memory r1 words 4
            memory r2 words 4
            const r{k} 0
            dsd_set.shape r{k} r{k} r{k}
            operate ADD16 {kinds} at=r0
            return
            """,
            "return",
            "an operand has an extent of 0 beside operands that have elements",
        )
        for k, kinds in enumerate(
            (
                "dest=SHAPED src0=MEMORY src1=MEMORY",
                "dest=MEMORY src0=SHAPED src1=MEMORY",
                "dest=MEMORY src0=MEMORY src1=SHAPED",
            )
        )
    },
    "operands of shapes without elements alone": (
        """
        .shape n2=0 n3=4 s3=1
        .shape n2=3 n3=0 s2=4
        const r0 0
        const r1 0
        const r2 1
        dsd_set.shape r0 r0 r0
        dsd_set.shape r1 r1 r2
        operate MOV16 dest=SHAPED src0=SHAPED at=r0
        memory r3 words 2
        const r4 9
        operate MOV16 dest=MEMORY src0=SCALAR at=r3
        return
        """,
        "return",
        "",
    ),
    "a DSR as the scalar": (
        """
        memory r0 words 2
        load_dsr file=2 id=1 kind=MEMORY saves_address=1 at=r0
        memory r1 words 2
        memory r2 words 2
        memory r3 words 2
        const r4 0x201
        operate MAC32 dest=MEMORY src0=MEMORY src1=MEMORY scalar=DSR at=r1
        dsr_get.2 r5 1
        const r6 words
        store.u16 r6 r5 16
        return
        """,
        "return",
        "",
    ),
}


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs_agree(name, arch):
    sender, receiver, fault = PROGRAMS[name]
    programs = [
        assemble(f"{SENDS}\nlocal 8:\n{sender}", memory=256),
        assemble(f"{TAKES}\nlocal 8:\n{receiver}", memory=128),
    ]
    machine = agree(build(programs, [[0, 1]], arch, TWO), every=1)
    assert fault in machine.fault
    assert bool(fault) == bool(machine.fault)


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize(
    "rule",
    [
        "descriptors/dropped_until_controls",
        "descriptors/lengths_of_a_fifo",
        "switches/pops_moved",
        "switches/teardown",
        "tasks/fifo",
        "wse3/flush",
    ],
)
def test_rules_agree(rule):
    path = RULES / f"{rule}.csl"
    arch = "wse3" if rule.startswith("wse3") else "wse2"
    if "\nlayout {" in path.read_text(encoding="utf-8"):
        image = wafer.csl.compile(path, arch=arch)
    else:
        image = wafer.csl.compile(RULES / "one.csl", {"file": f"{rule}.csl"}, arch=arch)
    agree(image, "go", every=97)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("intrinsic.print r1 r2", "calls print"),
        ("intrinsic.exp r1 r2", "calls exp"),
    ],
)
def test_what_it_does_not_run_is_refused(text, message):
    image = build([assemble(f".active 8\nlocal 8:\n {text}\n return")])
    with pytest.raises(CompileError, match=message):
        reference.start(image)


def test_registers_of_32_bits_are_refused():
    image = build([assemble(".active 8\nlocal 8:\n return")])
    with jax.enable_x64(False), pytest.raises(RuntimeError, match="enable_x64"):
        reference.start(image)


def test_scalars():
    """By hand: wrapping, division toward zero, shifts, casts that end at the range's end."""
    numbers = lambda *values: jnp.array(values, jnp.int64)
    kinds = numbers(Type.I8, Type.I16, Type.I16, Type.U16, Type.I32)
    ops = numbers(Op.ADD, Op.DIV, Op.REM, Op.SHL, Op.SHR)
    results = scalar.arithmetic(ops, kinds, numbers(127, -7, -7, 3, -8), numbers(1, 2, 2, 15, 40))
    assert results.tolist() == [-128, -3, -1, 0x8000, -1]
    bits = np.float32([300.5, -1.5, np.nan, 7.9]).view(np.uint32).astype(np.int64)
    to = numbers(Type.I8, Type.U16, Type.I32, Type.I64)
    kind = jnp.full(4, Type.F32, jnp.int64)
    assert scalar.cast(to, kind, jnp.asarray(bits)).tolist() == [127, 0, 0, 7]


def test_a_product_is_rounded_before_it_is_added():
    """(1 + 2^-12)^2 = 1 + 2^-11 + 2^-24; the last bit is lost unless they are fused."""
    x = np.float32(1 + 2.0**-12).view(np.uint32).astype(np.int64)
    minus = np.float32(-(1 + 2.0**-11)).view(np.uint32).astype(np.int64)
    a, b = jnp.array([minus]), jnp.array([x])
    bits, _ = jax.jit(scalar.element)(jnp.array([DsdOp.FMACS]), a, b, b, jnp.array([0]))
    assert np.asarray(bits).astype(np.uint32).view(np.float32).tolist() == [0.0]


@pytest.mark.slow
@pytest.mark.native
@pytest.mark.parametrize("name", ["swap", "swap_of_the_ramp"])
def test_colors_swap(name):
    """Where words come in, from a neighbor and from the PE."""
    image = wafer.csl.compile(RULES / "routes" / f"{name}.csl")
    agree(image, "go")
