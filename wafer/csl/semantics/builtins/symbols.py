"""Builtins of what ``@export_symbol`` advertises: ids of names, and variables by their ids."""

from wafer.csl.semantics.builtins.tasks import exported
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Evaluator
from wafer.csl.semantics.core.values import KnownPlace, Reference, Register, Value
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.semantics.language.names import resolve
from wafer.csl.syntax import tree
from wafer.machine.codes import Op, Type


def _ids(ev: Evaluator) -> dict[str, int]:
    """Return the ids of the names that the program exports: their places in the layout's list."""
    return {name: k for k, name in enumerate(ev.unit.exported) if name in ev.unit.setup.exports}


def _variables(ev: Evaluator) -> dict[int, Reference]:
    """Return the exported variables by id."""
    targets = {number: ev.unit.setup.exports[name][0] for name, number in _ids(ev).items()}
    return {number: target for number, target in targets.items() if isinstance(target, Reference)}


def _is_tensor(reference: Reference) -> bool:
    return isinstance(reference.part(), types.Pointer)


def _get_symbol_id(ev: Evaluator, node: tree.Builtin) -> Value:
    symbol = exported(ev, resolve(ev, node.arguments[0]), node.at)
    for name, number in _ids(ev).items():
        if ev.unit.setup.exports[name][0] == symbol:
            return Value(types.U16, number)
    return ev.fail(node.at, f"{node.name} of what is not exported", "@export_symbol it before")


def _chosen(
    ev: Evaluator, node: tree.Builtin, kind: types.Type, variables: dict[int, Reference]
) -> Value:
    """The value of the variable whose id the last argument is; 0 where none has it."""
    code, at = ev.require_code(node.at, f"what {node.name} reads"), node.at
    wanted = ev.register(coerce(ev, ev.value(node.arguments[-1]), types.U16, at), at)
    out, after = code.constant(0), Label()
    for number, reference in variables.items():
        following = Label()
        same = code.result(Op.EQ, Type.U16, wanted, code.constant(number))
        code.add(Op.JUMP_UNLESS, 0, following, same)
        ev.register(ev.read(KnownPlace(reference.part(), reference), at), at, into=out)
        code.add(Op.JUMP, 0, after)
        code.here(following)
    if not variables:
        code.add(Op.FAULT, 0, ev.unit.message(f"{node.name} at {at}: no tensor is exported"))
    code.here(after)
    return Value(kind, Register(out))


def _get_symbol_value(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    variables = {k: found for k, found in _variables(ev).items() if found.part() == kind}
    if not variables or types.machine_type(kind) is None:
        found = ", ".join(str(each.part()) for each in _variables(ev).values()) or "none"
        ev.fail(node.at, f"no variable of type {kind} is exported (found: {found})")
    return _chosen(ev, node, kind, variables)


def _get_tensor_ptr(ev: Evaluator, node: tree.Builtin) -> Value:
    tensors = {k: found for k, found in _variables(ev).items() if _is_tensor(found)}
    return _chosen(ev, node, types.Pointer(types.U16, many=True), tensors)


def _has_exported_tensors(ev: Evaluator, node: tree.Builtin) -> Value:
    if not ev.unit.setup.complete:
        ev.fail(node.at, f"{node.name} belongs into a function or task, behind all exports")
    return Value(types.BOOL, any(map(_is_tensor, _variables(ev).values())))


BUILTINS = {
    "@get_symbol_id": _get_symbol_id,
    "@get_symbol_value": _get_symbol_value,
    "@get_tensor_ptr": _get_tensor_ptr,
    "@has_exported_tensors": _has_exported_tensors,
}
