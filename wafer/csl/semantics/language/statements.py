"""Statements: run while compiling, or written down as jumps.

Each returns a Jump if what follows it is never reached.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.emit import Code, Label
from wafer.csl.semantics.core.evaluator import Evaluator, Failure, Jump, Loop, described
from wafer.csl.semantics.core.numbers import fits
from wafer.csl.semantics.core.values import (
    NOTHING,
    Cell,
    KnownPlace,
    Memory,
    MemoryPlace,
    Range,
    Reference,
    Register,
    RegisterVariable,
    Value,
    copied,
    is_known,
)
from wafer.csl.semantics.language.choices import beside, condition, typed
from wafer.csl.semantics.language.coerce import coerce, zero
from wafer.csl.semantics.language.names import element, given_value, resolve
from wafer.csl.semantics.language.operators import combined
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import BYTES, Op, Type


def run(ev: Evaluator, node: tree.Node) -> Jump | None:
    """A statement or those of a block, in a scope of its own."""
    if not isinstance(node, tree.Block):
        return _body(ev, (node,))
    if node.label is not None and ev.code is not None:
        return _labelled(ev, node)
    return _body(ev, node.body)


def _body(ev: Evaluator, statements: tuple[tree.Node, ...]) -> Jump | None:
    ev.scopes.append({})
    free = ev.code.top if ev.code is not None else 0
    try:
        for statement in statements:
            try:
                if (jump := ev.execute(statement)) is not None:
                    return jump
            except Failure as failure:
                if ev.code is None:
                    raise
                if failure.problem is not None:
                    ev.unit.problems.append(failure.problem)
                if isinstance(statement, tree.Variable):
                    return Jump("return")  # what uses it would only repeat the error
        return None
    finally:
        ev.scopes.pop()
        if ev.code is not None:
            ev.code.top = free


def _labelled(ev: Evaluator, block: tree.Block) -> Jump | None:
    """A labelled block of running code: ``break :label value`` leaves it."""
    code = ev.require_code(block.at, "this block")
    loop = Loop(block.label, Label(), None, code.new(), [])
    ev.loops.append(loop)
    _body(ev, block.body)
    ev.loops.pop()
    code.here(loop.after)
    if not loop.result:
        return None
    return Jump("break", block.label, Value(loop.result[0], Register(loop.register)))


def _block(ev: Evaluator, node: tree.Block) -> Jump | None:
    jump = run(ev, node)
    own = jump is not None and jump.kind == "break" and jump.label == node.label
    return None if own and node.label is not None else jump


# Variables


def variable(ev: Evaluator, node: tree.Variable) -> None:
    """Declare a local variable or constant."""
    if "comptime" in node.modifiers:
        ev = ev.at_compile_time()
    kind = ev.type(node.type) if node.type is not None else None
    given = given_value(node)
    if given is not None:
        value = typed(ev, given, kind)
    elif kind is None:
        ev.fail(node.at, f"'{node.name}' has neither a type nor a value")
    else:
        value = Value(kind, zero(ev, kind, node.at))
    ev.declare(node.name, _binding(ev, node, value), node.at)


def _binding(ev: Evaluator, node: tree.Variable, value: Value) -> Any:
    constant = node.kind == "const"
    if ev.code is None or (constant and is_known(value)):
        ev.count_elements(node.at, types.count_of(value.type))
        return Cell(node.name, value.type, copied(value.data), constant=constant)
    if value.type in (types.COMPTIME_INT, types.COMPTIME_FLOAT):
        what = f"the variable '{node.name}' needs a type to change at run time"
        ev.fail(node.at, what, f"var {node.name}: i16 = …")
    in_register = types.machine_type(value.type) is not None and node.name not in ev.addressed
    if in_register:
        place = RegisterVariable(value.type, ev.code.new())
        ev.write(place, value, node.at)
        return place
    multiples = [ev.known(a.value).data for a in node.attributes if a.name == "align"]
    cell = ev.local_cell(node.name, value.type, node.at, max(multiples, default=0))
    if types.machine_type(value.type) is None:
        try:
            types.size_of(value.type)
        except TypeError:
            ev.fail(node.at, f"'{node.name}' of type {value.type} exists at compile time only")
    if given_value(node) is not None:
        ev.write(KnownPlace(value.type, Reference(cell)), value, node.at)
    return cell


def _assign(ev: Evaluator, node: tree.Assign) -> None:
    if isinstance(node.target, tree.Name) and node.target.id == "_":
        ev.value(node.value)
        return
    place = resolve(ev, node.target)
    if isinstance(place, Value):
        ev.fail(node.target.at, "this cannot be assigned to", "a constant never changes")
    if isinstance(place, KnownPlace) and place.reference.cell.constant:
        ev.fail(node.target.at, f"'{place.reference.cell.name}' is a constant", "declare it var")
    if node.operator != "=":
        value = beside(ev, node.value, place.type, node.operator[:-1])
        value = combined(ev, node.operator[:-1], ev.read(place, node.at), value, node.at)
        value = coerce(ev, value, place.type, node.value.at)
    elif place.type == types.ANONYMOUS:
        value = ev.value(node.value)
        place = place._replace(type=value.type)
    else:
        value = typed(ev, node.value, place.type)
    ev.write(place, value, node.at)


# Choices


def _if(ev: Evaluator, node: tree.If) -> Jump | None:
    code, after, ends = ev.code, Label(), True
    for test, body in node.arms:
        value = condition(ev, test)
        if is_known(value):
            if value.data:
                jump = run(ev, body)
                return _joined(ev, after, ends, jump)
            continue
        assert code is not None
        following = Label()
        code.add(Op.JUMP_UNLESS, 0, following, ev.register(value, test.at))
        if run(ev, body) is None:
            code.add(Op.JUMP, 0, after)
            ends = False
        code.here(following)
    jump = run(ev, node.otherwise) if node.otherwise is not None else None
    return _joined(ev, after, ends, jump)


def _joined(ev: Evaluator, after: Label, ends: bool, jump: Jump | None) -> Jump | None:
    """The end of a choice: all of its ways end if this one and those before do."""
    if ev.code is not None:
        ev.code.here(after)
    return jump if ends else None


def chosen_arm(ev: Evaluator, node: tree.Switch, subject: Value) -> tree.Arm | None:
    """The arm for a known value."""
    for arm in node.arms:
        if not arm.patterns:
            return arm
        for pattern in arm.patterns:
            if ev.known(pattern).data == subject.data:
                return arm
    return None


def _switch(ev: Evaluator, node: tree.Switch) -> Jump | None:
    subject = ev.value(node.subject)
    if is_known(subject):
        arm = chosen_arm(ev, node, subject)
        return run(ev, arm.body) if arm is not None else None
    code, after, ends, exhaustive = ev.require_code(node.at, "this value"), Label(), True, False
    kind = types.machine_type(subject.type)
    assert kind is not None
    register = ev.register(subject, node.at)
    for arm in node.arms:
        body, following = Label(), Label()
        exhaustive |= not arm.patterns
        for pattern in arm.patterns:
            value = coerce(ev, ev.known(pattern), subject.type, pattern.at)
            other = ev.register(value, pattern.at)
            code.add(Op.JUMP_IF, 0, body, code.result(Op.EQ, kind, register, other))
        if arm.patterns:
            code.add(Op.JUMP, 0, following)
        code.here(body)
        if run(ev, arm.body) is None:
            code.add(Op.JUMP, 0, after)
            ends = False
        code.here(following)
    code.here(after)
    return Jump("return") if ends and exhaustive else None


# Loops


def _left(jump: Jump | None, label: str | None) -> tuple[bool, Jump | None]:
    """Whether a loop ends after a round that ended so, and how the loop then ends."""
    if jump is None or (jump.kind == "continue" and jump.label in (None, label)):
        return False, None
    if jump.kind == "break" and jump.label in (None, label):
        return True, None
    return True, jump


def _count_round(ev: Evaluator, number: int, at: Position) -> None:
    ev.count(at)
    most = ev.unit.limits.inlined
    if ev.code is not None and most is not None and number >= most:
        hint = f"--max-inlined-iterations={10 * max(most, 1)} raises the limit"
        ev.fail(at, f"more than {most:,} rounds of an inline loop", hint)


def _while(ev: Evaluator, node: tree.While) -> Jump | None:
    if ev.code is not None and not node.inline:
        return _running_while(ev, node)
    after, jump, rounds = Label(), None, itertools.count()
    while condition(ev.at_compile_time(), node.condition).data:
        _count_round(ev, next(rounds), node.at)
        ends, jump = _left(_round(ev, node, after), node.label)
        if ends:
            break
        if node.step is not None:
            ev.execute(node.step)
    if ev.code is not None:
        ev.code.here(after)
    return jump


def _round(ev: Evaluator, node: tree.For | tree.While, after: Label) -> Jump | None:
    """The body of a loop once; in running code with the labels that its jumps need."""
    again = Label()
    ev.loops.append(Loop(node.label, after, again))
    jump = run(ev, node.body)
    ev.loops.pop()
    if ev.code is not None:
        ev.code.here(again)
    return jump


def _running_while(ev: Evaluator, node: tree.While) -> None:
    code, start, after = ev.require_code(node.at, "this loop"), Label(), Label()
    code.here(start)
    value = condition(ev, node.condition)
    if is_known(value):
        if not value.data:
            return
    else:
        code.add(Op.JUMP_UNLESS, 0, after, ev.register(value, node.condition.at))
    _round(ev, node, after)
    if node.step is not None:
        ev.execute(node.step)
    code.add(Op.JUMP, 0, start)
    code.here(after)


def _for(ev: Evaluator, node: tree.For) -> Jump | None:
    iterable = ev.value(node.iterable)
    if ev.code is not None and not node.inline:
        return _running_for(ev, node, iterable)
    if not is_known(iterable) and iterable.type != types.ANONYMOUS:
        ev.fail(node.iterable.at, "this loop runs while compiling, over what is known then")
    after, jump = Label(), None
    for position, value in enumerate(_rounds(ev, iterable, node.iterable.at)):
        _count_round(ev, position, node.at)
        bindings = (value, Value(types.COMPTIME_INT, position))
        ev.scopes.append(dict(zip(node.variables, bindings, strict=False)))
        jump = _round(ev, node, after)
        ev.scopes.pop()
        ends, jump = _left(jump, node.label)
        if ends:
            break
    if ev.code is not None:
        ev.code.here(after)
    return jump


def _rounds(ev: Evaluator, iterable: Value, at: Position) -> Iterator[Value]:
    """The values that a loop goes through."""
    match iterable:
        case Value(_, Range(kind, start, stop, step)):
            for number in range(start.data, stop.data, step.data):
                yield Value(kind, number)
        case Value(types.Array(_, element), list(parts)):
            for part in parts:
                yield Value(element, part)
        case Value(types.ANONYMOUS, list(parts)):
            yield from parts
        case _:
            ev.fail(at, f"a loop goes over a range or an array, found {described(iterable)}")


def _counting_type(kind: types.Type, start: Value, stop: Value, step: Value) -> Type | None:
    """Return the machine's type of a counter: a wider one if its end does not fit ``kind``."""
    machine = types.machine_type(kind)
    if machine is None or not is_known(step) or not is_known(stop):
        return machine
    end = stop.data + step.data + (1 if step.data < 0 else -1)
    if is_known(start) and (numbers := range(start.data, end, step.data)):
        end = numbers[-1] + step.data
    if fits(types.predefined(machine.name.lower()), end):
        return machine
    return Type.I32 if BYTES[machine] < BYTES[Type.I32] else Type.I64


def _goes_on(code: Code, machine: Type, step: Value, *registers: int) -> int:
    """Return the register of whether a loop goes on.

    Args:
        code: of the loop.
        machine: type of the counter.
        step: of the loop; one that is known only when it runs may be negative.
        registers: of the counter, its end and its step.
    """
    counter, last, by = registers
    up, down = (lambda op=op: code.result(op, machine, counter, last) for op in (Op.LT, Op.GT))
    if is_known(step) or machine >= Type.U8:
        return down() if is_known(step) and step.data < 0 else up()
    falls = code.result(Op.LT, machine, by, code.constant(0))
    there = code.result(Op.NE, machine, counter, last)
    return code.result(Op.AND, Type.BOOL, there, code.result(Op.XOR, Type.BOOL, up(), falls))


def _running_for(ev: Evaluator, node: tree.For, iterable: Value) -> None:
    """A counter from start by step to stop; over an array, an index."""
    code, at = ev.require_code(node.at, "this loop"), node.at
    if isinstance(iterable.data, Range):
        kind, start, stop, step = iterable.data
    elif isinstance(iterable.type, types.Array):
        kind = types.U16
        start, stop, step = (Value(kind, number) for number in (0, iterable.type.count, 1))
    else:
        ev.fail(at, f"a loop goes over a range or an array, found {described(iterable)}")
    machine = _counting_type(kind, start, stop, step)
    if machine is None:
        ev.fail(
            node.iterable.at, f"a loop of running code over {kind}", "inline for, or @range(i16, …)"
        )
    free, begin, after = code.top, Label(), Label()
    counter = RegisterVariable(kind, code.new())
    ev.write(counter, start, at)
    last, by = ev.register(stop, at), ev.register(step, at)
    code.here(begin)
    code.add(Op.JUMP_UNLESS, 0, after, _goes_on(code, machine, step, counter.register, last, by))
    scope = {}
    value = Value(kind, Register(counter.register))
    if isinstance(iterable.data, Range):
        scope[node.variables[0]] = value
    elif node.variables[0] != "_":
        scope[node.variables[0]] = _element(ev, iterable, value, at)
    if len(node.variables) > 1 and node.variables[1] != "_":
        scope[node.variables[1]] = value
    ev.scopes.append(scope)
    _round(ev, node, after)
    ev.scopes.pop()
    code.add(Op.ADD, machine, counter.register, counter.register, by)
    code.add(Op.JUMP, 0, begin)
    code.here(after)
    code.top = free


def _element(ev: Evaluator, iterable: Value, index: Value, at: Position) -> Value:
    if isinstance(iterable.data, Memory):
        place = MemoryPlace(iterable.type, *iterable.data)
    else:
        cell = Cell("an array", iterable.type, iterable.data, constant=True)
        place = KnownPlace(iterable.type, Reference(cell))
    return ev.read(element(ev, place, index, at), at)


# Jumps


def _return(ev: Evaluator, node: tree.Return) -> Jump:
    value = NOTHING if node.value is None else typed(ev, node.value, ev.result)
    value = coerce(ev, value, ev.result, node.at)
    if ev.code is None:
        return Jump("return", None, value)
    if value.type != types.VOID:
        if types.machine_type(value.type) is not None:
            ev.register(value, node.at, into=0)
        else:
            ev.code.add(Op.COPY, 0, 0, ev.aggregate(value, node.at))
    ev.code.add(Op.RETURN)
    return Jump("return")


def _jump(ev: Evaluator, node: tree.Break | tree.Continue) -> Jump:
    kind = "break" if isinstance(node, tree.Break) else "continue"
    given = node.value if isinstance(node, tree.Break) else None
    value = NOTHING if given is None else ev.value(given)
    if ev.code is None or not ev.loops:
        return Jump(kind, node.label, value)
    for loop in reversed(ev.loops):
        if loop.label == node.label if node.label is not None else loop.again is not None:
            break
    else:
        ev.fail(node.at, f"nothing around this has the label '{node.label}'")
    if kind == "continue":
        ev.code.add(Op.JUMP, 0, loop.again)
        return Jump(kind, node.label)
    if value.type != types.VOID:
        if not loop.result:
            loop.result.append(value.type)
        value = coerce(ev, value, loop.result[0], node.at)
        ev.register(value, node.at, into=loop.register)
    ev.code.add(Op.JUMP, 0, loop.after)
    return Jump(kind, node.label)


STATEMENTS = {
    tree.Block: _block,
    tree.Comptime: lambda ev, node: run(ev.at_compile_time(), node.body),
    tree.Variable: variable,
    tree.Assign: _assign,
    tree.If: _if,
    tree.Switch: _switch,
    tree.While: _while,
    tree.For: _for,
    tree.Return: _return,
    tree.Break: _jump,
    tree.Continue: _jump,
}
