"""What is being compiled: the layout, or one PE's program with its memory, tables and functions."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Code, Label
from wafer.csl.semantics.core.fabric import Fabric
from wafer.csl.semantics.core.numbers import bits_of, bytes_of
from wafer.csl.semantics.core.values import Cell, Function, Module, Reference, Value
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import CslError, Diagnostic, Position
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import DEEPEST_CALL
from wafer.machine.image import Symbol, TableRows

FIRST_ADDRESS = 16  # 0 is no address
SRAM = ARCHITECTURES["wse2"].sram_bytes  # of WSE-3 too
STEPS = 1_000_000  # of the compilation of a layout block, or of a program
STEPS_PER_PE = 100  # more for each PE of a layout
WORD = 4  # bytes that each variable's address is a multiple of, as in the vendor's object files


# What memcpy keeps on each PE, by architecture: the maps of ids in the vendor's layouts, and
# sdk.cerebras.ai/tensor-streaming. Local tasks 21 to 23 on WSE-2 are its colors' data tasks.
RESERVED: dict[str, dict[str, tuple[int, ...]]] = {
    "color": dict.fromkeys(("wse2", "wse3"), (21, 22, 23)),
    "local task": {"wse2": (21, 22, 23, 27, 28, 30), "wse3": (21, 27, 28, 30)},
    "control task": dict.fromkeys(("wse2", "wse3"), (33, 34, 35, 36, 37)),
    "input_queue": {"wse2": (0,), "wse3": (0, 1)},
    "output_queue": dict.fromkeys(("wse2", "wse3"), (0,)),
}


class Descriptor(NamedTuple):
    """A known descriptor: up to four 16-bit fields; the address may be a Reference."""

    address: Any
    length: int = 0
    stride: int = 0
    indexed: int = 0


class Request(NamedTuple):
    """A function that running code calls, or a task."""

    function: Function  #: of a module
    label: Label  #: its first instruction
    #: values of its compile-time arguments, by name; types of those of any type
    known: dict[str, Any]
    #: the place in the user's files that leads to it, of a system module's function
    led: Position | None = None
    depth: int = 0  #: generic functions whose code asked for each other, this one included


class Limits(NamedTuple):
    """How long evaluation while compiling may take."""

    depth: int = 200  #: calls, generic functions or imports within each other
    inlined: int | None = None  #: rounds of one inline loop; None: as many as there are steps
    steps: int = STEPS  #: rounds of loops, calls, instructions, and 16 elements of a new value

    @classmethod
    def of(cls, depth: int | None, inlined: int | None) -> "Limits":
        """Those of the compiler's options, which may raise the limit of steps."""
        rest = {} if depth is None else {"depth": depth}
        return cls(inlined=inlined, steps=max(STEPS, inlined or 0), **rest)


@dataclasses.dataclass(frozen=True)
class Rules:
    """How each kind of node is evaluated: functions of the evaluator and the node."""

    expressions: dict[type[tree.Node], Callable[..., Value]]
    statements: dict[type[tree.Node], Callable[..., Any]]
    builtins: Mapping[str, Callable[..., Value | None]]


@dataclasses.dataclass(eq=False)
class Functions:
    """Functions and tasks of a program that become code, and how they call each other."""

    requests: dict[Any, Request] = dataclasses.field(default_factory=dict)  #: all
    waiting: list[Request] = dataclasses.field(default_factory=list)  #: those without code yet
    #: caller, first register of the callee's frame, callee (None: through a variable)
    calls: list[tuple[Label, int, Label | None]] = dataclasses.field(default_factory=list)
    #: those that such calls may mean
    in_variables: set[Label] = dataclasses.field(default_factory=set)
    #: of each function, the first variable that it keeps in memory
    locals: dict[Label, tuple[str, Position]] = dataclasses.field(default_factory=dict)
    #: how many each function needs
    registers: dict[Label, int] = dataclasses.field(default_factory=dict)
    writing: int = 0  #: the depth of the request whose code is being written

    def frame_size(self) -> int:
        """Most registers that calls within each other need at once.

        Where functions call themselves, directly or not, that is what the deepest calls can need.

        Raises:
            CslError: such a function keeps a variable in memory, which its calls would share.
        """
        callees = dict[Label, list[tuple[int, Label]]]()  # first register of its frame, callee
        for caller, base, callee in self.calls:
            targets = self.in_variables if callee is None else (callee,)
            callees.setdefault(caller, []).extend((base, target) for target in targets)
        recursive = {label for label in callees if label in _reached(label, callees)}
        for label in recursive & self.locals.keys():
            name, at = self.locals[label]
            node = next(r.function.node for r in self.requests.values() if r.label is label)
            message = f"'{node.name}' may call itself, and all its calls would share '{name}'"
            raise CslError([Diagnostic(at, message, "declare the variable outside of functions")])
        if recursive:
            bases = [base for inner in callees.values() for base, _ in inner]
            return DEEPEST_CALL * max(bases) + max(self.registers.values())
        needs: dict[Label, int] = {}

        def need(label: Label) -> int:
            if label not in needs:
                inner = [base + need(callee) for base, callee in callees.get(label, [])]
                needs[label] = max([self.registers.get(label, 1), *inner])
            return needs[label]

        return max(map(need, self.registers), default=1)


def _reached(start: Label, callees: Mapping[Label, list[tuple[int, Label]]]) -> set[Label]:
    """The functions that a function's calls lead to."""
    reached, waiting = set[Label](), [start]
    while waiting:
        for _, callee in callees.get(waiting.pop(), []):
            if callee not in reached:
                reached.add(callee)
                waiting.append(callee)
    return reached


@dataclasses.dataclass(eq=False)
class Setup:
    """What a program says of its PE before it runs, by comptime blocks."""

    #: by name
    exports: dict[str, tuple[Function | Reference, Position]] = dataclasses.field(
        default_factory=dict
    )
    #: Gate and id of bound tasks
    tasks: dict[tuple[Module, str], tuple[int, int]] = dataclasses.field(default_factory=dict)
    #: those of @bind_task -> the Gate of what is bound to them
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)
    #: name of a program's field -> id -> function
    bindings: dict[str, dict[int, Function]] = dataclasses.field(default_factory=dict)
    #: local tasks that are active at the start
    active: list[tuple[Value, Position]] = dataclasses.field(default_factory=list)
    #: what is blocked (or not) at the start
    gates: list[tuple[Value, bool, Position]] = dataclasses.field(default_factory=list)
    #: color -> its configuration on this PE
    routes: dict[int, Any] = dataclasses.field(default_factory=dict)
    #: input queues, then output queues from 8 on -> color, priority and table of control tasks
    queues: dict[int, tuple[int, int, int]] = dataclasses.field(default_factory=dict)
    #: input queue -> the control task that its data task gives way to, limit and turn (image.py)
    rotating: dict[int, tuple[Function, int, int]] = dataclasses.field(default_factory=dict)
    stride: int = 0  #: control tasks of a queue's table; 0: they have no table of their own
    complete: bool = False  #: whether all comptime blocks have been evaluated


@dataclasses.dataclass(eq=False)
class Unit:
    """One compilation, of the layout or of one program."""

    rules: Rules  #: of evaluation
    files: Any  #: opens files and makes module instances
    arch: str  #: 'wse2' or 'wse3'
    running: bool  #: whether variables of files are those of a running PE
    fabric: Fabric  #: on which the program lies
    half: str = "f16"  #: the format of the program's 16-bit floats
    sdk: str = ""  #: the release of the program, '' if it is not told
    layout: Any = None  #: what the layout block says, while that is evaluated
    rectangle: tuple[int, int] | None = None  #: columns and rows of PEs, once known
    code: Code = dataclasses.field(default_factory=Code)  #: of the program
    problems: list[Diagnostic] = dataclasses.field(default_factory=list)  #: found so far
    #: likely mistakes found so far, of the layout and all programs
    warnings: list[Diagnostic] = dataclasses.field(default_factory=list)
    #: instances of files, in the order of their imports
    modules: list[Module] = dataclasses.field(default_factory=list)
    #: variables and constants with a place in memory, which reaches to `end`
    cells: list[Cell] = dataclasses.field(default_factory=list)
    end: int = FIRST_ADDRESS
    globals: dict[str, Cell] = dataclasses.field(default_factory=dict)  #: variables by name
    #: variables that files share by their name, declared export or extern
    linked: dict[str, Cell] = dataclasses.field(default_factory=dict)
    tables: TableRows = dataclasses.field(default_factory=TableRows)
    messages: list[str] = dataclasses.field(default_factory=list)  #: of faults
    functions: Functions = dataclasses.field(default_factory=Functions)  #: that become code
    exported: tuple[str, ...] = ()  #: the names that the layout exports, in order
    #: what the program says of its PE before it runs
    setup: Setup = dataclasses.field(default_factory=Setup)
    #: the place in the user's files that leads to what is evaluated of a system module
    led: Position | None = None
    declaring: str = ""  #: the name of the declaration that is evaluated
    #: whether builtins may configure the PE; not where an expression is only tried
    effects: bool = True
    limits: Limits = dataclasses.field(default_factory=Limits)
    steps: int = 0  #: so far while compiling
    exceeded: bool = False  #: whether those were more than the limit, which is reported
    depth: int = 0  #: of the calls that are evaluated while compiling

    def of_program(self) -> "Unit":
        """An empty one for a program of this layout."""
        rest = {
            name: getattr(self, name) for name in ("sdk", "rectangle", "limits", "warnings", "half")
        }
        return Unit(self.rules, self.files, self.arch, True, self.fabric, **rest)

    def check_reserved(self, kind: str, number: int, at: Position) -> None:
        """Warn of a color, queue or task id that memcpy keeps, in a program that imports it.

        Args:
            kind: a key of ``RESERVED``.
            number: of the color, queue or task.
            at: where the program uses it.
        """
        kept, name = RESERVED[kind][self.arch], kind.replace("_", " ")
        message = f"memcpy keeps {name} {number} on {self.arch}, and this program uses it"
        if number not in kept or message in (known.message for known in self.warnings):
            return
        if any(module.name.startswith("<memcpy/") for module in self.modules):
            hint = f"use another one than {', '.join(map(str, kept))}"
            self.warnings.append(Diagnostic(at, message, hint))

    @contextlib.contextmanager
    def leading(self, at: Position | None) -> Iterator[None]:
        """Report problems of system modules at a place in the user's files."""
        before, self.led = self.led, at
        try:
            yield
        finally:
            self.led = before

    def raise_problems(self) -> None:
        """End here if anything was wrong.

        Raises:
            CslError: all problems.
        """
        if self.problems:
            raise CslError(dict.fromkeys(self.problems), self.files.source(self.problems[0].at))

    def message(self, text: str) -> int:
        """The number of a fault's message."""
        if text not in self.messages:
            self.messages.append(text)
        return self.messages.index(text)

    def request(self, function: Function, known: dict[str, Any], key: Any = ()) -> Request:
        """The compiled form of a function; its code is written later."""
        functions = self.functions
        key = (function.module, function.node.name, function.node.at, key)
        if key not in functions.requests:
            depth = functions.writing + bool(key[-1])
            functions.requests[key] = Request(function, Label(), known, self.led, depth)
            functions.waiting.append(functions.requests[key])
        return functions.requests[key]

    def pointed(self, function: Function) -> Label:
        """Where a function begins that is called through a variable."""
        label = self.request(function, {}).label
        self.functions.in_variables.add(label)
        return label

    def address(self, reference: Reference, at: Position) -> int:
        """Where a part of a cell is in the PE's memory; the cell gets a place if it has none.

        Whether all fit is checked once all have a place.
        """
        cell = reference.cell
        if types.is_foreign(cell.type, self.half):
            raise CslError([Diagnostic(cell.at or at, self.foreign(cell.type))])
        if cell.address is None:
            try:
                size = types.size_of(cell.type)
            except TypeError as error:
                message = f"'{cell.name}' cannot be used while the program runs: {error}"
                raise CslError([Diagnostic(at, message)]) from error
            multiple = max(cell.alignment, WORD)
            cell.address = -(-self.end // multiple) * multiple
            self.end = cell.address + size
            self.cells.append(cell)
            cell.at = cell.at or at
        return cell.address + reference.offset()

    def foreign(self, kind: types.Type) -> str:
        """The problem of a value with 16-bit floats of a format that is not the program's."""
        known = f"a value of type {kind} is of compile time alone"
        return f"{known}: 16-bit floats of this program are {self.half} (--fp16-format)"

    def bits(self, value: Value, at: Position) -> Any:
        """What a register holds for a known value that is no number."""
        data = value.data
        match data:
            case Descriptor():
                address = data.address
                if isinstance(address, Reference):
                    address = self.address(address, at)
                fields = (address, data.length, data.stride, data.indexed)
                return sum((field & 0xFFFF) << 16 * k for k, field in enumerate(fields))
            case Function(generic=True):
                raise CslError([Diagnostic(at, data.needs_call())])
            case Function():
                return self.pointed(data)
        raise CslError([Diagnostic(at, f"a value of type {value.type} is of compile time alone")])

    def memory(self) -> np.ndarray:
        """uint8; the PE's memory at the start; empty if variables do not fit."""
        if self.end > SRAM:
            return np.zeros(0, np.uint8)
        memory = np.zeros(self.end, np.uint8)
        index = 0
        while index < len(self.cells):  # encoding may give further cells a place
            cell = self.cells[index]
            index += 1
            if cell.data is not None:
                content = self.encoded(cell.type, cell.data)
                if self.end > len(memory):
                    memory = np.concatenate([memory, np.zeros(self.end - len(memory), np.uint8)])
                assert cell.address is not None
                memory[cell.address : cell.address + len(content)] = np.frombuffer(
                    content, np.uint8
                )
        return memory

    def encoded(self, kind: types.Type, data: Any) -> bytes:
        """A known value as bytes of memory, little end first."""
        match kind:
            case types.Array(element=types.Plain() as plain) if types.is_number(plain):
                return bytes_of(plain, data)
            case types.Array():
                return b"".join(self.encoded(kind.element, part) for part in data)
            case types.Struct():
                content = bytearray(types.size_of(kind))
                for name, field in kind.fields:
                    if name in data:
                        part = self.encoded(field, data[name])
                        content[kind.offsets[name] : kind.offsets[name] + len(part)] = part
                return bytes(content)
        size = types.size_of(kind)
        if isinstance(data, Reference):
            number = self.address(data, Position("", 0, 0))
        elif isinstance(data, Descriptor):
            number = self.bits(Value(kind, data), Position("", 0, 0))
        elif isinstance(data, Function):
            number = self.pointed(data).target or 0
        else:
            number = bits_of(kind, data) if data is not None else 0
        return (number % (1 << 8 * size)).to_bytes(size, "little")

    def symbol(self, kind: types.Type, address: int) -> Symbol:
        """A variable of the program."""
        return Symbol(address, types.size_of(kind), str(kind))

    def symbols(self) -> dict[str, Symbol]:
        """Globals that have a place in memory, by name."""
        return {
            name: self.symbol(cell.type, cell.address)
            for name, cell in self.globals.items()
            if cell.address is not None
        }
