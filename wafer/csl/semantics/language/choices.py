"""Choices between values, and values where a type is expected."""

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import NOTHING, Register, Value, is_known
from wafer.csl.semantics.language.coerce import coerce, common
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op


def typed(ev: Evaluator, node: tree.Node, kind: types.Type | None) -> Value:
    """The value of an expression as a type; None: as the one it has."""
    if kind is None:
        return ev.value(node)
    if isinstance(node, tree.If):
        return coerce(ev, choice(ev, node, kind), kind, node.at)
    return coerce(ev, ev.value(node), kind, node.at)


def beside(ev: Evaluator, node: tree.Node, kind: types.Type, operator: str) -> Value:
    """The value of an operand; a choice of numbers without types gets the other operand's type."""
    is_typed = types.is_number(kind) and types.machine_type(kind) is not None
    if isinstance(node, tree.If) and is_typed and operator not in ("<<", ">>"):
        return choice(ev, node, kind)
    return ev.value(node)


def condition(ev: Evaluator, node: tree.Node) -> Value:
    """The value of a condition."""
    value = ev.value(node)
    if value.type != types.BOOL:
        ev.fail(node.at, f"a condition is a bool, found {described(value)}", "compare it with 0")
    return value


def choice(ev: Evaluator, node: tree.If, wanted: types.Type | None = None) -> Value:
    """A choice between values; what known conditions leave out is not looked at."""
    pending = list(node.arms)
    while pending:
        test, body = pending[0]
        value = condition(ev, test)
        if not is_known(value):
            rest = tree.If(node.at, tuple(pending[1:]), node.otherwise) if pending[1:] else None
            ways = body, rest or node.otherwise
            return _either(ev, value, ways, wanted, node.at)
        if value.data:
            return typed(ev, body, wanted)
        pending = pending[1:]
    return NOTHING if node.otherwise is None else typed(ev, node.otherwise, wanted)


def _either(
    ev: Evaluator,
    test: Value,
    ways: tuple[tree.Node, tree.Node | None],
    wanted: types.Type | None,
    at: Position,
) -> Value:
    """A value that a running condition chooses."""
    body, otherwise = ways
    if otherwise is None:
        ev.fail(at, "a choice at run time needs an else")
    code, other, after = ev.require_code(at, "this choice"), Label(), Label()
    result = code.new()
    code.add(Op.JUMP_UNLESS, 0, other, ev.register(test, at))
    first = typed(ev, body, wanted)
    patch = len(code.rows)  # the first value's type may follow from the second
    code.add(Op.COPY, 0, result, 0)
    code.add(Op.JUMP, 0, after)
    code.here(other)
    second = typed(ev, otherwise, wanted)
    kind = common(ev, first, second, at) if types.is_number(first.type) else first.type
    second = coerce(ev, second, kind, at)
    ev.register(second, at, into=result)
    code.here(after)
    if is_known(first):
        constant = len(code.rows)
        code.constant(ev.bits(coerce(ev, first, kind, at), at), result)
        code.rows[patch] = code.rows.pop()
        code.places.pop()
        assert len(code.rows) == constant
    else:
        code.rows[patch][3] = ev.register(first, at)
    return Value(kind, Register(result))
