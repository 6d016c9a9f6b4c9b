"""What every part of the parser shares: the next token, errors and where to go on after one."""

from wafer.csl.syntax.lexer import KEYWORDS, Token, Tokens
from wafer.csl.syntax.source import Diagnostic, Position
from wafer.models.errors import nearest

DEEPEST = 50  # brackets, blocks and types within each other
_ENOUGH = 200  # problems after which the rest of a file is not read
_CLOSERS = {"(": ")", "[": "]", "{": "}", ".{": "}"}
_BRACES = frozenset({"{", ".{"})

# A token of these kinds in the first column begins a declaration, whatever came before.
_ANCHORS = frozenset({"fn", "task", "param", "layout", "export", "extern"})

# Words of other languages in a declaration's place.
_HABITS = {
    "let": "const",
    "def": "fn",
    "func": "fn",
    "function": "fn",
    "proc": "fn",
    "elif": "else if",
    "import": "const m = @import_module(…)",
    "include": "const m = @import_module(…)",
    "static": "var",
}
_WORDS = (*sorted(KEYWORDS), *_HABITS)
_SHOWN = {"end": "the end of the file", "string": "a string", "char": "a character"}


class ParseFailure(Exception):
    """Raised when the present statement cannot be read on; its problem is already noted."""


def _follow(opened: list[str], kind: str) -> None:
    """Bring a list of open brackets up to date; a ';' or '}' ends those that cannot hold it."""
    if kind in _CLOSERS:
        opened.append(kind)
    elif opened and kind == _CLOSERS[opened[-1]]:
        opened.pop()
    elif kind == "}":
        while opened and opened.pop() not in _BRACES:
            pass
    elif kind == ";":
        while opened and opened[-1] != "{":
            opened.pop()


def shown(token: Token) -> str:
    """A token as messages name it."""
    return _SHOWN.get(token.kind, f"'{token.text}'")


class Reader:
    """A cursor over the tokens of a file.

    Attributes:
        problems: found so far.
        joined: indices of tokens after which the formatter puts no space.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens.code
        self.problems = list(tokens.problems)
        self.bad_lines = {problem.at.line for problem in tokens.problems}
        self.joined: set[int] = set()
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.index]

    @property
    def kind(self) -> str:
        """The kind of the next token."""
        return self.tokens[self.index].kind

    def ahead(self, count: int) -> str:
        """The kind of the token ``count`` after the next one."""
        return self.tokens[min(self.index + count, len(self.tokens) - 1)].kind

    def advance(self, *, join: bool = False) -> Token:
        """Take the next token; with ``join`` what follows is written close to it."""
        token = self.tokens[self.index]
        if join:
            self.joined.add(self.index)
        self.index += token.kind != "end"
        return token

    def join(self) -> None:
        """Note that the next token is written close to the last one."""
        self.joined.add(self.index - 1)

    def take(self, kind: str) -> bool:
        """Take the next token if it is of a kind."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def note(self, at: Position, message: str, hint: str = "") -> None:
        """Keep a problem, and go on; a line with a bad word has no further ones."""
        if at.line not in self.bad_lines and not (self.problems and self.problems[-1].at == at):
            self.problems.append(Diagnostic(at, message, hint))
        if len(self.problems) >= _ENOUGH:
            self.index = len(self.tokens) - 1

    def failure(self, expected: str, hint: str = "") -> ParseFailure:
        """Note that something else was expected here; to be raised."""
        token = self.token
        if not hint and token.kind in KEYWORDS:
            hint = f"'{token.text}' is a keyword"
        self.note(
            token.at, f"expected {expected}, found {shown(token)}", hint or self.keyword_hint()
        )
        return ParseFailure()

    def expect(self, kind: str, where: str) -> Token:
        """Take a token that must be of a kind; ``where`` reads "after the …"."""
        if self.kind == kind:
            return self.advance()
        raise self.failure(f"'{kind}' {where}")

    def close(self, opener: Token, otherwise: str = "") -> Token:
        """Take the bracket that closes another; ``otherwise`` reads "',' or "."""
        closer = _CLOSERS[opener.text]
        if self.kind == closer:
            return self.advance()
        raise self.failure(
            f"{otherwise}'{closer}'",
            self.keyword_hint()
            or f"to close the '{opener.text}' of line {opener.at.line}, column {opener.at.column}",
        )

    def semicolon(self, where: str) -> None:
        """Take a semicolon; if the next line has begun without one, note it and go on."""
        if self.take(";"):
            return
        last = self.tokens[self.index - 1]
        if self.token.at.line == last.at.line and self.kind not in ("end", "}"):
            raise self.failure(f"';' {where}")
        self.note(last.end, f"expected ';' {where}", "add ';' at the end of the statement")

    def name(self, what: str) -> str:
        """Take a name."""
        if self.kind == "name":
            return self.advance().text
        raise self.failure(what)

    def keyword_hint(self) -> str:
        """A hint if the word at the cursor, or the statement's first, looks like a keyword."""
        candidates = [self.token]
        if self.index > 0 and (self.index == 1 or self.ahead(-2) in (";", "{", "}")):
            candidates.insert(0, self.tokens[self.index - 1])
        for token in candidates:
            if token.kind == "name" and (close := nearest(token.text, _WORDS, 0.75)):
                return f"did you mean '{_HABITS.get(close, close)}' for '{token.text}'?"
        return ""

    def enter(self) -> None:
        """Count one level of nesting."""
        self.depth += 1
        if self.depth > DEEPEST:
            message = f"nested more than {DEEPEST} deep"
            self.note(self.token.at, message, "give an inner part a name of its own")
            self.index = len(self.tokens) - 1
            raise ParseFailure

    def recover(self, start: int) -> None:
        """Skip the rest of a statement that began at ``start``: to after its ';' or '}'.

        A '}' that closes what is around it is left, and so is a certain declaration.
        """
        if self.kind == "end":
            return
        opened = list[str]()
        for token in self.tokens[start : self.index]:
            _follow(opened, token.kind)
        while self.kind != "end" and not self.anchored():
            kind = self.kind
            if kind == "}" and not _BRACES.intersection(opened):
                return
            self.advance()
            _follow(opened, kind)
            if not opened and kind in (";", "}") and self.kind != "else":
                return

    def anchored(self) -> bool:
        """Whether a declaration begins here for certain."""
        return self.token.at.column == 1 and self.kind in _ANCHORS
