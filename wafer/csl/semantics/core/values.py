"""Values while a program is compiled: known ones, and those that only the running PE has.

What a known value holds (``data``):

| type | data |
|---|---|
| integers, enums, handles, directions | int |
| floats | float, rounded to the type |
| bool, strings, types | bool, str, Type |
| arrays | list of the elements' data, row by row |
| structs | dict of the fields' data |
| ``.{…}`` | dict or list of Values |
| pointers | :class:`Reference`, or int |
| functions, modules, descriptors | objects of their own |
| void | None |
"""

import dataclasses
from typing import Any, NamedTuple

from wafer.csl.semantics.core import types
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position


class Value(NamedTuple):
    """A value with its type; data is a Register or Memory if only the running PE knows it."""

    type: types.Type
    data: Any


NOTHING = Value(types.VOID, None)


class Register(NamedTuple):
    """A register of the running function's frame."""

    number: int


class Memory(NamedTuple):
    """An aggregate in the PE's memory: at the address in a register, plus bytes."""

    register: int
    offset: int


class RegisterVariable(NamedTuple):
    """A variable of a running function that lives in a register."""

    type: types.Type
    register: int


@dataclasses.dataclass(eq=False)
class Cell:
    """A variable or constant that can be pointed to."""

    name: str  #: of it
    type: types.Type  #: of its value
    data: Any  #: the value at compile time; of a running program's variable that at the start
    #: whether the running PE may change it, so that nothing but its address is known
    running: bool = False
    constant: bool = False  #: whether nobody may
    alignment: int = 0  #: bytes that its address is a multiple of, 0 for the type's
    address: int | None = None  #: in the PE's memory, once something asks for it
    at: Position | None = None  #: its declaration, else where something first asked for the address


class Reference(NamedTuple):
    """What a known pointer points to."""

    cell: Cell  #: a variable or constant
    path: tuple[Any, ...] = ()  #: indices and field names that lead from it to a part
    extra: int = 0  #: bytes beyond that part, of a pointer that was cast

    def part(self) -> types.Type:
        """The type of the part."""
        kind = self.cell.type
        for step in self.path:
            kind, _ = types.part_of(kind, step)
        return kind

    def offset(self) -> int:
        """Bytes from the cell's start."""
        kind, offset = self.cell.type, self.extra
        for step in self.path:
            kind, start = types.part_of(kind, step)
            offset += start()
        return offset

    def data(self) -> Any:
        """The known value of the part."""
        data = self.cell.data
        for step in self.path:
            data = data[step]
        return data

    def store(self, data: Any) -> None:
        """Replace the known value of the part."""
        if not self.path:
            self.cell.data = data
        else:
            Reference(self.cell, self.path[:-1]).data()[self.path[-1]] = data


class KnownPlace(NamedTuple):
    """A part of a cell that can be read or assigned, as a type."""

    type: types.Type
    reference: Reference


class MemoryPlace(NamedTuple):
    """A place in the running PE's memory: the address in a register, plus bytes."""

    type: types.Type
    register: int
    offset: int


Place = KnownPlace | MemoryPlace | RegisterVariable


class Range(NamedTuple):
    """``@range(T, start, stop, step)``; start and stop may be run-time values."""

    type: types.Type
    start: Value
    stop: Value
    step: Value


@dataclasses.dataclass(eq=False)
class Module:
    """One instance of a file: every import makes a new one, with its own variables."""

    path: str  #: of the file
    name: str  #: as it was imported
    declarations: dict[str, tree.Variable | tree.FunctionDecl]  #: by name
    blocks: tuple[tree.Block, ...]  #: its comptime blocks
    params: dict[str, Value]  #: values given to it, by name
    library: bool = False  #: whether it is a system module
    #: what its names turned out to be; None while that is worked out
    members: dict[str, Any] = dataclasses.field(default_factory=dict)
    settled: bool = False  #: whether its comptime blocks have run
    imported: Position | None = None  #: the place in the user's files that leads to a system module
    depth: int = 0  #: imports that lead to it


@dataclasses.dataclass(eq=False)
class Function:
    """A function or task of a module instance."""

    module: Module  #: the instance whose names it sees
    node: tree.FunctionDecl  #: its text

    @property
    def generic(self) -> bool:
        """Whether a call decides what it is: compile-time arguments, or of any type."""
        return any(
            formal.comptime or (isinstance(formal.type, tree.Name) and formal.type.id == "anytype")
            for formal in self.node.formals
        )

    def needs_call(self) -> str:
        """Say why a generic function is no value of a running program."""
        return (
            f"'{self.node.name}' has arguments of any type or of compile time: a call decides what "
            "it is; expected a function of given types, such as one that calls it"
        )


def is_known(value: Value) -> bool:
    """Whether a value is known while compiling, all the way down."""
    if value.type is types.ANONYMOUS:
        parts = value.data.values() if isinstance(value.data, dict) else value.data
        return all(is_known(part) for part in parts)
    return not isinstance(value.data, Register | Memory)


def parts_of(root: Value | types.Type, most: int) -> int:
    """Values that ``.{…}`` is made of, or types that a type is; counting ends beyond ``most``."""
    count, waiting = 0, [root]
    while waiting and count <= most:
        part, count = waiting.pop(), count + 1
        if isinstance(part, Value):
            if part.type is types.ANONYMOUS:
                waiting += part.data.values() if isinstance(part.data, dict) else part.data
            continue
        match part:
            case types.Array(element=inner) | types.Pointer(target=inner):
                waiting.append(inner)
            case types.Struct(fields=fields):
                waiting += [kind for _, kind in fields]
            case types.FunctionType(formals=formals, result=result):
                waiting += [*formals, result]
    return count


def copied(data: Any) -> Any:
    """A value's data, sharing nothing that assignments change."""
    match data:
        case list():
            return [copied(part) for part in data]
        case dict():
            return {name: copied(part) for name, part in data.items()}
    return data


def frozen(value: Any) -> Any:
    """A hashable picture of a known value: equal pictures, equal programs."""
    match value:
        case Value():
            return (value.type, frozen(value.data))
        case dict():
            return tuple((name, frozen(part)) for name, part in sorted(value.items()))
        case list() | tuple():
            return tuple(frozen(part) for part in value)
        case float():
            return ("float", value.hex())
        case bool():
            return ("bool", value)
    return value
