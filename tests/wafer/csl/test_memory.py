"""What a program takes of a PE's memory, against published limits and by hand."""

import pytest
from helpers.paths import ROOT

from wafer.csl import CslError, compile
from wafer.csl.host.artifacts import load, save
from wafer.csl.syntax.source import CslWarning

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("a", [*]u16, true);
  @export_name("go", fn()void);
}
"""
PE = """param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
var a = @zeros([{count}]u16);
var a_ptr: [*]u16 = &a;
{text}
comptime {{
  @export_symbol(a_ptr, "a");
  @export_symbol(go);
}}
"""
TOUCH = "fn go() void { a[0] = 1; sys_mod.unblock_cmd_stream(); }"
FMACH = """
var b = @zeros([{n}]f16);
var c = @zeros([{n}]f16);
var d = @zeros([{n}]f16);
const db = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> b[i] }});
const dc = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> c[i] }});
const dd = @get_dsd(mem1d_dsd, .{{ .tensor_access = |i|{{{n}}} -> d[i] }});
fn go() void {{ @fmach(dd, db, dc, 2.0); sys_mod.unblock_cmd_stream(); }}
"""


def program(folder, text=TOUCH, count=1, arch="wse3"):
    (folder / "layout.csl").write_text(LAYOUT, encoding="utf-8")
    (folder / "pe.csl").write_text(PE.format(count=count, text=text), encoding="utf-8")
    return compile(folder / "layout.csl", arch=arch)


def test_a_footprint_by_hand(tmp_path):
    """A store and an unblock: two instructions of 4.8 bytes; 200 + 2 bytes of variables."""
    image = program(tmp_path, count=100)
    (taken,) = (each.footprint for each in image.programs)
    assert (taken.variables, taken.code, taken.stack, taken.rest) == (202, 10, 128, 4032)
    assert taken.total() == 4372
    assert (taken.total(-0.4), taken.total(0.4)) == (4368, 4376)
    save(tmp_path / "out", image, {})
    assert load(tmp_path / "out").programs[0].footprint == taken
    taken = program(tmp_path, count=100, arch="wse2").programs[0].footprint
    assert taken.stack + taken.rest == 3330


# FABRICA (arXiv 2608.25124), docs/PERFORMANCE_MODEL.md 9 and 10: the largest sizes that the vendor
# links on WSE-3, and the next one. The first was fitted on, the others were not.
LIMITS = [
    (lambda n: (TOUCH, n), 22_488, 22_496),
    (lambda n: (FMACH.format(n=n), 1), 7_492, 7_496),
    (lambda n: (FMACH.format(n=n * n), 1), 86, 87),  # square tiles of a GEMM
]


@pytest.mark.parametrize(("text", "largest", "next_one"), LIMITS, ids=["array", "fmach", "gemm"])
def test_limits_are_within_2_percent_of_published_ones(tmp_path, text, largest, next_one):
    program(tmp_path, *text(int(largest * 0.98)))
    assert program(tmp_path, *text(largest)).programs[0].footprint.total() > 48_500
    with pytest.raises(CslError, match="memory: the program does not fit a PE"):
        program(tmp_path, *text(int(next_one * 1.02)))


def test_a_published_stencil_that_does_not_fit(tmp_path):
    """Jorineg/cerebras, tiles of 64 x 64 on WSE-3: radius 4 runs, radius 6 does not."""

    def stencil(radius):
        size = f"[{64 + 2 * radius}, {65 + 2 * radius}]f32"
        text = f"var own: {size};\nvar buffer: {size};\n"
        return text + "fn go() void { own[0, 0] = buffer[1, 1]; sys_mod.unblock_cmd_stream(); }"

    program(tmp_path, stencil(4))
    with pytest.raises(CslError) as caught:
        program(tmp_path, stencil(6))
    (problem,) = caught.value.problems
    assert problem.at.line == 5  # the declaration
    assert "variables 46,822 bytes" in problem.message  # 2 x 76 x 77 x 4; a with its gap, a_ptr
    assert "expected at most 49,152" in problem.message
    names = [
        f"'{name}' ({tmp_path / 'pe.csl'}:{line}:1)" for name, line in (("own", 5), ("buffer", 6))
    ]
    assert all(f"{name} has 23,408 bytes" in problem.hint for name in names)


def test_a_program_that_may_not_fit_is_a_warning(tmp_path):
    """Sums of 500 elements: 1,500 instructions with their loads and stores, 7,200 bytes."""
    lines = " ".join(f"a[{k}] += a[{k + 1}];" for k in range(500))
    text = f"fn go() void {{ {lines} sys_mod.unblock_cmd_stream(); }}"
    taken = program(tmp_path, text, 1000).programs[0].footprint
    room = 49_152 - taken.total() + taken.variables
    with pytest.warns(CslWarning, match="memory: the program may not fit a PE"):
        program(tmp_path, text, room // 2 + taken.code // 8)
    with pytest.raises(CslError, match="does not fit"):
        program(tmp_path, text, room // 2 + taken.code // 3)


def test_the_report_of_a_program(tmp_path, cli):
    layout = ROOT / "wafer/csl/examples/hello/layout.csl"
    said = cli(f"csl compile {layout} -o {tmp_path / 'out'} --verbose")
    head, x, x_ptr, others, *_ = said.splitlines()
    taken = "variables 34, code about 24, stack 128, rest 3,202"  # five instructions
    assert head == f"pe.csl: 3,388 of 49,152 bytes on 1 PE: {taken}"
    assert (x.split(), x_ptr.split()) == (["32", "x:", "[8]f32"], ["2", "x_ptr:", "[*]f32"])
    assert others == "       0  others: constants, libraries, gaps"
