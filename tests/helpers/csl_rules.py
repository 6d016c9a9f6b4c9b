"""Rules of the language: CSL programs in files, whose heads say what they leave.

``//! rule:`` in words; ``//! arch:`` the architectures, WSE-2 if none is named; then lines for
``test_rules``. A file without a layout block is the program of one PE.
"""

import re
import warnings
from pathlib import Path
from typing import NamedTuple

from helpers.paths import ROOT

import wafer.csl

CSL_RULES = ROOT / "tests" / "wafer" / "csl" / "rules"
_LINE = re.compile(r"^//! (\w+)(?: at (\d+) (\d+))?: (.*)$", re.MULTILINE)


class CslRule(NamedTuple):
    """A program on one architecture, and the lines of its head: (key, x, y, text)."""

    path: Path
    arch: str
    lines: list[tuple[str, int, int, str]]

    def texts(self, key):
        """The texts of a key's lines."""
        return [text for name, _, _, text in self.lines if name == key]


def csl_rules(folder=CSL_RULES):
    """Every rule of a folder, once for each of its architectures."""
    for path in sorted(folder.rglob("*.csl")):
        matches = _LINE.findall(path.read_text(encoding="utf-8"))
        lines = [(key, int(x or 0), int(y or 0), text) for key, x, y, text in matches]
        archs = next((text for key, _, _, text in lines if key == "arch"), "wse2")
        if lines:
            yield from (CslRule(path, arch, lines) for arch in archs.split())


def compiled_rule(rule):
    """The image of a rule's program; warnings are errors of a rule that says an error."""
    options = {"arch": rule.arch, "strict": bool(rule.texts("error"))}
    with warnings.catch_warnings(action="ignore", category=wafer.csl.CslWarning):
        if "\nlayout {" in rule.path.read_text(encoding="utf-8"):
            return wafer.csl.compile(rule.path, **options)
        near = rule.path.is_relative_to(CSL_RULES)
        name = rule.path.relative_to(CSL_RULES).as_posix() if near else rule.path.name
        options |= {} if near else {"import_paths": (str(rule.path.parent),)}
        return wafer.csl.compile(CSL_RULES / "one.csl", {"file": name}, **options)
