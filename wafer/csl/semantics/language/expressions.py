"""Values of expressions: literals, operators, initialisers, choices, types."""

import functools
from typing import Any

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Evaluator, Jump, described
from wafer.csl.semantics.core.numbers import WIDEST
from wafer.csl.semantics.core.values import (
    NOTHING,
    Cell,
    KnownPlace,
    Reference,
    Register,
    Value,
    is_known,
)
from wafer.csl.semantics.language import names
from wafer.csl.semantics.language.calls import call
from wafer.csl.semantics.language.choices import beside, choice, condition
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.semantics.language.operators import combined, prefixed
from wafer.csl.semantics.language.statements import chosen_arm, run
from wafer.csl.semantics.language.tensors import tensor_access
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import suggestion
from wafer.machine.codes import Op


def _unary(ev: Evaluator, node: tree.Unary) -> Value:
    if node.operator == "&":
        return _address(ev, node)
    if node.operator == "comptime":
        return ev.known(node.operand)
    return prefixed(ev, node.operator, ev.value(node.operand), node.at)


def _address(ev: Evaluator, node: tree.Unary) -> Value:
    target = names.resolve(ev, node.operand)
    if isinstance(target, Value):
        if target.type == types.ANONYMOUS or not is_known(target):
            ev.fail(node.at, "only variables and their parts have an address")
        if isinstance(target.type, types.FunctionType):
            return target
        cell = Cell("a constant", target.type, target.data, constant=True)
        target = KnownPlace(target.type, Reference(cell))
    return ev.address(target, node.at)


def _logical(ev: Evaluator, node: tree.Binary) -> Value:
    """``and`` and ``or``: what the left side decides, the right one is not looked at."""
    decides = node.operator == "or"
    left = condition(ev, node.left)
    if is_known(left):
        return left if left.data == decides else condition(ev, node.right)
    code, after = ev.require_code(node.at, "this value"), Label()
    result = code.new()
    ev.register(left, node.at, into=result)
    code.add(Op.JUMP_IF if decides else Op.JUMP_UNLESS, 0, after, result)
    ev.register(condition(ev, node.right), node.at, into=result)
    code.here(after)
    return Value(types.BOOL, Register(result))


def _binary(ev: Evaluator, node: tree.Binary) -> Value:
    if node.operator in ("and", "or"):
        return _logical(ev, node)
    if isinstance(node.left, tree.If):
        right = ev.value(node.right)
        left = beside(ev, node.left, right.type, node.operator)
    else:
        left = ev.value(node.left)
        right = beside(ev, node.right, left.type, node.operator)
    return combined(ev, node.operator, left, right, node.at)


def _init(ev: Evaluator, node: tree.Init) -> Value:
    names_given = [part.name for part in node.values]
    if any(name is not None for name in names_given):
        if None in names_given:
            ev.fail(node.at, "fields by name and by position in one value")
        data: Any = {part.name: ev.value(part.value) for part in node.values}
        if len(data) < len(names_given):
            ev.fail(node.at, "a field is given twice")
    else:
        data = [ev.value(part.value) for part in node.values]
    value = ev.counted(Value(types.ANONYMOUS, data), node.at)
    if node.type is None:
        return value
    return coerce(ev, value, ev.type(node.type), node.at)


def _switch(ev: Evaluator, node: tree.Switch) -> Value:
    subject = ev.value(node.subject)
    if not is_known(subject):
        ev.fail(node.at, "a switch that is a value chooses at compile time", "use if … else …")
    arm = chosen_arm(ev, node, subject)
    if arm is None:
        ev.fail(node.at, f"no arm of the switch is for {described(subject)}")
    if isinstance(arm.body, tree.Return | tree.Assign):
        ev.execute(arm.body)
        return NOTHING
    return ev.value(arm.body)


def _block(ev: Evaluator, node: tree.Block) -> Value:
    """``{}`` is nothing; a labelled block has the value that it is left with."""
    jump = run(ev, node)
    if isinstance(jump, Jump) and jump.kind == "break":
        return jump.value
    return NOTHING


# Types


def _pointer_type(ev: Evaluator, node: tree.PointerType) -> Value:
    target = ev.type(node.target)
    if isinstance(target, types.FunctionType):  # a function's value is its address
        return Value(types.TYPE, target)
    kind = types.Pointer(target, node.many, "const" in node.qualifiers)
    return ev.counted(Value(types.TYPE, kind), node.at)


def _array_type(ev: Evaluator, node: tree.ArrayType) -> Value:
    extents = []
    for extent in node.extents:
        value = ev.known(extent)
        if not isinstance(value.data, int) or value.data < 0:
            ev.fail(extent.at, f"an array's extent is a number from 0, found {described(value)}")
        extents.append(value.data)
    kind = types.Array(tuple(extents), ev.type(node.element))
    return ev.counted(Value(types.TYPE, kind), node.at)


def _function_type(ev: Evaluator, node: tree.FunctionSignature) -> Value:
    formals = tuple(ev.type(formal.type) for formal in node.formals)
    kind = types.FunctionType(node.kind, formals, ev.type(node.result))
    return ev.counted(Value(types.TYPE, kind), node.at)


def _struct_type(ev: Evaluator, node: tree.StructType) -> Value:
    fields, defaults = [], []
    for field in node.fields:
        assert field.type is not None
        fields.append((field.name, ev.type(field.type)))
        if field.value is not None:
            default = coerce(ev, ev.known(field.value), fields[-1][1], field.value.at)
            defaults.append((field.name, default))
    kind = types.Struct(tuple(fields), node.at, node.kind == "union", tuple(defaults))
    return ev.counted(Value(types.TYPE, kind), node.at)


def _enum_type(ev: Evaluator, node: tree.EnumType) -> Value:
    base = ev.type(node.type) if node.type is not None else types.U16
    given = {m.name: ev.known(m.value).data for m in node.members if m.value is not None}
    taken, following, members = set(given.values()), 0, []
    for member in node.members:
        if member.name not in given:
            while following in taken:
                following += 1
            taken.add(following)
        members.append((member.name, given.get(member.name, following)))
    return Value(types.TYPE, types.Enum(base, tuple(members), node.at))


def _builtin(ev: Evaluator, node: tree.Builtin) -> Value:
    ev.check_release(node.name, node.at)
    rule = ev.unit.rules.builtins.get(node.name)
    if rule is None:
        hint = suggestion(node.name, ev.unit.rules.builtins)
        ev.fail(node.at, f"{node.name} is not known here", hint)
    return rule(ev, node) or NOTHING  # of one for its effect alone


def _integer(ev: Evaluator, node: tree.Integer) -> Value:
    if len(node.text) > WIDEST:
        ev.fail(node.at, f"a number of {len(node.text):,} digits; it has at most {WIDEST:,}")
    return _literal(types.COMPTIME_INT, node.value)


@functools.cache
def _literal(kind: types.Type, data: Any) -> Value:
    return Value(kind, data)


VALUES = {
    **dict.fromkeys((tree.Name, tree.Index, tree.Member, tree.Dereference), names.named_value),
    tree.Integer: _integer,
    tree.Float: lambda ev, node: _literal(types.COMPTIME_FLOAT, node.value),
    tree.String: lambda ev, node: _literal(types.STRING, node.value),
    tree.Bool: lambda ev, node: Value(types.BOOL, node.value),
    tree.Builtin: _builtin,
    tree.Call: call,
    tree.Unary: _unary,
    tree.Binary: _binary,
    tree.Init: _init,
    tree.TensorAccess: tensor_access,
    tree.If: choice,
    tree.Switch: _switch,
    tree.Block: _block,
    tree.PointerType: _pointer_type,
    tree.ArrayType: _array_type,
    tree.FunctionSignature: _function_type,
    tree.StructType: _struct_type,
    tree.EnumType: _enum_type,
}
