"""Programs whose compilation would not end: one error at the place, within a bounded time."""

import sys
from pathlib import Path

import pytest
from helpers.csl_program import compiled
from helpers.csl_rules import compiled_rule, csl_rules

from wafer.csl import CslError, compile
from wafer.csl.semantics.core import unit

LIMITS = Path(__file__).parent / "programs" / "limits"


def said(rule):
    """Different problems of a rule's program, as its head has them."""
    with pytest.raises(CslError) as caught:
        compiled_rule(rule)
    assert {Path(problem.at.file).name for problem in caught.value.problems} == {rule.path.name}
    return {f"{p.at.line}:{p.at.column}: {p.message}" for p in caught.value.problems}


@pytest.mark.parametrize("rule", list(csl_rules(LIMITS)), ids=lambda rule: rule.path.stem)
def test_programs_whose_compilation_would_not_end(monkeypatch, rule):
    """Steps are fewer here; a program that imports itself twice meets the limit of depth, too."""
    if rule.path.stem.startswith("steps"):
        monkeypatch.setattr(unit, "STEPS", 20_000)
    before = sys.getrecursionlimit()
    problems = said(rule)
    if "twice" in rule.path.stem:
        problems = {line for line in problems if "200 imports within each other" not in line}
    assert problems == {*rule.texts("error")}
    assert sys.getrecursionlimit() == before


def test_the_limit_of_steps_without_an_option():
    rule = next(rule for rule in csl_rules(LIMITS) if rule.path.stem == "steps_a_string")
    assert "more than 1,000,000 steps" in said(rule).pop()


def test_constants_within_each_other(tmp_path):
    def chain(count):
        lines = ["const a0 = 1;", *(f"const a{k} = a{k - 1} + 1;" for k in range(1, count))]
        return "\n".join(lines) + f"\ncomptime {{ @comptime_assert(a{count - 1} == {count}); }}"

    compiled(tmp_path, chain(400) + "\nfn go() void {}")
    with pytest.raises(CslError, match="too deep within each other"):
        compiled(tmp_path, chain(4000) + "\nfn go() void {}")


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


def test_options(tmp_path, capsys, cli):
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

    check = f"csl check {layout} --params=n:"
    cli(f"{check}20 --max-inlined-iterations=20 -comptime-func-depth-limit=21")
    said = cli(f"{check}20 --max-inlined-iterations=19", 1)
    assert f"{tmp_path / 'pe.csl'}:5:16: error: more than 19 rounds of an inline loop" in said
    said = cli(f"{check}20 --comptime-func-depth-limit 20", 1)
    assert f"{tmp_path / 'pe.csl'}:3:53: error: more than 20 calls within each other" in said
    cli(f"{check}300 --comptime-func-depth-limit=400")
    with pytest.raises(SystemExit):
        cli(f"{check}1 --max-inlined-iterations=0")
    assert "'0' is not a number from 1 on" in capsys.readouterr().err
