"""Descriptors: tensor accesses, @get_dsd and what changes a descriptor."""

from typing import Any, NamedTuple

from wafer.csl.machine.codes import Action, Descriptor as Field, Gate, Op
from wafer.csl.meaning import types
from wafer.csl.meaning.coerce import coerce
from wafer.csl.meaning.evaluator import Evaluator, described
from wafer.csl.meaning.names import array_of, resolve
from wafer.csl.meaning.operators import combined
from wafer.csl.meaning.unit import Descriptor
from wafer.csl.meaning.values import (
    Function,
    KnownPlace,
    Reference,
    Register,
    Value,
    is_known,
)
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position

__all__ = ["BUILTINS", "Access", "action", "fields_of", "tensor_access"]

ACCESS = types.Plain("tensor access")
NEVER_ENDS = 0x7FFF
INDEXED = 1 << 15


class Access(NamedTuple):
    """``|i, j|{m, n} -> A[…]``.

    Attributes:
        pointer: to the element where all variables are 0.
        start: elements before it in the array; a Value.
        extents: of the variables, outermost first; Values.
        strides: elements that one step of each variable goes; numbers.
    """

    pointer: Value
    start: Value
    extents: tuple[Value, ...]
    strides: tuple[int, ...]


# An index as a sum: a value, and what each variable is multiplied with.
Affine = tuple[Value, dict[str, int]]
_ZERO = Value(types.COMPTIME_INT, 0)


def _affine(ev: Evaluator, node: tree.Node, variables: tuple[str, ...]) -> Affine:
    """An index in terms of the access's variables."""
    if isinstance(node, tree.Name) and node.id in variables:
        return _ZERO, {node.id: 1}
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
    start, strides, row = _ZERO, dict.fromkeys(node.variables, 0), 1
    for (value, factors), extent in reversed(list(zip(indices, kind.shape, strict=True))):
        term = combined(ev, "*", value, Value(types.COMPTIME_INT, row), node.at)
        start = combined(ev, "+", start, term, node.at)
        for name, factor in factors.items():
            strides[name] += factor * row
        row *= extent
    pointer = ev.address(base, node.at)
    pointer = Value(types.Pointer(kind.element, many=True), pointer.data)
    pointer = _moved(ev, pointer, start, node.at)
    return Value(ACCESS, Access(pointer, start, extents, tuple(strides.values())))


def _moved(ev: Evaluator, pointer: Value, elements: Value, at: Position) -> Value:
    """A pointer some elements further; arrays' bounds do not matter."""
    kind = pointer.type
    assert isinstance(kind, types.Pointer)
    size = types.size_of(kind.target)
    if is_known(elements) and isinstance(pointer.data, Reference):
        extra = pointer.data.extra + elements.data * size
        return Value(kind, pointer.data._replace(extra=extra))
    code = ev.running(at, "this address")
    u16 = types.machine_type(types.U16)
    assert u16 is not None
    if is_known(elements):
        if not elements.data:
            return pointer
        offset = code.constant(elements.data * size)
    else:
        offset = code.result(Op.MUL, u16, ev.register(elements, at), code.constant(size))
    return Value(kind, Register(code.result(Op.ADD, u16, ev.register(pointer, at), offset)))


def fields_of(ev: Evaluator, value: Value, at: Position) -> dict[str, Value]:
    """The fields of a struct, named or not."""
    if value.type == types.ANONYMOUS and isinstance(value.data, dict):
        return dict(value.data)
    if value.type == types.ANONYMOUS and not value.data:
        return {}
    if isinstance(value.type, types.Struct) and isinstance(value.data, dict):
        kinds = dict(value.type.fields)
        return {name: Value(kinds[name], data) for name, data in value.data.items()}
    return ev.fail(at, f"expected .{{…}} with fields, found {described(value)}")


# @get_dsd


def _collapsed(access: Access) -> list[tuple[Value, int]]:
    """Extents and strides without variables that need no dimension of their own."""
    dimensions = list[tuple[Value, int]]()
    for extent, stride in zip(access.extents, access.strides, strict=True):
        if is_known(extent) and extent.data == 1 and len(access.extents) > 1:
            continue
        if dimensions and is_known(extent):
            outer, outer_stride = dimensions[-1]
            if outer_stride == stride * extent.data and is_known(outer):
                whole = Value(types.COMPTIME_INT, outer.data * extent.data)
                dimensions[-1] = (whole, stride)
                continue
        dimensions.append((extent, stride))
    return dimensions or [(Value(types.COMPTIME_INT, 1), 0)]


def _memory_access(
    ev: Evaluator, given: dict[str, Value], at: Position
) -> tuple[Value, Value, list[tuple[Value, int]]]:
    """Pointer, words before it, and dimensions of a descriptor's fields."""
    if "tensor_access" in given:
        access = given.pop("tensor_access").data
        if not isinstance(access, Access):
            ev.fail(at, ".tensor_access reads |i|{n} -> A[i]")
        return access.pointer, access.start, list(zip(access.extents, access.strides, strict=True))
    if "base_address" not in given:
        ev.fail(at, "neither .tensor_access nor .base_address is given")
    pointer = _to_elements(ev, given.pop("base_address"), at)
    start = given.pop("offset", _ZERO)
    extents = _listed(ev, given.pop("extent", None), at)
    strides = _listed(ev, given.pop("stride", Value(types.COMPTIME_INT, 1)), at)
    if len(extents) > 1:  # innermost first, and counted from where the inner ones have ended
        strides = _outermost_first(extents, strides)
    steps = [stride.data for stride in strides]
    return _moved(ev, pointer, start, at), start, list(zip(extents, steps, strict=False))


def _outermost_first(extents: list[Value], strides: list[Value]) -> list[Value]:
    steps, reached = list[int](), 0
    for extent, stride in zip(reversed(extents), strides, strict=True):
        steps.append(stride.data + reached)
        reached += steps[-1] * (extent.data - 1)
    return [Value(types.COMPTIME_INT, step) for step in reversed(steps)]


def _listed(ev: Evaluator, value: Value | None, at: Position) -> list[Value]:
    if value is None:
        ev.fail(at, "no .extent is given")
    return list(value.data) if value.type == types.ANONYMOUS else [value]


def _to_elements(ev: Evaluator, value: Value, at: Position) -> Value:
    """A pointer to an array, or to one element, as one to many elements."""
    if not isinstance(value.type, types.Pointer):
        ev.fail(at, f"expected a pointer, found {described(value)}")
    target = value.type.target
    while isinstance(target, types.Array):
        target = target.element
    return Value(types.Pointer(target, many=True), value.data)


def _flag(given: dict[str, Value], name: str) -> bool:
    return bool(given.pop(name).data) if name in given else False


def _memory(ev: Evaluator, kind: types.Plain, given: dict[str, Value], at: Position) -> Value:
    pointer, start, dimensions = _memory_access(ev, given, at)
    indexed = _flag(given, "wavelet_index_offset")
    given.pop("simd_mode", None)
    if kind.name == "mem4d_dsd":
        return _shaped(ev, kind, pointer, dimensions, at)
    access = Access(pointer, start, *map(tuple, zip(*dimensions, strict=True)))
    dimensions = _collapsed(access)
    if len(dimensions) > 1:
        ev.fail(at, f"mem1d_dsd has one dimension, found {len(dimensions)}", "mem4d_dsd has four")
    (extent, stride), index = dimensions[0], 0
    if not -128 <= stride < 128 and is_known(extent) and extent.data > 1:
        ev.fail(at, f"a stride of {stride} elements; i8 reaches from -128 to 127")
    if indexed:
        assert isinstance(pointer.type, types.Pointer)
        element = pointer.type.target
        words = start.data * max(types.size_of(element) // 2, 1) if is_known(start) else 0
        index = INDEXED | words
    known = Descriptor(0, 0, stride, index)
    return _assembled(ev, kind, known, {"address": pointer, "length": extent}, at)


def _shaped(
    ev: Evaluator,
    kind: types.Type,
    pointer: Value,
    dimensions: list[tuple[Value, int]],
    at: Position,
) -> Value:
    if len(dimensions) > 4:
        ev.fail(at, f"mem4d_dsd has at most four dimensions, found {len(dimensions)}")
    if not all(is_known(extent) for extent, _ in dimensions):
        ev.fail(at, "the extents of a mem4d_dsd are known at compile time")
    padded = [(1, 0)] * (4 - len(dimensions)) + [(e.data, s) for e, s in dimensions]
    columns = {f"n{k}": n for k, (n, _) in enumerate(padded)}
    columns |= {f"s{k}": s for k, (_, s) in enumerate(padded)}
    known = Descriptor(0, ev.unit.row("shapes", **columns))
    return _assembled(ev, kind, known, {"address": pointer}, at)


def _assembled(
    ev: Evaluator, kind: types.Type, known: Descriptor, parts: dict[str, Value], at: Position
) -> Value:
    """A descriptor from its fields; those that are not known are set by instructions."""
    unknown = {}
    for name, value in parts.items():
        if is_known(value):
            known = known._replace(**{name: value.data})
        else:
            unknown[name] = value
    if not unknown:
        return Value(kind, known)
    code = ev.running(at, "this descriptor")
    register = ev.register(Value(kind, known), at)
    for name, value in unknown.items():
        part = ev.register(value, at)
        register = code.result(Op.DSD_SET, Field[name.upper()], register, part)
    return Value(kind, Register(register))


def action(ev: Evaluator, given: dict[str, Value], at: Position) -> tuple[int, int]:
    """The Action of .activate or .unblock, and the id that it is for."""
    if "activate" in given and "unblock" in given:
        ev.fail(at, "an operation has .activate or .unblock, not both")
    if "activate" in given:
        return Action.ACTIVATE, local_task(ev, given.pop("activate"), at)
    if "unblock" in given:
        gate, number = gated(ev, given.pop("unblock"), at)
        return Action.UNBLOCK + gate, number
    return Action.NONE, -1


def local_task(ev: Evaluator, value: Value, at: Position) -> int:
    """The id of a local task, given as one or by the task's name."""
    gate, number = gated(ev, value, at)
    if gate != Gate.LOCAL:
        ev.fail(at, f"expected a local task, found {described(value)}")
    return number


_GATES = {
    "local_task_id": Gate.LOCAL,
    "data_task_id": Gate.DATA,
    "color": Gate.COLOR,
    "input_queue": Gate.INPUT_QUEUE,
    "ut_id": Gate.THREAD,
}


def gated(ev: Evaluator, value: Value, at: Position) -> tuple[int, int]:
    """What can be blocked: its Gate and id."""
    if isinstance(value.data, Function):
        bound = ev.unit.tasks.get((value.data.module, value.data.node.name))
        if bound is None:
            ev.fail(at, f"the task '{value.data.node.name}' is bound to no id", "@bind_local_task")
        return bound
    gate = _GATES.get(str(value.type))
    if gate is None or not isinstance(value.data, int):
        ev.fail(
            at, f"expected a task, colour or queue known at compile time, found {described(value)}"
        )
    return gate, value.data


def on_control(ev: Evaluator, given: dict[str, Value], at: Position) -> dict[str, int]:
    """Columns of what a control wavelet does."""
    if "on_control" not in given:
        return {"control_ends": 0, "control_action": Action.NONE, "control_target": -1}
    rules = fields_of(ev, given.pop("on_control"), at)
    done, target = action(ev, rules, at)
    ends = _flag(rules, "terminate") or done != Action.NONE
    return {"control_ends": ends, "control_action": done, "control_target": target}


_PRIORITIES = {"low": 0, "medium": 1, "high": 2}


def priority(ev: Evaluator, given: dict[str, Value], at: Position) -> int:
    """0 to 2 for .priority = .{.low = true}; -1 where it is not given."""
    if "priority" not in given:
        return -1
    chosen = [
        name for name, value in fields_of(ev, given.pop("priority"), at).items() if value.data
    ]
    return _PRIORITIES[chosen[0]] if chosen and chosen[0] in _PRIORITIES else -1


def simd(ev: Evaluator, given: dict[str, Value], at: Position) -> int:
    """Whether .simd_mode asks for more than one value at a time; -1 where it is not given."""
    if "simd_mode" not in given:
        return -1
    modes = fields_of(ev, given.pop("simd_mode"), at)
    return int(any(name != "simd_off" and value.data for name, value in modes.items()))


def _id(ev: Evaluator, value: Value | None, at: Position) -> int:
    """The number of a colour or queue; -1 where none is given."""
    if value is None:
        return -1
    if not isinstance(value.data, int):
        ev.fail(at, f"expected a colour or queue, found {described(value)}")
    return value.data


def _fabric(ev: Evaluator, kind: types.Plain, given: dict[str, Value], at: Position) -> Value:
    sends = kind.name == "fabout_dsd"
    extent = given.pop("extent", Value(types.COMPTIME_INT, NEVER_ENDS))
    color, queue = given.pop("fabric_color", None), None
    for name in ("input_queue", "output_queue"):
        queue = given.pop(name, queue)
    zeroed = fields_of(ev, given.pop("zero"), at) if "zero" in given else {}
    given.pop("control_transform", None)
    columns: dict[str, Any] = {
        "sends": sends,
        "queue": _id(ev, queue, at),
        "color": _id(ev, color, at),
        "control": _flag(given, "control"),
        "advances": _flag(given, "advance_switch"),
        "indexed": given.pop("wavelet_index_offset").data
        if "wavelet_index_offset" in given
        else -1,
        "priority": priority(ev, given, at),
        "simd": simd(ev, given, at),
        "clears": next((k + 1 for k, v in enumerate(zeroed.values()) if v.data), 0),
        **on_control(ev, given, at),
    }
    known = Descriptor(ev.unit.row("fabrics", **columns))
    return _assembled(ev, kind, known, {"length": extent}, at)


def _get_dsd(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    given = fields_of(ev, ev.value(node.arguments[1]), node.at)
    makers = {
        "mem1d_dsd": _memory,
        "mem4d_dsd": _memory,
        "fabin_dsd": _fabric,
        "fabout_dsd": _fabric,
    }
    if str(kind) not in makers:
        ev.fail(node.at, f"@get_dsd makes {', '.join(makers)}; found {kind}")
    assert isinstance(kind, types.Plain)
    value = makers[str(kind)](ev, kind, given, node.at)
    if given:
        ev.fail(node.at, f"{kind} has no field '{next(iter(given))}'")
    return value


# Changes


def _changed(ev: Evaluator, node: tree.Builtin, name: str, part: Value) -> Value:
    value = ev.value(node.arguments[0])
    if not types.is_descriptor(value.type):
        ev.fail(node.at, f"{node.name} changes a descriptor, found {described(value)}")
    if is_known(value) and is_known(part):
        return Value(value.type, value.data._replace(**{name: part.data}))
    code = ev.running(node.at, "this descriptor")
    register = ev.register(value, node.at)
    other = ev.register(part, node.at)
    return Value(
        value.type, Register(code.result(Op.DSD_SET, Field[name.upper()], register, other))
    )


def _set_length(ev: Evaluator, node: tree.Builtin) -> Value:
    length = coerce(ev, ev.value(node.arguments[1]), types.U16, node.arguments[1].at)
    return _changed(ev, node, "length", length)


def _set_stride(ev: Evaluator, node: tree.Builtin) -> Value:
    stride = coerce(ev, ev.value(node.arguments[1]), types.integer("i8"), node.arguments[1].at)
    return _changed(ev, node, "stride", stride)


def _set_base(ev: Evaluator, node: tree.Builtin) -> Value:
    target = resolve(ev, node.arguments[1])
    if not isinstance(target, Value) and isinstance(target.type, types.Pointer):
        target = ev.read(target, node.at)
    pointer = target if isinstance(target, Value) else ev.address(target, node.at)
    return _changed(ev, node, "address", _to_elements(ev, pointer, node.arguments[1].at))


def _increment(ev: Evaluator, node: tree.Builtin) -> Value:
    descriptor, elements = ev.value(node.arguments[0]), ev.value(node.arguments[1])
    size = types.size_of(ev.type(node.arguments[2]))
    at = node.at
    if is_known(descriptor) and is_known(elements):
        address = descriptor.data.address
        assert isinstance(address, Reference)
        moved = address._replace(extra=address.extra + elements.data * size)
        return Value(descriptor.type, descriptor.data._replace(address=moved))
    code, u16 = ev.running(at, "this descriptor"), types.machine_type(types.U16)
    assert u16 is not None
    register = ev.register(descriptor, at)
    address = code.result(Op.DSD_GET, Field.ADDRESS, register)
    if is_known(elements):
        offset = code.constant(elements.data * size)
    else:
        offset = code.result(Op.MUL, u16, ev.register(elements, at), code.constant(size))
    moved = code.result(Op.ADD, u16, address, offset)
    shifted = code.result(Op.DSD_SET, Field.ADDRESS, register, moved)
    return Value(descriptor.type, Register(shifted))


def _allocate_fifo(ev: Evaluator, node: tree.Builtin) -> Value:
    place, at = resolve(ev, node.arguments[0]), node.at
    if isinstance(place, Value) and isinstance(place.type, types.Pointer):
        place = KnownPlace(place.type.target, place.data)
    if not isinstance(place, KnownPlace) or not isinstance(place.type, types.Array):
        ev.fail(at, "the buffer of a FIFO is an array variable")
    given = fields_of(ev, ev.value(node.arguments[1]), at) if len(node.arguments) > 1 else {}
    tasks = {
        f"{name}_task": local_task(ev, given.pop(f"activate_{name}"), at)
        for name in ("push", "pop")
        if f"activate_{name}" in given
    }
    ends = {
        f"{name}_ends": any(
            chosen not in ("test_or_suspend", "suspend") and value.data
            for chosen, value in fields_of(ev, given.pop(f"{name}_action"), at).items()
        )
        if f"{name}_action" in given
        else False
        for name in ("empty", "full")
    }
    row = ev.unit.row(
        "fifos",
        address=ev.unit.address(place.reference, at),
        bytes=types.size_of(place.type),
        priority=priority(ev, given, at),
        **tasks,
        **ends,
    )
    if given:
        ev.fail(at, f"a FIFO has no field '{next(iter(given))}'")
    return Value(types.named("fifo") or types.VOID, Descriptor(row))


BUILTINS = {
    "@get_dsd": _get_dsd,
    "@set_dsd_length": _set_length,
    "@set_dsd_stride": _set_stride,
    "@set_dsd_base_addr": _set_base,
    "@increment_dsd_offset": _increment,
    "@allocate_fifo": _allocate_fifo,
}
