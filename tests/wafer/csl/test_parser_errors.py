"""Messages of the parser: all of a file at once, with line, caret and likely fix."""

import pytest

from wafer.csl import CslError, Source, parse, read


def problems(text):
    with pytest.raises(CslError) as caught:
        parse(text)
    return caught.value.problems


def test_the_whole_message():
    with pytest.raises(CslError) as caught:
        parse("const x = 4\nfn f() void {\n\ty = ;\n}\n", "bad.csl")
    assert str(caught.value) == (
        "bad.csl:1:12: error: expected ';' after the declaration of 'x'\n"
        "    1 | const x = 4\n"
        "      |            ^\n"
        "      = add ';' at the end of the statement\n"
        "bad.csl:3:6: error: expected an expression, found ';'\n"
        "    3 | \ty = ;\n"
        "      | \t    ^\n"
        "2 errors"
    )


IN_FUNCTION = [
    ("return 1", "expected ';' after the statement", "add ';'"),
    ("retrun 1;", "expected ';' after the statement, found '1'", "did you mean 'return'"),
    ("x++;", "'++' is not CSL", "write '+= 1'"),
    ("x = a && b;", "'&&' is not CSL", "write 'and'"),
    ("x = a ? b : c;", "'?' is not CSL", "if (c) a else b"),
    ("while x < 3 {}", "expected '(' after 'while', found 'x'", "in parentheses"),
    ("if (a) b = 1; else b = 2;", "';' before 'else'", "use braces"),
    ("for (a) {}", "expected '|' with the loop's variable, found '{'", "for (values) |x|"),
    ("for (a) |x, y, z| {}", "3 loop variables", "the element and its index"),
    ("x = a < b < c;", "'<' after '<': comparisons do not chain", "'and'"),
    ("f(1;", "expected ',' or ')', found ';'", "to close the '(' of line 1"),
    ("struct = 1;", "expected '{' with the fields of the struct, found '='", ""),
    ("x = @zeros;", "expected '(' after @zeros, found ';'", "always called"),
    ("x = [2]i16{1 2};", "expected ',' or '}', found '2'", "to close the '{'"),
    ("x = .{ .a 1 };", "expected '=' after the field's name, found '1'", ""),
    ("x = |i, j|{2} -> A[i];", "2 variables but 1 extents", "each variable has one"),
    ("x = |i| A[i];", "expected '{' with the extents, found 'A'", "|i|{n} -> A[i]"),
    ("l: x = 1;", "expected a loop or block after the label 'l', found 'x'", ""),
    ("switch (x) { 1: a }", "expected '=>' after the value of the arm, found ':'", ""),
    ("var x: [] f32;", "an array type without a length", "[*]T for a pointer"),
    ("inline x = 1;", "expected 'for' or 'while' after 'inline', found 'x'", ""),
]


@pytest.mark.parametrize(("text", "message", "hint"), IN_FUNCTION)
def test_in_a_function(text, message, hint):
    (problem,) = problems(f"fn f() void {{ {text} }}")
    assert problem.message == message
    assert hint in problem.hint


IN_FILE = [
    ("let x = 3;", "expected a declaration, found 'let'", "did you mean 'const' for 'let'?"),
    ("funtion f() void {}", "expected a declaration, found 'funtion'", "did you mean 'fn'"),
    ("x = 3;", "expected a declaration, found 'x'", "statements stand in"),
    ("}", "expected a declaration, found '}'", "closes nothing"),
    ("fn f(a: i16) { }", "expected the result type of 'f', found '{'", "'void' before"),
    ("fn f(i16) void {}", "a parameter of 'f' has no name", "'name: type'"),
    ("const x;", "the const 'x' has no value", "add '= value'"),
    ("const fn = 1;", "expected a name after 'const', found 'fn'", "'fn' is a keyword"),
    ("const p = *;", "expected a type, found ';'", ""),
    ("const x = packed 1;", "expected 'struct' or 'union' after 'packed', found '1'", ""),
    ("const x = 12ab;", "'12ab' is not a number", "0x1f"),
    ('const x = "abc;', 'the closing " is missing', "end on the line"),
    (r'const x = "\q";', r"unknown escape '\q'", r"\n"),
    ("/* no */ const x = 1;", "'/*' is not CSL", "//"),
    ("const x = #;", "the character '#' has no meaning here", ""),
    ("const x = \u00a0 1;", "the character '\\u00a0' has no meaning here", ""),
    ("fn f() void { if (a) {", "expected '}', found the end of the file", "line 1"),
]


@pytest.mark.parametrize(("text", "message", "hint"), IN_FILE)
def test_in_a_file(text, message, hint):
    problem = problems(text)[0]
    assert problem.message == message
    assert hint in problem.hint


def test_a_problem_costs_one_statement_only():
    text = """
const a = ;
fn f() void {
  b = 1 +;
  if (c) { d = ); }
  e = 2;
}
var g: = 1;
layout { @set_rectangle(1,, 2); }
"""
    assert [problem.at.line for problem in problems(text)] == [2, 4, 5, 8, 9]


def test_a_missing_brace_ends_at_the_next_function():
    (problem,) = problems("fn f() void {\n  if (a) {\n    b = 1;\n\nfn g() void {}\nvar x: u16;\n")
    assert problem.at.line == 5
    assert problem.message == "expected '}', found 'fn'"
    assert problem.hint == "to close the '{' of line 2, column 10"


def test_at_most_twenty_are_shown():
    with pytest.raises(CslError) as caught:
        parse("const x = ;\n" * 50)
    lines = str(caught.value).split("\n")
    assert len(caught.value.problems) == 50
    assert lines[-1] == "50 errors; the first 20 are shown"
    assert sum("error:" in line for line in lines) == 20


@pytest.mark.parametrize(
    "text",
    [
        "const x = " + "(" * 5000 + "1" + ")" * 5000 + ";",
        "const x = " + "-" * 5000 + "1;",
        "const x = " + "+".join("a" * 5000) + ";",
        "const x = a" + ".b" * 5000 + ";",
        "const x: " + "*" * 5000 + "f32 = 1;",
        "const x: " + "[1]" * 5000 + "f32 = 1;",
        "const x = " + ".{" * 5000 + "}" * 5000 + ";",
        "const x = " + "if (a) " * 5000 + "1;",
        "const x = " + "struct { a: " * 5000,
        "fn f() void " + "{" * 5000 + "}" * 5000,
        "fn f() void { " + "if (a) " * 5000 + "b = 1; }",
        "fn f() void { " + "if (a) { " * 5000 + "} " * 5000 + "}",
        "fn f() void { " + "while (a) " * 5000 + "b = 1; }",
        "fn f() void { " + "switch (a) { 1 => " * 5000,
        "const x = " + "fn(" * 5000,
        "const x = " + "|i|{1} -> " * 5000 + "a[i];",
    ],
)
def test_deep_nesting_is_an_error(text):
    assert "deep" in problems(text)[0].message


def test_a_long_chain_of_else_is_not_deep():
    chain = "fn f() void { if (a) b = 1 " + "else if (a) b = 1 " * 300 + "; }"
    assert repr(parse(chain)).count("Assign(") == 301


def test_a_file_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin.csl"
    path.write_bytes(b"// fine\nconst x = \xe9;\n")
    with pytest.raises(CslError, match=r"latin.csl:2:11: error: byte 0xe9 is not UTF-8 text"):
        Source.open(path)


def test_the_byte_order_mark_and_foreign_line_ends_are_read(tmp_path):
    path = tmp_path / "windows.csl"
    path.write_bytes(b"\xef\xbb\xbfconst x = 1;\r\nconst y = ;\r\n")
    with pytest.raises(CslError) as caught:
        read(Source.open(path))
    assert [problem.at[1:] for problem in caught.value.problems] == [(2, 11)]
    assert "2 | const y = ;\n" in str(caught.value)
