"""The numbers of the CSL machine: the same in Python and C++."""

import pathlib
import re

import pytest

from wafer.machine import codes, image
from wafer.machine.base import Status
from wafer.machine.reference import dispatch, routers, state, tasks
from wafer.machine.tools import recording, reports

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


def header(name):
    return (NATIVE / name).read_text(encoding="utf-8")


def numbers_of(kind):
    return {name: number for name, number in vars(kind).items() if name.isupper()}


@pytest.mark.parametrize("name", ["Type", "Op", "Intrinsic", "Gate", "Action", "Operand", "DsdOp"])
def test_cpp_has_the_same_codes(name):
    enum = getattr(codes, name)
    assert members("enum class", name) == [cpp_name(member) for member in enum.__members__]
    assert list(enum) == list(range(len(enum)))


@pytest.mark.parametrize(
    ("file", "kind", "name", "numbers"),
    [
        ("state.h", "enum", "FaultKind", reports.Fault.__members__),
        ("machine.h", "enum", "Reason", reports.Reason.__members__),
        ("state.h", "enum class", "Task", numbers_of(state.TaskKind)),
        ("state.h", "enum class", "Main", numbers_of(state.Main)),
    ],
)
def test_cpp_has_the_same_numbers(file, kind, name, numbers):
    assert members(kind, name, header(file)) == [cpp_name(name) for name in numbers]
    assert list(numbers.values()) == list(range(len(numbers)))


def test_cpp_has_the_same_statuses():
    *ends, goes_on = members("enum", "Status", header("machine.h"))
    assert goes_on == "kGoesOn"  # never leaves the machine
    assert ends == ["kFaulted" if each == Status.FAULT else cpp_name(each.name) for each in Status]


def test_tasks_and_reasons_have_words():
    for number, name in enumerate(numbers_of(state.TaskKind)):
        assert reports._TASKS[number].startswith(name.lower())
    assert {*reports._REASONS, reports.Reason.IN_ROUTER} == set(reports.Reason)


def test_cpp_has_the_same_constants():
    text = "".join(header(path.name) for path in NATIVE.glob("*.h"))
    constants = dict(re.findall(r"\b(k\w+) = (\d+)[,;]", text))
    same = {
        "kDeepestCall": codes.DEEPEST_CALL,
        "kDsdOps": len(codes.DsdOp),
        "kGates": len(codes.Gate),
        "kThreads": state.MAIN,  # kMainThread
        "kTaskLane": recording.TASK,
        "kNoTask": dispatch._NO_TASK,
        "kHandlers": dispatch._HANDLERS,
        "kControl": routers.CONTROL,
        "kAdvance": routers._ADVANCE,
        "kRampPort": routers._RAMP,
        "kMostAtOnce": tasks._AT_ONCE,
        "kPad": image.PAD,
    }
    assert {name: int(constants[name]) for name in same} == same
    assert recording.OWN_THREAD == reports._MAIN == state.MAIN == state.THREADS - 1


@pytest.mark.parametrize("table", ROWS)
def test_cpp_has_the_same_columns(table):
    columns = [name for name in members("struct", ROWS[table]) if name != "bytes[4]"]
    assert tuple(columns) == image.COLUMNS[table]


def test_the_same_instructions_are_visible():
    text = header("instructions.h")
    (cases,) = re.findall(r"((?:case Op::k\w+:\s*)+)return Outcome::kInTime;", text)
    assert set(re.findall(r"Op::(k\w+)", cases)) == {cpp_name(op.name) for op in codes.VISIBLE}
