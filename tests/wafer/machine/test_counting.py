"""What a run has done, counted by hand on tiny programs, and its energy."""

import numpy as np
import pytest
from helpers.csl_program import compiled, ran
from helpers.examples import runtime, script

import wafer.csl
from wafer.csl import Machine
from wafer.energy import SEVEN_NM, Counts, Picojoules, report
from wafer.machine.engine import available

pytestmark = pytest.mark.skipif(not available(), reason="the machine is not built")

VECTORS = """
var a = [4]f32 { 1, 2, 3, 4 };
var half = @zeros([3]f16);
const A = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });
const Y = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> y[i] });
const H = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{3} -> half[i] });
"""
ROUTES = """
  const red = @get_color(0);
  @set_color_config(0, 0, red, .{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } });
  @set_color_config(1, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ EAST } } });
  @set_color_config(2, 0, red, .{ .routes = .{ .rx = .{ WEST }, .tx = .{ RAMP } } });
"""
SEND = """
const red = @get_color(0);
const OUT = @get_dsd(fabout_dsd, .{ .fabric_color = red, .extent = 4,
  .output_queue = @get_output_queue(2) });
const IN = @get_dsd(fabin_dsd, .{ .fabric_color = red, .extent = EXTENT,
  .input_queue = @get_input_queue(3) });
fn go() void {
  if (x == 0) { @fmovs(OUT, A); } else if (x == 2) { @fadds(Y, A, IN, .{ .async = true }); }
}
"""
# What `go` does -> its counts but for the instructions. Words of the memory are of 16 bits.
CASES = {
    # two rows read and one written, of four elements with two words each
    "@fmacs(Y, Y, A, 2.0);": Counts(adds32=4, multiplies32=4, reads=16, writes=8),
    "@fadds(Y, A, 1.0);": Counts(adds32=4, reads=8, writes=8),
    "@fmovs(Y, A);": Counts(reads=8, writes=8),
    "@fnegs(Y, A);": Counts(reads=8, writes=8),
    "@fmaxs(Y, Y, A);": Counts(adds32=4, reads=16, writes=8),
    "@fmach(H, H, H, @as(f16, 2.0));": Counts(adds16=3, multiplies16=3, reads=6, writes=3),
    # a single value in the memory is read and written for each element
    "@fadds(&y[0], &y[0], A);": Counts(adds32=4, reads=16, writes=8),
    # scalars: loads and stores, and in the function's registers nothing
    "y[1] = a[0] * a[1] + 3.0;": Counts(adds32=1, multiplies32=1, reads=4, writes=2),
    "y[1] = a[3] / a[1];": Counts(multiplies32=1, reads=4, writes=2),
    "half[0] = half[1] - half[2];": Counts(adds16=1, reads=2, writes=1),
}


@pytest.mark.parametrize("statement", CASES)
def test_by_hand(tmp_path, statement):
    text = f"{VECTORS}fn go() void {{ {statement} }}"
    counts = ran(compiled(tmp_path, text, kind="f32")).counts
    assert counts._replace(instructions=0) == CASES[statement]
    assert counts.flops == sum(CASES[statement][:4])


@pytest.mark.parametrize("extent", [4, 9])
def test_wavelets_count_at_every_link(tmp_path, extent):
    """Four words from PE 0 to PE 2: eight hops; sources on the fabric are no memory.

    An operation that still runs counts with what it has done.
    """
    text = VECTORS + SEND.replace("EXTENT", str(extent))
    machine = ran(compiled(tmp_path, text, kind="f32", width=3, routes=ROUTES))
    assert machine.waiting()
    expected = Counts(adds32=4, reads=8 + 8, writes=8, hops=8)
    assert machine.counts._replace(instructions=0) == expected


def test_instructions_and_integers_are_cycles_of_scalar_code(tmp_path):
    """32 bits of integers take two steps; a loop of k has a comparison and a sum each time."""
    machine = ran(compiled(tmp_path, "fn go() void { y[0] = y[1] + y[2]; }"))
    assert machine.counts.integers == 2
    assert machine.counts.reads == 4
    scalar = sum(machine.profile.values())
    assert machine.counts.instructions == scalar


@pytest.mark.parametrize("threads", [1, 3])
def test_counts_of_several_programs_add_up(tmp_path, threads):
    text = f"{VECTORS}fn go() void {{ if (x > 0) {{ @fmacs(Y, Y, A, 2.0); }} }}"
    image = compiled(tmp_path, text, kind="f32", width=3)
    assert Machine(image).counts == Counts()
    machine = ran(image, threads=threads)
    once = Counts(adds32=4, multiplies32=4, reads=16, writes=8)
    assert machine.counts._replace(instructions=0) == once.plus(once)
    assert machine.counts.less(once)._replace(instructions=0) == once


def test_runtime(tmp_path):
    image = compiled(tmp_path, f"{VECTORS}fn go() void {{ @fmacs(Y, Y, A, 2.0); }}", kind="f32")
    runtime = wafer.csl.Runtime(image, ran(image))
    assert runtime.counts.multiplies32 == 4
    spent = runtime.energy(SEVEN_NM._replace(reads=5.0, writes=7.0, cycle=2.0))
    assert spent.memory == 16 * 5 + 8 * 7
    assert spent.cycles == 2.0 * runtime.cycles
    assert spent.arithmetic == pytest.approx(4 * (0.38 + 1.31))
    assert runtime.energy().total == pytest.approx(sum(spent[:2]) + 24 * 1.875)
    assert "multiplies32" in runtime.energy_text()


def test_example_programs():
    """Of the wave, one PE of one cell: 25 points less those beyond the border, by the program."""
    wave = runtime("wave", width=1, height=1, cells=5)
    field = np.ones((1, 1, 5), np.float32)
    script("wave").run(wave, field, field * 0.3, 2)
    life = runtime("life", width=3, height=3)
    script("life").run(life, np.eye(3, dtype=int), 1)
    assert wave.counts.multiplies32 == 2 * 5 * 10  # the middle, eight of the column, the speed
    assert wave.counts.hops == 0 < life.counts.hops


def test_report_by_hand():
    counts = Counts(adds32=1000, hops=10)
    each = Picojoules(*range(1, 10), cycle=0.5)
    text = report(counts, cycles=100, pes=4, each=each, gigahertz=1.0)
    assert "adds32                  1,000    2.000        2.000  87.3%" in text
    assert "pe_cycles                 400    0.500        0.200   8.7%" in text
    assert "22.9 pJ a cycle; at 1.0 GHz 0.0229 W, 5.72 mW for each of 4 PEs" in text
    assert "0.0%" in report(Counts(), cycles=0, pes=0)
