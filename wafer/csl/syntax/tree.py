"""The syntax tree. A type is an expression; two trees are equal whatever their positions.

What a name means, and whether a type makes sense, is not known here.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, dataclass_transform

from wafer.csl.syntax.source import Position

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


@dataclass_transform(frozen_default=True)
@dataclasses.dataclass(frozen=True)
class Node:
    """Anything in the tree, with the place where it begins (an operator: its sign)."""

    at: Position = dataclasses.field(compare=False, repr=False)

    def __init_subclass__(cls) -> None:
        """Make every kind of node a frozen dataclass."""
        dataclasses.dataclass(frozen=True)(cls)


def _unescape(text: str) -> str:
    """The characters between quotes."""
    parts = iter(text[1:-1])
    return "".join(_ESCAPES.get(e := next(parts), e) if c == "\\" else c for c in parts)


# Expressions


class Name(Node):
    """A name: of a variable, function, module or type."""

    id: str


class Integer(Node):
    """An integer as written: 12, 0x1f, 'a'."""

    text: str

    @property
    def value(self) -> int:
        """The number."""
        if self.text[0] == "'":
            return ord(_unescape(self.text))
        digits = self.text.replace("_", "")
        return int(digits, 0) if digits[:2] in ("0x", "0b", "0o") else int(digits)


class Float(Node):
    """A number with a fraction or an exponent, as written."""

    text: str

    @property
    def value(self) -> float:
        """The number."""
        return float(self.text)


class String(Node):
    """A string as written, with quotes and escapes."""

    text: str

    @property
    def value(self) -> str:
        """The characters."""
        return _unescape(self.text)


class Bool(Node):
    """``true`` or ``false``."""

    value: bool


class Builtin(Node):
    """``@name(arguments)``; the name has its ``@``."""

    name: str
    arguments: tuple[Node, ...]


class Call(Node):
    """``function(arguments)``."""

    function: Node
    arguments: tuple[Node, ...]


class Index(Node):
    """``value[indices]``."""

    value: Node
    indices: tuple[Node, ...]


class Member(Node):
    """``value.name``."""

    value: Node
    name: str


class Dereference(Node):
    """``value.*``."""

    value: Node


class Unary(Node):
    """``- ! ~ &`` or ``comptime`` before an operand."""

    operator: str
    operand: Node


class Binary(Node):
    """An operator between two operands."""

    operator: str
    left: Node
    right: Node


class InitialValue(Node):
    """One entry of an initialiser: ``.name = value``, or a value by position (name None)."""

    name: str | None
    value: Node


class Init(Node):
    """``.{…}`` (type None), ``T{…}`` or ``[N]T{…}``."""

    type: Node | None
    values: tuple[InitialValue, ...]


class TensorAccess(Node):
    """``|i, j|{rows, columns} -> A[i, j]``."""

    variables: tuple[str, ...]
    extents: tuple[Node, ...]
    body: Node


# Types


class PointerType(Node):
    """``*T``, or ``[*]T`` to many; qualifiers are 'const' and 'volatile'."""

    many: bool
    qualifiers: tuple[str, ...]
    target: Node


class ArrayType(Node):
    """``[rows, columns]T``."""

    extents: tuple[Node, ...]
    element: Node


class Formal(Node):
    """A parameter of a function or function type; a type's may have no name."""

    name: str | None
    type: Node
    comptime: bool = False


class FunctionSignature(Node):
    """``fn(T, U)V``; kind is 'fn' or 'task'."""

    kind: str
    formals: tuple[Formal, ...]
    result: Node


class Field(Node):
    """A field of a struct, or a member of an enum (type None)."""

    name: str
    type: Node | None
    value: Node | None


class StructType(Node):
    """``struct {…}``; kind is 'struct' or 'union', layout '', 'packed' or 'extern'."""

    kind: str
    layout: str
    fields: tuple[Field, ...]


class EnumType(Node):
    """``enum(T) {…}``."""

    type: Node | None
    members: tuple[Field, ...]


# Statements; a lone expression is one too


class Block(Node):
    """``label: {…}``; without label and content also the value of type void."""

    body: tuple[Node, ...]
    label: str | None = None


class If(Node):
    """A choice, of statements or of values."""

    arms: tuple[tuple[Node, Node], ...]  #: pairs (condition, body) of ``if`` and each ``else if``
    otherwise: Node | None  #: what follows the last ``else``


class Arm(Node):
    """``a, b => body`` of a switch; ``else`` has no patterns."""

    patterns: tuple[Node, ...]
    body: Node


class Switch(Node):
    """``switch (subject) {arms}``, a statement or a value."""

    subject: Node
    arms: tuple[Arm, ...]


class For(Node):
    """``label: inline for (iterable) |element, position| body``."""

    iterable: Node
    variables: tuple[str, ...]
    body: Node
    inline: bool = False
    label: str | None = None


class While(Node):
    """``label: inline while (condition) : (step) body``."""

    condition: Node
    step: Node | None
    body: Node
    inline: bool = False
    label: str | None = None


class Return(Node):
    """``return value;``."""

    value: Node | None


class Break(Node):
    """``break :label value;``."""

    label: str | None
    value: Node | None


class Continue(Node):
    """``continue :label;``."""

    label: str | None


class Assign(Node):
    """``target = value``; the operator is ``=``, ``+=``, …."""

    operator: str
    target: Node
    value: Node


class Attribute(Node):
    """``align(n)``, ``linksection("s")`` or ``linkname("s")``."""

    name: str
    value: Node


class Variable(Node):
    """A declaration."""

    kind: str  #: 'const', 'var' or 'param'
    name: str  #: of the variable
    type: Node | None  #: None if the value decides it
    attributes: tuple[Attribute, ...]  #: in their order
    value: Node | None  #: None if there is none
    modifiers: tuple[str, ...] = ()  #: 'export', 'extern', 'comptime'


class FunctionDecl(Node):
    """A function or task."""

    kind: str  #: 'fn' or 'task'
    name: str  #: of the function
    formals: tuple[Formal, ...]  #: its parameters
    attributes: tuple[Attribute, ...]  #: in their order
    result: Node  #: the type it returns
    body: Block | None  #: None for a declaration only
    modifiers: tuple[str, ...] = ()  #: 'export', 'extern', 'inline', 'noinline'


class Comptime(Node):
    """``comptime {…}``."""

    body: Block


class LayoutBlock(Node):
    """``layout {…}``."""

    body: Block


class File(Node):
    """A whole file."""

    declarations: tuple[Node, ...]


def _nodes(value: Any) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _nodes(part)


def children(node: Node) -> Iterator[Node]:
    """The nodes directly below one, in the order of the text."""
    for name, value in vars(node).items():
        if name != "at":
            yield from _nodes(value)


def walk(node: Node) -> Iterator[tuple[Node, int]]:
    """Every node of a tree with its depth, parents first; needs no recursion."""
    stack = [(node, 0)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack += ((child, depth + 1) for child in reversed(tuple(children(node))))
