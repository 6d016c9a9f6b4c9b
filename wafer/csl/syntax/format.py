"""The one way to lay out a CSL file: indentation, spaces, blank lines, aligned comments.

Like gofmt it keeps where lines break, so the author decides how a long call is folded; only what
stands between the words changes, never a word, so the tree stays what it was.
"""

import collections
from collections.abc import Iterator
from typing import NamedTuple

from wafer.csl.syntax.lexer import Token
from wafer.csl.syntax.parser import Parsed, read
from wafer.csl.syntax.source import Source

_OPENERS = frozenset({"(", "[", "{", ".{"})
_CLOSERS = frozenset({")", "]", "}"})
# After these a line begins something of its own; after any other word it continues the last line.
_ENDS = frozenset({";", "{", ".{", "}", ",", "(", "["})
# Nothing stands between these and the next word, or between the last word and those.
_CLOSE_AFTER = frozenset({"(", "[", "."})
_CLOSE_BEFORE = frozenset({")", "]", ",", ";", ".*"})
_STEP = 2  # spaces of one level


class _Line(NamedTuple):
    """One line of code, with the index of its first word and a comment at its end."""

    start: int
    words: list[Token]
    comment: Token | None
    blank_before: bool


class _Frame(NamedTuple):
    """An open bracket: levels of the line that opened it and of what it holds, and that line."""

    outer: int
    inner: int
    line: int


def format_text(source: Source) -> str:
    """Lay a file out.

    Returns:
        The same words and comments, with the spaces and indentation of this style.

    Raises:
        CslError: the text is not CSL.
    """
    parsed = read(source)
    lines = list(_lines(parsed))
    levels = _indented(lines)
    rows = [
        (_code(line, parsed, level), level, line) for level, line in zip(levels, lines, strict=True)
    ]
    return "".join(_rows(rows))


def _lines(parsed: Parsed) -> Iterator[_Line]:
    """Words and comments by line of the source; lines without either are gone."""
    words, comments = dict[int, list[Token]](), {c.at.line: c for c in parsed.tokens.comments}
    for token in parsed.tokens.code[:-1]:
        words.setdefault(token.at.line, []).append(token)
    index, last = 0, 0
    for number in sorted(words.keys() | comments.keys()):
        row = words.get(number, [])
        yield _Line(index, row, comments.get(number), 0 < last < number - 1)
        index, last = index + len(row), number


def _indented(lines: list[_Line]) -> Iterator[int]:
    """The level of every line.

    A bracket's content is one level deeper than the line that opened it, two where it begins on
    that line; so is what continues a line. An ``else`` stands below its ``if``.
    """
    frames, before = [_Frame(0, 0, -1)], ";"
    choices = collections.defaultdict[int, list[int]](list)  # depth -> levels of each else to come
    for number, line in enumerate(lines):
        first = line.words[0].kind if line.words else ""
        here = _level(first, before, frames[-1], choices[len(frames)])
        yield here
        for place, token in enumerate(line.words):
            top, levels = frames[-1], choices[len(frames)]
            if before == "else" and token.kind != "if" and levels:
                levels.pop()
            if token.kind in _OPENERS:
                outer = top.outer if top.line == number else here
                inner = outer + (2 if place + 1 < len(line.words) else 1)
                frames.append(_Frame(outer, inner, number))
                choices[len(frames)].clear()
            elif token.kind in _CLOSERS:
                frames.pop()
                here = here if top.line == number else top.outer
            elif token.kind in (";", ","):
                levels.clear()
            elif token.kind == "if" and before != "else":
                inline = top.inner if top.line == number else here + 2
                levels.append(here if place == 0 else inline)
            before = token.kind


def _level(first: str, before: str, frame: _Frame, choices: list[int]) -> int:
    """The level of a line by its first word and the last one of the line before."""
    if first in _CLOSERS:
        return frame.outer
    if first == "else" and choices:
        return choices[-1]
    if first in ("", "{") or before in _ENDS:
        return frame.inner
    return frame.inner + (1 if before in (")", "else") else 2)


def _code(line: _Line, parsed: Parsed, level: int) -> str:
    """The words of a line with the spaces between them."""
    parts = [" " * (level * _STEP)] if line.words else []
    last = None
    for index, token in enumerate(line.words, line.start):
        if last is not None and not _close(last, token, index - 1 in parsed.joined):
            parts.append(" ")
        parts.append(token.text)
        last = token
    return "".join(parts)


def _close(last: Token, token: Token, joined: bool) -> bool:
    """Whether no space stands between two words."""
    if joined or last.kind in _CLOSE_AFTER or token.kind in _CLOSE_BEFORE:
        return True
    if token.kind == "}":
        return last.kind in ("{", ".{")
    if token.kind == ":":
        return last.kind == "name"
    return token.kind == "." and last.kind not in ("{", ".{", ",", "=", "return", "else", "=>")


def _rows(rows: list[tuple[str, int, _Line]]) -> Iterator[str]:
    """Lines of text; comments at the ends of successive lines begin in one column."""
    columns = _comment_columns(rows)
    after_opener = True
    for number, (code, level, line) in enumerate(rows):
        first = line.words[0].kind if line.words else ""
        if line.blank_before and not after_opener and first not in _CLOSERS:
            yield "\n"
        if line.comment is not None:
            at = columns[number] if line.words else level * _STEP
            yield f"{code.ljust(at)}{line.comment.text}\n"
        else:
            yield f"{code}\n"
        after_opener = bool(line.words) and line.words[-1].kind in _OPENERS


def _comment_columns(rows: list[tuple[str, int, _Line]]) -> list[int]:
    """Where the comment at the end of each line begins."""
    columns, start = [0] * len(rows), 0
    for number, (code, level, line) in enumerate(rows):
        if not (line.words and line.comment):
            start = number + 1
            continue
        if line.blank_before or level != rows[number - 1][1]:
            start = number
        columns[number] = len(code) + 1
        columns[start : number + 1] = [max(columns[start : number + 1])] * (number + 1 - start)
    return columns
