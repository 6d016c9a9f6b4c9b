"""Builtins that are the same everywhere: casts, reflection, ranges, arrays, handles, modules."""

import sys
from typing import Any

from wafer.csl.semantics.builtins.arguments import fields_of
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.numbers import (
    bits_of,
    bounds,
    fits,
    function_of,
    number_of_bits,
    rounded,
    truncated,
    wrapped,
)
from wafer.csl.semantics.core.values import Range, Register, Value, copied, is_known
from wafer.csl.semantics.language.choices import condition
from wafer.csl.semantics.language.coerce import cast, coerce, narrowed, zero
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import CONFIG, Intrinsic, Op, Type

_HANDLES = {
    "get_color": ("color", 64),  # from 24 on without routes: none, or a control task's number
    "get_local_task_id": ("local_task_id", 32),
    "get_data_task_id": ("data_task_id", 64),
    "get_control_task_id": ("control_task_id", 64),
    "get_input_queue": ("input_queue", 8),
    "get_output_queue": ("output_queue", 8),
    "get_ut_id": ("ut_id", 8),
}


def _converted(ev: Evaluator, kind: types.Type, value: Value, at: Position) -> Any:
    """A known number as another type, as @as does."""
    data = value.data
    if kind == types.BOOL:
        return data != 0
    if types.is_float(kind) or kind == types.COMPTIME_FLOAT:
        return rounded(kind, data)
    try:
        number = truncated(data) if isinstance(data, float) else int(data)
    except ValueError as error:
        ev.fail(at, str(error))
    if kind == types.COMPTIME_INT:
        return number
    if isinstance(data, float) and not fits(kind, number):
        low, high = bounds(kind)
        ev.fail(at, f"{data} does not fit {kind}, which reaches from {low} to {high}")
    return wrapped(kind, number)


def _as(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, value = ev.type(node.arguments[0]), ev.value(node.arguments[1])
    numbers = lambda t: types.is_number(t) or t == types.BOOL or isinstance(t, types.Enum)
    if not (numbers(kind) and numbers(value.type)):
        return coerce(ev, value, kind, node.at)
    target = kind.base if isinstance(kind, types.Enum) else kind
    if is_known(value):
        return Value(kind, _converted(ev, target, value, node.at))
    return Value(kind, cast(ev, value, target, node.at).data)


def _bitcast(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, value, at = ev.type(node.arguments[0]), ev.value(node.arguments[1]), node.at
    if value.type == types.COMPTIME_INT and types.is_integer(kind):
        return Value(kind, wrapped(kind, value.data))
    if types.machine_type(kind) is None or types.machine_type(value.type) is None:
        ev.fail(at, f"@bitcast of {described(value)} to {kind}")
    if types.size_of(kind) != types.size_of(value.type):
        ev.fail(at, f"@bitcast between {value.type} and {kind}, which differ in size")
    if isinstance(kind, types.Pointer) or not isinstance(value.data, int | float | bool):
        return _reinterpreted(ev, kind, value, at)
    return Value(kind, number_of_bits(kind, bits_of(value.type, value.data)))


def _reinterpreted(ev: Evaluator, kind: types.Type, value: Value, at: Position) -> Value:
    """The same bits in a register; integers are brought into the form of their sign."""
    if is_known(value) and not types.is_number(kind):
        return Value(kind, value.data)
    code, target = ev.require_code(at, "this value"), types.machine_type(kind)
    register = ev.register(value, at)
    unsigned = Type[f"U{8 * types.size_of(kind)}"]  # both types have this size
    if types.is_integer(kind) and target is not None:
        register = code.result(Op.CAST, target, register, unsigned)
        return narrowed(code, kind, register)
    if types.is_integer(value.type):  # a float's or pointer's bits have no sign
        register = code.result(Op.CAST, unsigned, register, types.machine_type(value.type))
    return Value(kind, Register(register))


def _ptrcast(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, value = ev.type(node.arguments[0]), ev.value(node.arguments[1])
    if not isinstance(kind, types.Pointer):
        ev.fail(node.at, f"@ptrcast makes pointers, not {kind}")
    if not isinstance(value.type, types.Pointer) and not types.is_number(value.type):
        ev.fail(node.at, f"expected a pointer, found {described(value)}")
    return Value(kind, value.data)


def _get_int(ev: Evaluator, node: tree.Builtin) -> Value:
    value = ev.value(node.arguments[0])
    kind = value.type.base if isinstance(value.type, types.Enum) else types.U16
    if types.is_integer(value.type) or value.type == types.COMPTIME_INT:
        return value
    no_number = types.machine_type(value.type) is None or types.is_float(value.type)
    if no_number or (is_known(value) and not isinstance(value.data, int)):
        ev.fail(node.at, f"{described(value)} has no number")
    return Value(kind, value.data)


def _handle(ev: Evaluator, node: tree.Builtin) -> Value:
    name, most = _HANDLES[node.name[1:]]
    if name == "output_queue" and ev.unit.arch == "wse2":
        most = 6
    value = ev.settled(node.arguments[0])
    kinds = ("color", "input_queue")
    right = kinds[ev.unit.arch == "wse3"]
    if name == "data_task_id" and str(value.type) in kinds and str(value.type) != right:
        text = f"a data task of {ev.unit.arch} has the id of its {right}, found {described(value)}"
        ev.warn(node.at, text, '@get_data_task_id(if (@is_arch("wse3")) queue else color)')
    if is_known(value):
        if not isinstance(value.data, int):
            ev.fail(node.at, f"{node.name} takes a number, found {described(value)}")
        if not 0 <= value.data < most:
            ev.fail(node.at, f"{node.name}({value.data}): ids go from 0 to {most - 1}")
    return Value(types.predefined(name), value.data)


def _assert(ev: Evaluator, node: tree.Builtin) -> None:
    value = condition(ev, node.arguments[0])
    if is_known(value) and value.data:
        return
    code = ev.require_code(node.at, "this assertion")
    after, text = Label(), f"@assert failed at {node.at}"
    code.add(Op.JUMP_IF, 0, after, ev.register(value, node.at))
    code.add(Op.FAULT, 0, ev.unit.message(text))
    code.here(after)


def _comptime_assert(ev: Evaluator, node: tree.Builtin) -> None:
    value = condition(ev.at_compile_time(), node.arguments[0])
    if not value.data:
        given = ev.known(node.arguments[1]).data if len(node.arguments) > 1 else "it does not hold"
        ev.fail(node.at, f"@comptime_assert: {given}")


def _print(ev: Evaluator, node: tree.Builtin) -> None:
    values = [ev.at_compile_time().value(argument) for argument in node.arguments]
    sys.stderr.write(f"{node.at}: {' '.join(str(value.data) for value in values)}\n")


def _range(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    bounds = [ev.value(argument) for argument in node.arguments[1:]]
    if not types.is_integer(kind) and kind != types.COMPTIME_INT:
        ev.fail(node.at, f"@range counts in an integer type, not {kind}")
    if len(bounds) == 3:
        start, stop, step = bounds
    else:
        start = bounds[0] if len(bounds) == 2 else Value(types.COMPTIME_INT, 0)
        stop, step = bounds[-1], Value(types.COMPTIME_INT, 1)
    start, stop = (_counted(ev, value, kind, node.at) for value in (start, stop))
    if is_known(step) and not step.data:
        ev.fail(node.at, "@range with a step of 0")
    if is_known(step):
        step = Value(kind, step.data)
    return Value(types.RANGE, Range(kind, start, stop, step))


def _counted(ev: Evaluator, value: Value, kind: types.Type, at: Position) -> Value:
    """A bound as a loop's type; one of another integer type is converted."""
    if types.is_integer(value.type) and value.type != kind and not is_known(value):
        return cast(ev, value, kind, at)
    if isinstance(value.data, int) and value.data == -1:
        return Value(kind, -1)  # where a loop that counts down to 0 ends
    return coerce(ev, value, kind, at)


def _range_part(ev: Evaluator, node: tree.Builtin) -> Value:
    value = ev.value(node.arguments[0])
    if not isinstance(value.data, Range):
        ev.fail(node.at, f"expected a range, found {described(value)}")
    return getattr(value.data, node.name.removeprefix("@range_"))


def _zeros(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    return Value(kind, zero(ev, kind, node.at))


def _constants(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    if not isinstance(kind, types.Array):
        ev.fail(node.at, f"@constants makes arrays, not {kind}")
    value = coerce(ev, ev.known(node.arguments[1]), kind.element, node.at)
    ev.count_elements(node.at, types.count_of(kind))
    return Value(kind, [copied(value.data) for _ in range(kind.count)])


def _array_fact(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    if not isinstance(kind, types.Array):
        ev.fail(node.at, f"{node.name} is of array types, not {kind}")
    match node.name:
        case "@element_type":
            return Value(types.TYPE, kind.element)
        case "@element_count":
            return Value(types.COMPTIME_INT, kind.count)
        case "@rank":
            return Value(types.COMPTIME_INT, len(kind.shape))
    return Value(types.Array((len(kind.shape),), types.U16), list(kind.shape))


def _has_field(ev: Evaluator, node: tree.Builtin) -> Value:
    value, name = ev.value(node.arguments[0]), ev.text(node.arguments[1])
    if value.type == types.MODULE:
        return Value(types.BOOL, name in value.data.declarations)
    kind = value.data if value.type == types.TYPE else value.type
    known = dict(kind.fields) if isinstance(kind, types.Struct) else value.data
    return Value(types.BOOL, isinstance(known, dict) and name in known)


def _concat_structs(ev: Evaluator, node: tree.Builtin) -> Value:
    values = [ev.value(argument) for argument in node.arguments]
    if all(value.type == types.ANONYMOUS and isinstance(value.data, list) for value in values):
        joined = Value(types.ANONYMOUS, [*values[0].data, *values[1].data])
        return ev.counted(joined, node.at)
    first, second = (fields_of(ev, value, node.at) for value in values)
    if twice := first.keys() & second.keys():
        ev.fail(node.at, f"both structs have a field '{min(twice)}'")
    return ev.counted(Value(types.ANONYMOUS, first | second), node.at)


def _get_string_from_byte(ev: Evaluator, node: tree.Builtin) -> Value:
    byte = ev.known(node.arguments[0]).data
    if not (isinstance(byte, int) and 0 <= byte < 256):
        ev.fail(node.at, f"a byte is a number from 0 to 255, found {byte}")
    return Value(types.STRING, bytes([byte]).decode(errors="surrogateescape"))


def _get_array(ev: Evaluator, node: tree.Builtin) -> Value:
    content = list(ev.text(node.arguments[0]).encode(errors="surrogateescape"))
    return Value(types.Array((len(content),), types.predefined("u8")), content)


def _get_rectangle(ev: Evaluator, node: tree.Builtin) -> Value:
    rectangle, fabric = ev.unit.rectangle, ev.unit.fabric
    if rectangle is None:
        ev.fail(node.at, "@set_rectangle has not been called yet")
    pair = lambda numbers: Value(
        types.ANONYMOUS,
        {k: Value(types.U16, n) for k, n in zip(("width", "height"), numbers, strict=True)},
    )
    whole = {
        "fabric": pair(fabric.dims or fabric.around(rectangle)),
        "offsets": pair(fabric.offsets),
    }
    return Value(types.ANONYMOUS, pair(rectangle).data | whole)


_FUNCTIONS = frozenset(list(Intrinsic)[: Intrinsic.CEIL + 1])
_TYPED = _FUNCTIONS | {Intrinsic.PRINT}


def _machine(
    ev: Evaluator, result: types.Type, intrinsic: Intrinsic, values: list[Value], at: Position
) -> Value:
    code = ev.require_code(at, f"what {intrinsic.name} does")
    registers = [ev.register(value, at) for value in values]
    if intrinsic in _TYPED:  # says of which type its argument is
        registers.append(int(types.machine_type(values[0].type) or 0))
    register = code.result(Op.INTRINSIC, intrinsic, *[*registers, 0, 0][:2])
    return Value(result, Register(register) if result != types.VOID else None)


def _intrinsic(ev: Evaluator, node: tree.Builtin) -> Value:
    """``@intrinsic(T, "NAME", a, b)``, of library files alone."""
    if not ev.module.library:
        ev.fail(node.at, "@intrinsic is for the library's own files")
    result, name = ev.type(node.arguments[0]), ev.text(node.arguments[1])
    values = [_argument(ev, argument) for argument in node.arguments[2:]]
    intrinsic = Intrinsic[name]
    if intrinsic in _FUNCTIONS:
        kind = values[0].type
        if not types.is_float(kind) and kind != types.COMPTIME_FLOAT:
            ev.fail(node.at, f"{name} is of f16 and f32, found {described(values[0])}")
        if ev.code is None and is_known(values[0]):
            return Value(result, function_of(intrinsic, result, values[0].data))
    return _machine(ev, result, intrinsic, values, node.at)


def _argument(ev: Evaluator, node: tree.Node) -> Value:
    value = ev.value(node)
    return coerce(ev, value, types.U16, node.at) if value.type == types.COMPTIME_INT else value


def _config(ev: Evaluator, node: tree.Builtin) -> Value | None:
    """Read a configuration register, or set it to a value."""
    address, *given = (coerce(ev, ev.value(a), types.U16, node.at) for a in node.arguments)
    if given and ev.code is None:
        ev = ev.at_start()
    code = ev.require_code(node.at, "a configuration register")
    registers = [ev.register(value, node.at) for value in (address, *given)]
    if not given:
        return Value(types.U16, Register(code.result(Op.CONFIG_GET, 0, *registers)))
    code.add(Op.CONFIG_SET, 0, *registers)
    return None


def _set_active_prng(ev: Evaluator, node: tree.Builtin) -> None:
    """Choose the generator of random numbers, modulo how many there are."""
    code = ev.require_code(node.at, "the generator of random numbers")
    number = coerce(ev, ev.value(node.arguments[0]), types.U16, node.at)
    place = code.constant(CONFIG["generator"])
    code.add(Op.CONFIG_SET, 0, place, ev.register(number, node.at))


def _strcat(ev: Evaluator, node: tree.Builtin) -> Value:
    text = "".join(ev.text(part) for part in node.arguments)
    ev.count_elements(node.at, len(text))
    return Value(types.STRING, text)


BUILTINS = {
    "@strcat": _strcat,
    "@is_comptime": lambda ev, node: Value(
        types.BOOL, is_known(ev.aside().value(node.arguments[0]))
    ),
    "@is_arch": lambda ev, node: Value(types.BOOL, ev.text(node.arguments[0]) == ev.unit.arch),
    "@as": _as,
    "@bitcast": _bitcast,
    "@ptrcast": _ptrcast,
    **dict.fromkeys(("@get_int", "@get_color_id", "@get_filter_id"), _get_int),
    **{f"@{name}": _handle for name in _HANDLES},
    "@assert": _assert,
    "@comptime_assert": _comptime_assert,
    "@comptime_print": _print,
    "@range": _range,
    **dict.fromkeys(("@range_start", "@range_stop", "@range_step"), _range_part),
    "@zeros": _zeros,
    "@constants": _constants,
    "@type_of": lambda ev, node: Value(types.TYPE, ev.aside().value(node.arguments[0]).type),
    "@is_same_type": lambda ev, node: Value(
        types.BOOL, ev.type(node.arguments[0]) == ev.type(node.arguments[1])
    ),
    **dict.fromkeys(("@element_type", "@element_count", "@rank", "@dimensions"), _array_fact),
    "@has_field": _has_field,
    "@field": lambda ev, node: ev.value(
        tree.Member(node.at, node.arguments[0], ev.text(node.arguments[1]))
    ),
    "@concat_structs": _concat_structs,
    "@strlen": lambda ev, node: Value(types.COMPTIME_INT, len(ev.text(node.arguments[0]))),
    "@get_array": _get_array,
    "@get_string_from_byte": _get_string_from_byte,
    "@get_rectangle": _get_rectangle,
    "@set_active_prng": _set_active_prng,
    "@random16": lambda ev, node: _machine(ev, types.U16, Intrinsic.RANDOM16, [], node.at),
    "@intrinsic": _intrinsic,
    **{f"@{verb}_config{end}": _config for verb in ("get", "set") for end in ("", "_unchecked")},
    "@fp16": lambda ev, node: Value(types.TYPE, types.named(ev.unit.half)),
}
