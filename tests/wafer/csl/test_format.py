"""The layout of CSL files: the style, and that nothing else changes."""

from pathlib import Path

import pytest

from wafer.csl import CslError, Source, format_text, read

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.csl"))


def laid_out(text):
    return format_text(Source("<text>", text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("const  x :u16=a+b*-c ;", "const x: u16 = a + b * -c;"),
        ("var a:[ 2,3 ]f32=[2,3] f32 { 1,2 };", "var a: [2, 3]f32 = [2, 3]f32{1, 2};"),
        ("var p : [ * ] const f32=& a [ 0 ];", "var p: [*]const f32 = &a[0];"),
        ("const s=.{.a=1 , .b=.{ }};", "const s = .{ .a = 1, .b = .{} };"),
        ("const t = | i,j | { 2, n } -> A [i];", "const t = |i, j|{2, n} -> A[i];"),
        ("const f = x .* . g ( 1 ) [ 2 ];", "const f = x.*.g(1)[2];"),
        ("const v = T { .a = 1 };", "const v = T{ .a = 1 };"),
        ("fn f ( ) *T{}", "fn f() *T {}"),
        ("fn f()fn( i16 )void { }", "fn f() fn(i16) void {}"),
        ("const E=enum ( u16 ){a,b};", "const E = enum(u16) { a, b };"),
        ("var a:u16 align ( 4 );", "var a: u16 align(4);"),
        ("comptime{ }", "comptime {}"),
        ("const x = !a and ~b == - 1;", "const x = !a and ~b == -1;"),
        ("const x = a& b|c;", "const x = a & b | c;"),
        ("const x=if(a)(b)else(c);", "const x = if (a) (b) else (c);"),
    ],
)
def test_spaces(text, expected):
    assert laid_out(text) == expected + "\n"


def test_lines():
    before = """

fn   f(a: i16,
b: i16) void {

for (x) |  i  |   {   // why
  foo(a,   // longer
        .{
      .b = 1,

      });


  l: while (c): (i+=1)
      if (d) break : l
      else continue :l;
    const e = a +
  b;
// a comment on its own

}
  }
"""
    after = """\
fn f(a: i16,
    b: i16) void {
  for (x) |i| { // why
    foo(a, // longer
        .{
          .b = 1,
        });

    l: while (c) : (i += 1)
      if (d) break :l
      else continue :l;
    const e = a +
        b;
    // a comment on its own
  }
}
"""
    assert laid_out(before) == after


def test_comments_at_the_ends_of_neighbouring_lines_are_aligned():
    text = "var a: u16; // one\nvar long_name: u16; // two\n\nvar b: u16; // three\n"
    assert laid_out(text) == (
        "var a: u16;         // one\nvar long_name: u16; // two\n\nvar b: u16; // three\n"
    )


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_only_the_layout_changes(path):
    before = read(Source.open(path))
    text = format_text(before.source)
    after = read(Source("<again>", text))
    assert text != before.source.text
    assert after.file == before.file
    assert [c.text for c in after.tokens.comments] == [c.text for c in before.tokens.comments]
    assert format_text(after.source) == text
    assert not [line for line in text.split("\n") if line != line.rstrip()]


def test_our_own_programs_are_laid_out():
    files = sorted(Path("wafer").rglob("*.csl"))
    assert files
    assert [f for f in files if format_text(Source.open(f)) != f.read_text(encoding="utf-8")] == []


def test_what_is_not_csl_is_refused():
    with pytest.raises(CslError, match="expected an expression"):
        laid_out("const x = ;")


def test_an_empty_file_stays_empty():
    assert laid_out("\n\n") == ""
