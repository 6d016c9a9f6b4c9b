"""Names and docstrings: one meaning per class name, arguments and shapes written down.

The lists name what was there before the rule. They only shrink: a new entry is a failure, and so is
one that is mended and still listed.
"""

import ast
import collections
import re

import pytest
from helpers.paths import ROOT

from wafer.models.errors import nearest

FILES = sorted(
    p
    for name in ("vsl", "models", "sparsity", "wafer")
    for p in (ROOT / name).rglob("*.py")
    if not p.is_relative_to(ROOT / "wafer" / "csl" / "examples")  # scripts, no modules
)
# Public class names that more than one module defines.
SHARED = {"Block", "DeadlockError", "FaultError", "Layout", "Op", "Optimizer", "Program", "Source"}
# Room: public functions of three arguments or more without `Args:`, and functions with an array
# argument without a shape, neither in the annotation nor in the docstring.
UNDOCUMENTED = {
    "models": (34, 40),
    "sparsity": (22, 27),
    "wafer.cache": (0, 1),
    "wafer.commands": (2, 0),
    "wafer.csl": (36, 7),
    "wafer.machine": (17, 16),
    "wafer.data": (21, 20),
    "wafer.engines": (36, 14),
    "wafer.fabric": (36, 14),
    "wafer.optim": (3, 4),
    "wafer.profiling": (1, 0),
    "wafer.sweeps": (4, 0),
    "wafer.vendor": (11, 12),
}
# What may import wafer.vendor, besides wafer/commands.
MAY_IMPORT = {"wafer/__main__.py", "wafer/config/loader.py"}
_DIALECT = re.compile(r"legacy|vendor", re.IGNORECASE)
_RELEASE = re.compile(r"(?<![\w.:])(?:1\.[6-9]|2\.(?:[1-9]|10))(?!\w|\.\d| times)")
_ARRAY = re.compile(r"\b(Array|ndarray)\b")
_JAXTYPING = re.compile(r"\b[A-Z]\w+\[(Array|np.ndarray), ")


def _public(body):
    """Public functions of a module and of its public classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            if isinstance(node, ast.ClassDef):
                yield from _public(node.body)
            else:
                yield node


def _arguments(function):
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return [argument for argument in every if argument.arg not in ("self", "cls")]


def _lacks_shape(argument, docstring):
    kind = "" if argument.annotation is None else ast.unparse(argument.annotation)
    told = re.search(rf"\b{argument.arg}\b.*\[", docstring)
    return bool(_ARRAY.search(kind)) and not _JAXTYPING.search(kind) and not told


def _room(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[: 2 if parts[0] == "wafer" else 1])


def _names_dialect(path):
    """Whether an identifier or a string of a file has a word of the dialect."""
    name = path.relative_to(ROOT).as_posix()
    may_import = name.startswith("wafer/commands/") or name in MAY_IMPORT
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if may_import and isinstance(node, ast.Import | ast.ImportFrom | ast.alias):
            continue
        for _, value in ast.iter_fields(node):
            for word in value if isinstance(value, list) else [value]:
                if not isinstance(word, str):
                    continue
                if _DIALECT.search(word) or (
                    isinstance(node, ast.Constant) and _RELEASE.search(word)
                ):
                    return True
    return False


def _findings():
    """(class name -> modules, room -> functions without `Args:`, room -> without shapes)."""
    classes = collections.defaultdict(list)
    arguments, shapes = collections.defaultdict(list), collections.defaultdict(list)
    for path in FILES:
        body = ast.parse(path.read_text(encoding="utf-8")).body
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(ROOT)))
        for function in _public(body):
            docstring = ast.get_docstring(function) or ""
            where = f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            if len(_arguments(function)) >= 3 and "Args:" not in docstring:
                arguments[_room(path)].append(where)
            if any(_lacks_shape(argument, docstring) for argument in _arguments(function)):
                shapes[_room(path)].append(where)
    return classes, arguments, shapes


CLASSES, ARGUMENTS, SHAPES = _findings()
REPEATED = {name: modules for name, modules in CLASSES.items() if len(modules) > 1}


def test_a_class_name_has_one_meaning():
    new = {name: modules for name, modules in REPEATED.items() if name not in SHARED}
    assert not new, "give one of them a name of its own"


@pytest.mark.parametrize(("found", "column"), [(ARGUMENTS, 0), (SHAPES, 1)], ids=["args", "shapes"])
def test_no_more_functions_lack(found, column):
    for room, functions in found.items():
        most = UNDOCUMENTED.get(room, (0, 0))[column]
        assert len(functions) <= most, f"{room}: at most {most}; {functions}"


def test_the_lists_hold_nothing_that_is_mended():
    assert not SHARED - REPEATED.keys()
    for room, counts in UNDOCUMENTED.items():
        assert counts == (len(ARGUMENTS[room]), len(SHAPES[room])), room


def test_one_function_finds_the_nearest_name():
    users = [p for p in FILES if "difflib" in p.read_text(encoding="utf-8")]
    assert users == [ROOT / "models" / "errors.py"]
    assert nearest("LENGHT", {"length", "width"}) == "length"
    assert nearest("depth", {"length", "width"}, 0.9) == ""


def test_the_core_names_no_dialect():
    """A figure such as a release's reads as one: write it with other digits."""
    core = (path.relative_to(ROOT).as_posix() for path in FILES)
    core = (name for name in core if not name.startswith(("wafer/vendor/", "wafer/csl/")))
    assert not [name for name in core if _names_dialect(ROOT / name)]
