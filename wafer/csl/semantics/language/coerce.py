"""Which value may stand for which type, and what it becomes."""

from typing import Any

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Code
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.numbers import bounds, fits, rounded
from wafer.csl.semantics.core.values import (
    Cell,
    Function,
    KnownPlace,
    Memory,
    Reference,
    Register,
    Value,
    copied,
    is_known,
)
from wafer.csl.syntax.source import Position, suggestion
from wafer.machine.codes import Op


def zero(ev: Evaluator, kind: types.Type, at: Position) -> Any:
    """The data of a variable that nothing was assigned to.

    Args:
        ev: whose steps are counted.
        kind: the type of the variable.
        at: where an error points.
    """
    ev.count_elements(at, types.count_of(kind))
    return _zero(kind)


_ZEROS: dict[types.Type, Any] = {
    types.BOOL: False,
    types.STRING: "",
    types.ANONYMOUS: {},
    types.COMPTIME_INT: 0,
    types.COMPTIME_FLOAT: 0.0,
}


def _zero(kind: types.Type) -> Any:
    match kind:
        case types.Array():
            if isinstance(kind.element, types.Plain | types.Pointer | types.Enum):
                return [_zero(kind.element)] * kind.count
            return [_zero(kind.element) for _ in range(kind.count)]
        case types.Struct():
            return {name: _zero(field) for name, field in kind.fields}
    if kind in _ZEROS:
        return copied(_ZEROS[kind])
    if types.is_float(kind):
        return 0.0
    return 0 if types.machine_type(kind) is not None else None


def _integer(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value | None:
    """A known integer, or an unknown one of a narrower type, as another type."""
    number = value.data
    if is_known(value):
        if not fits(kind, number):
            low, high = bounds(kind)
            ev.fail(at, f"{number} does not fit {kind}, which reaches from {low} to {high}")
        return Value(kind, number)
    low, high = bounds(value.type)
    if not (fits(kind, low) and fits(kind, high)):
        return None
    return cast(ev, value, kind, at)


def cast(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value:
    """A running number as another type, by an instruction."""
    code = ev.require_code(at, "this value")
    target, source = types.machine_type(kind), types.machine_type(value.type)
    for each, machine in ((value.type, source), (kind, target)):
        if machine is None:
            ev.fail(at, f"a value of type {each} exists at compile time only")
    assert target is not None
    register = code.result(Op.CAST, target, ev.register(value, at), source)
    return narrowed(code, kind, register)


def narrowed(code: Code, kind: types.Type, register: int) -> Value:
    """An integer of fewer bits than the machine's from a register that may hold more of them."""
    if isinstance(kind, types.Plain) and 0 <= kind.bits < 8 * types.size_of(kind):
        spare = 8 * types.size_of(kind) - kind.bits
        assert kind.machine is not None
        if kind.name[0] == "u":
            mask = code.constant((1 << kind.bits) - 1)
            register = code.result(Op.AND, kind.machine, register, mask)
        else:
            register = code.result(Op.SHL, kind.machine, register, code.constant(spare))
            register = code.result(Op.SHR, kind.machine, register, code.constant(spare))
    return Value(kind, Register(register))


def _number(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value | None:
    integer = types.is_integer(value.type) or value.type == types.COMPTIME_INT
    if types.is_integer(kind):
        return _integer(ev, value, kind, at) if integer else None
    if kind == types.COMPTIME_INT:
        return Value(kind, value.data) if integer and is_known(value) else None
    if kind == types.COMPTIME_FLOAT:
        return Value(kind, rounded(kind, value.data)) if is_known(value) else None
    if value.type in (types.COMPTIME_INT, types.COMPTIME_FLOAT):
        return Value(kind, rounded(kind, value.data))
    if types.is_float(value.type) and types.size_of(value.type) < types.size_of(kind):
        return Value(kind, value.data) if is_known(value) else cast(ev, value, kind, at)
    return None


def _elements(ev: Evaluator, parts: list[Value], kind: types.Array, at: Position) -> list[Any]:
    """The data of an array from values in braces, nested or row by row."""
    if len(kind.shape) > 1 and len(parts) == kind.shape[0] and parts[0].type == types.ANONYMOUS:
        row = types.Array(kind.shape[1:], kind.element)
        return [x for part in parts for x in _elements(ev, list(part.data), row, at)]
    if len(parts) != kind.count:
        ev.fail(at, f"{kind} has {kind.count} elements, found {len(parts)}")
    values = [coerce(ev, part, kind.element, at) for part in parts]
    return values if not all(map(is_known, values)) else [value.data for value in values]


def _assembled(
    ev: Evaluator, parts: list[tuple[Any, Value]], kind: types.Type, at: Position
) -> Value:
    """An array or struct in memory, from values of which some are not known."""
    code = ev.require_code(at, "a part of this value")
    cell = Cell("a value", kind, zero(ev, kind, at), running=True)
    for step, value in parts:
        reference = Reference(cell, (step,))
        ev.write(KnownPlace(reference.part(), reference), value, at)
    return Value(kind, Memory(code.constant(ev.unit.address(Reference(cell), at)), 0))


def _anonymous(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value | None:
    """``.{…}`` as an array or a struct."""
    if isinstance(kind, types.Array):
        if isinstance(value.data, dict):
            return None
        parts = _elements(ev, list(value.data), kind, at)
        if parts and isinstance(parts[0], Value):
            return _assembled(ev, list(enumerate(parts)), kind, at)
        return Value(kind, parts)
    if not isinstance(kind, types.Struct):
        return None
    given = value.data
    if isinstance(given, list):
        given = dict(zip((name for name, _ in kind.fields), given, strict=False))
    fields = dict(kind.fields)
    for name in given:
        if name not in fields:
            ev.fail(at, f"{kind} has no field '{name}'", suggestion(name, fields))
    defaults: dict[str, Any] = dict(kind.defaults)
    missing = [name for name in fields if name not in given and name not in defaults]
    if missing and not kind.union:
        ev.fail(at, f"no value for the field '{missing[0]}' of {kind}")
    values = {
        name: coerce(ev, given[name], field, at) if name in given else defaults[name]
        for name, field in fields.items()
        if name in given or name in defaults
    }
    if all(map(is_known, values.values())):
        return Value(kind, {name: part.data for name, part in values.items()})
    return _assembled(ev, list(values.items()), kind, at)


def _pointer(value: Value, kind: types.Pointer) -> Value | None:
    source = value.type
    if not isinstance(source, types.Pointer) or (source.const and not kind.const):
        return None
    target = source.target
    if kind.many and isinstance(target, types.Array):
        target = target.element
    return Value(kind, value.data) if target == kind.target else None


def _function(ev: Evaluator, value: Value, kind: types.FunctionType) -> Value | None:
    if not isinstance(value.data, Function):
        return None
    signature = value.type
    if isinstance(signature, types.FunctionType):
        same = (signature.formals, signature.result) == (kind.formals, kind.result)
        return Value(kind, value.data) if same else None
    return Value(kind, value.data)


def _array(ev: Evaluator, value: Value, kind: types.Array, at: Position) -> Value | None:
    """An array of the same length, with known elements of another type."""
    assert isinstance(value.type, types.Array)
    if kind.count != value.type.count or not isinstance(value.data, list):
        return None
    if kind.element == value.type.element:
        return Value(kind, value.data)
    parts = [Value(value.type.element, part) for part in value.data]
    return Value(kind, [coerce(ev, part, kind.element, at).data for part in parts])


def coerce(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value:
    """A value as one of a type, where the language allows it without a cast.

    Raises:
        Failure: it does not.
    """
    if kind in (value.type, types.ANYTYPE):
        return value
    converted = None
    if types.is_number(kind) and types.is_number(value.type):
        converted = _number(ev, value, kind, at)
    elif value.type == types.COLOR and str(kind) == "local_task_id" and ev.unit.setup.numbers:
        converted = Value(kind, value.data)  # with @bind_task both are the same numbers
    elif value.type == types.ANONYMOUS:
        converted = _anonymous(ev, value, kind, at)
    elif isinstance(kind, types.Pointer):
        converted = _pointer(value, kind)
    elif isinstance(kind, types.FunctionType):
        converted = _function(ev, value, kind)
    elif isinstance(kind, types.Array) and isinstance(value.type, types.Array):
        converted = _array(ev, value, kind, at)
    if converted is None:
        hint = "@as(T, value) converts numbers" if types.is_number(kind) else ""
        ev.fail(at, f"expected {kind}, found {described(value)}", hint)
    return converted


def adapted(ev: Evaluator, value: Value, kind: types.Type) -> bool:
    """Whether a number can become another type without a loss."""
    if value.type == kind:
        return True
    if is_known(value) and types.is_integer(kind):
        integer = types.is_integer(value.type) or value.type == types.COMPTIME_INT
        return integer and fits(kind, value.data)
    if value.type == types.COMPTIME_INT:
        return True
    if types.is_integer(kind) and types.is_integer(value.type):
        low, high = bounds(value.type)
        return fits(kind, low) and fits(kind, high)
    floats = types.is_float(kind) and types.is_float(value.type)
    if floats:
        return types.size_of(value.type) < types.size_of(kind)
    return value.type == types.COMPTIME_FLOAT and types.is_float(kind)


def common(ev: Evaluator, left: Value, right: Value, at: Position) -> types.Type:
    """The type in which two numbers are combined."""
    if left.type == right.type:
        return left.type
    literals = (types.COMPTIME_INT, types.COMPTIME_FLOAT)
    candidates = [left.type, right.type]
    if left.type in literals and right.type in literals:
        return types.COMPTIME_FLOAT
    if left.type in literals or (is_known(left) and not is_known(right)):
        candidates.reverse()
    for kind in candidates:
        if kind not in literals and adapted(ev, left, kind) and adapted(ev, right, kind):
            return kind
    what = f"operands of types {left.type} and {right.type}"
    return ev.fail(at, what, "cast one with @as(T, value)")
