"""What fields of builtins' arguments say: tasks, priorities, what a control wavelet does."""

from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Function, Value
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Action, Gate

__all__ = [
    "action",
    "fields_of",
    "flag",
    "gated",
    "local_task",
    "number_of",
    "on_control",
    "priority",
    "simd",
]


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


def flag(given: dict[str, Value], name: str) -> bool:
    """A bool field, which is taken out; False where it is not given."""
    return bool(given.pop(name).data) if name in given else False


def action(ev: Evaluator, given: dict[str, Value], at: Position) -> tuple[int, int]:
    """The Action of .activate or .unblock, and the id that it is for.

    Args:
        ev: that evaluates the call.
        given: fields of the call's options; those that are read are taken out.
        at: where an error points.
    """
    if "activate" in given and "unblock" in given:
        ev.fail(at, "an operation has .activate or .unblock, not both")
    if "activate" in given:
        return Action.ACTIVATE, local_task(ev, given.pop("activate"), at)
    if "unblock" in given:
        gate, number = gated(ev, given.pop("unblock"), at)
        return Action.UNBLOCK + gate, number
    return Action.NONE, -1


def local_task(ev: Evaluator, value: Value, at: Position) -> int:
    """The id of a local task, given as one, as a colour of @bind_task or by the task's name.

    Args:
        ev: that evaluates the call.
        value: that names it.
        at: where an error points.
    """
    gate, number = gated(ev, value, at)
    if gate != Gate.LOCAL and number not in ev.unit.numbers:
        ev.fail(at, f"expected a local task, found {described(value)}")
    return number


_GATES = {
    "i16": Gate.COLOR,  # a stream of <memcpy/memcpy>, which SDK 1.0 and 1.1 block as a colour
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
    gate = ev.unit.numbers.get(value.data) if value.type == types.COLOR else None
    if gate is None:
        gate = _GATES.get(str(value.type))
    if gate is None or not isinstance(value.data, int):
        ev.fail(
            at, f"expected a task, colour or queue known at compile time, found {described(value)}"
        )
    return gate, value.data


def on_control(ev: Evaluator, given: dict[str, Value], at: Position) -> dict[str, int]:
    """Columns of what a control wavelet does.

    Args:
        ev: that evaluates the call.
        given: fields of the call's options; those that are read are taken out.
        at: where an error points.
    """
    if "on_control" not in given:
        return {"control_ends": 0, "control_action": Action.NONE, "control_target": -1}
    rules = fields_of(ev, given.pop("on_control"), at)
    action_code, target = action(ev, rules, at)
    ends = flag(rules, "terminate") or action_code != Action.NONE
    return {"control_ends": ends, "control_action": action_code, "control_target": target}


_PRIORITIES = {"low": 0, "medium": 1, "high": 2}


def priority(ev: Evaluator, given: dict[str, Value], at: Position) -> int:
    """0 to 2 for .priority = .{.low = true}; -1 where it is not given.

    Args:
        ev: that evaluates the call.
        given: fields of the call's options; those that are read are taken out.
        at: where an error points.
    """
    if "priority" not in given:
        return -1
    chosen = [
        name for name, value in fields_of(ev, given.pop("priority"), at).items() if value.data
    ]
    return _PRIORITIES[chosen[0]] if chosen and chosen[0] in _PRIORITIES else -1


def simd(ev: Evaluator, given: dict[str, Value], at: Position) -> int:
    """Whether .simd_mode asks for more than one value at a time; -1 where it is not given.

    Args:
        ev: that evaluates the call.
        given: fields of the call's options; those that are read are taken out.
        at: where an error points.
    """
    if "simd_mode" not in given:
        return -1
    modes = fields_of(ev, given.pop("simd_mode"), at)
    return int(any(name != "simd_off" and value.data for name, value in modes.items()))


def number_of(ev: Evaluator, value: Value | None, at: Position) -> int:
    """The number of a colour or queue; -1 where none is given.

    Args:
        ev: that evaluates the call.
        value: that names it, or None.
        at: where an error points.
    """
    if value is None:
        return -1
    if not isinstance(value.data, int):
        ev.fail(at, f"expected a colour or queue, found {described(value)}")
    return value.data
