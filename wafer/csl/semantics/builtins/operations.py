"""Operations on descriptors, and explicit DSRs."""

import math
from collections.abc import Sequence
from typing import Any

from wafer.csl.semantics.builtins.arguments import Fields
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.unit import Descriptor
from wafer.csl.semantics.core.values import (
    MemoryPlace,
    Reference,
    Register,
    Value,
    is_known,
)
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import NEVER_ENDS, DescriptorField as Field, DsdOp, Op, Operand
from wafer.machine.image import COLUMNS

_F16, _F32, _I16, _U16, _U32 = map(types.predefined, ("f16", "f32", "i16", "u16", "u32"))
_DESCRIPTORS = {
    "mem1d_dsd": Operand.MEMORY,
    "mem4d_dsd": Operand.SHAPED,
    "fabin_dsd": Operand.FABRIC,
    "fabout_dsd": Operand.FABRIC,
}
_MOST = 64  # ids of any kind
_DSRS = {"dsr_dest": 0, "dsr_src0": 1, "dsr_src1": 2}

# Operands after the destination, the type of a scalar in each place.
_FORMS: dict[str, tuple[types.Type | None, ...]] = {
    **dict.fromkeys(("fadds", "fsubs", "fmuls", "fmaxs"), (_F32, _F32)),
    **dict.fromkeys(("faddh", "fsubh", "fmulh", "fmaxh"), (_F16, _F16)),
    "faddhs": (_F16, _F32),
    "fmacs": (_F32, _F32, _F32),
    "fmach": (_F16, _F16, _F16),
    "fmachs": (_F32, _F16, _F16),
    **dict.fromkeys(("fmovs", "fnegs", "fabss", "fnorms", "fs2h", "fs2xp16"), (_F32,)),
    **dict.fromkeys(("fmovh", "fnegh", "fabsh", "fnormh", "fh2s", "fh2xp16"), (_F16,)),
    **dict.fromkeys(("mov16", "clz", "ctz", "popcnt", "xp162fs", "xp162fh"), (_U16,)),
    "mov32": (_U32,),
    **dict.fromkeys(("add16", "addc16", "sub16", "and16", "or16", "xor16"), (_U16, _U16)),
    **dict.fromkeys(("sll16", "slr16", "sar16"), (_U16, _U16)),
    "fscales": (_F32, _I16),
    "fscaleh": (_F16, _I16),
}

# Bytes of a result's element, where they are not those of the first source.
_RESULTS = {"faddhs": 4, "fh2s": 4, "xp162fs": 4, "fs2h": 2, "fs2xp16": 2}


def _operand(
    ev: Evaluator, value: Value, scalar: types.Type | None, at: Position, *, moves: bool = False
) -> tuple[int, Value | None]:
    """The kind of an operand and what its register holds."""
    kind, name = value.type, str(value.type)
    if name in _DESCRIPTORS:
        return _DESCRIPTORS[name], value
    if name == "fifo":
        return Operand.FIFO, Value(types.U16, value.data.address)
    if name in _DSRS:
        return Operand.DSR, Value(types.U16, _DSRS[name] << 8 | value.data)
    if isinstance(kind, types.Pointer):
        return Operand.POINTER, value
    if scalar is None or not types.is_number(kind):
        ev.fail(at, f"this is no operand: {described(value)}")
    return Operand.SCALAR, _scalar(ev, value, scalar, at, moves=moves)


def _scalar(ev: Evaluator, value: Value, kind: types.Type, at: Position, *, moves: bool) -> Value:
    """A number as an operation reads it; moves take floats of the right size, bit by bit."""
    if types.is_integer(kind) and types.is_float(value.type):
        if moves and types.size_of(value.type) == types.size_of(kind):
            return value
        ev.fail(at, f"expected {kind}, found {described(value)}", "convert it by @as or @bitcast")
    if not types.is_integer(kind) or not (
        types.is_integer(value.type) or value.type == types.COMPTIME_INT
    ):
        return coerce(ev, value, kind, at)
    if not is_known(value):
        return value
    bits = types.size_of(kind) * 8
    if not -(1 << bits - 1) <= value.data < 1 << bits:
        ev.fail(at, f"expected a number of {bits} bits, found {value.data:,}")
    return Value(kind, value.data % (1 << bits))


def _config(ev: Evaluator, given: Fields, at: Position) -> dict[str, Any]:
    """The columns of an operation's or DSR's last argument."""
    action, target = given.action()
    columns: dict[str, Any] = {"action": action, "target": target, **given.on_control()}
    columns |= {"priority": given.priority(), "simd": given.simd()}
    columns["asynchronous"] = False
    columns["thread"] = given.number("ut_id", 0, 7) if "ut_id" in given.left else -1
    options = ("async", "asynchronous"), *((same, same) for same in ("save_address", "single_step"))
    for name, column in options:
        if (value := given.take(name)) is not None:
            columns[column] = value.data
    given.end("an operation has no option")
    for name, column in columns.items():
        if not isinstance(column, int) or not -1 <= column < _MOST:
            ev.fail(at, f".{name} is a number or a bool known at compile time, found {column}")
    return columns


def _accumulate(
    ev: Evaluator,
    columns: dict[str, Any],
    operands: list[Value | None],
    forms: tuple[types.Type | None, ...],
    at: Position,
) -> None:
    """With a pointer as destination a scalar is the accumulator, read anew for each element."""
    if columns["dest"] != Operand.POINTER or len(forms) != 3:
        return
    pointer = operands[0]
    assert pointer is not None
    for number, place in enumerate(("src0", "src1"), 1):
        scalar, kind = operands[number], forms[number]
        if columns[place] == Operand.SCALAR and scalar is not None and kind is not None:
            ev.write(MemoryPlace(kind, ev.register(pointer, at), 0), scalar, at)
            columns[place], operands[number] = Operand.POINTER, pointer
            return


_PLACES = ("dest", "src0", "src1", "scalar")


def _check_factor(ev: Evaluator, node: tree.Builtin, columns: dict[str, Any]) -> None:
    """Refuse a product and sum without a number as factor, and one into a pointer.

    The vendor's page of builtins has (dest_dsd, src_dsd1, src_dsd2, value) alone: no sum is kept.
    """
    hint = "a sum of products: multiply into an array by @fmuls, then @fadds(&sum, sum, products)"
    if "scalar" not in columns:
        return
    if columns["scalar"] != Operand.SCALAR:
        ev.fail(node.arguments[3].at, f"the last operand of {node.name} is a number", hint)
    if columns["dest"] == Operand.POINTER:
        ev.fail(node.arguments[0].at, f"the destination of {node.name} is no pointer", hint)


def _operate(ev: Evaluator, node: tree.Builtin) -> Value:
    name, at = node.name[1:], node.at
    half = types.predefined(ev.unit.half)
    forms = (None, *(half if form is _F16 else form for form in _FORMS[name]))
    arguments = list(node.arguments[: len(forms)])
    values = [ev.value(argument) for argument in arguments]
    config = ev.settled(node.arguments[-1]) if len(node.arguments) > len(forms) else None
    if len(values) < len(forms):
        ev.fail(at, f"{node.name} takes {len(forms)} operands, found {len(values)}")
    ev.require_code(at, f"what {node.name} does")
    if name == "faddhs" and isinstance(values[0].type, types.Pointer):  # (f32_pointer, f32, halves)
        values[1:], arguments[1:] = values[:0:-1], arguments[:0:-1]
    given = Fields(ev, config, at)
    index = given.take("index")
    columns, operands = _config(ev, given, at), list[Value | None]()
    for place, value, scalar, argument in zip(_PLACES, values, forms, arguments, strict=False):
        _check_fabric(ev, value, argument.at)
        wrong, role = ("fabin_dsd", "written") if place == "dest" else ("fabout_dsd", "read")
        if str(value.type) == wrong:
            ev.fail(argument.at, f"a {wrong} cannot be {role}", "destinations come first")
        columns[place], operand = _operand(
            ev, value, scalar, argument.at, moves=name in ("mov16", "mov32")
        )
        operands.append(operand)
    if ev.unit.arch == "wse3" and [str(v.type) for v in values].count("fabin_dsd") > 1:
        ev.fail(at, "an operation of WSE-3 has one fabin_dsd, found 2", "receive one of them first")
    sources = [types.size_of(kind) for kind in forms if kind]
    _check_bounds(ev, values, (_RESULTS.get(name, sources[0]), *sources), arguments)
    columns.pop("save_address", None)
    if "single_step" in columns:
        ev.fail(at, "an operation has no option 'single_step'", "@load_to_dsr has it")
    _accumulate(ev, columns, operands, forms, at)
    _check_factor(ev, node, columns)
    for place in _PLACES[len(forms) :]:
        columns[place] = Operand.NONE
    if index is not None:
        operands.append(coerce(ev, index, types.U16, at))
    elif ev.wavelet_index >= 0 and _takes_index(values):  # SDK 0.4
        operands.append(Value(types.U16, Register(ev.wavelet_index)))
    columns["index"] = 1 if len(operands) > len(values) else -1
    return _written(ev, DsdOp[name.upper()], columns, operands, at)


def _takes_index(values: list[Value]) -> bool:
    """Whether a known descriptor of memory is moved by an index, and none comes by the fabric."""
    fabric = any(str(value.type) == "fabin_dsd" for value in values)
    memory = [
        v.data for v in values if str(v.type) == "mem1d_dsd" and not isinstance(v.data, Register)
    ]
    return not fabric and any(descriptor.indexed for descriptor in memory)


def _written(
    ev: Evaluator, op: DsdOp, columns: dict[str, Any], operands: list[Value | None], at: Position
) -> Value:
    """Write an operation with its operands' registers; whether it ended by its length."""
    code = ev.require_code(at, f"what @{op.name.lower()} does")
    registers = [ev.register(operand, at) for operand in operands if operand is not None]
    base = code.new(len(registers))
    for position, register in enumerate(registers):
        code.add(Op.COPY, 0, base + position, register)
    row, ended = ev.unit.tables.row("operations", op=op, **columns), code.new()
    code.add(Op.OPERATE, 0, row, base, ended)
    return Value(types.BOOL, Register(ended))


def _dfilt(ev: Evaluator, node: tree.Builtin) -> Value:
    """Drops data wavelets until as many control wavelets have come as the descriptor is long."""
    at, value = node.at, ev.value(node.arguments[0])
    if str(value.type) != "fabin_dsd":
        ev.fail(at, f"expected a fabin_dsd, found {described(value)}")
    _check_fabric(ev, value, at)
    columns = _config(ev, Fields(ev, ev.settled(node.arguments[1]), at), at)
    columns |= dict.fromkeys(_PLACES, Operand.NONE) | {"src0": Operand.FABRIC}
    return _written(ev, DsdOp.DFILT, columns, [value], at)


# What is wrong with an operation's descriptors and is known before it runs

_SENDS, _QUEUE, _COLOR = (COLUMNS["fabrics"].index(name) for name in ("sends", "queue", "color"))


def _check_fabric(ev: Evaluator, value: Value, at: Position) -> None:
    """Compare a known descriptor of the fabric with the queue that it names."""
    if str(value.type) not in ("fabin_dsd", "fabout_dsd") or not isinstance(value.data, Descriptor):
        return
    row = ev.unit.tables.at("fabrics", value.data.address)
    sends, queue, color = row[_SENDS], row[_QUEUE], row[_COLOR]
    if queue < 0 or (sends and ev.unit.arch != "wse3"):
        return
    name = "output_queue" if sends else "input_queue"
    bound = ev.unit.setup.queues.get(queue + 8 * sends, (-1,))[0]
    if 0 <= color != bound >= 0:
        hint = f"leave .fabric_color out, or initialize another queue with color {color}"
        ev.fail(at, f"{name} {queue} has color {bound}, and its descriptor says {color}", hint)


def _check_bounds(
    ev: Evaluator, values: list[Value], widths: Sequence[int], nodes: Sequence[tree.Node]
) -> None:
    """Check that known descriptors have elements for an operation, and within their variables.

    One beyond its variable is a warning: the vendor's compiler takes it, and the operation may end
    before (``.on_control``).

    Args:
        ev: of the operation.
        values: its operands, the destination first.
        widths: bytes of an element of each.
        nodes: where they are named.
    """
    length = _known_length(ev, values)
    lengths = [_memory_length(ev, value) for value in values]
    if len(set(filter(None, lengths))) > 1:
        text = ", ".join(str(each or "-") for each in lengths)
        at = nodes[0].at
        ev.warn(at, f"operands in memory of different lengths ({text}); the first source's counts")
    for value, width, node in zip(values, widths, nodes, strict=False):
        if length and _shape_size(ev, value) == 0:
            ev.fail(
                node.at,
                f"a mem4d_dsd has an extent of 0 beside operands of {length} elements",
                "make each of its extents at least 1",
            )
        known = isinstance(value.data, Descriptor) and value.data.address
        if not length or not isinstance(known, Reference):
            continue
        cell, base, size = known.cell, known.offset(), types.size_of(known.cell.type)
        ends = [width * (count - 1) * step for count, step in _dimensions(ev, value, length)]
        first = base + sum(min(end, 0) for end in ends)
        last = base + sum(max(end, 0) for end in ends) + width - 1
        if not 0 <= first <= last < size:
            ev.warn(
                node.at,
                f"{length} elements of {width} bytes reach beyond '{cell.name}' of type"
                f" {cell.type}: bytes {first} to {last} of {size}",
                "make its extent, or that of the first source, smaller",
            )


def _shape_size(ev: Evaluator, value: Value) -> int | None:
    """Elements of a known mem4d_dsd; None for other operands."""
    if str(value.type) != "mem4d_dsd" or not isinstance(value.data, Descriptor):
        return None
    return math.prod(ev.unit.tables.at("shapes", value.data.length)[:4])


def _memory_length(ev: Evaluator, value: Value) -> int | None:
    """Elements of a known descriptor of memory; None for other operands."""
    if str(value.type) == "mem1d_dsd" and isinstance(value.data, Descriptor):
        return value.data.length
    return _shape_size(ev, value)


def _dimensions(ev: Evaluator, value: Value, length: int) -> list[tuple[int, int]]:
    """Counts and steps, in elements, of a known descriptor in an operation of some length."""
    if str(value.type) != "mem4d_dsd":
        return [(length, value.data.stride)]
    row = ev.unit.tables.at("shapes", value.data.length)
    counts, steps = row[:4], row[4:]
    inner = [math.prod(counts[k + 1 :]) for k in range(4)]
    return [(min(n, -(-length // m)), s) for n, m, s in zip(counts, inner, steps, strict=True)]


def _known_length(ev: Evaluator, values: list[Value]) -> int | None:
    """Elements of an operation: of the first source that has a length, else of the destination."""
    for value in (*values[1:3], values[0]):
        if str(value.type).startswith("dsr_"):
            return None
        if types.is_descriptor(value.type):
            if not isinstance(value.data, Descriptor) or str(value.type) == "fifo":
                return None
            size = _shape_size(ev, value)
            length = value.data.length if size is None else size
            if length:
                return None if length == NEVER_ENDS else length
    return None


# Explicit DSRs


def _get_dsr(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, number = ev.type(node.arguments[0]), ev.known(node.arguments[1])
    if str(kind) not in _DSRS:
        ev.fail(node.at, f"the kinds of DSRs are {', '.join(_DSRS)}; found {kind}")
    if not isinstance(number.data, int) or not 0 <= number.data < _MOST:
        ev.fail(node.at, f"@get_dsr: ids go from 0 to {_MOST - 1}, found {number.data}")
    return Value(kind, number.data)


def _dsr(ev: Evaluator, node: tree.Builtin) -> tuple[int, Any]:
    """The file and id of the DSR that a call begins with."""
    dsr = ev.value(node.arguments[0])
    if str(dsr.type) not in _DSRS:
        ev.fail(node.at, f"expected a DSR, found {described(dsr)}")
    return _DSRS[str(dsr.type)], dsr.data


def _stride_register(ev: Evaluator, node: tree.Builtin) -> Value:
    kind, number = types.predefined(node.name.removeprefix("@get_")), ev.known(node.arguments[0])
    if not isinstance(number.data, int) or number.data < 0:
        ev.fail(node.at, f"{node.name} takes a number from 0 on, found {described(number)}")
    return Value(kind, number.data)


def _check_strides(ev: Evaluator, node: tree.Builtin, value: Value) -> None:
    """Check the XDSR and the stride registers of @load_to_dsr_xdsr_sr, as many as strides ask."""
    at, extended, given = node.at, ev.known(node.arguments[1]), ev.known(node.arguments[2]).data
    if str(value.type) != "mem4d_dsd" or str(extended.type) != "xdsr":
        found = f"found {described(value)} and {described(extended)}"
        ev.fail(at, f"{node.name} loads a mem4d_dsd by an xdsr, {found}")
    needed = 3
    if isinstance(value.data, Descriptor):
        row = ev.unit.tables.at("shapes", value.data.length)
        dimensions = sum(count > 1 for count in row[:4])
        needed = max(0, dimensions - 1 - (row[-1] == 1))
    if len(given) != needed or any(str(register.type) != "sr" for register in given):
        ev.fail(at, f"this mem4d_dsd needs {needed} registers of type sr, found {len(given)}")


def _load_to_dsr(ev: Evaluator, node: tree.Builtin) -> None:
    at, (file, number) = node.at, _dsr(ev, node)
    place = 3 if node.name == "@load_to_dsr_xdsr_sr" else 1
    value, *rest = node.arguments[place:]
    value, config = ev.value(value), ev.settled(rest[0]) if rest else None
    if place > 1:
        _check_strides(ev, node, value)
    columns = _config(ev, Fields(ev, config, at), at)
    columns["saves_address"] = columns.pop("save_address", False)
    for name in ("priority", "simd"):
        columns.pop(name)
    columns.setdefault("single_step", False)
    _check_fabric(ev, value, at)
    kind, _ = _operand(ev, value, None, at)
    if columns["saves_address"] and kind != Operand.MEMORY:
        ev.fail(
            at,
            f".save_address is of mem1d_dsd alone, found {value.type}",
            "load the DSR again before each operation, with @increment_dsd_offset",
        )
    row = ev.unit.tables.row("dsr_loads", file=file, id=number, kind=kind, **columns)
    if ev.code is None:
        ev = ev.at_start()
    code = ev.require_code(at, "a DSR")
    code.add(Op.LOAD_DSR, 0, row, ev.register(value, at))


def _set_dsr_base(ev: Evaluator, node: tree.Builtin) -> None:
    (file, number), pointer = _dsr(ev, node), ev.value(node.arguments[1])
    if not isinstance(pointer.type, types.Pointer):
        ev.fail(node.at, f"expected a pointer, found {described(pointer)}")
    code = ev.require_code(node.at, "a DSR")
    code.add(Op.DSR_BASE, file, 0, number, ev.register(pointer, node.at))


# @map


def length_of(ev: Evaluator, value: Value, at: Position) -> int:
    """Return the register of a descriptor's length.

    Args:
        ev: of a program with code.
        value: a descriptor.
        at: place of the use.
    """
    code = ev.require_code(at, "a length")
    if is_known(value):
        return code.constant(value.data.length)
    return code.result(Op.DSD_GET, Field.LENGTH, ev.register(value, at))


def loaded(ev: Evaluator, value: Value, at: Position) -> Value:
    """Return the descriptor in a DSR; anything else itself.

    Args:
        ev: of a program with code.
        value: a descriptor, a DSR or another value.
        at: place of the use.
    """
    if str(value.type) not in _DSRS:
        return value
    register = ev.require_code(at, "a DSR").result(Op.DSR_GET, _DSRS[str(value.type)], value.data)
    return Value(types.predefined("mem1d_dsd"), Register(register))


BUILTINS = {
    **{f"@{name}": _operate for name in _FORMS},
    "@dfilt": _dfilt,
    "@get_dsr": _get_dsr,
    **dict.fromkeys(("@load_to_dsr", "@load_to_dsr_xdsr_sr"), _load_to_dsr),
    **dict.fromkeys(("@get_xdsr", "@get_sr"), _stride_register),
    "@set_dsr_base_addr": _set_dsr_base,
}
