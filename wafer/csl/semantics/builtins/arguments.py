"""What fields of builtins' arguments say: tasks, priorities, what a control wavelet does."""

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Function, Value
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Action, Gate

_MOST_HANDLES = 64  # colors, or ids of any kind
_PRIORITIES = {"low": 0, "medium": 1, "high": 2}


def fields_of(ev: Evaluator, value: Value, at: Position) -> dict[str, Value]:
    """The fields of a struct, named or not.

    Args:
        ev: that evaluates the call.
        value: the struct.
        at: where an error points.
    """
    if value.type == types.ANONYMOUS and isinstance(value.data, dict):
        return dict(value.data)
    if value.type == types.ANONYMOUS and not value.data:
        return {}
    if isinstance(value.type, types.Struct) and isinstance(value.data, dict):
        kinds = dict(value.type.fields)
        return {name: Value(kinds[name], data) for name, data in value.data.items()}
    return ev.fail(at, f"expected .{{…}} with fields, found {described(value)}")


class Fields:
    """The fields of a struct argument, each taken out when it is read.

    Attributes:
        left: those that nothing has taken.

    Args:
        ev: that evaluates the call.
        value: the struct; None: one without fields.
        at: where an error points.
    """

    def __init__(self, ev: Evaluator, value: Value | None, at: Position) -> None:
        self._ev, self._at = ev, at
        self.left = {} if value is None else fields_of(ev, value, at)

    def end(self, what: str) -> None:
        """Fail if a field is left; ``what`` reads "a FIFO has no field"."""
        if self.left:
            self._ev.fail(self._at, f"{what} '{next(iter(self.left))}'")

    def take(self, name: str) -> Value | None:
        """A field; None where it is not given."""
        return self.left.pop(name, None)

    def flag(self, name: str) -> bool:
        """A bool field; False where it is not given."""
        if (value := self.take(name)) is None:
            return False
        if not isinstance(value.data, int):
            self._ev.fail(self._at, f".{name} is true or false, found {described(value)}")
        return bool(value.data)

    def number(self, name: str, default: int, most: int) -> int:
        """Return an integer field.

        Args:
            name: of the field.
            default: where it is not given.
            most: its greatest value; the least is 0.
        """
        value = self.take(name) or Value(types.COMPTIME_INT, default)
        if not isinstance(value.data, int) or not 0 <= value.data <= most:
            found = described(value)
            self._ev.fail(self._at, f".{name} is a number from 0 to {most}, found {found}")
        return value.data

    def inner(self, name: str) -> "Fields":
        """The fields of a struct field; none where it is not given."""
        return Fields(self._ev, self.take(name), self._at)

    def chosen(self, name: str) -> list[str]:
        """The names of a struct field's bools that are true."""
        return [name for name, value in self.inner(name).left.items() if value.data]

    def action(self) -> tuple[int, int]:
        """The Action of .activate or .unblock, and the id that it is for."""
        activates, unblocks = self.take("activate"), self.take("unblock")
        if activates and unblocks:
            self._ev.fail(self._at, "an operation has .activate or .unblock, not both")
        if activates:
            return Action.ACTIVATE, local_task(self._ev, activates, self._at)
        if unblocks:
            gate, number = gated(self._ev, unblocks, self._at)
            return Action.UNBLOCK + gate, number
        return Action.NONE, -1

    def on_control(self) -> dict[str, int]:
        """Columns of what a control wavelet does."""
        rules = self.inner("on_control")
        action, target = rules.action()
        ends = rules.flag("terminate") or action != Action.NONE
        rules.end(".on_control has no field")
        return {"control_ends": ends, "control_action": action, "control_target": target}

    def priority(self) -> int:
        """0 to 2 for .priority = .{.low = true}; -1 where it is not given."""
        chosen = self.chosen("priority")
        if len(chosen) > 1 or not _PRIORITIES.keys() >= {*chosen}:
            found = ", ".join(chosen)
            self._ev.fail(self._at, f".priority is one of {', '.join(_PRIORITIES)}; found {found}")
        return _PRIORITIES[chosen[0]] if chosen else -1

    def simd(self) -> int:
        """Whether .simd_mode asks for more than one value at a time; -1 where it is not given."""
        if "simd_mode" not in self.left:
            return -1
        return int(any(name != "simd_off" for name in self.chosen("simd_mode")))


def local_task(ev: Evaluator, value: Value, at: Position) -> int:
    """The id of a local task, given as one, as a color of @bind_task or by the task's name.

    Args:
        ev: that evaluates the call.
        value: that names it.
        at: where an error points.
    """
    gate, number = gated(ev, value, at)
    if gate != Gate.LOCAL and number not in ev.unit.setup.numbers:
        ev.fail(at, f"expected a local task, found {described(value)}")
    return number


_GATES = {
    "i16": Gate.COLOR,  # a stream of <memcpy/memcpy>, which SDK 1.0 and 1.1 block as a color
    "local_task_id": Gate.LOCAL,
    "data_task_id": Gate.DATA,
    "color": Gate.COLOR,
    "input_queue": Gate.INPUT_QUEUE,
    "ut_id": Gate.THREAD,
}


def gated(ev: Evaluator, value: Value, at: Position) -> tuple[int, int]:
    """What can be blocked: its Gate and id."""
    if isinstance(value.data, Function):
        bound = ev.unit.setup.tasks.get((value.data.module, value.data.node.name))
        if bound is None:
            ev.fail(at, f"the task '{value.data.node.name}' is bound to no id", "@bind_local_task")
        return bound
    gate = ev.unit.setup.numbers.get(value.data) if value.type == types.COLOR else None
    if gate is None:
        gate = _GATES.get(str(value.type))
    if gate is None or not isinstance(value.data, int):
        ev.fail(
            at, f"expected a task, color or queue known at compile time, found {described(value)}"
        )
    if gate == Gate.COLOR and ev.unit.arch == "wse2":  # a color is its data task
        gate = Gate.DATA
    return gate, value.data


def number_of(ev: Evaluator, value: Value | None, at: Position) -> int:
    """The number of a color or queue; -1 where none is given.

    Args:
        ev: that evaluates the call.
        value: that names it, or None.
        at: where an error points.
    """
    if value is None:
        return -1
    if not isinstance(value.data, int) or not 0 <= value.data < _MOST_HANDLES:
        ev.fail(at, f"expected a color or queue, found {described(value)}")
    return value.data
