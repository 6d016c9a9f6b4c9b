"""Builtins that read other files: modules, and values in JSON."""

import json
from collections.abc import Set
from typing import Any

from wafer.csl.semantics.builtins.arguments import fields_of
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator
from wafer.csl.semantics.core.values import Module, Value
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.syntax import tree
from wafer.csl.syntax.parser import read
from wafer.csl.syntax.source import CslError, Position, Source, suggestion

_SCALARS = {str: types.STRING, int: types.COMPTIME_INT, float: types.COMPTIME_FLOAT}


def _import_module(ev: Evaluator, node: tree.Builtin) -> Value:
    path = ev.text(node.arguments[0])
    ev.check_release(path, node.at)
    given = ev.known(node.arguments[1]) if len(node.arguments) > 1 else None
    params = fields_of(ev, given, node.at) if given is not None else {}
    if path == "<debug>" and "key" not in params:  # before 0.9 it was the module's name
        params = params | {"key": Value(types.STRING, ev.unit.declaring)}
    ev.check_depth(ev.module.depth + 1, node.at, "imports")
    module = ev.unit.files.instance(path, ev.module.path, params, node.at)
    ev.count(node.at, 10 + len(module.declarations))
    module.depth = ev.module.depth + 1
    check_params(ev, module, path, params.keys(), node.at)
    if module.library:
        module.imported = ev.unit.led or node.at if ev.module.library else node.at
    ev.unit.modules.append(module)
    return Value(types.MODULE, module)


def check_params(ev: Evaluator, module: Module, file: str, given: Set[str], at: Position) -> None:
    """Warn of params that a file does not declare.

    Args:
        ev: of the unit that opens it.
        module: the file's.
        file: as the program names it.
        given: the params' names.
        at: where they are given.
    """
    for name in sorted(given - module.declarations.keys()):
        ev.warn(at, f"{file} has no param '{name}'", suggestion(name, module.declarations))


def _import_comptime_value(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, name = ev.type(node.arguments[0]), ev.text(node.arguments[1])
    path = ev.unit.files.found(name, ev.module.path, node.at)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        ev.fail(node.at, f"{name} is not JSON: {error}")
    return _value(ev, kind, data, node.at, name)


def _value(ev: Evaluator, kind: types.Type, data: Any, at: Position, where: str) -> Value:
    """What JSON says, as a type; where: the file and the fields that lead there."""
    if isinstance(data, dict):
        if kind != types.ANONYMOUS:
            ev.fail(
                at, f"{where}: expected {kind}, found an object", "import it as comptime_struct"
            )
        return Value(types.ANONYMOUS, dict(_field(ev, *item, at, where) for item in data.items()))
    if isinstance(data, list):
        if not isinstance(kind, types.Array):
            ev.fail(at, f"{where}: expected {kind}, found a list", "import it as [n]T")
        parts = [_value(ev, kind.element, part, at, f"{where}[{k}]") for k, part in enumerate(data)]
        return coerce(ev, Value(types.ANONYMOUS, parts), kind, at)
    if isinstance(data, bool) and kind == types.BOOL:
        return Value(kind, data)
    scalar = _SCALARS.get(type(data))
    if scalar is None or kind == types.BOOL:
        ev.fail(at, f"{where}: expected {kind}, found {json.dumps(data)}")
    if kind == types.COLOR and scalar == types.COMPTIME_INT:
        return Value(kind, data)
    return coerce(ev, Value(scalar, data), kind, at)


def _field(ev: Evaluator, label: str, data: Any, at: Position, where: str) -> tuple[str, Value]:
    """A field, from an item whose label is ``name:type``."""
    name, colon, kind = (part.strip() for part in label.partition(":"))
    if not colon:
        ev.fail(at, f"{where}: the label '{label}' names no type", f'"{label}:i16"')
    try:
        declared = read(Source(where, f"const t = {kind};")).file.declarations[0]
    except CslError as error:
        ev.fail(at, f"{where}: '{kind}' is no type ({error.problems[0].message})")
    assert isinstance(declared, tree.Variable)
    assert declared.value is not None
    return name, _value(ev, ev.type(declared.value), data, at, f"{where}.{name}")


BUILTINS = {"@import_module": _import_module, "@import_comptime_value": _import_comptime_value}
