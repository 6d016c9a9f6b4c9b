"""Builtins of a PE's file: tasks, queues, blocking, exports, its own colours."""

from wafer.csl.semantics.builtins.arguments import fields_of, gated, local_task, priority
from wafer.csl.semantics.builtins.routes import color_config
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Function, KnownPlace, Reference, Value, is_known
from wafer.csl.semantics.language.names import resolve
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Gate, Intrinsic, Op
from wafer.machine.image import COLORS

__all__ = ["BUILTINS"]

NOTHING = Value(types.VOID, None)
_KINDS = {
    "@bind_local_task": ("local_tasks", Gate.LOCAL, 31),
    "@bind_data_task": ("data_tasks", Gate.DATA, 24),
    "@bind_control_task": ("control_tasks", None, 64),
    "@set_teardown_handler": ("teardown_handlers", None, 24),
    "@set_empty_queue_handler": ("empty_handlers", None, 8),
}


def _top_level(ev: Evaluator, node: tree.Builtin) -> None:
    if ev.code is not None or not (ev.unit.running and ev.unit.effects):
        ev.fail(node.at, f"{node.name} belongs into a comptime block of a PE's file")


def _bind(ev: Evaluator, node: tree.Builtin) -> Value:
    _top_level(ev, node)
    table, gate, most = _KINDS[node.name]
    function, number = ev.value(node.arguments[0]), ev.known(node.arguments[1])
    _check_task(ev, node, function, number, most)
    _enter(ev, node, table, number.data, function.data)
    if gate is not None:
        ev.unit.tasks[function.data.module, function.data.node.name] = (gate, number.data)
    return NOTHING


def _check_task(ev: Evaluator, node: tree.Builtin, task: Value, number: Value, most: int) -> None:
    if not isinstance(task.data, Function):
        ev.fail(node.at, f"expected a task, found {described(task)}")
    if not isinstance(number.data, int) or not 0 <= number.data < most:
        ev.fail(node.at, f"{node.name}: ids go from 0 to {most - 1}, found {number.data}")


def _enter(ev: Evaluator, node: tree.Builtin, table: str, number: int, task: Function) -> None:
    rows = ev.unit.bindings.setdefault(table, {})
    if number in rows and rows[number] != task:
        names = f"'{rows[number].node.name}' and to '{task.node.name}'"
        ev.fail(node.at, f"id {number} is bound to {names}")
    rows[number] = task


def _bind_task(ev: Evaluator, node: tree.Builtin) -> Value:
    """Before SDK 1.0: one number for colours, local tasks and what control wavelets start."""
    _top_level(ev, node)
    task, color = ev.value(node.arguments[0]), ev.known(node.arguments[1])
    _check_task(ev, node, task, color, 64)
    function, number = task.data, color.data
    takes_words = bool(function.node.formals)
    gate = Gate.DATA if takes_words else Gate.LOCAL
    for table, most in (("local_tasks", 31), ("data_tasks", COLORS * takes_words)):
        if number < most:
            _enter(ev, node, table, number, function)
            ev.unit.numbers[number] = gate
            ev.unit.tasks[function.module, function.node.name] = (gate, number)
    _enter(ev, node, "control_tasks", number, function)
    return NOTHING


def _activate(ev: Evaluator, node: tree.Builtin) -> Value:
    value = ev.settled(node.arguments[0])
    if ev.code is None:
        _top_level(ev, node)
        ev.unit.active.append((value, node.at))
    elif is_known(value):
        number = local_task(ev, value, node.at)
        ev.code.add(Op.ACTIVATE, 0, ev.code.constant(number))
    else:
        ev.code.add(Op.ACTIVATE, 0, ev.register(value, node.at))
    return NOTHING


def _gate(ev: Evaluator, node: tree.Builtin) -> Value:
    value, blocks = ev.settled(node.arguments[0]), node.name == "@block"
    if ev.code is None:
        _top_level(ev, node)
        ev.unit.gates.append((value, blocks, node.at))
        return NOTHING
    op = Op.BLOCK if blocks else Op.UNBLOCK
    if is_known(value):
        gate, number = gated(ev, value, node.at)
        ev.code.add(op, gate, ev.code.constant(number))
    else:
        zero = Value(value.type, 0)
        gate, _ = gated(ev, zero, node.at)
        ev.code.add(op, gate, ev.register(value, node.at))
    return NOTHING


def _initialize_queue(ev: Evaluator, node: tree.Builtin) -> Value:
    _top_level(ev, node)
    queue = ev.value(node.arguments[0])
    given = fields_of(ev, ev.value(node.arguments[1]), node.at) if len(node.arguments) > 1 else {}
    offset = {"input_queue": 0, "output_queue": 8}.get(str(queue.type))
    if offset is None:
        ev.fail(node.at, f"expected a queue, found {described(queue)}")
    color = given.pop("color", None)
    if color is not None and color.data >= COLORS:
        ev.fail(node.at, f"colour {color.data} has no routes; those from 0 to {COLORS - 1} do")
    level = priority(ev, given, node.at)
    row = (color.data if color is not None else -1, level)
    known = ev.unit.queues.setdefault(offset + queue.data, row)
    if known != row:
        ev.fail(node.at, f"{queue.type} {queue.data} is initialised twice, for different colours")
    return NOTHING


def _export_symbol(ev: Evaluator, node: tree.Builtin) -> Value:
    _top_level(ev, node)
    exported, *names = node.arguments
    target = resolve(ev, exported)
    if names:
        name = ev.known(names[0]).data
    elif isinstance(exported, tree.Name):
        name = exported.id
    else:
        ev.fail(node.at, "what is exported needs a name", '@export_symbol(value, "name")')
    ev.unit.exports[name] = (_exported(ev, target, node.at), node.at)
    return NOTHING


def _exported(ev: Evaluator, target: object, at: Position) -> Function | Reference:
    match target:
        case Value(_, Function() as function):
            return function
        case KnownPlace(_, reference) if isinstance(reference.cell.data, Function):
            return reference.cell.data
        case KnownPlace(_, reference):
            return reference
    return ev.fail(at, "a function or a variable of the file can be exported")


def _set_local_color_config(ev: Evaluator, node: tree.Builtin) -> Value:
    _top_level(ev, node)
    color = ev.known(node.arguments[0])
    if color.data in ev.unit.routes:
        ev.fail(node.at, f"colour {color.data} is configured twice")
    config = color_config(ev, color.data, ev.known(node.arguments[1]), node.at)
    ev.unit.routes[color.data] = config
    return NOTHING


def _queue_flush(ev: Evaluator, node: tree.Builtin) -> Value:
    value = ev.value(node.arguments[0])
    code = ev.running(node.at, "a queue")
    code.result(Op.INTRINSIC, Intrinsic.QUEUE_FLUSH, ev.register(value, node.at))
    return NOTHING


BUILTINS = {
    **dict.fromkeys(_KINDS, _bind),
    "@bind_task": _bind_task,
    "@activate": _activate,
    **dict.fromkeys(("@block", "@unblock"), _gate),
    "@initialize_queue": _initialize_queue,
    "@export_symbol": _export_symbol,
    "@set_local_color_config": _set_local_color_config,
    "@queue_flush": _queue_flush,
    "@rpc": lambda ev, node: NOTHING,  # the server of remote calls is the host's part here
}
