"""Every builtin with every kind of value in every position: a located error, or none.

The calls of a builtin are functions, or comptime blocks, of one file, each compiled by itself.
"""

import json
from pathlib import Path

import pytest

import wafer.csl
from wafer.csl import CslError, Source, read
from wafer.csl.semantics.builtins.arguments import gated, local_task
from wafer.csl.semantics.builtins.layout import LayoutState
from wafer.csl.semantics.compile import RULES
from wafer.csl.semantics.core.evaluator import Evaluator, Failure
from wafer.csl.semantics.core.fabric import Fabric
from wafer.csl.semantics.core.unit import Unit
from wafer.csl.semantics.core.values import Function
from wafer.csl.semantics.files import Files, OpenFile
from wafer.csl.semantics.language.calls import write_functions
from wafer.csl.semantics.language.statements import run
from wafer.csl.syntax.builtins import ARGUMENTS

FOLDER = Path(__file__).parent / "programs" / "arguments"
NAMES = (FOLDER / "names.csl").read_text(encoding="utf-8")
# Values of every kind, one of each kind first; arguments that each builtin takes, and fields of
# structs among them.
CALLS = json.loads((FOLDER / "calls.json").read_text(encoding="utf-8"))
KINDS, TAKEN, FIELDS = CALLS["kinds"], CALLS["taken"], CALLS["fields"]
CONTEXTS = {
    "running": "fn c{}() void {{ {}; }}",
    "value": "fn c{}() void {{ const v = {}; }}",
    "comptime": "comptime {{ {1}; }}",
    "layout": "comptime {{ {1}; }}",
}


def calls(name, kinds, every_count):
    """The texts of a builtin's calls."""
    low, high = ARGUMENTS[f"@{name}"]
    taken = TAKEN.get(name, ["3"] * min(high, 2))
    for count in range(low if every_count else len(taken), min(high, len(taken)) + 1):
        for position in range(count):
            for kind in kinds:
                arguments = [*taken[:position], kind, *taken[position + 1 : count]]
                yield f"@{name}({', '.join(arguments)})"
    for form, fields in FIELDS.get(name, {}).items():
        for field in fields.split():
            for kind in kinds:
                yield f"@{name}({form.replace('%', f'.{field} = {kind}')})"


def compile_call(unit, module, number, text):
    """Compile one of a file's calls."""
    if text.startswith("fn"):
        unit.request(Function(module, module.declarations[f"c{number}"]), {})
        write_functions(unit)
    else:
        ev = Evaluator(unit, module)
        run(ev, module.blocks[number])
        for value, at in unit.setup.active:
            local_task(ev, value, at)
        for value, _, at in unit.setup.gates:
            gated(ev, value, at)
    unit.memory()
    unit.raise_problems()
    unit.code.table()
    unit.tables.arrays()


def check_calls(folder, context, texts):
    """Compile calls; the number of those without an error."""
    (folder / "other.csl").write_text("param a = 1;\n", encoding="utf-8")
    (folder / "x.json").write_text("[1, 2]", encoding="utf-8")
    layout, path = folder / "layout.csl", folder / "pe.csl"
    layout.write_text("layout {}\n", encoding="utf-8")
    lines = [CONTEXTS[context].format(number, text) for number, text in enumerate(texts)]
    path.write_text(NAMES + "\n".join(lines), encoding="utf-8")
    files, right = Files((), layout), 0
    files._opened[path] = OpenFile(read(Source.open(path)))  # without the check of counts
    first = NAMES.count("\n") + 1
    for number, text in enumerate(lines):
        unit = Unit(RULES, files, "wse2", running=context != "layout", fabric=Fabric())
        unit.rectangle, unit.layout = (2, 1), LayoutState() if context == "layout" else None
        module = files.module(path, {})
        unit.modules.append(module)
        problems = ()
        try:
            compile_call(unit, module, number, text)
            right += 1
        except Failure as failure:
            problems = unit.problems if failure.problem is None else [failure.problem]
            assert problems, text
        except CslError as error:
            problems = error.problems
        except Exception as error:
            error.add_note(f"{context}: {text}")
            raise
        for problem in problems:
            assert problem.message, text
            assert problem.at.file, text
            assert problem.at.line == first + number or problem.at.line < first, text
    return right


def test_every_builtin_is_called():
    known = {name[1:] for name in RULES.builtins}
    assert known >= TAKEN.keys()
    assert known >= FIELDS.keys()


@pytest.mark.parametrize("context", CONTEXTS)
def test_one_of_each_kind(tmp_path, context):
    texts = [text for name in ARGUMENTS for text in calls(name[1:], KINDS, every_count=False)]
    texts = texts[list(CONTEXTS).index(context) :: 8]
    assert check_calls(tmp_path, context, texts) > len(texts) / 30


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("name", [name[1:] for name in ARGUMENTS])
def test_every_kind(tmp_path, context, name):
    check_calls(tmp_path, context, list(calls(name, KINDS + CALLS["more_kinds"], every_count=True)))


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("@queue_flush(m.sqrt);", "sqrt"),
        ("@map(one, d, m.sqrt);", "sqrt"),
        ("} comptime { @export_symbol(any);", "any"),
        ("} comptime { @export_symbol(known);", "known"),
    ],
)
def test_a_generic_function_is_no_value_of_a_running_program(tmp_path, use, name):
    """It has no code before a call gives its types; the place is that of the use."""
    pe = [
        'const m = @import_module("<math>");',
        "fn any(x: anytype) void {}",
        "fn known(comptime x: i16) void {}",
        "fn one(x: f32) f32 { return x; }",
        "var a = @zeros([4]f32);",
        "const d = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> a[i] });",
        f"task t() void {{ {use} }}",
        "comptime { @bind_local_task(t, @get_local_task_id(8)); }",
    ]
    (tmp_path / "pe.csl").write_text("\n".join(pe), encoding="utf-8")
    layout = 'layout { @set_rectangle(1, 1); @set_tile_code(0, 0, "pe.csl"); }'
    (tmp_path / "layout.csl").write_text(layout, encoding="utf-8")
    with pytest.raises(CslError, match=r"pe\.csl:7:") as caught:
        wafer.csl.compile(tmp_path / "layout.csl")
    assert f"'{name}' has arguments of any type or of compile time" in str(caught.value)
