"""Engines are data to the rest of the program: rows, four questions, strings that are followed."""

import ast
import dataclasses
import importlib
import inspect

import pytest
from helpers.paths import ROOT
from helpers.runs import tiny

from wafer.config import parse_config
from wafer.config.engines import ENGINES, EngineRow, engine_row
from wafer.engines.base import Engine
from wafer.engines.choose import check, make, problems
from wafer.errors import ConfigError
from wafer.experiment import Experiment

INSIDE = (ROOT / "wafer" / "engines", ROOT / "wafer" / "config" / "engines.py")
OUTSIDE = [
    path
    for package in ("vsl", "models", "sparsity", "wafer")
    for path in (ROOT / package).rglob("*.py")
    if not any(path.is_relative_to(room) for room in INSIDE)
]
# The same word for other things: a section of the file, a native library, a field of CSL's.
HOMONYMS = {
    "wafer/compiler/experiment.py": "fabric",
    "wafer/csl/semantics/compile.py": "fabric",
    "wafer/csl/semantics/builtins/general.py": "fabric",
}


def _modules():
    return {row: importlib.import_module(row.make.partition(":")[0]) for row in ENGINES.values()}


def _docstrings(tree):
    bodies = (node.body for node in ast.walk(tree) if hasattr(node, "body"))
    firsts = (body[0] for body in bodies if isinstance(body, list) and body)
    return {id(first.value) for first in firsts if isinstance(first, ast.Expr)}


def _named(tree, allowed, types):
    """(line, engines that a string names, or the type of one that is tested)."""
    docstrings = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = {node.value} & ENGINES.keys() - {allowed}
            if id(node) not in docstrings:
                names |= {name for name in ENGINES if f"execution_strategy: {name}" in node.value}
            yield node.lineno, names
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            yield node.lineno, types & set(ast.unparse(node.args[1]).split("."))


def test_nobody_else_names_an_engine_or_tests_its_type():
    own = lambda module: (
        name for name, x in inspect.getmembers(module, inspect.isclass)
        if x.__module__ == module.__name__ and name[0] != "_"
    )  # fmt: skip
    types = {name for module in _modules().values() for name in own(module)}
    found = [
        (where, line, names)
        for where, path in ((path.relative_to(ROOT).as_posix(), path) for path in OUTSIDE)
        for line, names in _named(ast.parse(path.read_text("utf-8")), HOMONYMS.get(where), types)
        if names
    ]
    assert not found, "ask the row (config/engines.py)"


def test_rows_keep_what_they_promise():
    for row, module in _modules().items():
        assert callable(module.make), row
        assert (engine_row(row.name), row.name) == (row, row.name)
        classes = [x for _, x in inspect.getmembers(module, inspect.isclass)]
        own = [x for x in classes if x.__module__ == module.__name__ and hasattr(x, "step")]
        assert len(own) == 1, row
        assert hasattr(own[0], "compiled_step") == row.whole_step_program
        missing = {name for name in vars(Engine) if name[0] != "_"} - set(dir(own[0]))
        assert missing <= {"sparsifier", "mesh", "programs"}, row


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:Engine", "no_such_module.*on PYTHONPATH"),
        ("math:Engine", "math is part of Python; expected a module of your own"),
        ("helpers.paths:Engin", "has no attribute 'Engin'"),
    ],
)
def test_an_engine_that_is_not_there(name, message):
    experiment = Experiment.from_config(parse_config(tiny(runconfig={"execution_strategy": name})))
    with pytest.raises(ConfigError, match=message):
        make(experiment, engine_row(name))


@pytest.mark.parametrize("name", ["stream", "one_device:", ":One", 3])
def test_a_name_that_is_none(name):
    with pytest.raises(ConfigError, match=r"expected 'resident', .* or 'module:object'"):
        parse_config(tiny(runconfig={"execution_strategy": name}))


def test_a_section_is_read_by_its_engine_alone():
    with pytest.raises(ConfigError, match="pipeline: is read only with execution_strategy: pipe"):
        parse_config(tiny(runconfig={"pipeline": {"stages": 2}}))
    parse_config(parse_config(tiny()).to_dict())  # defaults are written, and change nothing


def test_what_no_engine_does_is_refused_before_its_own_problems_are_known():
    cfg = parse_config(tiny(runconfig={"num_replicas": 2}))
    experiment = Experiment.from_config(cfg)
    assert problems(experiment) == []
    with pytest.raises(
        ConfigError,
        match=r"num_replicas: 2: copies are of a pipeline.*execution_strategy: pipelined",
    ):
        check(experiment)
    assert check(dataclasses.replace(experiment, cfg=parse_config(tiny()))) is None


def test_an_engine_of_ones_own_has_no_capabilities():
    assert engine_row("a.b:C") == EngineRow("a.b:C", make="a.b:C")
    assert not any(engine_row("a.b:C")[3:])
