"""The tables of docs/reference: each public name of a package with its docstring's first line.

The pages' details are made by mkdocstrings, which a code host does not run; the table is text.
``python tests/helpers/reference.py`` writes the tables anew.
"""

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[2] / "docs" / "reference"
_DIRECTIVE = re.compile(r"^::: (\S+)$", re.MULTILINE)
_TABLE = re.compile(r"\| name \| what it is \|\n(?:\|.*\n)+\n")
# Values have no docstring of their own.
_VALUES = {
    "ALGORITHMS": "The algorithms that a section can name: name, class.",
    "AnyArray": "An array of JAX or NumPy.",
    "EXAMPLES": "The folder of the example programs, each with its host script.",
    "Operand": "What an operation reads or writes: memory, a queue, a constant, a wavelet.",
    "WSE2": "A CS-2's wafer.",
    "WSE3": "A CS-3's wafer.",
    "__version__": "The release, such as `0.1.0`.",
}


def pages() -> list[Path]:
    """Pages about a package."""
    return [path for path in sorted(DOCS.glob("*.md")) if _DIRECTIVE.search(path.read_text())]


def table(module: ModuleType) -> str:
    """A Markdown table of a module's public names."""
    rows = ["| name | what it is |", "|---|---|"]
    rows += [f"| `{name}` | {summary(name, getattr(module, name))} |" for name in module.__all__]
    return "\n".join(rows) + "\n\n"


def summary(name: str, value: object) -> str:
    """The first line of a value's docstring as Markdown."""
    if name in _VALUES:
        return _VALUES[name]
    text = (inspect.getdoc(value) or "").split("\n\n", maxsplit=1)[0].replace("\n", " ")
    assert text, f"{name} has no docstring"
    return re.sub(r"(?::\w+:)?(``?)([^`]+)\1", r"`\2`", text).replace("|", r"\|")


def with_table(path: Path) -> str:
    """A page as it should be."""
    text = _TABLE.sub("", path.read_text())
    (name,) = _DIRECTIVE.findall(text)
    return text.replace(f"::: {name}", table(importlib.import_module(name)) + f"::: {name}")


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_table(page))
