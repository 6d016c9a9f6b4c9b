"""Text to tokens, by one regular expression."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from wafer.csl.syntax.source import Diagnostic, Position, Source

KEYWORDS = frozenset((
    "align", "and", "asm", "break", "comptime", "const", "continue", "else", "enum", "export",
    "extern", "false", "fn", "for", "if", "inline", "layout", "linkname", "linksection",
    "noinline", "or", "packed", "param", "return", "struct", "switch", "task", "true", "union",
    "var", "volatile", "while",
))  # fmt: skip

_OPERATORS = (
    ">>=", "<<=", ".{", ".*", "->", "=>", "==", "!=", "<=", ">=", "<<", ">>", "+=", "-=", "*=",
    "/=", "%=", "&=", "|=", "^=", "=", "<", ">", "+", "-", "*", "/", "%", "&", "|", "^", "~",
    "!", ".", ",", ":", ";", "(", ")", "[", "]", "{", "}",
)  # fmt: skip

# What C and its relatives have and CSL has not, with what to write.
_FOREIGN = {
    "&&": "write 'and'",
    "||": "write 'or'",
    "++": "write '+= 1'",
    "/*": "CSL has only comments from // to the end of the line",
    "?": "CSL has no such operator; a choice is written 'if (c) a else b'",
}

_WORD = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<comment>//[^\n]*)"
    r"|(?P<foreign>/\*|&&|\|\||\+\+|\?)"
    r"|(?P<name>[^\W\d]\w*)"
    r"|(?P<builtin>@[^\W\d]\w*)"
    r"|(?P<number>(?:0[xbo]|\d[\d_]*(?:\.\d[\d_]*)?(?:[eE][+-]?\d+)?)\w*)"
    r"|(?P<string>\"(?:[^\"\\\n]|\\[^\n])*\"?)"
    r"|(?P<char>'(?:[^'\\\n]|\\[^\n])'?)"
    rf"|(?P<operator>{'|'.join(map(re.escape, _OPERATORS))})"
    r"|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_FALLIBLE = frozenset({"foreign", "number", "string", "char", "other"})
_INTEGER = re.compile(r"0x[\da-fA-F_]*[\da-fA-F]|0b[01_]*[01]|0o[0-7_]*[0-7]|\d+(_\d+)*")
_FLOAT = re.compile(r"\d+(_\d+)*(\.\d+(_\d+)*)?([eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class Token(NamedTuple):
    """A word of a program."""

    #: 'name', 'builtin', 'integer', 'float', 'string', 'char', 'comment' or 'end'; keywords and
    #: operators are their own kind
    kind: str
    text: str  #: as written
    at: Position  #: where it begins

    @property
    def end(self) -> Position:
        """The column after its last character."""
        return self.at._replace(column=self.at.column + len(self.text))


class Tokens(NamedTuple):
    """The words of a file."""

    code: list[Token]  #: what the grammar reads, the last one of kind 'end'
    comments: list[Token]  #: the rest, in the order of the file
    problems: list[Diagnostic]  #: what is not a word of CSL; such text is in neither list


def tokenize(source: Source) -> Tokens:
    """Split a file into words; never fails, problems are listed."""
    tokens = Tokens([], [], [])
    line, start = 1, 0  # of the present line: number, offset
    for match in _WORD.finditer(source.text):
        group, text = match.lastgroup or "", match[0]
        at = Position(source.file, line, match.start() - start + 1)
        if group == "space":
            if newlines := text.count("\n"):
                line += newlines
                start = match.start() + text.rindex("\n") + 1
        elif group == "comment":
            tokens.comments.append(Token("comment", text.rstrip(), at))
        else:
            if group in _FALLIBLE:
                tokens.problems.extend(Diagnostic(at, *fault) for fault in _faults(group, text))
            if group not in ("foreign", "other"):
                tokens.code.append(Token(_kind(group, text), text, at))
    end = Position(source.file, line, len(source.text) - start + 1)
    tokens.code.append(Token("end", "", end))
    return tokens


def _kind(group: str, text: str) -> str:
    if group == "operator" or (group == "name" and text in KEYWORDS):
        return text
    if group == "number":
        return "float" if "." in text or not _INTEGER.fullmatch(text) else "integer"
    return group


def _faults(group: str, text: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a word: message and hint."""
    if group == "foreign":
        yield f"'{text}' is not CSL", _FOREIGN[text]
    elif group == "other":
        shown = text if text.isprintable() else f"\\u{ord(text):04x}"
        yield f"the character '{shown}' has no meaning here", ""
    elif group == "number" and not (_INTEGER.fullmatch(text) or _FLOAT.fullmatch(text)):
        yield f"'{text}' is not a number", "numbers read 12, 0x1f, 0b101, 0o17, 1.5 or 1.5e-3"
    elif group in ("string", "char"):
        quote = text[0]
        if len(text) < 2 or text[-1] != quote:
            yield f"the closing {quote} is missing", "strings end on the line they begin"
        for escape in _ESCAPE.findall(text[1:]):
            if escape not in "nt\\\"'r0":
                yield f"unknown escape '\\{escape}'", "there are \\n \\t \\r \\0 \\\\ \\\" \\'"
