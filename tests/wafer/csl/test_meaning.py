"""The image of a program: memory, programs that PEs share, errors within system modules."""

import pytest
from helpers.csl_program import compiled

from wafer.csl import CslError


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
