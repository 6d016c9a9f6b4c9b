"""Names of a program: what is unknown, declared twice or misspelt, and what is left alone."""

from pathlib import Path

import pytest

from wafer.csl import CslError, Source, check

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.csl"))


def problems(text):
    with pytest.raises(CslError) as caught:
        check(Source("<text>", text))
    return [(p.at.line, p.message, p.hint) for p in caught.value.problems]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs(path):
    check(Source.open(path))


WRONG = [
    ("const a = lenght; param length: u16;", "'lenght' is not declared", "did you mean 'length'?"),
    ("var x: [n]f32;", "'n' is not declared", ""),
    ("param a; var a: u16;", "'a' is declared twice; first in line 1", ""),
    ("fn a() void {} const a = 1;", "'a' is declared twice; first in line 1", ""),
    ("comptime { const b = 1; var b = 2; }", "'b' is declared twice; first in line 1", ""),
    ("comptime { c = 1; var c = 2; }", "'c' is not declared", ""),
    ("comptime { { const d = 1; } @assert(d); }", "'d' is not declared", ""),
    ("const f = fn(g: u16, g: u16) void;", "'g' is declared twice; first in line 1", ""),
    ("var x = @zeroes([2]f32);", "there is no builtin @zeroes", "did you mean '@zeros'?"),
    ("var x = @as(1);", "@as takes 2 argument(s), found 1", ""),
    ("const r = @range(u16, 1, 2, 3, 4);", "@range takes 2 to 4 argument(s), found 5", ""),
    ("comptime { break; }", "'break' outside of a loop", ""),
    ("comptime { continue; }", "'continue' outside of a loop", ""),
    (
        "comptime { outer: while (true) { break :outr; } }",
        "no loop or block around this has the label 'outr'",
        "did you mean ':outer'?",
    ),
    ("layout {} layout {}", "a second layout block; the first is in line 1", ""),
    ("var x = |i|{2} -> x[j];", "'j' is not declared", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), WRONG)
def test_wrong(text, message, hint):
    assert problems(text) == [(1, message, hint)]


@pytest.mark.parametrize(
    "text",
    [
        "const a = b; const b = 1;",  # order does not matter in a file
        'const d = if (@is_arch("wse3")) @get_new_thing(gone) else 1;',  # one branch is dead
        'const ok = @is_arch("wse2") and gone;',
        "comptime { if (true) { gone(); } }",
        "comptime { switch (1) { 1 => gone(), else => {}, } }",
        "fn never_called() void { gone(); }",
        "fn f(n: u16, x: *[n]f32) void { for (@range(u16, n)) |_, i| x.*[i] = 0.0; }",
        "comptime { for (@range(u16, 2)) |_, _| {} }",
        "comptime { for (@range(u16, 2)) |i| {} for (@range(u16, 2)) |i| {} }",
        "const s = blk: { break :blk 1; }; const S = struct { gone: u7 };",
        "comptime { const inner = 1; { const inner = 2; } }",
        'const m = @import_module("<math>"); const r = m.anything(m.X);',
    ],
)
def test_not_wrong(text):
    check(Source("<text>", text))


def test_all_problems_of_a_file_at_once():
    text = "var a = b;\nvar c = d;\ncomptime {\n  @activate();\n  break;\n}\n"
    assert [line for line, _, _ in problems(text)] == [1, 2, 4, 5]
