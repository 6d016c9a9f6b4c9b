"""The shape of the code: who may import whom, how long a file may be, what a module must say."""

import ast
import functools
import pathlib
import statistics

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ORDER = ("vsl", "models", "sparsity", "wafer")  # a package imports only those to its left
LONGEST = 500
INSIDE_WAFER = (  # a part imports only parts above it
    {"errors", "spec"},
    {"config"},
    {"jobs"},
    {"fabric"},
    {"compiler"},
    {"run", "data", "profile"},
    {"train"},
    {"loop"},
    {"cli", "__main__", "generate", "score", "checks", "fold", "malloc"},
)
FILES = sorted(p for name in ORDER for p in (ROOT / name).rglob("*.py"))


def label(path):
    return str(path.relative_to(ROOT))


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path):
    """Dotted names of the modules a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{label(path)}:{node.lineno}: write the package's full name"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def level(part):
    return next((i for i, parts in enumerate(INSIDE_WAFER) if part in parts), None)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_module(path):
    """Imports point left, the file is short, its docstring and public names are written down."""
    package = path.relative_to(ROOT).parts[0]
    forbidden = {*ORDER[ORDER.index(package) + 1 :], "tests", "torch", "tensorflow", "transformers"}
    wrong = sorted(name for name in imported(path) if name.split(".")[0] in forbidden)
    assert not wrong, f"imports {wrong}: the order is {' < '.join(ORDER)}"

    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= LONGEST, f"over {LONGEST} lines: split it by idea"
    assert ast.get_docstring(tree(path)), "no docstring: say what question the module answers"
    assert "from __future__" not in source, "hides annotations from the run-time type checks"

    public = [
        node.name
        for node in tree(path).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    if public:
        assert "__all__" in source, f"no __all__, but public names {public}"


def wafer_parts():
    for path in FILES:
        parts = path.relative_to(ROOT).parts
        if parts[0] == "wafer" and len(parts) > 1:
            yield path, parts[1].removesuffix(".py")


def test_parts_of_wafer_import_downwards_only():
    wrong = []
    for path, part in wafer_parts():
        own = level(part)
        if own is None:
            continue
        for name in imported(path):
            pieces = name.split(".")
            other = level(pieces[1]) if pieces[0] == "wafer" and len(pieces) > 1 else None
            if other is not None and other > own:
                wrong.append(f"{label(path)} imports {name}")
    assert not wrong


def test_every_part_of_wafer_has_its_place():
    known = set().union(*INSIDE_WAFER)
    unplaced = {part for _, part in wafer_parts()} - known - {"__init__"}
    assert not unplaced, f"add {unplaced} to INSIDE_WAFER"


def test_files_stay_small():
    lengths = [path.read_text(encoding="utf-8").count("\n") for path in FILES]
    assert statistics.median(lengths) <= 220, f"median of {len(lengths)} files"
