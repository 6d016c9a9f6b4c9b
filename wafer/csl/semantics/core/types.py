"""The types of CSL: what they are called, how much memory they take, which one stands for which.

Two types are equal if they are written alike; a struct or enum is the one of its definition.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

from wafer.csl.syntax.builtins import is_integer_name
from wafer.csl.syntax.source import Position
from wafer.machine import codes


class Type:
    """Any type."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plain(Type):
    """A type that is only its name; there is one of each."""

    name: str  #: in CSL
    #: how the machine holds a value; None for what exists at compile time alone
    machine: codes.Type | None = None
    bits: int = -1  #: of an integer, which may be fewer than the machine's; -1 of anything else

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True)
class Pointer(Type):
    """``*T``, or ``[*]T`` to many."""

    target: Type
    many: bool = False
    const: bool = False

    def __str__(self) -> str:
        return ("[*]" if self.many else "*") + ("const " if self.const else "") + str(self.target)


@dataclasses.dataclass(frozen=True)
class Array(Type):
    """``[rows, columns]T``, row by row."""

    shape: tuple[int, ...]
    element: Type

    @property
    def count(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.shape))}]{self.element}"


@dataclasses.dataclass(frozen=True)
class Struct(Type):
    """A struct or union."""

    fields: tuple[tuple[str, Type], ...]  #: names with their types
    at: Position  #: where it is defined, which is what tells two apart
    union: bool = False  #: whether all fields begin at its address
    #: names of fields that need no value
    defaults: tuple[tuple[str, object], ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        inner = ", ".join(f"{name}: {kind}" for name, kind in self.fields)
        return f"{'union' if self.union else 'struct'} {{{inner}}}"

    @functools.cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each field."""
        offsets, end = {}, 0
        for name, kind in self.fields:
            offsets[name] = 0 if self.union else _aligned(end, alignment(kind))
            end = offsets[name] + size_of(kind)
        return offsets


@dataclasses.dataclass(frozen=True)
class Enum(Type):
    """``enum(T) {…}``."""

    base: Type
    members: tuple[tuple[str, int], ...]
    at: Position

    def __str__(self) -> str:
        return f"enum({self.base}) {{{', '.join(name for name, _ in self.members)}}}"


@dataclasses.dataclass(frozen=True)
class FunctionType(Type):
    """``fn(T, U)V``; kind is 'fn' or 'task'."""

    kind: str
    formals: tuple[Type, ...]
    result: Type

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.formals))}){self.result}"


BOOL = Plain("bool", codes.Type.BOOL)
VOID = Plain("void")
TYPE = Plain("type")
ANYTYPE = Plain("anytype")
COMPTIME_INT, COMPTIME_FLOAT = Plain("comptime_int"), Plain("comptime_float")
STRING = Plain("comptime_string")
ANONYMOUS = Plain("comptime_struct")  # of .{…}, until something gives it a type
MODULE = Plain("imported_module")
FUNCTION = Plain("function")  # of a generic one, which has no other type
RANGE = Plain("range")
DIRECTION = Plain("direction", codes.Type.U16)
COLOR = Plain("color", codes.Type.U16)

_WIDEST = (1 << 24) - 1  # bits of an integer; one of more than 64 is of compile time alone
_FLOATS = {"f32": codes.Type.F32} | dict.fromkeys(codes.HALVES, codes.Type.F16)
_HANDLES = (
    "local_task_id data_task_id control_task_id input_queue output_queue ut_id"
    " dsr_dest dsr_src0 dsr_src1 xdsr sr"
)
_DESCRIPTORS = ("mem1d_dsd", "mem4d_dsd", "circbuf_dsd", "fabin_dsd", "fabout_dsd", "fifo")
_PLAIN = {
    plain.name: plain
    for plain in (
        *(BOOL, VOID, TYPE, ANYTYPE, COMPTIME_INT, COMPTIME_FLOAT, STRING, ANONYMOUS, MODULE),
        *(RANGE, DIRECTION, COLOR),
        *(Plain(name, code) for name, code in _FLOATS.items()),
        *(Plain(name, codes.Type.U16) for name in _HANDLES.split()),
        *(Plain(name, codes.Type.U64) for name in _DESCRIPTORS),
    )
}


def named(name: str) -> Plain | None:
    """The predefined type of a name, or None."""
    if name not in _PLAIN and is_integer_name(name) and int(name[1:]) <= _WIDEST:
        bits = int(name[1:])
        held = next((width for width in (8, 16, 32, 64) if width >= bits), 0)
        machine = codes.Type[f"{name[0].upper()}{held}"] if held else None
        _PLAIN[name] = Plain(name, machine, bits)
    return _PLAIN.get(name)


def predefined(name: str) -> Plain:
    """The predefined type of a name that there is."""
    kind = named(name)
    assert kind is not None
    return kind


I16, U16, U32, F32 = (predefined(name) for name in ("i16", "u16", "u32", "f32"))


def is_integer(kind: Type) -> bool:
    """Whether a type is an integer with a width."""
    return isinstance(kind, Plain) and kind.bits >= 0


def is_float(kind: Type) -> bool:
    """Whether a type is a float with a width."""
    return isinstance(kind, Plain) and kind.name in _FLOATS


def is_foreign(kind: Type, half: str) -> bool:
    """Whether a type is, or holds, a 16-bit float of another format than the program's."""
    match kind:
        case Array():
            return is_foreign(kind.element, half)
        case Struct():
            return any(is_foreign(field, half) for _, field in kind.fields)
    return str(kind) in codes.HALVES and str(kind) != half


def is_number(kind: Type) -> bool:
    """Whether arithmetic applies."""
    return is_integer(kind) or is_float(kind) or kind in (COMPTIME_INT, COMPTIME_FLOAT)


def is_descriptor(kind: Type) -> bool:
    """Whether a type is one of the descriptors."""
    return isinstance(kind, Plain) and kind.name in _DESCRIPTORS


def machine_type(kind: Type) -> codes.Type | None:
    """How the machine holds a value in a register; None if it cannot."""
    match kind:
        case Plain():
            return kind.machine
        case Pointer():
            return codes.Type.U16
        case Enum():
            return machine_type(kind.base)
        case FunctionType():
            return codes.Type.U32
    return None


def size_of(kind: Type) -> int:
    """Bytes in memory.

    Raises:
        TypeError: values of the type exist at compile time alone.
    """
    match kind:
        case Array():
            return kind.count * size_of(kind.element)
        case Struct():
            end = max((kind.offsets[name] + size_of(t) for name, t in kind.fields), default=0)
            return _aligned(end, alignment(kind))
    if kind == VOID:
        return 0
    if (code := machine_type(kind)) is None:
        raise TypeError(f"{kind} has no place in memory")
    return codes.BYTES[code]


def count_of(kind: Type) -> int:
    """Numbers, pointers and the like that a value of a type consists of."""
    match kind:
        case Array():
            return kind.count * count_of(kind.element)
        case Struct():
            return sum(count_of(field) for _, field in kind.fields)
    return 1


def part_of(kind: Type, step: Any) -> tuple[Type, Callable[[], int]]:
    """The type of an element or field, and what tells how many bytes it lies behind the start."""
    if isinstance(kind, Array):
        return kind.element, lambda: step * size_of(kind.element)
    assert isinstance(kind, Struct)
    return dict(kind.fields)[step], lambda: kind.offsets[step]


def alignment(kind: Type) -> int:
    """Bytes of whose multiple an address is; memory has words of 16 bits, read two at a time."""
    match kind:
        case Array():
            return alignment(kind.element)
        case Struct():
            return max((alignment(t) for _, t in kind.fields), default=1)
    return min(size_of(kind), 4) or 1


def _aligned(address: int, multiple: int) -> int:
    return -(-address // multiple) * multiple
