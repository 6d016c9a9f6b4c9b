"""The one way to lay out a CSL file: indentation, spaces, blank lines, aligned comments.

Like gofmt it keeps where lines break, so the author decides how a long call is folded; only what
stands between the words changes, never a word, so the tree stays what it was.
"""

from collections.abc import Iterator
from typing import NamedTuple

from wafer.csl.lexer import Token
from wafer.csl.parser import Parsed, read
from wafer.csl.source import Source

__all__ = ["format_text"]

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

    Args:
        source: of CSL.

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
    """The level of every line."""
    frames, before = [_Frame(0, 0, -1)], ";"
    for number, line in enumerate(lines):
        first = line.words[0].kind if line.words else ""
        continued = bool(line.words) and before not in _ENDS and first not in ("else", "{")
        extra = (1 if before in (")", "else") else 2) if continued and first not in _CLOSERS else 0
        depth = len(frames)
        yield frames[-1].outer if first in _CLOSERS else frames[-1].inner + extra
        for place, token in enumerate(line.words):
            if token.kind in _OPENERS:
                top = frames[-1]
                outer = top.outer if top.line == number else top.inner
                if len(frames) == depth and top.line != number:
                    outer += extra
                hanging = place + 1 < len(line.words)
                frames.append(_Frame(outer, outer + (2 if hanging else 1), number))
            elif token.kind in _CLOSERS:
                frames.pop()
            before = token.kind


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
    """Lines of text; comments at the ends of lines that follow each other stand below each other.

    Args:
        rows: code, level and line.
    """
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
    """Where the comment at the end of each line begins.

    Args:
        rows: code, level and line.
    """
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
