"""Builtins of a PE's file: tasks, queues, blocking, exports, its own colors."""

from wafer.csl.semantics.builtins.arguments import Fields, gated, local_task
from wafer.csl.semantics.builtins.routes import check_routable, color_config
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.unit import Unit
from wafer.csl.semantics.core.values import Function, KnownPlace, Reference, Value, is_known
from wafer.csl.semantics.language.names import resolve
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.codes import Gate, Intrinsic, Op
from wafer.machine.image import ENTRIES

_KINDS = {
    "@bind_local_task": ("local_tasks", Gate.LOCAL),
    "@bind_data_task": ("data_tasks", Gate.DATA),
    "@bind_control_task": ("control_tasks", None),
    "@set_teardown_handler": ("teardown_handlers", None),
    "@set_empty_queue_handler": ("empty_handlers", None),
}

_TABLES = 8  # of control tasks, one for each input queue at most
_ROTATIONS, _MOST_TURNS = 2, 0xFFFF
_SHARED = ("local_tasks", "data_tasks")  # their ids are of one set, on WSE-2
_RESERVED = {"local_tasks": "local task", "control_tasks": "control task"}


def _top_level(ev: Evaluator, node: tree.Builtin) -> None:
    if ev.code is not None or not (ev.unit.running and ev.unit.effects):
        ev.fail(node.at, f"{node.name} belongs into a comptime block of a PE's file")


def _bind(ev: Evaluator, node: tree.Builtin) -> None:
    _top_level(ev, node)
    table, gate = _KINDS[node.name]
    function, number = ev.value(node.arguments[0]), ev.known(node.arguments[1])
    _check_task(ev, node, function, number, ENTRIES[table])
    if gate == Gate.LOCAL and function.data.node.formals:
        hint = "a data task or a control task takes the words of a wavelet"
        ev.fail(node.at, f"a local task has no parameters; '{function.data.node.name}' has", hint)
    if kind := _RESERVED.get(table):
        ev.unit.check_reserved(kind, number.data, node.at)
    _enter(ev, node, table, number.data, function.data)
    if gate is not None:
        ev.unit.setup.tasks[function.data.module, function.data.node.name] = (gate, number.data)


def _check_task(ev: Evaluator, node: tree.Builtin, task: Value, number: Value, most: int) -> None:
    if not isinstance(task.data, Function):
        ev.fail(node.at, f"expected a task, found {described(task)}")
    if node.name.startswith("@bind") and task.data.node.kind != "task":
        name = task.data.node.name
        ev.warn(node.at, f"expected a task, found the function '{name}'", f"task {name}(…)")
    least = 8 if node.name == "@bind_local_task" and ev.unit.arch == "wse3" else 0
    if not isinstance(number.data, int) or not least <= number.data < most:
        ev.fail(node.at, f"{node.name}: ids go from {least} to {most - 1}, found {number.data}")


def _enter(ev: Evaluator, node: tree.Builtin, table: str, number: int, task: Function) -> None:
    bindings = ev.unit.setup.bindings
    shared = _SHARED if ev.unit.arch == "wse2" and table in _SHARED else (table,)
    for bound in filter(None, (bindings.get(each, {}).get(number) for each in shared)):
        if bound != task:
            names = f"'{bound.node.name}' and to '{task.node.name}'"
            ev.fail(node.at, f"id {number} is bound to {names}")
    bindings.setdefault(table, {})[number] = task


def _bind_task(ev: Evaluator, node: tree.Builtin) -> None:
    """Before SDK 1.0: one number for colors, local tasks and what control wavelets start."""
    _top_level(ev, node)
    task, color = ev.value(node.arguments[0]), ev.known(node.arguments[1])
    _check_task(ev, node, task, color, ENTRIES["control_tasks"])
    function, number = task.data, color.data
    takes_words = bool(function.node.formals)
    gate = Gate.DATA if takes_words else Gate.LOCAL
    for table in ("local_tasks", "data_tasks")[: 1 + takes_words]:
        if number < ENTRIES[table]:
            _enter(ev, node, table, number, function)
            ev.unit.setup.numbers[number] = gate
            ev.unit.setup.tasks[function.module, function.node.name] = (gate, number)
    _enter(ev, node, "control_tasks", number, function)


def _activate(ev: Evaluator, node: tree.Builtin) -> None:
    value = ev.settled(node.arguments[0])
    if ev.code is None:
        _top_level(ev, node)
        ev.unit.setup.active.append((value, node.at))
    elif is_known(value):
        number = local_task(ev, value, node.at)
        ev.code.add(Op.ACTIVATE, 0, ev.code.constant(number))
    else:
        ev.code.add(Op.ACTIVATE, 0, ev.register(value, node.at))


def _gate(ev: Evaluator, node: tree.Builtin) -> None:
    value, blocks = ev.settled(node.arguments[0]), node.name == "@block"
    if ev.code is None:
        _top_level(ev, node)
        ev.unit.setup.gates.append((value, blocks, node.at))
        return
    op = Op.BLOCK if blocks else Op.UNBLOCK
    if is_known(value):
        gate, number = gated(ev, value, node.at)
        ev.code.add(op, gate, ev.code.constant(number))
    else:
        zero = Value(value.type, 0)
        gate, _ = gated(ev, zero, node.at)
        ev.code.add(op, gate, ev.register(value, node.at))


def _initialize_queue(ev: Evaluator, node: tree.Builtin) -> None:
    _top_level(ev, node)
    queue = ev.value(node.arguments[0])
    options = ev.value(node.arguments[1]) if len(node.arguments) > 1 else None
    given = Fields(ev, options, node.at)
    offset = {"input_queue": 0, "output_queue": 8}.get(str(queue.type))
    if offset is None:
        ev.fail(node.at, f"expected a queue, found {described(queue)}")
    ev.unit.check_reserved(str(queue.type), queue.data, node.at)
    color, given_priority = given.take("color"), given.priority()
    if color is not None:
        check_routable(ev, color, node.at)
    table = given.number("ctrl_table_id", 0, _TABLES - 1)
    row = (color.data if color is not None else -1, given_priority, table)
    known = ev.unit.setup.queues.setdefault(offset + queue.data, row)
    if known != row:
        ev.fail(node.at, f"{queue.type} {queue.data} is initialised twice, for different colors")


def _export_symbol(ev: Evaluator, node: tree.Builtin) -> None:
    _top_level(ev, node)
    symbol, *names = node.arguments
    target = resolve(ev, symbol)
    if names:
        name = ev.text(names[0])
    elif isinstance(symbol, tree.Name):
        name = symbol.id
    else:
        ev.fail(node.at, "what is exported needs a name", '@export_symbol(value, "name")')
    ev.unit.setup.exports[name] = (exported(ev, target, node.at), node.at)


def exported(ev: Evaluator, target: object, at: Position) -> Function | Reference:
    """Return the function or the variable of a file that an exported symbol is.

    Args:
        ev: that evaluates the call.
        target: what its argument stands for.
        at: where an error points.
    """
    match target:
        case Value(_, Function(generic=True) as function):
            ev.fail(at, function.needs_call())
        case Value(_, Function() as function):
            return function
        case KnownPlace(_, reference) if isinstance(reference.cell.data, Function):
            return reference.cell.data
        case KnownPlace(_, reference):
            return reference
    return ev.fail(at, "a function or a variable of the file can be exported")


def _set_local_color_config(ev: Evaluator, node: tree.Builtin) -> None:
    _top_level(ev, node)
    color, config = color_config(ev, node)
    if ev.unit.setup.routes.setdefault(color, config) is not config:
        ev.fail(node.at, f"color {color} is configured twice")


# Control tasks of WSE-3


def _wse3_top_level(ev: Evaluator, node: tree.Builtin) -> None:
    _top_level(ev, node)
    if ev.unit.arch != "wse3":
        ev.fail(node.at, f"{node.name} is of WSE-3, and this is compiled for {ev.unit.arch}")


def _set_control_task_table(ev: Evaluator, node: tree.Builtin) -> None:
    _wse3_top_level(ev, node)
    given = Fields(ev, ev.known(node.arguments[0]) if node.arguments else None, node.at)
    if ev.unit.setup.stride:
        ev.fail(node.at, f"{node.name} is called twice")
    if (instructions := given.number("instructions", 4, 8)) not in (2, 4, 8):
        ev.fail(node.at, f".instructions is 2, 4 or 8, found {instructions}")
    ev.unit.setup.stride = given.number("stride", 1, 7) or ev.fail(node.at, ".stride is 1 to 7")
    given.end("the table of control tasks has no field")


def control_entry(unit: Unit, queue: int) -> int:
    """The id of the control task that control wavelets with id 0 of an input queue start."""
    return unit.setup.queues.get(queue, (-1, -1, 0))[2] * max(unit.setup.stride, 1)


def _bind_rotating_tasks(ev: Evaluator, node: tree.Builtin) -> None:
    """Bind the data task of a queue, and later the control task that it gives way to."""
    _wse3_top_level(ev, node)
    _bind(ev, tree.Builtin(node.at, "@bind_data_task", (node.arguments[0], node.arguments[2])))
    alternative, queue = ev.value(node.arguments[1]), ev.known(node.arguments[2]).data
    _check_task(ev, node, alternative, Value(types.U16, 0), 1)
    given, rotating = Fields(ev, ev.known(node.arguments[3]), node.at), ev.unit.setup.rotating
    if "limit" not in given.left:
        ev.fail(node.at, f"{node.name}: .limit is not given")
    limit = given.number("limit", 0, _MOST_TURNS)
    rotating[queue] = alternative.data, limit, given.number("init", 0, limit)
    given.end("a rotation has no field")
    if len(rotating) > _ROTATIONS:
        ev.fail(node.at, f"{len(rotating)} pairs of tasks rotate; a PE has room for {_ROTATIONS}")


def finish_tasks(ev: Evaluator) -> None:
    """Bind the control tasks of @bind_rotating_tasks, and refuse ids of two tasks.

    Called once the queues' tables are known. Control tasks share the table of data and local tasks,
    unless @set_control_task_table gives them one of their own (the vendor's page of it).
    """
    for queue, (function, _, _) in ev.unit.setup.rotating.items():
        node, entry = tree.Builtin(function.node.at, "", ()), control_entry(ev.unit, queue)
        if entry >= ENTRIES["control_tasks"]:
            ev.fail(node.at, f"the table of queue {queue} begins behind the last control task")
        _enter(ev, node, "control_tasks", entry, function)
    if ev.unit.setup.stride:
        return
    bindings = ev.unit.setup.bindings
    others = {number: task for table in _SHARED for number, task in bindings.get(table, {}).items()}
    for number, task in bindings.get("control_tasks", {}).items():
        if others.get(number, task) != task:
            names = f"'{others[number].node.name}' and to '{task.node.name}'"
            own = "another id, or on WSE-3 @set_control_task_table() for a table of control tasks"
            ev.fail(task.node.at, f"id {number} is bound to {names}", own)


def _queue_flush(ev: Evaluator, node: tree.Builtin) -> None:
    queue = ev.register(ev.value(node.arguments[0]), node.at)
    ev.require_code(node.at, "a queue").result(Op.INTRINSIC, Intrinsic.QUEUE_FLUSH, queue)


BUILTINS = {
    **dict.fromkeys(_KINDS, _bind),
    "@bind_task": _bind_task,
    "@activate": _activate,
    **dict.fromkeys(("@block", "@unblock"), _gate),
    "@initialize_queue": _initialize_queue,
    "@export_symbol": _export_symbol,
    "@set_local_color_config": _set_local_color_config,
    "@queue_flush": _queue_flush,
    "@set_control_task_table": _set_control_task_table,
    "@bind_rotating_tasks": _bind_rotating_tasks,
    "@rpc": lambda ev, node: None,  # the server of remote calls is the host's part here
}
