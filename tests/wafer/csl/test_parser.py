"""What the parser makes of CSL: the shape of trees, where things stand."""

from pathlib import Path

import pytest

from wafer.csl import Source, parse, read
from wafer.csl.syntax import tree

PROGRAMS = sorted((Path(__file__).parent / "programs").glob("*.csl"))


def value(text):
    (declaration,) = parse(f"const x = {text};").declarations
    return declaration.value


def statement(text):
    (function,) = parse(f"fn f() void {{ {text} }}").declarations
    (body,) = function.body.body
    return body


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a & m == 0", "(a & m) == 0"),  # unlike C
        ("a | b & c ^ d", "((a | b) & c) ^ d"),  # one level
        ("a << 1 + 2 & 3", "(a << (1 + 2)) & 3"),
        ("a == b and c < d or e", "((a == b) and (c < d)) or e"),
        ("-a * !b", "(-a) * (!b)"),
        ("-a.b[1]", "-(a.b[1])"),
        ("&x.*[i, j].f", "&(((x.*)[i, j]).f)"),
        ("comptime f(1,)", "comptime (f(1))"),
        ("[2]i16{1, 2,}", "[2]i16{1, 2}"),
        ("|i, j|{n, 2} -> A[i, 2*j]", "|i, j|{n, 2} -> (A[i, (2 * j)])"),
        ("if (a) if (b) 1 else 2 else 3", "if (a) (if (b) 1 else 2) else 3"),
    ],
)
def test_operators_bind(text, grouped):
    assert value(text) == value(grouped) != value("a")


def test_expressions():
    at, a, one, two = None, tree.Name(None, "a"), tree.Integer(None, "1"), tree.Integer(None, "2")
    f32, i16 = tree.Name(at, "f32"), tree.Name(at, "i16")
    assert value("(a + 1) * 2") == tree.Binary(at, "*", tree.Binary(at, "+", a, one), two)
    assert value("-a") == tree.Unary(at, "-", a)
    assert value("a.b") == tree.Member(at, a, "b")
    assert value("a.*") == tree.Dereference(at, a)
    assert value("a[1, 2]") == tree.Index(at, a, (one, two))
    assert value("a(1)") == tree.Call(at, a, (one,))
    assert value("@as(a, 1)") == tree.Builtin(at, "@as", (a, one))
    fields = (tree.InitialValue(at, "b", one), tree.InitialValue(at, None, two))
    assert value(".{ .b = 1, 2 }") == tree.Init(at, None, fields)
    assert value("a{ .b = 1 }") == tree.Init(at, a, fields[:1])
    assert value("a.T{}") == tree.Init(at, tree.Member(at, a, "T"), ())
    both = tree.If(at, ((a, one), (tree.Name(at, "b"), two)), None)
    assert value("if (a) 1 else if (b) 2") == both
    assert value("{}") == tree.Block(at, ())
    pointer = tree.PointerType(at, False, (), f32)
    assert value("[*]const *f32") == tree.PointerType(at, True, ("const",), pointer)
    array = tree.ArrayType(at, (two,), f32)
    assert value("*[2]f32") == tree.PointerType(at, False, (), array)
    formals = (tree.Formal(at, None, i16), tree.Formal(at, "x", array))
    void = tree.Name(at, "void")
    assert value("fn(i16, x: [2]f32) void") == tree.FunctionSignature(at, "fn", formals, void)
    access = tree.TensorAccess(at, ("i",), (two,), tree.Index(at, a, (tree.Name(at, "i"),)))
    assert value("|i|{2} -> a[i]") == access


@pytest.mark.parametrize(
    ("text", "number"),
    [("0x1F", 31), ("0b1_01", 5), ("0o17", 15), ("1_000", 1000), ("007", 7), ("'a'", 97)],
)
def test_integers(text, number):
    assert value(text).value == number


def test_other_literals():
    assert value("1.5e-3").value == 1.5e-3
    assert value("1e3").value == 1000.0
    assert value(r'"a\n\"\\"').value == 'a\n"\\'
    assert value("true") == tree.Bool(None, True)


def test_statements():
    at, x = None, tree.Name(None, "x")
    one = tree.Integer(at, "1")
    add = tree.Assign(at, "+=", x, one)
    assert statement("x += 1;") == add
    assert statement("if (x) x += 1 else return 1;") == tree.If(
        at, ((x, add),), tree.Return(at, one)
    )
    assert statement("l: while (x) : (x += 1) { break :l; }") == tree.While(
        at, x, add, tree.Block(at, (tree.Break(at, "l", None),)), False, "l"
    )
    assert statement("inline for (x) |_, i| continue;") == tree.For(
        at, x, ("_", "i"), tree.Continue(at, None), True
    )
    assert statement("switch (x) { 1, x => {}, else => x += 1 }") == tree.Switch(
        at, x, (tree.Arm(at, (one, x), tree.Block(at, ())), tree.Arm(at, (), add))
    )
    assert statement("b: { break :b 1; }") == tree.Block(at, (tree.Break(at, "b", one),), "b")
    assert statement("comptime { x += 1; }") == tree.Comptime(at, tree.Block(at, (add,)))


def test_declarations():
    file = parse(
        "export var a: u16 align(4) = 1; param p; extern fn g(comptime n: i16, m: type) void;"
        "const E = enum(u16) { a, b = 1 }; const S = extern struct { f: u16 = 1 };"
    )
    at, u16, one = None, tree.Name(None, "u16"), tree.Integer(None, "1")
    variable, param, function, enum, struct = file.declarations
    align = tree.Attribute(at, "align", tree.Integer(at, "4"))
    assert variable == tree.Variable(at, "var", "a", u16, (align,), one, ("export",))
    assert param == tree.Variable(at, "param", "p", None, (), None)
    formals = (
        tree.Formal(at, "n", tree.Name(at, "i16"), True),
        tree.Formal(at, "m", tree.Name(at, "type")),
    )
    void = tree.Name(at, "void")
    assert function == tree.FunctionDecl(at, "fn", "g", formals, (), void, None, ("extern",))
    members = (tree.Field(at, "a", None, None), tree.Field(at, "b", None, one))
    assert enum.value == tree.EnumType(at, u16, members)
    fields = (tree.Field(at, "f", u16, one),)
    assert struct.value == tree.StructType(at, "struct", "extern", fields)


def test_positions_are_where_things_begin():
    file = parse("// first\nconst x =\n  a +\n  bcd;\n", "p.csl")
    (x,) = file.declarations
    assert str(x.at) == "p.csl:2:1"
    assert x.value.at == ("p.csl", 3, 5)  # an operator: its sign
    assert x.value.right.at == ("p.csl", 4, 3)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_programs(path):
    parsed = read(Source.open(path))
    names = [d.name for d in parsed.file.declarations if hasattr(d, "name")]
    assert len(names) == len(set(names)) > 3
    assert all(node.at.file == str(path) for node, _ in tree.walk(parsed.file))


def test_an_empty_file_is_a_program():
    assert parse("").declarations == ()
    assert parse("// nothing\n").declarations == ()
