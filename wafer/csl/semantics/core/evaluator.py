"""The one evaluator: of code that runs while compiling, and of code that becomes instructions.

What a name, an expression or a statement means does not depend on when it happens. With ``code``,
values that are not known stay in registers and operations on them are written down; without, they
are an error. The rules for each kind of node are tables of the unit (``Rules``); the modules of
``semantics.language`` and ``semantics.builtins`` fill them.

``x = y + 1;`` in a function, for one: ``execute`` finds the rule of an assignment in
``language.statements``. That resolves ``x`` to a place, evaluates ``y + 1`` with ``value`` and the
rules of ``language.expressions`` (a LOAD and an ADD, each added to ``code``), coerces the result to
the place's type, and has ``write`` add the STORE.
"""

from typing import Any, NamedTuple, NoReturn

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Code, Label
from wafer.csl.semantics.core.numbers import bits_of
from wafer.csl.semantics.core.unit import STEPS_PER_PE, Unit
from wafer.csl.semantics.core.values import (
    NOTHING,
    Cell,
    KnownPlace,
    Memory,
    MemoryPlace,
    Module,
    Place,
    Reference,
    Register,
    RegisterVariable,
    Value,
    copied,
    is_known,
    parts_of,
)
from wafer.csl.syntax import tree
from wafer.csl.syntax.releases import feature_of
from wafer.csl.syntax.source import Diagnostic, Position
from wafer.machine.codes import Op, Type

_ELEMENTS_PER_STEP = 16  # of a new array or string


class Failure(Exception):
    """Raised where evaluation cannot go on.

    Attributes:
        problem: what to report; None if it has been reported, or if an attempt may fail.
    """

    def __init__(self, problem: Diagnostic | None) -> None:
        super().__init__(problem)
        self.problem = problem


class Jump(NamedTuple):
    """How a statement ended if the next one is not reached; kind: return, break, continue."""

    kind: str
    label: str | None = None
    value: Value = NOTHING


class Loop(NamedTuple):
    """A loop or labelled block of running code, as its breaks and continues see it."""

    label: str | None  #: its name
    after: Label  #: where a break goes
    again: Label | None  #: where a continue goes; None for a block
    register: int = 0  #: of a block's value
    result: Any = None  #: of a block: a list for its value's type, once a break has given one


class Evaluator:
    """Evaluates the code of one function, or of one declaration of a file.

    Attributes:
        unit: what is compiled.
        module: whose names are seen.
        code: where instructions go; None for code that runs while compiling.
        scopes: local names, innermost last.
        result: the type that the function returns.
        loops: around the present statement, of running code.
        addressed: local names whose address is taken, which cannot be in registers.
        wavelet_index: the register of a data task's second argument, its wavelet's index; -1: none.
    """

    def __init__(self, unit: Unit, module: Module, code: Code | None = None) -> None:
        self.unit = unit
        self.module = module
        self.code = code
        self.scopes: list[dict[str, Any]] = []
        self.result: types.Type = types.VOID
        self.loops: list[Loop] = []
        self.addressed: frozenset[str] = frozenset()
        self.wavelet_index = -1

    def at_compile_time(self) -> "Evaluator":
        """The same names, for code that runs while compiling."""
        return self if self.code is None else self._twin(None)

    def _twin(self, code: Code | None) -> "Evaluator":
        # Loops around and names in memory belong to this one's code, which the twin leaves.
        twin = Evaluator(self.unit, self.module, code)
        twin.scopes, twin.result = self.scopes, self.result
        return twin

    def settled(self, node: tree.Node) -> Value:
        """What an expression is, worked out while compiling as far as that is possible.

        Of ``.{ .name = … }`` each field is tried by itself.
        """
        if self.code is None:
            return self.value(node)
        effects, self.unit.effects = self.unit.effects, False
        failure = Failure(None)
        try:
            value = self.at_compile_time().value(node)
            if is_known(value):
                return value
        except Failure as caught:
            failure = caught
        finally:
            self.unit.effects = effects
        if isinstance(node, tree.Init) and node.type is None and any(p.name for p in node.values):
            fields = {part.name or "": self.settled(part.value) for part in node.values}
            return Value(types.ANONYMOUS, fields)
        try:
            return self.value(node)
        except Failure as again:  # a declaration reports its error once: the attempt had it
            raise (again if again.problem else failure) from None

    def at_start(self) -> "Evaluator":
        """The same names, for code that a PE runs before its first task."""
        if not self.unit.effects:
            raise Failure(None)
        return self._twin(self.unit.code)

    def aside(self) -> "Evaluator":
        """The same names, for code that is only looked at and never runs."""
        return self._twin(Code())

    # Errors

    def fail(self, at: Position, message: str, hint: str = "") -> NoReturn:
        """Raise an error at a place; of a system module's text, at the place that leads there."""
        raise Failure(self._problem(at, message, hint))

    def warn(self, at: Position, message: str, hint: str = "") -> None:
        """Note a likely mistake.

        Args:
            at: where; of a system module's text, the place that leads there is named.
            message: what was found and what was expected.
            hint: the likely fix, or ''.
        """
        self.unit.warnings.append(self._problem(at, message, hint))

    def _problem(self, at: Position, message: str, hint: str) -> Diagnostic:
        if self.module.library and at.file == self.module.path and self.unit.led is not None:
            message = f"{message} (in {self.module.name}, line {at.line})"
            at = self.unit.led
        return Diagnostic(at, message, hint)

    def count(self, at: Position, steps: int = 1) -> None:
        """Add steps of evaluation, and fail beyond their limit; the error is reported once."""
        unit = self.unit
        unit.steps += steps
        most = unit.limits.steps
        if unit.layout is not None and unit.rectangle is not None:
            most += STEPS_PER_PE * unit.rectangle[0] * unit.rectangle[1]
        if unit.steps + len(unit.code.rows) <= most:
            return
        if not unit.exceeded:  # reported here: who tries an expression drops its errors
            unit.exceeded = True
            message = (
                f"more than {most:,} steps while compiling: rounds of loops, calls, instructions,"
                " elements of arrays"
            )
            hint = f"does it end? --max-inlined-iterations={10 * most} raises the limit"
            unit.problems.append(self._problem(at, message, hint))
        raise Failure(None)

    def count_elements(self, at: Position, elements: int) -> None:
        """Add the steps that a new value of some elements takes."""
        self.count(at, elements // _ELEMENTS_PER_STEP)

    def counted(self, made: Value, at: Position) -> Value:
        """A new ``.{…}`` or type, once the steps of its parts are added."""
        root = made.data if made.type == types.TYPE else made
        self.count(at, parts_of(root, self.unit.limits.steps))
        return made

    def check_depth(self, depth: int, at: Position, what: str) -> None:
        """Fail if what is within each other is more than the limit.

        Args:
            depth: how many are.
            at: where an error points.
            what: they are, in plural.
        """
        most = self.unit.limits.depth
        if depth > most:
            self.fail(
                at,
                f"more than {most} {what} within each other while compiling",
                f"does it end? --comptime-func-depth-limit={10 * most} raises the limit",
            )

    def check_release(self, name: str, at: Position) -> None:
        """Fail if the release that the compiler was told has no such builtin or module."""
        sdk, feature = self.unit.sdk, feature_of(name)
        if sdk and feature and not self.module.library and not feature.is_in(sdk):
            self.fail(at, feature.text, f"compiled with --sdk={sdk}")

    def require_code(self, at: Position, what: str) -> Code:
        """The code that an operation is written to; fail where there is none."""
        if self.code is None:
            self.fail(
                at,
                f"{what} is not known at compile time",
                "here only params, constants and what is computed from them can be used",
            )
        return self.code

    # Nodes

    def value(self, node: tree.Node) -> Value:
        """What an expression is."""
        if self.code is not None:
            self.code.at = node.at
        try:
            return self.unit.rules.expressions[type(node)](self, node)
        except RecursionError:
            self.fail(
                node.at,
                "calls, constants or types are too deep within each other to be evaluated",
                "does it end?",
            )

    def known(self, node: tree.Node) -> Value:
        """What an expression is, which has to be known now."""
        value = self.at_compile_time().value(node)
        if not is_known(value):
            self.fail(node.at, "this is not known at compile time")
        return value

    def execute(self, node: tree.Node) -> Jump | None:
        """Run a statement, or write it down."""
        if self.code is not None:
            self.code.at = node.at
        rule = self.unit.rules.statements.get(type(node))
        if rule is not None:
            return rule(self, node)
        self.value(node)
        return None

    def type(self, node: tree.Node) -> types.Type:
        """The type that an expression names."""
        value = self.known(node)
        if value.type != types.TYPE:
            self.fail(node.at, f"expected a type, found {described(value)}")
        return value.data

    def text(self, node: tree.Node) -> str:
        """The string that an expression is."""
        value = self.known(node)
        if value.type != types.STRING:
            self.fail(node.at, f"expected a string, found {described(value)}")
        return value.data

    # Names

    def local(self, name: str) -> Any:
        """What a local name stands for, or None."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def declare(self, name: str, binding: Any, at: Position) -> None:
        """Add a local name."""
        scope = self.scopes[-1]
        if name in scope and name != "_":
            self.fail(at, f"'{name}' is declared twice in this block")
        scope[name] = binding

    def local_cell(self, name: str, kind: types.Type, at: Position, alignment: int = 0) -> Cell:
        """A variable of this function in memory, where its calls within each other share it."""
        if self.code is not None:
            self.unit.functions.locals.setdefault(self.code.owner, (name, at))
        return Cell(name, kind, None, running=True, alignment=alignment, at=at)

    def read(self, place: Place, at: Position) -> Value:
        """The value at a place; emit what loads it, unless it is known or in a register."""
        kind = place.type
        match place:
            case RegisterVariable(_, register):
                if self.code is None:
                    self.fail(at, "this variable is not known at compile time")
                return Value(kind, Register(register))
            case KnownPlace(_, reference) if not reference.cell.running:
                if reference.extra or reference.part() != kind:
                    self.fail(at, f"a {reference.part()} cannot be read as {kind} while compiling")
                try:
                    return Value(kind, reference.data())
                except IndexError:
                    self.fail(at, f"index {reference.path[-1]} is beyond the array's end")
            case KnownPlace(_, reference):  # of a running PE: its address is known, its value not
                code = self.require_code(at, f"the variable '{reference.cell.name}'")
                place = MemoryPlace(kind, code.constant(self.unit.address(reference, at)), 0)
        assert isinstance(place, MemoryPlace)
        if (machine := types.machine_type(kind)) is None:
            return Value(kind, Memory(place.register, place.offset))
        code = self.require_code(at, "memory")
        return Value(kind, Register(code.result(Op.LOAD, machine, place.register, place.offset)))

    def write(self, place: Place, value: Value, at: Position) -> None:
        """Assign a value, which has the place's type, or emit what does."""
        match place:
            case RegisterVariable(_, register):
                code = self.require_code(at, "this variable")
                self.register(value, at, into=register)
                return
            case KnownPlace(_, reference) if not reference.cell.running:
                if reference.cell.constant:
                    self.fail(at, f"'{reference.cell.name}' is a constant")
                if not is_known(value):
                    self.fail(at, "a value of run time for a variable of compile time")
                try:
                    self.count_elements(at, types.count_of(value.type))
                    reference.store(copied(value.data))
                except IndexError:
                    self.fail(at, f"index {reference.path[-1]} is beyond the array's end")
                return
            case KnownPlace(kind, reference):
                code = self.require_code(at, f"the variable '{reference.cell.name}'")
                place = MemoryPlace(kind, code.constant(self.unit.address(reference, at)), 0)
        assert isinstance(place, MemoryPlace)
        code = self.require_code(at, "memory")
        if (machine := types.machine_type(place.type)) is not None:
            register = self.register(value, at)
            code.add(Op.STORE, machine, place.register, register, place.offset)
        elif size := types.size_of(place.type):
            target = self._plus_offset(code, place.register, place.offset)
            code.add(Op.MOVE, 0, target, self.aggregate(value, at), size)

    def _plus_offset(self, code: Code, register: int, offset: int) -> int:
        if not offset:
            return register
        return code.result(Op.ADD, Type.U16, register, code.constant(offset))

    def address(self, place: Place, at: Position) -> Value:
        """A pointer to a place; emit its address, unless that is known."""
        match place:
            case KnownPlace(kind, reference):
                return Value(types.Pointer(kind, const=reference.cell.constant), reference)
            case MemoryPlace(kind, register, offset):
                code = self.require_code(at, "an address")
                start = self._plus_offset(code, register, offset)
                return Value(types.Pointer(kind), Register(start))
        return self.fail(at, "this variable has no address")

    def register(self, value: Value, at: Position, into: int | None = None) -> int:
        """The register that holds a scalar; emit what puts it there, unless it is in one."""
        code = self.require_code(at, "this value")
        if types.is_foreign(value.type, self.unit.half):
            self.fail(at, self.unit.foreign(value.type))
        match value.data:
            case Register(number):
                if into is None:
                    return number
                code.add(Op.COPY, 0, into, number)
                return into
        return code.constant(self.bits(value, at), into)

    def bits(self, value: Value, at: Position) -> int:
        """What a register holds for a known scalar."""
        match value.data:
            case Reference():
                return self.unit.address(value.data, at)
            case None | str() | list() | dict():
                self.fail(at, f"{described(value)} cannot be used while the program runs")
        if types.is_number(value.type) or isinstance(value.data, int | bool):
            if value.type in (types.COMPTIME_INT, types.COMPTIME_FLOAT):
                self.fail(at, f"{value.data} needs a type", "write @as(i16, …) or declare its type")
            return bits_of(value.type, value.data)
        return self.unit.bits(value, at)

    def aggregate(self, value: Value, at: Position) -> int:
        """Emit what puts the address of an array's or struct's content into a register."""
        code = self.require_code(at, "memory")
        if isinstance(value.data, Memory):
            return self._plus_offset(code, *value.data)
        cell = Cell("a constant", value.type, value.data, constant=True)
        return code.constant(self.unit.address(Reference(cell), at))


def described(value: Value) -> str:
    """A value as messages name it."""
    if value.type == types.TYPE:
        return f"the type {value.data}"
    if isinstance(value.data, int | float | str | bool):
        return f"{value.data!r} of type {value.type}"
    return "nothing" if value.type == types.VOID else f"a value of type {value.type}"
