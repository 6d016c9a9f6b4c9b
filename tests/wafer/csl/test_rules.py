"""The rules of the language and of the machine: one small program each, with what it must leave.

The head of a file says it: ``//! rule:`` in words; ``//! arch:`` the architectures, WSE-2 if none
is named; then what it leaves. ``//! expect: y = [1, 2]`` is a variable after all is quiet,
``//! expect at 1 0: …`` one of PE (1, 0), ``//! near:`` the same but for rounding;
``//! error: 7:12: text`` a problem of the compiler, ``//! fault: text`` a fault of the machine,
``//! warns: text`` a warning of the compiler, ``//! prints: text`` a line that is printed,
``//! waits: text`` one of the report on what waits.
A file without a layout block is the program of one PE, and its function ``go`` is called.
"""

import ast
from pathlib import Path

import numpy as np
import pytest
from helpers.csl_rules import CSL_RULES, compiled_rule, csl_rules

import wafer.csl


def said(problem):
    return f"{problem.at.line}:{problem.at.column}: {problem.message}"


@pytest.mark.native
@pytest.mark.parametrize(
    "rule", list(csl_rules()), ids=lambda r: f"{r.path.relative_to(CSL_RULES)}-{r.arch}"
)
def test_rules(rule):
    if errors := rule.texts("error"):
        with pytest.raises(wafer.csl.CslError) as caught:
            compiled_rule(rule)
        assert [said(problem) for problem in caught.value.problems] == errors
        assert {Path(problem.at.file).name for problem in caught.value.problems} == {rule.path.name}
        return
    image = compiled_rule(rule)
    machine = wafer.csl.Machine(image)
    for (y, x), tile in np.ndenumerate(image.tiles):
        if tile >= 0 and "go" in image.programs[tile].functions:
            machine.launch(wafer.csl.Rectangle(x, y, 1, 1), "go")
    machine.run(100_000)
    faults = rule.texts("fault")
    assert bool(machine.fault) == bool(faults), machine.fault
    assert all(text in machine.fault for text in faults), machine.fault
    assert rule.texts("prints") == [line.text for line in machine.prints]
    report = "\n".join(map(str, machine.waiting()))
    assert all(text in report for text in rule.texts("waits")), report
    runtime = wafer.csl.Runtime(image, machine)
    for key, x, y, text in rule.lines:
        if key in {"expect", "near"}:
            name, values = text.split(" = ")
            content = runtime.read_symbol(x, y, name).ravel()
            wanted = np.array(ast.literal_eval(values)).astype(content.dtype)
            tolerance = 1e-6 if key == "near" else 0
            assert content.shape == wanted.shape
            np.testing.assert_allclose(content, wanted, rtol=tolerance, err_msg=f"{name} {x, y}")


def test_every_rule_says_what_it_leaves():
    every_rule = list(csl_rules())
    assert len({rule.path for rule in every_rule}) >= 60
    for rule in every_rule:
        keys = {key for key, _, _, _ in rule.lines}
        assert "rule" in keys, rule.path
        said = {"expect", "near", "error", "fault", "prints", "waits"}
        assert keys - {"rule", "arch", "warns"} <= said, rule.path
        assert keys & said, rule.path
