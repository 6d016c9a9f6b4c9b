"""Where something stands in a program, and how a message about it reads."""

import dataclasses
import functools
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from wafer.errors import CompileError
from wafer.models.errors import did_you_mean
from wafer.models.files import not_a_file

_WIDEST = 120  # columns shown of a line
MOST_BYTES = 1 << 24  # of a file
MOST_PROBLEMS = 20  # shown of one file; what follows is mostly consequences


class Position(NamedTuple):
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Diagnostic(NamedTuple):
    """One thing wrong with a program."""

    at: Position  #: where
    message: str  #: what was found and what was expected
    hint: str = ""  #: the likely fix, or ''


@dataclasses.dataclass(frozen=True)
class Source:
    """The text of one file."""

    file: str  #: its name, as messages show it
    text: str  #: its content

    @classmethod
    def open(cls, path: str | Path) -> "Source":
        """Read a file.

        Raises:
            CslError: not UTF-8; a pipe, device or folder, or too large.
        """
        content = _content(Path(path))
        try:
            return cls(str(path), content.decode("utf-8").removeprefix("\ufeff"))
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            column = error.start - content.rfind(b"\n", 0, error.start)
            at = Position(str(path), line, column)
            message = f"byte 0x{content[error.start]:02x} is not UTF-8 text"
            hint = "CSL files are UTF-8; save the file in that encoding"
            raise CslError([Diagnostic(at, message, hint)]) from error

    @functools.cached_property
    def lines(self) -> list[str]:
        """The lines, without their ends."""
        return self.text.split("\n")

    def excerpt(self, at: Position) -> str:
        """The line of a place with a caret below it."""
        line = self.lines[at.line - 1].rstrip("\r")
        start = max(at.column - _WIDEST // 2, 0) if len(line) > _WIDEST else 0
        line, before = line[start : start + _WIDEST], at.column - 1 - start
        indent = "".join("\t" if c == "\t" else " " for c in line[:before])
        return f"{at.line:5} | {line}\n      | {indent.ljust(before)}^"


def _content(path: Path) -> bytes:
    """The bytes of a file; a pipe has no end, and a device may have none."""
    at = Position(str(path), 1, 1)
    problem = not_a_file(path)
    if problem:
        raise CslError([Diagnostic(at, problem, "expected a file of CSL text")])
    size = path.stat().st_size
    if size > MOST_BYTES:
        message = f"{size:,} bytes; a file of CSL has at most {MOST_BYTES:,}"
        raise CslError([Diagnostic(at, message)])
    return path.read_bytes()


class CslError(CompileError):
    """A program that is not CSL, or breaks a rule of it; all problems of a file at once.

    Attributes:
        problems: in the order of the file.
    """

    def __init__(self, problems: Iterable[Diagnostic], source: Source | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda problem: problem.at))
        super().__init__("\n".join(self._lines(source)))

    def _lines(self, source: Source | None) -> Iterable[str]:
        for problem in self.problems[:MOST_PROBLEMS]:
            yield f"{problem.at}: error: {problem.message}"
            if source is not None and source.file == problem.at.file:
                yield source.excerpt(problem.at)
            if problem.hint:
                yield f"      = {problem.hint}"
        count = len(self.problems)
        if count > MOST_PROBLEMS:
            yield f"{count} errors; the first {MOST_PROBLEMS} are shown"
        elif count > 1:
            yield f"{count} errors"


class CslWarning(UserWarning):
    """What is likely a mistake of a program, and what the vendor's compiler takes."""


def emit_warnings(found: Iterable[Diagnostic]) -> None:
    """Issue each diagnostic once, as a ``CslWarning`` of the program's file and line."""
    for each in dict.fromkeys(found):
        text = f"{each.message}; {each.hint}" if each.hint else each.message
        warnings.warn_explicit(text, CslWarning, each.at.file, each.at.line)


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the hint "did you mean …?" with the known name most like another, or ''."""
    return did_you_mean(name, known).removeprefix("; ")
