"""Declarations and statements of the grammar, and a whole file.

A problem costs the rest of its statement, not the rest of the file: each list of statements notes
it and goes on where the next one begins.
"""

from collections.abc import Callable
from typing import NamedTuple

from wafer.csl.syntax import tree
from wafer.csl.syntax.expressions import ExpressionReader
from wafer.csl.syntax.lexer import Tokens, tokenize
from wafer.csl.syntax.reader import ParseFailure
from wafer.csl.syntax.source import CslError, Diagnostic, Source

DEEPEST_TREE = 100  # so that what walks the tree may use recursion
_ARITHMETIC = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
_ASSIGNMENTS = frozenset({"=", *(f"{sign}=" for sign in _ARITHMETIC)})
_MODIFIERS = ("export", "extern", "inline", "noinline")
_VARIABLES = ("const", "var", "param")
_ATTRIBUTES = ("align", "linksection", "linkname")


class Parsed(NamedTuple):
    """A file that is CSL."""

    source: Source  #: its text
    file: tree.File  #: its tree
    tokens: Tokens  #: its words
    joined: frozenset[int]  #: indices into ``tokens.code`` after which the formatter puts no space


class Parser(ExpressionReader):
    """Reads one file."""

    def file(self) -> tree.File:
        """Every declaration."""
        declarations = list[tree.Node]()
        while self.kind != "end":
            if not self.take(";"):
                self._collect(declarations, self._declaration)
                if self.problems and self.kind == "}":
                    self.advance()
        return tree.File(self.tokens[0].at, tuple(declarations))

    def _collect(self, nodes: list[tree.Node], item: Callable[[], tree.Node]) -> None:
        """Add the next declaration or statement, or note its problem and skip it."""
        start, depth = self.index, self.depth
        try:
            nodes.append(item())
        except ParseFailure:
            self.depth = depth
            if self.index == start and self.kind != "}":
                self.advance()
            self.recover(start)

    def _declaration(self) -> tree.Node:
        at = self.token.at
        if self.kind in ("comptime", "layout"):
            kind = tree.Comptime if self.advance().kind == "comptime" else tree.LayoutBlock
            return kind(at, self.block())
        modifiers = self.words(_MODIFIERS)
        if self.kind in _VARIABLES:
            return self._variable(at, modifiers)
        if self.kind in ("fn", "task"):
            return self._function(at, modifiers)
        hint = "statements stand in functions, tasks, comptime and layout blocks"
        if self.kind == "}":
            hint = "this '}' closes nothing"
        raise self.failure("a declaration", self.keyword_hint() or hint)

    def _variable(self, at: tree.Position, modifiers: tuple[str, ...] = ()) -> tree.Variable:
        kind = self.advance().kind
        name = self.name(f"a name after '{kind}'")
        annotation = self.type() if self.take(":") else None
        attributes = self._attributes()
        value = self.expression() if self.take("=") else None
        if kind == "const" and value is None and "extern" not in modifiers and self.kind == ";":
            self.note(self.token.at, f"the const '{name}' has no value", "add '= value'")
        self.semicolon(f"after the declaration of '{name}'")
        return tree.Variable(at, kind, name, annotation, attributes, value, modifiers)

    def _attributes(self) -> tuple[tree.Attribute, ...]:
        attributes = list[tree.Attribute]()
        while self.kind in _ATTRIBUTES:
            token = self.advance(join=True)
            opener = self.expect("(", f"after '{token.kind}'")
            attributes.append(tree.Attribute(token.at, token.kind, self.expression()))
            self.close(opener)
        return tuple(attributes)

    def _function(self, at: tree.Position, modifiers: tuple[str, ...]) -> tree.FunctionDecl:
        kind = self.advance().kind
        name = self.name(f"a name after '{kind}'")
        formals = self.formals(f"{kind} '{name}'")
        for formal in formals:
            if formal.name is None:
                message = f"a parameter of '{name}' has no name"
                self.note(formal.at, message, "write 'name: type'")
        attributes = self._attributes()
        if self.kind == "{":
            hint = "write 'void' before the '{' if it returns nothing"
            raise self.failure(f"the result type of '{name}'", hint)
        result = self.type()
        body = None
        if self.kind == "{":
            body = self.block()
        else:
            self.semicolon(f"or a body after the head of '{name}'")
        return tree.FunctionDecl(at, kind, name, formals, attributes, result, body, modifiers)

    # Statements

    def block(self) -> tree.Block:
        """Statements between braces."""
        opener = self.token
        if opener.kind != "{":
            raise self.failure("'{'")
        self.enter()
        self.advance()
        body = list[tree.Node]()
        while self.kind not in ("}", "end") and not self.anchored():
            if not self.take(";"):
                self._collect(body, self._statement)
        self.close(opener)
        self.depth -= 1
        return tree.Block(opener.at, tuple(body))

    def _statement(self) -> tree.Node:
        if reader := _STATEMENTS.get(self.kind):
            return reader(self)
        at = self.token.at
        if self.kind == "name" and self.ahead(1) == ":":
            return self._labelled()
        if self.kind == "comptime" and self.ahead(1) in ("var", "const", "{"):
            self.advance()
            if self.kind == "{":
                return tree.Comptime(at, self.block())
            return self._variable(at, ("comptime",))
        node = self._simple()
        self.semicolon("after the statement")
        return node

    def _switch_statement(self) -> tree.Switch:
        node = self.switch()
        self.take(";")
        return node

    def _labelled(self) -> tree.Node:
        if self.ahead(2) == "{":
            return self.labelled_block()
        label = self.advance().text
        self.advance()
        if self.kind not in ("for", "while", "inline"):
            raise self.failure(f"a loop or block after the label '{label}'")
        return self._loop(label)

    def _simple(self) -> tree.Node:
        """A statement without its semicolon."""
        at = self.token.at
        if self.take("return"):
            return tree.Return(at, self._optional())
        if self.take("break"):
            label = self._label()
            return tree.Break(at, label, self._optional())
        if self.take("continue"):
            return tree.Continue(at, self._label())
        target = self.expression()
        if self.kind not in _ASSIGNMENTS:
            return target
        sign = self.advance()
        return tree.Assign(sign.at, sign.kind, target, self.expression())

    def _optional(self) -> tree.Node | None:
        return None if self.kind in (";", "else", ",", "}") else self.expression()

    def _label(self) -> str | None:
        if self.kind != ":":
            return None
        self.advance(join=True)
        return self.name("a label after ':'")

    def _if(self) -> tree.If:
        at, arms = self.token.at, list[tuple[tree.Node, tree.Node]]()
        while self.take("if"):
            condition = self.condition()
            if self.kind == "{":
                body, ended = self.block(), True
            else:
                body, ended = self._simple_branch()
            arms.append((condition, body))
            if not self.take("else"):
                if not ended:
                    self.semicolon("after the statement")
                return tree.If(at, tuple(arms), None)
        return tree.If(at, tuple(arms), self._body())

    def _simple_branch(self) -> tuple[tree.Node, bool]:
        """A branch without braces, and whether its semicolon is taken."""
        if self.kind in ("for", "while", "inline", "switch", "if"):
            return self._nested_statement(), True
        node = self._simple()
        if self.kind == ";" and self.ahead(1) == "else":
            self.note(self.token.at, "';' before 'else'", "leave it out, or use braces")
            self.advance()
        return node, False

    def _body(self) -> tree.Node:
        """What a loop or an else governs: a block or one statement."""
        if self.kind != "{":
            return self._nested_statement()
        return self.block()

    def _nested_statement(self) -> tree.Node:
        self.enter()
        node = self._statement()
        self.depth -= 1
        return node

    def _loop(self, label: str | None) -> tree.Node:
        at = self.token.at
        inline = self.take("inline")
        word = self.token
        if word.kind not in ("for", "while"):
            raise self.failure("'for' or 'while' after 'inline'")
        self.advance()
        subject = self.condition()
        if word.kind == "while":
            step = self._step() if self.take(":") else None
            return tree.While(at, subject, step, self._body(), inline, label)
        if self.kind != "|":
            raise self.failure("'|' with the loop's variable", "a loop reads for (values) |x| {…}")
        variables = self.variables()
        if len(variables) > 2:
            self.note(at, f"{len(variables)} loop variables", "there are the element and its index")
        return tree.For(at, subject, variables, self._body(), inline, label)

    def _step(self) -> tree.Node:
        opener = self.expect("(", "after ':'")
        node = self._simple()
        self.close(opener)
        return node

    def arm_body(self) -> tree.Node:
        """A block, or a statement without its semicolon."""
        return self.block() if self.kind == "{" else self._simple()


_STATEMENTS: dict[str, Callable[[Parser], tree.Node]] = {
    "{": Parser.block,
    "if": Parser._if,
    "switch": Parser._switch_statement,
    **dict.fromkeys(_VARIABLES, lambda parser: parser._variable(parser.token.at)),
    **dict.fromkeys(("for", "while", "inline"), lambda parser: parser._loop(None)),
}


def _too_deep(file: tree.File) -> list[Diagnostic]:
    for node, depth in tree.walk(file):
        if depth > DEEPEST_TREE:
            message = f"operators and brackets more than {DEEPEST_TREE} deep"
            return [Diagnostic(node.at, message, "give a part of it a name of its own")]
    return []


def read(source: Source) -> Parsed:
    """Parse a file, and keep what its formatter needs.

    Raises:
        CslError: every problem of the file.
    """
    parser = Parser(tokens := tokenize(source))
    file = parser.file()
    problems = parser.problems or _too_deep(file)
    if problems:
        raise CslError(problems, source)
    return Parsed(source, file, tokens, frozenset(parser.joined))


def parse(text: str, file: str = "<text>") -> tree.File:
    """Parse a program's text.

    Raises:
        CslError: every problem of the text.
    """
    return read(Source(file, text)).file
