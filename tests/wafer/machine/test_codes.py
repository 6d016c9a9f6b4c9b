"""The numbers of the CSL machine: the same in Python and C++."""

import pathlib
import re

import numpy as np
import pytest

from wafer.machine import checks, codes, image
from wafer.machine.codes import Op
from wafer.machine.tools import reports

NATIVE = pathlib.Path(codes.__file__).parent / "native"
TEXT = (NATIVE / "codes.h").read_text(encoding="utf-8")
ROWS = {
    "operations": "OperationRow",
    "fabrics": "FabricRow",
    "fifos": "FifoRow",
    "shapes": "ShapeRow",
    "dsr_loads": "DsrRow",
    "queues": "QueueRow",
    "filters": "FilterRow",
}


def cpp_name(name):
    """LOAD_DSR -> kLoadDsr."""
    return "k" + name.title().replace("_", "")


def members(kind, name, text=TEXT):
    (body,) = re.findall(rf"{kind} {name}(?: : u?int\d+_t)? \{{(.*?)\}};", text, re.DOTALL)
    body = re.sub("//.*", "", body).replace("int32_t ", "")
    return [word for word in re.split(r"[\s,;]+", body) if word]


def test_the_deepest_call():
    assert f"kDeepestCall = {codes.DEEPEST_CALL};" in TEXT


@pytest.mark.parametrize("name", ["Type", "Op", "Intrinsic", "Gate", "Action", "Operand", "DsdOp"])
def test_cpp_has_the_same_codes(name):
    enum = getattr(codes, name)
    assert members("enum class", name) == [cpp_name(member) for member in enum.__members__]
    assert list(enum) == list(range(len(enum)))


def test_cpp_has_the_same_faults():
    text = (NATIVE / "state.h").read_text(encoding="utf-8")
    names = [cpp_name(name) for name in reports.Fault.__members__]
    assert members("enum", "FaultKind", text) == names


@pytest.mark.parametrize("table", ROWS)
def test_cpp_has_the_same_columns(table):
    columns = [name for name in members("struct", ROWS[table]) if name != "bytes[4]"]
    assert tuple(columns) == image.COLUMNS[table]


def test_the_same_instructions_are_visible():
    text = (NATIVE / "instructions.h").read_text(encoding="utf-8")
    (cases,) = re.findall(r"bool visible\(.*?switch \(i\.op\) \{(.*?)return true;", text, re.DOTALL)
    assert set(re.findall(r"Op::(k\w+)", cases)) == {cpp_name(op.name) for op in codes.VISIBLE}


def test_every_table_of_the_machine_has_the_length_of_its_codes():
    text = (NATIVE / "program.h").read_text(encoding="utf-8")
    lengths = dict(re.findall(r"(k\w+) = (\d+)", text))
    assert int(lengths["kDsdOps"]) == len(codes.DsdOp)
    assert int(lengths["kGates"]) == len(codes.Gate)
    assert checks._NAMED.shape == (len(Op), 3)
    assert np.array_equal(checks._NAMED[Op.CALL_AT], [True, True, False])
