"""The rules of the language and of the machine: one small program each, with what it must leave.

The head of a file says it: ``//! rule:`` in words; ``//! arch:`` the architectures, WSE-2 if none
is named; then what it leaves. ``//! expect: y = [1, 2]`` is a variable after all is quiet,
``//! expect at 1 0: …`` one of PE (1, 0); ``//! error: 7:12: text`` a problem of the compiler,
``//! fault: text`` a fault of the machine, ``//! waits: text`` a line of the report on what waits.
A file without a layout block is the program of one PE, and its function ``go`` is called.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import wafer.csl

ROOT = Path(__file__).parent / "rules"
LINE = re.compile(r"^//! (\w+)(?: at (\d+) (\d+))?: (.*)$", re.MULTILINE)


class Rule(NamedTuple):
    """A program on one architecture, and the lines of its head: (key, x, y, text)."""

    path: Path
    arch: str
    lines: list[tuple[str, int, int, str]]

    def texts(self, key):
        return [text for name, _, _, text in self.lines if name == key]


def rules():
    for path in sorted(ROOT.rglob("*.csl")):
        matches = LINE.findall(path.read_text(encoding="utf-8"))
        lines = [(key, int(x or 0), int(y or 0), text) for key, x, y, text in matches]
        archs = [text for key, _, _, text in lines if key == "arch"]
        for arch in (archs[0] if archs else "wse2").split():
            if lines:
                yield Rule(path, arch, lines)


def compiled(rule):
    if "\nlayout {" in rule.path.read_text(encoding="utf-8"):
        return wafer.csl.compile(rule.path, arch=rule.arch)
    params = {"file": rule.path.relative_to(ROOT).as_posix()}
    return wafer.csl.compile(ROOT / "one.csl", params, arch=rule.arch)


def said(problem):
    return f"{problem.at.line}:{problem.at.column}: {problem.message}"


@pytest.mark.native
@pytest.mark.parametrize(
    "rule", list(rules()), ids=lambda r: f"{r.path.relative_to(ROOT)}-{r.arch}"
)
def test_rules(rule):
    if errors := rule.texts("error"):
        with pytest.raises(wafer.csl.CslError) as caught:
            compiled(rule)
        assert [said(problem) for problem in caught.value.problems] == errors
        assert {Path(problem.at.file).name for problem in caught.value.problems} == {rule.path.name}
        return
    image = compiled(rule)
    machine = wafer.csl.Machine(image)
    for (y, x), tile in np.ndenumerate(image.tiles):
        if tile >= 0 and "go" in image.programs[tile].functions:
            machine.launch(wafer.csl.Rectangle(x, y, 1, 1), "go")
    machine.run(100_000)
    faults = rule.texts("fault")
    assert bool(machine.fault) == bool(faults), machine.fault
    assert all(text in machine.fault for text in faults), machine.fault
    report = "\n".join(map(str, machine.waiting()))
    assert all(text in report for text in rule.texts("waits")), report
    runtime = wafer.csl.Runtime(image, machine)
    for key, x, y, text in rule.lines:
        if key == "expect":
            name, values = text.split(" = ")
            content = runtime.read_symbol(x, y, name).ravel()
            wanted = np.array(ast.literal_eval(values))
            assert content.tolist() == wanted.astype(content.dtype).tolist(), (name, (x, y))


def test_every_rule_says_what_it_leaves():
    every_rule = list(rules())
    assert len({rule.path for rule in every_rule}) >= 60
    for rule in every_rule:
        keys = {key for key, _, _, _ in rule.lines}
        assert "rule" in keys, rule.path
        assert keys <= {"rule", "arch", "expect", "error", "fault", "waits"}, rule.path
        assert keys & {"expect", "error", "fault", "waits"}, rule.path
