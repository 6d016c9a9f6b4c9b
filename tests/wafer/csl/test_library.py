"""System modules: CSL that passes our own checks, with the names that programs use."""

import json
import re
import tomllib
from pathlib import Path

import pytest

import wafer.csl
from wafer.csl import Position, Source, check, parse
from wafer.csl.semantics.files import LIBRARY, Files
from wafer.csl.syntax import tree
from wafer.machine.codes import CONFIG, FloatException, Intrinsic, Type
from wafer.vendor.sdk import debug_util

FILES = sorted(LIBRARY.rglob("*.csl"))


def module_name(path):
    return path.relative_to(LIBRARY).with_suffix("").as_posix().removeprefix("values/")


MODULES = {module_name(path): path for path in FILES}
# What programs import, with what they use of it.
NAMES = Path(__file__).parent / "programs" / "used_names.json"
USED = json.loads(NAMES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_checked_and_laid_out(path):
    source = Source.open(path)
    check(source)
    assert max(map(len, source.text.splitlines())) <= 100
    assert source.text.startswith("// "), "say what the module is for"


def test_names_that_programs_use():
    assert MODULES.keys() == USED.keys()
    old = Files((), Path()).found("<memcpy_multi/memcpy_switches>", "", Position("", 1, 1))
    assert old == MODULES["memcpy/memcpy_switches"]
    for name, used in USED.items():
        file = parse(MODULES[name].read_text(encoding="utf-8"))
        declared = {d.name for d in file.declarations if hasattr(d, "name")}
        assert set(used.split()) <= declared, name


def builtins(path):
    for node, _ in tree.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, tree.Builtin):
            yield node


def test_imports_and_intrinsics_are_there():
    """Modules import modules that there are, and name the machine's intrinsics."""
    for path in FILES:
        for node in builtins(path):
            text = [a.value for a in node.arguments if isinstance(a, tree.String)]
            if node.name == "@import_module":
                assert text[0].strip("<>") in MODULES
            if node.name == "@intrinsic":
                assert text[0] in Intrinsic.__members__


def constants(name):
    text = MODULES[name].read_text(encoding="utf-8")
    return {k: int(v, 0) for k, v in re.findall(r"const (\w+): u16 = (0x\w+|\d+);", text)}


def test_numbers_are_the_machines():
    """Register addresses, and the kinds of records that the host reads."""
    assert constants("tile_config/color_config")["COLORS"] == CONFIG["color"]
    assert constants("tile_config/switch_config")["SWITCHES"] == CONFIG["switch"]
    assert constants("tile_config/input_queue_config")["QUEUES"] == CONFIG["input_queue"]
    assert constants("tile_config/control_transform")["MASK"] == CONFIG["transform"]
    masks = constants("tile_config/exceptions")
    assert masks.pop("MASK") == CONFIG["exceptions"]
    for exception in FloatException:
        assert masks[f"FP_{exception.name}"] == 0xFFFF ^ 1 << exception
    registers = {"COUNTER": "filter_counter", "LIMIT": "filter_limit", "MOST": "filter_most"}
    filters = constants("tile_config/filters")
    assert filters == {name: CONFIG[register] for name, register in registers.items()}
    assert constants("tile_config/output_queue_config")["QUEUES"] == CONFIG["output_queue"]
    text = MODULES["tile_config/target"].read_text(encoding="utf-8")
    bytes_of = {name: int(at, 0) for name, at in re.findall(r"(\w+) = (0x\w+)", text)}
    assert bytes_of["COLOR_CONFIG"] == 2 * CONFIG["color"]
    assert bytes_of["TIMESTAMP_COUNTER"] == 2 * CONFIG["timestamp"]
    assert bytes_of["PERF_COUNTER_CONTROL"] == 2 * CONFIG["timer"]
    collectives = constants("collectives_2d/pe")
    assert collectives["COLOR_REGISTERS"] == CONFIG["color"]
    assert collectives["SWITCH_REGISTERS"] == CONFIG["switch"]
    records = constants("debug")
    assert records["BYTES"] == debug_util._BYTES
    assert records["TIMESTAMP"] == debug_util._TIMESTAMP
    text = MODULES["debug"].read_text(encoding="utf-8")
    kinds = re.findall(r"fn trace_(\w+)\(value: \w+\) void \{\s*trace_words?\((\d+),", text)
    assert {kind: int(number) for kind, number in kinds} == {
        kind.name.lower(): kind.value for kind in Type if kind not in (Type.I64, Type.U64)
    }


def test_the_library_is_shipped():
    from helpers.paths import ROOT

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    shipped = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["wafer.csl"]
    assert "library/**/*.csl" in shipped
    assert LIBRARY.is_relative_to(wafer.csl.__path__[0])
