"""The language: what small programs leave in memory by hand, and what they may not say."""

import numpy as np
import pytest
from helpers.csl_program import compiled, results

from wafer.csl import CslError


def test_a_word_goes_to_the_neighbour(tmp_path):
    """A color, a data task and an activation: PE 1 holds what PE 0 sent, plus 1."""
    text = """const c = @get_color(3);
    const iq = @get_input_queue(2);
    const oq = @get_output_queue(2);
    const taken = @get_data_task_id(if (@is_arch("wse2")) c else iq);
    const done = @get_local_task_id(9);
    const out = @get_dsd(fabout_dsd, if (@is_arch("wse2"))
      .{ .extent = 1, .output_queue = oq, .fabric_color = c }
      else .{ .extent = 1, .output_queue = oq });
    task take(word: i32) void { y[0] = word + 1; }
    task note() void { y[1] = 7; }
    fn go() void { if (x == 0) { @mov32(out, 41, .{ .async = true, .activate = note }); } }
    comptime {
      @bind_data_task(take, taken);
      @bind_local_task(note, done);
      @initialize_queue(iq, .{ .color = c });
      if (@is_arch("wse3")) @initialize_queue(oq, .{ .color = c });
    }"""
    routes = """const color = @get_color(3);
    @set_color_config(0, 0, color, .{ .routes = .{ .rx = .{RAMP}, .tx = .{EAST} } });
    @set_color_config(1, 0, color, .{ .routes = .{ .rx = .{WEST}, .tx = .{RAMP} } });"""
    for arch in ("wse2", "wse3"):
        words = results(tmp_path, text, width=2, routes=routes, arch=arch)
        np.testing.assert_array_equal(words, [[0, 7, 0, 0], [42, 0, 0, 0]])


def test_variables_are_neighbours_in_memory_as_declared(tmp_path):
    text = "var a = [2]i32{ 1, 2 };\nvar b = [2]i32{ 3, 4 };\nfn go() void { y[0] = b[0] + a[0]; }"
    symbols = compiled(tmp_path, text).programs[0].symbols
    assert symbols["b"].address == symbols["a"].address + 8


def test_equal_params_share_a_program_and_others_do_not(tmp_path):
    same = compiled(tmp_path, "fn go() void {}", width=1)
    assert len(same.programs) == 1
    each = compiled(tmp_path, "fn go() void {}", width=3)  # the layout gives each its column
    assert each.tiles.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (
            'const m = @import_module("<math>");\nfn go() void { y[0] = m.sqrt(y[0]); }',
            (5, 29),
            r"SQRT is of f16 and f32, found a value of type i32 \(in <math>, line \d+\)",
        ),
        (
            'fn go() void {}\nconst m = @import_module("<collectives_2d/pe>", .{});',
            (5, 11),
            r"the param 'dim_params' of <collectives_2d/pe> has no value \(in .*, line \d+\)",
        ),
    ],
)
def test_errors_in_system_modules_are_at_the_users_line(tmp_path, text, at, message):
    with pytest.raises(CslError, match=message) as caught:
        compiled(tmp_path, text)
    assert {p.at.file for p in caught.value.problems} == {str(tmp_path / "pe.csl")}
    assert (caught.value.problems[0].at.line, caught.value.problems[0].at.column) == at
