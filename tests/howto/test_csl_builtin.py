"""docs/howto/csl-builtin.md and the files that docs/concepts/wavelet.md names."""

import re

import numpy as np
import pytest
from helpers.csl_program import ran
from helpers.paths import ROOT

import wafer.csl
from wafer.csl.semantics.compile import RULES
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import described
from wafer.csl.semantics.core.values import Register, Value, is_known
from wafer.csl.syntax.builtins import ARGUMENTS
from wafer.machine.codes import Op

LAYOUT = """
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl");
  @export_name("go", fn()void);
}
"""
PE = """
const halves = @import_module("<halves>");
const known = @larger(@as(u16, 4), 9);
var x: u16 = 3;
var y = @zeros([3]u16);
fn go() void {
  y[0] = @larger(x, 2);
  y[1] = @larger(x, known);
  y[2] = halves.low(0x00050007);
}
comptime { @export_symbol(go); }
"""
HALVES = """// <halves>: halves of words.

fn low(word: u32) u16 {
  return @as(u16, word);
}
"""


def _larger(ev, node):
    """The larger of two numbers of one type."""
    first, second = (ev.value(argument) for argument in node.arguments)
    if second.type == types.COMPTIME_INT:
        second = Value(first.type, second.data)
    if first.type != second.type or not types.is_number(first.type):
        found = f"{described(first)} and {described(second)}"
        ev.fail(node.at, f"@larger takes two numbers of one type, found {found}")
    if is_known(first) and is_known(second):
        return Value(first.type, max(first.data, second.data))
    code, end = ev.require_code(node.at, "what @larger does"), Label()
    a, b = ev.register(first, node.at), ev.register(second, node.at)
    larger = code.new()
    code.add(Op.COPY, 0, larger, a)
    less = code.result(Op.LT, types.machine_type(first.type), a, b)
    code.add(Op.JUMP_UNLESS, 0, end, less)
    code.add(Op.COPY, 0, larger, b)
    code.here(end)
    return Value(first.type, Register(larger))


@pytest.fixture
def compiled(tmp_path, monkeypatch):
    monkeypatch.setitem(ARGUMENTS, "@larger", (2, 2))
    monkeypatch.setitem(RULES.builtins, "@larger", _larger)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "halves.csl").write_text(HALVES, encoding="utf-8")
    (tmp_path / "layout.csl").write_text(LAYOUT, encoding="utf-8")

    def compiled(pe):
        (tmp_path / "pe.csl").write_text(pe, encoding="utf-8")
        paths = (str(tmp_path / "modules"),)
        return wafer.csl.compile(tmp_path / "layout.csl", import_paths=paths)

    return compiled


@pytest.mark.native
def test_a_builtin_and_a_module(compiled):
    image = compiled(PE)
    y = image.programs[0].symbols["y"]
    assert ran(image).read(0, 0, y.address, 6).view(np.uint16).tolist() == [3, 9, 7]


def test_the_builtins_errors(compiled):
    with pytest.raises(wafer.csl.CslError, match="takes 2 argument"):
        compiled(PE.replace("@larger(x, 2)", "@larger(x)"))
    with pytest.raises(wafer.csl.CslError, match=r"two numbers of one type, found .*bool"):
        compiled(PE.replace("@larger(x, 2)", "@larger(x, true)"))


def test_the_pages_files_are_there():
    page = (ROOT / "docs" / "concepts" / "wavelet.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| `([\w/]+\.(?:py|h))` \| `(\w+)` \|", page)
    assert len(rows) == 20
    for file, name in rows:
        assert name in (ROOT / "wafer" / file).read_text(encoding="utf-8"), (file, name)
