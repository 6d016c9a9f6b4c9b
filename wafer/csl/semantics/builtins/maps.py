"""``@map``: a function over the elements of descriptors."""

from wafer.csl.semantics.builtins.operations import length_of, loaded
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Label
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.unit import Descriptor
from wafer.csl.semantics.core.values import Function, MemoryPlace, Register, Value
from wafer.csl.semantics.language.calls import called
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Op, Type


def _map_lengths(ev: Evaluator, values: list[Value], at: Position) -> dict[int, int]:
    """Registers of descriptors' lengths by their place; of equal ones the first, checked alone."""
    over = {k: v for k, v in enumerate(values) if types.is_descriptor(v.type)}
    if not over:
        ev.fail(at, "@map goes over descriptors, and none is given")
    known = {v.data.length if isinstance(v.data, Descriptor) else None for v in over.values()}
    if len(known) == 1 and None not in known:
        over = {min(over): over[min(over)]}
    return {k: length_of(ev, v, at) for k, v in over.items()}


def _map(ev: Evaluator, node: tree.Builtin) -> None:
    """A loop over the elements of the descriptors; other arguments are passed as they are.

    Each descriptor ends it when its own turn comes: what was read before it in a round, or computed
    for an output without room, is lost.
    """
    function, at = ev.value(node.arguments[0]), node.at
    if not isinstance(function.data, Function):
        ev.fail(at, f"expected a function, found {described(function)}")
    code = ev.require_code(at, "what @map does")
    values = [loaded(ev, ev.value(argument), at) for argument in node.arguments[1:]]
    formals = function.type.formals if isinstance(function.type, types.FunctionType) else ()
    count = len(function.data.node.formals)
    if len(values) not in (count, count + 1):
        ev.fail(at, f"the function takes {count} argument(s), and @map gives {len(values)}")
    output = values[count] if len(values) > count else None
    lengths = _map_lengths(ev, values, at)
    registers = [
        Value(v.type, Register(ev.register(v, at))) if types.is_descriptor(v.type) else v
        for v in values
    ]
    counter, begin, after = code.constant(0), Label(), Label()
    code.here(begin)
    free, arguments = code.top, list[Value]()

    def check(place: int) -> None:
        if place in lengths:
            less = code.result(Op.LT, Type.U16, counter, lengths[place])
            code.add(Op.JUMP_UNLESS, 0, after, less)

    for k, value in enumerate(registers[:count]):
        check(k)
        kind = formals[k] if formals else types.VOID
        arguments.append(_next(ev, value, kind, counter, at))
    result = called(ev, function, arguments, at)
    if output is None and result.type != types.VOID:
        ev.fail(at, f"the function returns {result.type}, and @map has no output for it")
    if output is not None:
        check(count)
        _put(ev, registers[count], result, counter, at)
    code.top = free
    one = code.constant(1)
    code.add(Op.ADD, Type.U16, counter, counter, one)
    code.add(Op.JUMP, 0, begin)
    code.here(after)


def _next(ev: Evaluator, value: Value, kind: types.Type, counter: int, at: Position) -> Value:
    """The next element of a descriptor."""
    if not types.is_descriptor(value.type):
        return value
    machine, code = types.machine_type(kind), ev.require_code(at, "an element")
    if machine is None:
        ev.fail(at, f"@map cannot pass elements as {kind}")
    register = ev.register(value, at)
    if str(value.type) == "fabin_dsd":
        return Value(kind, Register(code.result(Op.RECEIVE, machine, register)))
    return ev.read(_element(ev, value, kind, counter, at), at)


def _element(
    ev: Evaluator, value: Value, kind: types.Type, counter: int, at: Position
) -> MemoryPlace:
    """Where an element of a descriptor in memory is."""
    code, machine = ev.require_code(at, "an element"), types.machine_type(kind)
    register = ev.register(value, at)
    if machine is None or str(value.type) != "mem1d_dsd":
        ev.fail(at, f"@map does not go over a {value.type}")
    return MemoryPlace(kind, code.result(Op.ELEMENT, machine, register, counter), 0)


def _put(ev: Evaluator, output: Value, result: Value, counter: int, at: Position) -> None:
    """Store what the function has returned."""
    code, machine = ev.require_code(at, "an element"), types.machine_type(result.type)
    if machine is None:
        ev.fail(at, f"@map cannot store a result of type {result.type}")
    if isinstance(output.type, types.Pointer):
        pointer = ev.register(output, at)
        ev.write(MemoryPlace(result.type, pointer, 0), result, at)
    elif str(output.type) == "fabout_dsd":
        code.add(Op.SEND, machine, ev.register(output, at), ev.register(result, at))
    else:
        ev.write(_element(ev, output, result.type, counter, at), result, at)


BUILTINS = {"@map": _map}
