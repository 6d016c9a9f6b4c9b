"""Tensor accesses: ``|i, j|{m, n} -> A[i, j + 1]``."""

from typing import NamedTuple

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator
from wafer.csl.semantics.core.values import Reference, Register, Value, is_known
from wafer.csl.semantics.language.names import array_of
from wafer.csl.semantics.language.operators import combined
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op, Type

ACCESS = types.Plain("tensor access")
ZERO = Value(types.COMPTIME_INT, 0)


class Access(NamedTuple):
    """``|i, j|{m, n} -> A[…]``."""

    pointer: Value  #: to the element where all variables are 0
    extents: tuple[Value, ...]  #: of the variables, outermost first; Values
    strides: tuple[int, ...]  #: elements that one step of each variable goes; numbers


# An index as a sum: a value, and what each variable is multiplied with.
Affine = tuple[Value, dict[str, int]]


def _affine(ev: Evaluator, node: tree.Node, variables: tuple[str, ...]) -> Affine:
    """An index in terms of the access's variables."""
    if isinstance(node, tree.Name) and node.id in variables:
        return ZERO, {node.id: 1}
    names = {n.id for n, _ in tree.walk(node) if isinstance(n, tree.Name)}
    if not names & set(variables):
        return ev.value(node), {}
    if isinstance(node, tree.Unary) and node.operator == "-":
        zero = tree.Integer(node.at, "0")
        return _affine(ev, tree.Binary(node.at, "-", zero, node.operand), variables)
    if not isinstance(node, tree.Binary) or node.operator not in ("+", "-", "*"):
        ev.fail(node.at, "an index is a sum of the variables, each times a constant")
    left, right = (_affine(ev, part, variables) for part in (node.left, node.right))
    if node.operator == "*":
        if left[1] and right[1]:
            ev.fail(node.at, "a variable is multiplied with a variable")
        (value, factors), (factor, _) = (left, right) if left[1] else (right, left)
        if not is_known(factor):
            ev.fail(node.at, "a variable is multiplied with what is not known at compile time")
        scaled = {name: k * factor.data for name, k in factors.items()}
        return combined(ev, "*", value, factor, node.at), scaled
    sign = 1 if node.operator == "+" else -1
    factors = dict(left[1])
    for name, k in right[1].items():
        factors[name] = factors.get(name, 0) + sign * k
    return combined(ev, node.operator, left[0], right[0], node.at), factors


def tensor_access(ev: Evaluator, node: tree.TensorAccess) -> Value:
    """Where the elements of an access are."""
    if not isinstance(node.body, tree.Index):
        ev.fail(node.body.at, "a tensor access reads |i|{n} -> A[i]")
    extents = tuple(ev.value(extent) for extent in node.extents)
    base = array_of(ev, node.body.value)
    kind = base.type
    if not isinstance(kind, types.Array) or isinstance(base, Value):
        ev.fail(node.body.at, f"expected an array in memory, found a value of type {kind}")
    indices = [_affine(ev, part, node.variables) for part in node.body.indices]
    if len(indices) != len(kind.shape):
        count = len(kind.shape)
        ev.fail(node.body.at, f"{kind} takes {count} indices, found {len(indices)}")
    start, strides, row = ZERO, dict.fromkeys(node.variables, 0), 1
    for (value, factors), extent in reversed(list(zip(indices, kind.shape, strict=True))):
        term = combined(ev, "*", value, Value(types.COMPTIME_INT, row), node.at)
        start = combined(ev, "+", start, term, node.at)
        for name, factor in factors.items():
            strides[name] += factor * row
        row *= extent
    pointer = ev.address(base, node.at)
    pointer = Value(types.Pointer(kind.element, many=True), pointer.data)
    pointer = moved_by(ev, pointer, start, node.at)
    return Value(ACCESS, Access(pointer, extents, tuple(strides.values())))


def moved_by(ev: Evaluator, pointer: Value, elements: Value, at: Position) -> Value:
    """A pointer some elements further; arrays' bounds do not matter."""
    kind = pointer.type
    assert isinstance(kind, types.Pointer)
    size = types.size_of(kind.target)
    if is_known(elements) and isinstance(pointer.data, Reference):
        extra = pointer.data.extra + elements.data * size
        return Value(kind, pointer.data._replace(extra=extra))
    code = ev.require_code(at, "this address")
    if is_known(elements):
        if not elements.data:
            return pointer
        offset = code.constant(elements.data * size)
    else:
        offset = code.result(Op.MUL, Type.U16, ev.register(elements, at), code.constant(size))
    return Value(kind, Register(code.result(Op.ADD, Type.U16, ev.register(pointer, at), offset)))
