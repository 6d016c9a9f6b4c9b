"""Every builtin with every kind of value in every position: a located error, or none.

The calls of a builtin are functions, or comptime blocks, of one file, each compiled by itself.
"""

import pytest

import wafer.csl
from wafer.csl import CslError, Source, read
from wafer.csl.semantics.builtins.arguments import gated, local_task
from wafer.csl.semantics.builtins.layout import Layout
from wafer.csl.semantics.builtins.operations import _FORMS
from wafer.csl.semantics.compile import RULES
from wafer.csl.semantics.core.evaluator import Evaluator, Failure
from wafer.csl.semantics.core.fabric import Fabric
from wafer.csl.semantics.core.unit import Unit
from wafer.csl.semantics.core.values import Function
from wafer.csl.semantics.files import Files, OpenFile
from wafer.csl.semantics.language.calls import write_functions
from wafer.csl.semantics.language.statements import run
from wafer.csl.syntax.builtins import ARGUMENTS

NAMES = """const S = struct { a: i16, b: f32 };
const E = enum(u16) { one, two };
var arr = @zeros([4]f32);
var words = @zeros([4]u16);
const fixed = [3]i16{ 1, 2, 3 };
var st: S;
var n: u16 = 3;
var flag: bool = true;
var x: f32 = 1.0;
var ptr: [*]f32 = &arr;
const m = @import_module("<math>");
const r = @range(i16, 4);
const iq = @get_input_queue(2);
const oq = @get_output_queue(3);
const red = @get_color(3);
const mem = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> arr[i] });
const mem4 = @get_dsd(mem4d_dsd, .{ .tensor_access = |i, j|{2, 2} -> arr[i * 2 + j] });
const fin = @get_dsd(fabin_dsd, .{ .extent = 1, .input_queue = iq, .fabric_color = red });
const fout = @get_dsd(fabout_dsd, .{ .extent = 1, .output_queue = oq, .fabric_color = red });
const fifo = @allocate_fifo(words);
const dsr = @get_dsr(dsr_dest, 2);
var moving = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> arr[i] });
fn f(a: f32) f32 { return a; }
fn g(comptime T: type, a: anytype) T { return a; }
fn nothing() void {}
task t() void {}
task d(a: u16) void {}
"""
# One of each kind first, which the default test takes.
KINDS = ["true", "3", "2.5", '"text"', "i16", ".{}", ".{ .a = n }", "arr", "&arr", "red", "mem"]
KINDS += ["fifo", "dsr", "f", "t", "m", "r", "n", "|i|{4} -> arr[i]", "nothing()"]
MORE = ["-1", "1 << 100", '""', "'a'", "bf16", "[2]i16", "[1 << 60]i16", "fn(i16)void", "S", "E"]
MORE += [
    "@as(u16, 5)",
    "@as(f32, 1.5)",
    "@as(f16, 1.5)",
    "@as(i64, -1)",
    ".{ 1, 2 }",
    ".{ .a = 1 }",
]
MORE += [".{ n, n }", ".{ .extent = 1, .async = true, .activate = t }", "fixed", "&n", "ptr", "st"]
MORE += ["E.one", "EAST", "@get_local_task_id(9)", "@get_data_task_id(red)", "iq", "oq", "mem4"]
MORE += ["@get_control_task_id(9)", "fin", "fout", "moving", "g", "nothing", "d", "flag", "x", "-n"]
MORE += ["n + n", "{}", "undefined", "comptime_int", "type", "void", "anytype", "m.sqrt", "*f32"]
MORE += ["if (flag) n else 2", "@fp16()", "comptime_struct", "mem1d_dsd", "dsr_src1", "color"]
ROUTES = ".{ .routes = .{ .rx = .{ RAMP }, .tx = .{ EAST } } }"
# Arguments that each builtin takes.
TAKEN = {
    **{name: ["@get_local_task_id(9)"] for name in ("activate", "block", "unblock")},
    **{name: ["[2]i16"] for name in ("element_type", "element_count", "rank", "dimensions")},
    **{name: ['"abc"'] for name in ("strlen", "get_array")},
    **{name: ["r"] for name in ("range_start", "range_stop", "range_step")},
    **{name: ["st", '"a"'] for name in ("has_field", "field")},
    **{name: ["fifo", "2"] for name in ("set_fifo_read_length", "set_fifo_write_length")},
    **{name: ["0x7e00", "1"] for name in ("set_config", "set_config_unchecked")},
    **{f"{name}": ["mem"] * (len(forms) + 1) + [".{}"] for name, forms in _FORMS.items()},
    "assert": ["true"],
    "zeros": ["[2]i16"],
    "rpc": ["@get_data_task_id(red)"],
    "queue_flush": ["iq"],
    "get_color_id": ["red"],
    "is_arch": ['"wse2"'],
    "comptime_assert": ["true", '"no"'],
    "import_module": ['"<math>"', ".{}"],
    "export_symbol": ["arr", '"arr"'],
    "allocate_fifo": ["words", ".{}"],
    "initialize_queue": ["@get_input_queue(4)", ".{ .color = @get_color(5) }"],
    "strcat": ['"a"', '"b"', '"c"'],
    "as": ["i16", "3"],
    "bitcast": ["u16", "@as(i16, 3)"],
    "ptrcast": ["[*]u16", "ptr"],
    "constants": ["[2]i16", "3"],
    "get_dsd": ["mem1d_dsd", ".{ .base_address = &arr, .extent = 4 }"],
    "get_dsr": ["dsr_dest", "1"],
    "is_same_type": ["i16", "i16"],
    "import_comptime_value": ["[2]i16", '"x.json"'],
    "concat_structs": [".{ 1 }", ".{ 2 }"],
    "set_rectangle": ["2", "2"],
    "set_local_color_config": ["@get_color(6)", ROUTES],
    "set_teardown_handler": ["t", "@get_color(6)"],
    "set_empty_queue_handler": ["t", "oq"],
    "bind_task": ["t", "@get_color(9)"],
    "bind_local_task": ["t", "@get_local_task_id(9)"],
    "bind_data_task": ["d", "@get_data_task_id(@get_color(7))"],
    "bind_control_task": ["t", "@get_control_task_id(10)"],
    "set_dsd_length": ["moving", "3"],
    "set_dsd_base_addr": ["moving", "arr"],
    "set_dsd_stride": ["moving", "2"],
    "set_dsr_base_addr": ["dsr", "ptr"],
    "dfilt": ["fin", ".{ .async = true }"],
    "intrinsic": ["f32", '"SQRT"', "x"],
    "load_to_dsr": ["dsr", "mem", ".{ .async = true }"],
    "export_name": ['"other"', "u16", "true"],
    "range": ["i16", "0", "4", "1"],
    "set_tile_code": ["1", "0", '"other.csl"', ".{}"],
    "map": ["f", "mem", "mem"],
    "increment_dsd_offset": ["moving", "1", "f32"],
    "set_color_config": ["0", "0", "@get_color(6)", ROUTES],
}
# Fields of structs among them.
FIELDS = {
    "get_dsd": {
        "mem1d_dsd, .{ .base_address = &arr, .extent = 4, % }": "offset stride simd_mode other",
        "mem1d_dsd, .{ .extent = 4, % }": "base_address tensor_access wavelet_index_offset",
        "mem1d_dsd, .{ .base_address = &arr, % }": "extent",
        "mem4d_dsd, .{ .base_address = &arr, .extent = .{ 2, 2 }, % }": "stride offset",
        "mem4d_dsd, .{ .base_address = &arr, .stride = .{ 2, 2 }, % }": "extent",
        "fabin_dsd, .{ .extent = 1, % }": "input_queue fabric_color control advance_switch"
        " wavelet_index_offset simd_mode priority on_control zero control_transform",
        "fabout_dsd, .{ % }": "extent output_queue fabric_color control",
        "fabin_dsd, .{ .extent = 1, .on_control = .{ % } }": "activate unblock terminate",
        "fabin_dsd, .{ .extent = 1, .priority = .{ % } }": "low",
    },
    "fadds": {
        "mem, mem, mem, .{ % }": "async activate unblock on_control index ut_id priority"
        " save_address single_step simd_mode other",
    },
    "load_to_dsr": {
        "dsr, mem, .{ % }": "async activate unblock on_control ut_id save_address single_step",
    },
    "initialize_queue": {"@get_input_queue(4), .{ % }": "color priority other"},
    "allocate_fifo": {
        "words, .{ % }": "activate_push activate_pop empty_action full_action priority other",
    },
    "set_local_color_config": {
        "@get_color(6), .{ % }": "routes switches filter teardown rx pos1",
        "@get_color(6), .{ .routes = .{ % } }": "rx tx color_swap_x pop_mode",
        "@get_color(1), .{ .switches = .{ % } }": "pos1 ring_mode current_switch_pos pop_mode",
        "@get_color(1), .{ .switches = .{ .pos1 = .{ % } } }": "rx tx invalid",
        "@get_color(6), .{ .filter = .{ .kind = .{ .range = true }, % } }": "min_idx count_data",
        "@get_color(6), .{ .filter = .{ % } }": "kind",
    },
    "import_module": {'"other.csl", .{ % }': "a"},
    "concat_structs": {".{ .b = 1 }, .{ % }": "a"},
    "set_tile_code": {'1, 0, "other.csl", .{ % }': "a"},
}
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
        unit.rectangle, unit.layout = (2, 1), Layout() if context == "layout" else None
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
    check_calls(tmp_path, context, list(calls(name, KINDS + MORE, every_count=True)))


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
