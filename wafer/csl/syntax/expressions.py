"""Expressions and types of the grammar."""

import abc
from collections.abc import Callable
from typing import TypeVar

from wafer.csl.syntax import tree
from wafer.csl.syntax.lexer import Token
from wafer.csl.syntax.reader import Reader

COMPARISONS = ("==", "!=", "<", ">", "<=", ">=")

# As in Zig, not as in C: `a & mask == 0` is `(a & mask) == 0`.
_LEVELS = (("or",), ("and",), COMPARISONS, ("&", "|", "^"), ("<<", ">>"), ("+", "-"), "*/%")
PRECEDENCE = {operator: level for level, row in enumerate(_LEVELS) for operator in row}
_QUALIFIERS = ("const", "volatile")
_PREFIXES = frozenset("-!~&") | {"comptime"}
_GIVEN = (".", "}")  # after the brace of an initialiser


Item = TypeVar("Item")


class ExpressionReader(Reader, abc.ABC):
    """Reads one expression or type at a time."""

    @abc.abstractmethod
    def block(self) -> tree.Block:
        """A block; statements are another part's."""

    @abc.abstractmethod
    def arm_body(self) -> tree.Node:
        """What follows ``=>``; another part's too."""

    def expression(self) -> tree.Node:
        """Operators and operands by precedence, with a stack in place of recursion."""
        self.enter()
        operands, operators = [self.operand()], list[Token]()

        def fold(lowest: int) -> None:
            while operators and PRECEDENCE[operators[-1].kind] >= lowest:
                sign, right = operators.pop(), operands.pop()
                operands.append(tree.Binary(sign.at, sign.kind, operands.pop(), right))

        while (level := PRECEDENCE.get(self.kind)) is not None:
            fold(level + 1)
            last = operators[-1].kind if operators else ""
            if last in COMPARISONS and self.kind in COMPARISONS:
                self.note(
                    self.token.at,
                    f"'{self.kind}' after '{last}': comparisons do not chain",
                    "join two with 'and', or add parentheses",
                )
            fold(level)
            operators.append(self.advance())
            operands.append(self.operand())
        fold(0)
        self.depth -= 1
        return operands[0]

    def operand(self) -> tree.Node:
        """Prefix operators, then what they apply to, with its suffixes."""
        prefixes = list[Token]()
        while self.kind in _PREFIXES:
            prefixes.append(self.advance(join=self.kind != "comptime"))
        node = self.suffixes(self.primary())
        for sign in reversed(prefixes):
            node = tree.Unary(sign.at, sign.kind, node)
        return node

    def suffixes(self, node: tree.Node) -> tree.Node:
        """Calls, indices, members, dereferences and initialisers after a value."""
        while True:
            token = self.token
            match token.kind:
                case "(":
                    self.join()
                    node = tree.Call(token.at, node, self.listed(self.expression))
                case "[":
                    self.join()
                    node = tree.Index(token.at, node, self.listed(self.expression))
                case ".":
                    self.advance()
                    node = tree.Member(token.at, node, self.name("a member's name after '.'"))
                case ".*":
                    self.advance()
                    node = tree.Dereference(token.at, node)
                case "{" if isinstance(node, tree.Name | tree.Member) and self.ahead(1) in _GIVEN:
                    self.join()
                    node = tree.Init(node.at, node, self.listed(self.value))
                case _:
                    return node

    def listed(self, item: Callable[[], Item]) -> tuple[Item, ...]:
        """Items with commas between brackets; a comma may follow the last."""
        opener, items = self.advance(), list[Item]()
        while self.kind not in (")", "]", "}", "end"):
            items.append(item())
            if not self.take(","):
                break
        self.close(opener, "',' or ")
        return tuple(items)

    def value(self) -> tree.InitialValue:
        """An entry of an initialiser."""
        at = self.token.at
        if self.kind == "." and self.ahead(1) == "name":
            self.advance()
            name = self.name("a field's name")
            self.expect("=", "after the field's name")
            return tree.InitialValue(at, name, self.expression())
        return tree.InitialValue(at, None, self.expression())

    def primary(self) -> tree.Node:
        """An operand without prefixes and suffixes."""
        kind = self.kind
        if reader := _PRIMARIES.get(kind):
            return reader(self)
        if kind == "name":
            if self.ahead(1) == ":" and self.ahead(2) == "{":
                return self.labelled_block()
            token = self.advance()
            return tree.Name(token.at, token.text)
        if kind in _TYPES:
            return self._typed()
        raise self.failure("an expression")

    def labelled_block(self) -> tree.Block:
        """``label: {…}``."""
        label = self.advance()
        self.advance()
        return tree.Block(label.at, self.block().body, label.text)

    def _typed(self) -> tree.Node:
        """A type as a value, or an array with its elements."""
        node = self.type()
        if self.kind == "{" and isinstance(node, tree.ArrayType | tree.StructType):
            self.join()
            opener = self.index
            values = self.listed(self.value)
            if isinstance(node, tree.ArrayType):
                self.joined |= {opener, self.index - 2}
            return tree.Init(node.at, node, values)
        return node

    def _literal(self) -> tree.Node:
        token = self.advance()
        match token.kind:
            case "true" | "false":
                return tree.Bool(token.at, token.kind == "true")
            case "float":
                return tree.Float(token.at, token.text)
            case "string":
                return tree.String(token.at, token.text)
        return tree.Integer(token.at, token.text)

    def builtin(self) -> tree.Builtin:
        """``@name(…)``."""
        token = self.advance()
        if self.kind != "(":
            raise self.failure(f"'(' after {token.text}", "builtins are always called")
        self.join()
        return tree.Builtin(token.at, token.text, self.listed(self.expression))

    def _anonymous(self) -> tree.Init:
        at = self.token.at
        return tree.Init(at, None, self.listed(self.value))

    def _group(self) -> tree.Node:
        opener = self.advance()
        node = self.expression()
        self.close(opener)
        return node

    def variables(self) -> tuple[str, ...]:
        """``|i, j|``."""
        self.advance(join=True)
        names = [self.name("a variable's name after '|'")]
        while self.take(","):
            names.append(self.name("a variable's name after ','"))
        self.join()
        self.expect("|", "after the variables")
        return tuple(names)

    def _tensor_access(self) -> tree.TensorAccess:
        at = self.token.at
        variables = self.variables()
        if self.kind != "{":
            raise self.failure("'{' with the extents", "a tensor access reads |i|{n} -> A[i]")
        self.join()
        opener, place = self.index, self.token.at
        extents = self.listed(self.expression)
        self.joined |= {opener, self.index - 2}
        if len(extents) != len(variables):
            message = f"{len(variables)} variables but {len(extents)} extents"
            self.note(place, message, "each variable has one extent")
        self.expect("->", "after the extents")
        return tree.TensorAccess(at, variables, extents, self.expression())

    def condition(self) -> tree.Node:
        """``(expression)`` after if, while or switch."""
        if self.kind != "(":
            word = self.tokens[self.index - 1].text
            raise self.failure(f"'(' after '{word}'", "conditions stand in parentheses")
        return self._group()

    def _choice(self) -> tree.If:
        at, arms = self.token.at, list[tuple[tree.Node, tree.Node]]()
        while self.take("if"):
            condition = self.condition()
            arms.append((condition, self.expression()))
            if not self.take("else"):
                return tree.If(at, tuple(arms), None)
        return tree.If(at, tuple(arms), self.expression())

    def switch(self) -> tree.Switch:
        """``switch (x) {…}``."""
        self.enter()
        at = self.advance().at
        subject = self.condition()
        if self.kind != "{":
            raise self.failure("'{' with the arms of the switch")
        arms = self.listed(self._arm)
        self.depth -= 1
        return tree.Switch(at, subject, arms)

    def _arm(self) -> tree.Arm:
        at, patterns = self.token.at, list[tree.Node]()
        if not self.take("else"):
            patterns.append(self.expression())
            while self.take(","):
                patterns.append(self.expression())
        self.expect("=>", "after the value of the arm")
        return tree.Arm(at, tuple(patterns), self.arm_body())

    # Types

    def type(self) -> tree.Node:
        """A type; a name is not followed by an initialiser here."""
        self.enter()
        if (reader := _TYPES.get(self.kind)) is None:
            raise self.failure("a type")
        node = reader(self)
        self.depth -= 1
        return node

    def _pointer_type(self) -> tree.PointerType:
        at = self.advance(join=True).at
        return tree.PointerType(at, False, self.words(_QUALIFIERS), self.type())

    def _function_type(self) -> tree.FunctionSignature:
        token = self.advance()
        return tree.FunctionSignature(token.at, token.kind, self.formals(token.kind), self.type())

    def _type_name(self) -> tree.Node:
        token = self.advance()
        node: tree.Node = tree.Name(token.at, token.text)
        while self.kind in (".", "("):
            at = self.token.at
            if self.take("."):
                node = tree.Member(at, node, self.name("a type's name after '.'"))
            else:
                self.join()
                node = tree.Call(at, node, self.listed(self.expression))
        return node

    def words(self, kinds: tuple[str, ...]) -> tuple[str, ...]:
        """Take all of some keywords that come next."""
        words = list[str]()
        while self.kind in kinds:
            words.append(self.advance().kind)
        return tuple(words)

    def _array_type(self) -> tree.Node:
        at = self.token.at
        if self.ahead(1) == "*" and self.ahead(2) == "]":
            self.advance(join=True)
            self.advance(join=True)
            self.advance(join=True)
            return tree.PointerType(at, True, self.words(_QUALIFIERS), self.type())
        extents = self.listed(self.expression)
        self.join()
        if not extents:
            self.note(at, "an array type without a length", "write [n]T, or [*]T for a pointer")
        return tree.ArrayType(at, extents, self.type())

    def formals(self, of: str) -> tuple[tree.Formal, ...]:
        """The parameters of a function or function type."""
        if self.kind != "(":
            raise self.failure(f"'(' with the parameters of the {of}")
        self.join()
        return self.listed(self._formal)

    def _formal(self) -> tree.Formal:
        at, comptime, name = self.token.at, self.take("comptime"), None
        if self.kind == "name" and self.ahead(1) == ":":
            name = self.advance().text
            self.advance()
        return tree.Formal(at, name, self.type(), comptime)

    def _aggregate(self) -> tree.Node:
        at = self.token.at
        layout = self.advance().kind if self.kind in ("packed", "extern") else ""
        if self.take("enum"):
            return self._enum(at)
        if self.kind not in ("struct", "union"):
            raise self.failure(f"'struct' or 'union' after '{layout}'")
        kind = self.advance().kind
        if self.kind != "{":
            raise self.failure(f"'{{' with the fields of the {kind}")
        return tree.StructType(at, kind, layout, self.listed(self._field))

    def _enum(self, at: tree.Position) -> tree.EnumType:
        base = None
        if self.kind == "(":
            self.join()
            opener = self.advance()
            base = self.type()
            self.close(opener)
        if self.kind != "{":
            raise self.failure("'{' with the members of the enum")
        return tree.EnumType(at, base, self.listed(self._member))

    def _field(self) -> tree.Field:
        at, name = self.token.at, self.name("a field's name")
        self.expect(":", "after the field's name")
        kind = self.type()
        return tree.Field(at, name, kind, self.expression() if self.take("=") else None)

    def _member(self) -> tree.Field:
        at, name = self.token.at, self.name("a member's name")
        return tree.Field(at, name, None, self.expression() if self.take("=") else None)


_PRIMARIES: dict[str, Callable[[ExpressionReader], tree.Node]] = {
    **dict.fromkeys(
        ("integer", "float", "string", "char", "true", "false"), ExpressionReader._literal
    ),
    "builtin": ExpressionReader.builtin,
    ".{": ExpressionReader._anonymous,
    "(": ExpressionReader._group,
    "|": ExpressionReader._tensor_access,
    "if": ExpressionReader._choice,
    "switch": ExpressionReader.switch,
    "{": lambda reader: reader.block(),
}

_TYPES: dict[str, Callable[[ExpressionReader], tree.Node]] = {
    "*": ExpressionReader._pointer_type,
    "[": ExpressionReader._array_type,
    "name": ExpressionReader._type_name,
    **dict.fromkeys(("fn", "task"), ExpressionReader._function_type),
    **dict.fromkeys(("struct", "union", "enum", "packed", "extern"), ExpressionReader._aggregate),
    **dict.fromkeys(("builtin", "if", "(", "switch"), ExpressionReader.primary),
}
