"""Calls: functions run while compiling, or become code once for each way they are called."""

import contextlib
from typing import Any

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, Failure, described
from wafer.csl.semantics.core.unit import Request, Unit
from wafer.csl.semantics.core.values import (
    NOTHING,
    Function,
    KnownPlace,
    Memory,
    Reference,
    Register,
    RegisterVariable,
    Value,
    frozen,
    is_known,
)
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.semantics.language.statements import run
from wafer.csl.syntax import tree
from wafer.csl.syntax.releases import CALLED_TASK
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op, Type

_CALL, _FUNCTION = 5, 10  # steps of a call, and of writing a function besides its instructions
_COMPTIME_ONLY = {
    *(types.TYPE, types.STRING, types.COMPTIME_INT, types.COMPTIME_FLOAT),
    *(types.ANONYMOUS, types.MODULE, types.RANGE),
}


def _any(formal: tree.Formal) -> bool:
    return isinstance(formal.type, tree.Name) and formal.type.id == "anytype"


def call(ev: Evaluator, node: tree.Call) -> Value:
    """``function(arguments)``."""
    target = ev.value(node.function)
    arguments = [ev.value(argument) for argument in node.arguments]
    return called(ev, target, arguments, node.at)


def called(ev: Evaluator, target: Value, arguments: list[Value], at: Position) -> Value:
    """The value of a call."""
    if isinstance(target.data, Function):
        enters = target.data.module.library and not ev.module.library
        with ev.unit.leading(at) if enters else contextlib.nullcontext():
            return _call(ev, target.data, arguments, at)
    if not isinstance(target.type, types.FunctionType):
        ev.fail(at, f"expected a function, found {described(target)}")
    code = ev.require_code(at, "which function this is")
    formals = target.type.formals
    if len(formals) != len(arguments):
        ev.fail(at, f"this function takes {len(formals)} argument(s), found {len(arguments)}")
    values = [coerce(ev, v, kind, at) for v, kind in zip(arguments, formals, strict=True)]
    pointer = ev.register(target, at)
    base = _frame(ev, values, at)
    code.add(Op.CALL_AT, 0, pointer, base)
    ev.unit.functions.calls.append((code.owner, base, None))
    return _result(ev, target.type.result, base, at)


def _passed(
    ev: Evaluator, inner: Evaluator, formal: tree.Formal, argument: Value, at: Position
) -> Value:
    """An argument as the type of its parameter, which the parameters before it may decide."""
    return argument if _any(formal) else coerce(ev, argument, inner.type(formal.type), at)


def _complete(
    ev: Evaluator, function: Function, arguments: list[Value], at: Position
) -> list[Value]:
    """As many arguments as a function takes; a library's last one of any type may be left out."""
    node = function.node
    feature, sdk = CALLED_TASK, ev.unit.sdk
    if node.kind == "task" and (node.formals or not sdk or not feature.is_in(sdk)):
        ev.fail(
            at,
            f"the task '{node.name}' is activated, not called; {feature.text}",
            f"@activate(its id), or compile with --sdk={feature.last}",
        )
    missing = len(node.formals) - len(arguments)
    if missing == 1 and function.module.library and _any(node.formals[-1]):
        return [*arguments, NOTHING]
    if missing:
        count = len(node.formals)
        ev.fail(at, f"{node.name} takes {count} argument(s), found {len(arguments)}")
    return arguments


def _call(ev: Evaluator, function: Function, arguments: list[Value], at: Position) -> Value:
    node = function.node
    arguments = _complete(ev, function, arguments, at)
    if ev.code is None:
        return interpret(ev, function, arguments, at)
    scope, values = {}, []
    known, key = {}, list[Any]()
    inner = Evaluator(ev.unit, function.module)
    inner.scopes = [scope]
    for formal, argument in zip(node.formals, arguments, strict=True):
        value = _passed(ev, inner, formal, argument, at)
        name = formal.name or "_"
        scope[name] = value
        parted = _any(formal) and value.type == types.ANONYMOUS and not formal.comptime
        if parted:
            known[name] = _outline(value, values)
            key.append((name, frozen(known[name])))
        elif formal.comptime or value.type in _COMPTIME_ONLY or isinstance(value.data, Function):
            if not is_known(value):
                ev.fail(at, f"the argument '{name}' of {node.name} is not known at compile time")
            known[name] = value
            key.append((name, frozen(value)))
        else:
            values.append(value)
            if _any(formal):
                known[name] = value.type
                key.append((name, value.type))
    result = inner.type(node.result)
    if result in _COMPTIME_ONLY:
        return interpret(ev.at_compile_time(), function, arguments, at)
    ev.check_depth(ev.unit.functions.writing + bool(key), at, "calls of generic functions")
    request = ev.unit.request(function, known, tuple(key))
    base = _frame(ev, values, at)
    ev.code.add(Op.CALL, 0, request.label, base)
    ev.unit.functions.calls.append((ev.code.owner, base, request.label))
    return _result(ev, result, base, at)


_ARRIVING = Register(-1)  # stands for what a callee finds in a register


def _outline(value: Value, running: list[Value]) -> Value:
    """``.{…}`` without the parts that only the running PE knows, which are added to a list."""
    if value.type == types.ANONYMOUS:
        parts = value.data.items() if isinstance(value.data, dict) else enumerate(value.data)
        outlined = {name: _outline(part, running) for name, part in parts}
        return Value(value.type, outlined if isinstance(value.data, dict) else [*outlined.values()])
    if is_known(value):
        return value
    running.append(value)
    return Value(value.type, _ARRIVING)


def _filled(ev: Evaluator, value: Value) -> Value:
    """An outlined value as the callee sees it."""
    if value.type == types.ANONYMOUS and isinstance(value.data, dict):
        return Value(value.type, {name: _filled(ev, part) for name, part in value.data.items()})
    if value.type == types.ANONYMOUS:
        return Value(value.type, [_filled(ev, part) for part in value.data])
    return _arrived(ev, value.type) if value.data == _ARRIVING else value


def _arrived(ev: Evaluator, kind: types.Type) -> Value:
    """An argument in the next register."""
    assert ev.code is not None
    register = ev.code.new()
    scalar = types.machine_type(kind) is not None
    return Value(kind, Register(register) if scalar else Memory(register, 0))


def _frame(ev: Evaluator, values: list[Value], at: Position) -> int:
    """Put arguments into a callee's first registers, which lie above all that are in use."""
    code = ev.require_code(at, "this call")
    registers = []
    for value in values:
        if types.machine_type(value.type) is not None:
            registers.append(ev.register(value, at))
        else:
            registers.append(ev.aggregate(_own(ev, value, at), at))
    base = code.new(max(len(registers), 1))
    for position, register in enumerate(registers):
        code.add(Op.COPY, 0, base + position, register)
    return base


def _own(ev: Evaluator, value: Value, at: Position) -> Value:
    """A copy of an array or struct in memory that nothing else changes."""
    cell = ev.local_cell("an argument", value.type, at)
    ev.write(KnownPlace(value.type, Reference(cell)), value, at)
    code = ev.require_code(at, "memory")
    return Value(value.type, Memory(code.constant(ev.unit.address(Reference(cell), at)), 0))


def _result(ev: Evaluator, kind: types.Type, base: int, at: Position) -> Value:
    if kind == types.VOID:
        return Value(kind, None)
    if types.machine_type(kind) is not None:
        return Value(kind, Register(base))
    return _own(ev, Value(kind, Memory(base, 0)), at)


def interpret(ev: Evaluator, function: Function, arguments: list[Value], at: Position) -> Value:
    """Run a function while compiling."""
    node = function.node
    if node.body is None:
        ev.fail(at, f"{node.name} has no body")
    inner = Evaluator(ev.unit, function.module)
    scope: dict[str, Any] = {}
    inner.scopes = [scope]
    for formal, argument in zip(node.formals, arguments, strict=True):
        scope[formal.name or "_"] = _passed(ev, inner, formal, argument, at)
    inner.result = inner.type(node.result)
    ev.count(at, _CALL)
    ev.check_depth(ev.unit.depth + 1, at, "calls")
    ev.unit.depth += 1
    try:
        jump = run(inner, node.body)
    finally:
        ev.unit.depth -= 1
    if jump is not None:
        return jump.value
    if inner.result != types.VOID:
        ev.fail(at, f"{node.name} ends without a value of type {inner.result}")
    return NOTHING


# Functions as code


def write_functions(unit: Unit) -> None:
    """Write down all functions that were asked for, and those that they call."""
    while unit.functions.waiting:
        request = unit.functions.waiting.pop(0)
        try:
            with unit.leading(request.led):
                _write(unit, request)
        except Failure as failure:
            if failure.problem is not None:
                unit.problems.append(failure.problem)


def _write(unit: Unit, request: Request) -> None:
    code, node, unit.functions.writing = unit.code, request.function.node, request.depth
    code.owner, code.top, code.most, code.at = request.label, 0, 0, node.at
    code.here(request.label)
    ev = Evaluator(unit, request.function.module, code)
    ev.count(node.at, _FUNCTION)
    if node.body is None:
        ev.fail(node.at, f"{node.name} has no body")
    ev.addressed = unit.files.opened(ev.module.path).addressed(node)
    scope: dict[str, Any] = {}
    ev.scopes = [scope]
    if node.kind == "task":
        _split(ev, node, scope)
    else:
        _receive(ev, request, scope)
    ev.result = ev.type(node.result)
    run(ev, node.body)
    code.at = node.at
    code.add(Op.RETURN)
    unit.functions.registers[request.label] = code.most


def _receive(ev: Evaluator, request: Request, scope: dict[str, Any]) -> None:
    """Name the registers in which arguments arrive."""
    assert ev.code is not None
    for formal in request.function.node.formals:
        name = formal.name or "_"
        given = request.known.get(name)
        if isinstance(given, Value):
            scope[name] = _filled(ev, given)
            continue
        kind = given if given is not None else ev.type(formal.type)
        value = _arrived(ev, kind)
        if isinstance(value.data, Memory):
            scope[name] = value
        elif name in ev.addressed:
            cell = ev.local_cell(name, kind, formal.at)
            ev.write(KnownPlace(kind, Reference(cell)), value, formal.at)
            scope[name] = cell
        else:
            scope[name] = RegisterVariable(kind, value.data.number)
    ev.code.new()  # the result's, where nothing arrives


def _split(ev: Evaluator, node: tree.FunctionDecl, scope: dict[str, Any]) -> None:
    """Name the parts of the wavelet that starts a task: 32 bits, or data and index of 16."""
    code = ev.code
    assert code is not None
    wavelet = code.new()
    for position, formal in enumerate(node.formals):
        kind = ev.type(formal.type)
        machine = types.machine_type(kind)
        odd = types.is_integer(kind) and isinstance(kind, types.Plain) and kind.bits not in (16, 32)
        if machine is None or types.size_of(kind) not in (2, 4) or odd:
            ev.fail(formal.at, f"a task's argument has 16 or 32 bits, found {kind}")
        part = wavelet
        if position:
            part = code.result(Op.SHR, Type.U32, wavelet, code.constant(16 * position))
        if types.size_of(kind) == 2:
            part = code.result(Op.CAST, Type.U16, part, Type.U32)
        if not types.is_float(kind):
            source = Type.U16 if types.size_of(kind) == 2 else Type.U32
            part = code.result(Op.CAST, machine, part, source)
        register = code.new()
        code.add(Op.COPY, 0, register, part)
        scope[formal.name or "_"] = RegisterVariable(kind, register)
        if position:
            ev.wavelet_index = register
