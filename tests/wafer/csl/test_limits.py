"""Programs whose compilation would not end: one error at the place, within a bounded time."""

import sys

import pytest
from helpers.csl_program import compiled

from wafer.cli import main
from wafer.csl import CslError, compile
from wafer.csl.semantics.core import unit

_STEPS = "more than 20,000 steps while compiling"
_GROWING = "comptime {{ var s = {}; for (@range(i64, 60)) |i| {{ s = {}; }} }}"
# What does not end, and where: line and column, 0 where several columns are as good.
_TOO_LONG = {
    "while (true)": ("comptime { while (true) {} }", (1, 12)),
    "a long range": ("comptime { for (@range(i64, 1000000000000)) |i| {} }", (1, 12)),
    "nested loops": (
        "comptime { for (@range(i64, 1000)) |i| { for (@range(i64, 1000)) |j| {} } }",
        (1, 42),
    ),
    "many calls": (
        "fn f(n: i32) i32 { if (n < 2) { return n; } return f(n - 1) + f(n - 2); }\n"
        "comptime { @comptime_assert(f(60) > 0); }",
        (1, 0),
    ),
    "an inline loop": (
        "var z: i16 = 0;\nfn go() void { inline for (@range(i64, 1000000)) |i| { z += 1; } }",
        (2, 16),
    ),
    "more generic functions with each": (
        "fn f(comptime a: i32, comptime b: i32) void { f(a + 1, b); f(a, b + 1); }\n"
        "fn go() void { f(0, 0); }",
        (1, 1),
    ),
    "imports that import themselves twice": (
        'const a = @import_module("pe.csl", .{ .x = x });\n'
        'const b = @import_module("pe.csl", .{ .x = x });',
        (1, 0),
    ),
    "a long array": ("var z: [10000000000]i16;\nfn f() i16 { return z[0]; }", (1, 1)),
    "a long constant": (
        "const z = @constants([10000000000]i16, 1);\ncomptime { @comptime_assert(z[0] == 1); }",
        (1, 11),
    ),
    "arrays of arrays": (
        "fn many(comptime n: i16) type { if (n == 0) { return i16; } return [2](many(n - 1)); }\n"
        "const z = @zeros(many(60));\ncomptime { @comptime_assert(@rank(@type_of(z)) == 1); }",
        (2, 11),
    ),
    "structs of structs": (
        "fn pair(comptime T: type) type { return struct { a: T, b: T }; }\n"
        "comptime { var t = i16; for (@range(i16, 60)) |i| { t = pair(t); } }",
        (1, 41),
    ),
    "a string": (_GROWING.format('"ab"', "@strcat(s, s)"), (1, 58)),
    "a list": (_GROWING.format(".{1}", "@concat_structs(s, s)"), (1, 58)),
    "lists of lists": (_GROWING.format(".{1}", ".{ s, s }"), (1, 58)),
}


def problems(folder, text, **options):
    """The problems of a PE's file: line, column, message."""
    with pytest.raises(CslError) as caught:
        compiled(folder, text if "fn go()" in text else f"{text}\nfn go() void {{}}", **options)
    assert all(p.at.file == str(folder / "pe.csl") for p in caught.value.problems)
    # The helper puts three lines before the text.
    return [(p.at.line - 3, p.at.column, p.message) for p in caught.value.problems]


@pytest.mark.parametrize("name", _TOO_LONG)
def test_steps_are_limited(tmp_path, monkeypatch, name):
    monkeypatch.setattr(unit, "STEPS", 20_000)
    text, (line, column) = _TOO_LONG[name]
    (found,) = {p for p in problems(tmp_path, text) if p[2].startswith(_STEPS)}
    assert found[0] == line
    assert found[1] == column or not column


def test_the_limit_of_steps_without_an_option(tmp_path):
    text, _ = _TOO_LONG["a string"]
    assert problems(tmp_path, text)[0][2].startswith("more than 1,000,000 steps")


@pytest.mark.parametrize(
    ("text", "at", "message"),
    [
        (
            "fn f(n: i32) i32 { return 1 + (2 + (3 + f(n + 1))); }\n"
            "comptime { @comptime_assert(f(1) > 0); }",
            (1, 42),
            "more than 200 calls within each other while compiling",
        ),
        (
            "fn f(comptime n: i32) void { f(n + 1); }\nfn go() void { f(0); }",
            (1, 31),
            "more than 200 calls of generic functions within each other while compiling",
        ),
        (
            "fn f(comptime T: type) void { f(*T); }\nfn go() void { f(i16); }",
            (1, 32),
            "more than 200 calls of generic functions within each other while compiling",
        ),
        (
            'const m = @import_module("pe.csl", .{ .x = x });',
            (1, 11),
            "more than 200 imports within each other while compiling",
        ),
    ],
)
def test_depth_is_limited(tmp_path, text, at, message):
    before = sys.getrecursionlimit()
    assert set(problems(tmp_path, text)) == {(*at, message)}
    assert sys.getrecursionlimit() == before


def test_constants_within_each_other(tmp_path):
    def chain(count):
        lines = ["const a0 = 1;", *(f"const a{k} = a{k - 1} + 1;" for k in range(1, count))]
        return "\n".join(lines) + f"\ncomptime {{ @comptime_assert(a{count - 1} == {count}); }}"

    compiled(tmp_path, chain(400) + "\nfn go() void {}")
    (problem,) = problems(tmp_path, chain(4000))
    assert "too deep within each other" in problem[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comptime { var n = 3; for (@range(i16, 100)) |i| { n = n * n; } }", "a number of 6,493"),
        ("const n = 1 << 100000000000;\ncomptime { @comptime_assert(n > 0); }", "shift by 10000"),
        (
            "const n = @as(u16, 1) << 9999999999;\ncomptime { @comptime_assert(n == 0); }",
            "shift by",
        ),
        (f"const n: i16 = 1{5000 * '0'};", "a number of 5,001 digits; it has at most 4,096"),
    ],
)
def test_the_width_of_numbers_is_limited(tmp_path, text, message):
    (problem,) = problems(tmp_path, text)
    assert problem[2].startswith(message)


def test_an_integer_beyond_every_float_is_infinite(tmp_path):
    compiled(
        tmp_path,
        "const big = 1 << 4000;\nconst a: f32 = big;\nconst b: comptime_float = -big;\n"
        "comptime { @comptime_assert(a > 3.0e38 and b < -1.0e308 and @as(f16, big) > 65504.0); }\n"
        "fn go() void {}",
    )


@pytest.mark.parametrize(("arch", "size"), [("wse2", "757 x 996"), ("wse3", "762 x 1176")])
def test_a_rectangle_beyond_the_wafer(tmp_path, arch, size):
    (tmp_path / "pe.csl").write_text("fn go() void {}\n", encoding="utf-8")
    layout = tmp_path / "layout.csl"
    layout.write_text(
        "layout {\n  @set_rectangle(10000, 10000);\n  for (@range(i32, 10000)) |x| {\n"
        '    for (@range(i32, 10000)) |y| { @set_tile_code(x, y, "pe.csl", .{}); }\n  }\n}\n',
        encoding="utf-8",
    )
    with pytest.raises(CslError, match=f"10000 x 10000 PEs; the fabric of {arch} has {size}"):
        compile(layout, arch=arch)


def test_a_layout_has_steps_for_each_pe(tmp_path, monkeypatch):
    monkeypatch.setattr(unit, "STEPS", 100)
    row = "fn go() void {}"
    assert compiled(tmp_path, row, width=150).tiles.shape == (1, 150)


def test_options(tmp_path, capsys):
    text = (
        "param n: i16;\nvar z: i16 = 0;\n"
        "fn deep(k: i16) i16 { return if (k == 0) 0 else deep(k - 1); }\nconst d = deep(n);\n"
        "fn go() void { inline for (@range(i16, n)) |i| { z += d; } }\n"
        "comptime { @export_symbol(go); }\n"
    )
    (tmp_path / "pe.csl").write_text(text, encoding="utf-8")
    layout = tmp_path / "layout.csl"
    layout.write_text(
        'param n: i16;\nlayout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl", .{ .n = n });'
        ' @export_name("go", fn()void); }\n',
        encoding="utf-8",
    )

    def check(n, *options):
        code = main(["csl", "check", str(layout), f"--params=n:{n}", *options])
        return code, capsys.readouterr().err

    assert check(20, "--max-inlined-iterations=20", "-comptime-func-depth-limit=21") == (0, "")
    code, said = check(20, "--max-inlined-iterations=19")
    assert code == 1
    assert f"{tmp_path / 'pe.csl'}:5:16: error: more than 19 rounds of an inline loop" in said
    code, said = check(20, "--comptime-func-depth-limit", "20")
    assert code == 1
    assert f"{tmp_path / 'pe.csl'}:3:53: error: more than 20 calls within each other" in said
    assert check(300, "--comptime-func-depth-limit=400") == (0, "")
    with pytest.raises(SystemExit):
        check(1, "--max-inlined-iterations=0")
    assert "'0' is not a number from 1 on" in capsys.readouterr().err
