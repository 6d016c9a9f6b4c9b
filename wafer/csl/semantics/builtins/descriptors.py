"""Descriptors: @get_dsd, what changes a descriptor, and FIFOs."""

from typing import Any

from wafer.csl.semantics.builtins.arguments import Fields, local_task, number_of
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.unit import Descriptor
from wafer.csl.semantics.core.values import KnownPlace, Reference, Register, Value, is_known
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.semantics.language.names import resolve
from wafer.csl.semantics.language.tensors import ZERO, Access, moved_by
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import NEVER_ENDS, DescriptorField as Field, Intrinsic, Op, Type
from wafer.machine.image import COLORS, NO_COLOR

INDEXED = 1 << 15


# @get_dsd


def _collapsed(access: list[tuple[Value, int]]) -> list[tuple[Value, int]]:
    """Extents and strides without variables that need no dimension of their own."""
    dimensions = list[tuple[Value, int]]()
    for extent, stride in access:
        if is_known(extent) and extent.data == 1 and len(access) > 1:
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
    ev: Evaluator, given: Fields, at: Position
) -> tuple[Value, list[tuple[Value, int]]]:
    """Pointer and dimensions of a descriptor's fields."""
    if (chosen := given.take("tensor_access")) is not None:
        access = chosen.data
        if not isinstance(access, Access):
            ev.fail(at, ".tensor_access reads |i|{n} -> A[i]")
        return access.pointer, list(zip(access.extents, access.strides, strict=True))
    if (base := given.take("base_address")) is None:
        ev.fail(at, "neither .tensor_access nor .base_address is given")
    pointer = _to_elements(ev, base, at)
    start = _integer(ev, given.take("offset") or ZERO, ".offset", at)
    extents = _listed(ev, given.take("extent"), ".extent", at)
    strides = _listed(ev, given.take("stride") or Value(types.COMPTIME_INT, 1), ".stride", at)
    if not all(map(is_known, strides)):
        ev.fail(at, ".stride is known at compile time")
    strides = [coerce(ev, stride, types.I16, at) for stride in strides]
    if len(extents) > 1:  # innermost first, and counted from where the inner ones have ended
        strides = _outermost_first(ev, extents, strides, at)
    steps = [stride.data for stride in strides]
    return moved_by(ev, pointer, start, at), list(zip(extents, steps, strict=False))


def _integer(ev: Evaluator, value: Value, name: str, at: Position) -> Value:
    if not (types.is_integer(value.type) or value.type == types.COMPTIME_INT):
        ev.fail(at, f"{name} is an integer, found {described(value)}")
    return value


def _outermost_first(
    ev: Evaluator, extents: list[Value], strides: list[Value], at: Position
) -> list[Value]:
    if len(extents) != len(strides) or not all(map(is_known, extents)):
        ev.fail(at, "several extents are known at compile time, and each has a stride")
    steps, reached = list[int](), 0
    for extent, stride in zip(reversed(extents), strides, strict=True):
        steps.append(stride.data + reached)
        reached += steps[-1] * (extent.data - 1)
    return [Value(types.COMPTIME_INT, step) for step in reversed(steps)]


def _listed(ev: Evaluator, value: Value | None, name: str, at: Position) -> list[Value]:
    """One integer or several."""
    if value is None:
        ev.fail(at, f"no {name} is given")
    several = value.type == types.ANONYMOUS and isinstance(value.data, list)
    return [_integer(ev, part, name, at) for part in (value.data if several else [value])]


def _to_elements(ev: Evaluator, value: Value, at: Position) -> Value:
    """A pointer to an array, or to one element, as one to many elements."""
    if not isinstance(value.type, types.Pointer):
        ev.fail(at, f"expected a pointer, found {described(value)}")
    target = value.type.target
    while isinstance(target, types.Array):
        target = target.element
    try:
        types.size_of(target)
    except TypeError as error:
        ev.fail(at, f"a descriptor goes over variables: {error}")
    return Value(types.Pointer(target, many=True), value.data)


def _memory(ev: Evaluator, kind: types.Plain, given: Fields, at: Position) -> Value:
    pointer, dimensions = _memory_access(ev, given, at)
    indexed = given.flag("wavelet_index_offset")
    given.take("simd_mode")
    if kind.name == "mem4d_dsd":
        return _shaped(ev, kind, pointer, dimensions, at)
    dimensions = _collapsed(dimensions)
    if len(dimensions) > 1:
        ev.fail(at, f"mem1d_dsd has one dimension, found {len(dimensions)}", "mem4d_dsd has four")
    extent, stride = dimensions[0]
    if not -128 <= stride < 128 and is_known(extent) and extent.data > 1:
        ev.fail(at, f"a stride of {stride} elements; i8 reaches from -128 to 127")
    known = Descriptor(0, 0, stride, INDEXED if indexed else 0)
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
    sizes = [coerce(ev, extent, types.U16, at).data for extent, _ in dimensions]
    strides = [stride for _, stride in dimensions]
    padded = [(1, 0)] * (4 - len(dimensions)) + list(zip(sizes, strides, strict=True))
    columns = {f"n{k}": n for k, (n, _) in enumerate(padded)}
    columns |= {f"s{k}": s for k, (_, s) in enumerate(padded)}
    known = Descriptor(0, ev.unit.tables.row("shapes", **columns))
    return _assembled(ev, kind, known, {"address": pointer}, at)


def _assembled(
    ev: Evaluator, kind: types.Type, known: Descriptor, parts: dict[str, Value], at: Position
) -> Value:
    """A descriptor from its fields; those that are not known are set by instructions."""
    unknown = {}
    for name, value in parts.items():
        if is_known(value):
            fits = coerce(ev, value, types.U16, at) if name == "length" else value
            known = known._replace(**{name: fits.data})
        else:
            unknown[name] = value
    if not unknown:
        return Value(kind, known)
    code = ev.require_code(at, "this descriptor")
    register = ev.register(Value(kind, known), at)
    for name, value in unknown.items():
        part = ev.register(value, at)
        register = code.result(Op.DSD_SET, Field[name.upper()], register, part)
    return Value(kind, Register(register))


def _fabric(ev: Evaluator, kind: types.Plain, given: Fields, at: Position) -> Value:
    sends = kind.name == "fabout_dsd"
    extent = given.take("extent") or Value(types.COMPTIME_INT, NEVER_ENDS)
    queues = given.take("input_queue"), given.take("output_queue")
    color, queue = given.take("fabric_color"), queues[1] or queues[0]
    if sends and queue is None and ev.unit.arch == "wse2":
        queue = Value(types.U16, 0)  # older programs name only the color
    if queue is not None and isinstance(queue.data, int):
        ev.unit.check_reserved("output_queue" if sends else "input_queue", queue.data, at)
    zeroed = given.inner("zero").left
    index = given.flag("wavelet_index_offset") if "wavelet_index_offset" in given.left else -1
    number = number_of(ev, color, at)
    columns: dict[str, Any] = {
        "sends": sends,
        "queue": number_of(ev, queue, at),
        "color": number if number < COLORS else NO_COLOR,
        "control": given.flag("control"),
        "advances": given.flag("advance_switch"),
        "indexed": index,
        "priority": given.priority(),
        "simd": given.simd(),
        "clears": next((k + 1 for k, v in enumerate(zeroed.values()) if v.data), 0),
        **given.on_control(),
        "transform": given.flag("control_transform"),
    }
    known = Descriptor(ev.unit.tables.row("fabrics", **columns))
    return _assembled(ev, kind, known, {"length": extent}, at)


def _get_dsd(ev: Evaluator, node: tree.Builtin) -> Value:
    kind = ev.type(node.arguments[0])
    given = Fields(ev, ev.settled(node.arguments[1]), node.at)
    makers: dict[str, Any] = dict.fromkeys(("mem1d_dsd", "mem4d_dsd"), _memory)
    makers |= dict.fromkeys(("fabin_dsd", "fabout_dsd"), _fabric)
    if str(kind) not in makers:
        ev.fail(node.at, f"@get_dsd makes {', '.join(makers)}; found {kind}")
    assert isinstance(kind, types.Plain)
    value = makers[str(kind)](ev, kind, given, node.at)
    given.end(f"{kind} has no field")
    return value


# Changes


def _changed(ev: Evaluator, node: tree.Builtin, name: str, part: Value) -> Value:
    value = ev.value(node.arguments[0])
    if str(value.type) not in _CHANGED[name]:
        kinds = " or ".join(_CHANGED[name])
        ev.fail(node.at, f"{node.name} changes a {kinds}, found {described(value)}")
    if is_known(value) and is_known(part):
        return Value(value.type, value.data._replace(**{name: part.data}))
    code = ev.require_code(node.at, "this descriptor")
    register = ev.register(value, node.at)
    other = ev.register(part, node.at)
    return Value(
        value.type, Register(code.result(Op.DSD_SET, Field[name.upper()], register, other))
    )


# Field -> descriptors that have it; one of four dimensions has its lengths in a table.
_CHANGED = {
    "length": ("mem1d_dsd", "fabin_dsd", "fabout_dsd"),
    "stride": ("mem1d_dsd",),
    "address": ("mem1d_dsd", "mem4d_dsd"),
}
_SET = {
    "@set_dsd_length": ("length", types.U16),
    "@set_dsd_stride": ("stride", types.predefined("i8")),
}


def _set_part(ev: Evaluator, node: tree.Builtin) -> Value:
    (name, kind), given = _SET[node.name], node.arguments[1]
    return _changed(ev, node, name, coerce(ev, ev.value(given), kind, given.at))


def _set_base(ev: Evaluator, node: tree.Builtin) -> Value:
    target = resolve(ev, node.arguments[1])
    if not isinstance(target, Value) and isinstance(target.type, types.Pointer):
        target = ev.read(target, node.at)
    pointer = target if isinstance(target, Value) else ev.address(target, node.at)
    return _changed(ev, node, "address", _to_elements(ev, pointer, node.arguments[1].at))


def _increment(ev: Evaluator, node: tree.Builtin) -> Value:
    at, descriptor = node.at, ev.value(node.arguments[0])
    if str(descriptor.type) not in ("mem1d_dsd", "mem4d_dsd"):
        ev.fail(at, f"{node.name} moves a descriptor of memory, found {described(descriptor)}")
    elements, size = ev.value(node.arguments[1]), _size(ev, node.arguments[2])
    if not (types.is_integer(elements.type) or elements.type == types.COMPTIME_INT):
        ev.fail(at, f"expected a number of elements, found {described(elements)}")
    address = descriptor.data.address if is_known(descriptor) else None
    if isinstance(address, Reference) and is_known(elements):
        moved = address._replace(extra=address.extra + elements.data * size)
        return Value(descriptor.type, descriptor.data._replace(address=moved))
    code = ev.require_code(at, "this descriptor")
    register = ev.register(descriptor, at)
    address = code.result(Op.DSD_GET, Field.ADDRESS, register)
    if is_known(elements):
        offset = code.constant(elements.data * size)
    else:
        offset = code.result(Op.MUL, Type.U16, ev.register(elements, at), code.constant(size))
    moved = code.result(Op.ADD, Type.U16, address, offset)
    shifted = code.result(Op.DSD_SET, Field.ADDRESS, register, moved)
    return Value(descriptor.type, Register(shifted))


def _size(ev: Evaluator, node: tree.Node) -> int:
    """Bytes of a value of the type that an expression names."""
    try:
        return types.size_of(ev.type(node))
    except TypeError as error:
        return ev.fail(node.at, str(error))


def _allocate_fifo(ev: Evaluator, node: tree.Builtin) -> Value:
    place, at = resolve(ev, node.arguments[0]), node.at
    if isinstance(place, Value) and isinstance(place.type, types.Pointer):
        place = KnownPlace(place.type.target, place.data)
    if not isinstance(place, KnownPlace) or not isinstance(place.type, types.Array):
        ev.fail(at, "the buffer of a FIFO is an array variable")
    given = Fields(ev, ev.value(node.arguments[1]) if len(node.arguments) > 1 else None, at)
    tasks = {
        f"{name}_task": local_task(ev, task, at)
        for name in ("push", "pop")
        if (task := given.take(f"activate_{name}")) is not None
    }
    ends = {
        f"{name}_ends": bool({*given.chosen(f"{name}_action")} - {"test_or_suspend", "suspend"})
        for name in ("empty", "full")
    }
    row = ev.unit.tables.row(
        "fifos",
        address=ev.unit.address(place.reference, at),
        bytes=types.size_of(place.type),
        priority=given.priority(),
        **tasks,
        **ends,
    )
    given.end("a FIFO has no field")
    return Value(types.predefined("fifo"), Descriptor(row))


def _set_fifo_length(ev: Evaluator, node: tree.Builtin) -> None:
    """The length of the next operation that reads or writes a FIFO; 0: the other operand's."""
    at, code = node.at, ev.require_code(node.at, node.name)
    fifo, length = ev.value(node.arguments[0]), ev.value(node.arguments[1])
    if str(fifo.type) != "fifo":
        ev.fail(at, f"expected a FIFO, found {described(fifo)}")
    which = code.constant(fifo.data.address << 1 | (node.name == "@set_fifo_write_length"))
    count = ev.register(coerce(ev, length, types.U16, at), at)
    code.add(Op.INTRINSIC, Intrinsic.FIFO_LENGTH, 0, which, count)


BUILTINS = {
    "@get_dsd": _get_dsd,
    **dict.fromkeys(_SET, _set_part),
    "@set_dsd_base_addr": _set_base,
    "@increment_dsd_offset": _increment,
    "@allocate_fifo": _allocate_fifo,
    **dict.fromkeys(("@set_fifo_read_length", "@set_fifo_write_length"), _set_fifo_length),
}
