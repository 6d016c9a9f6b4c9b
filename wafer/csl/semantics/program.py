"""One PE's program: its files are evaluated, its variables placed, its code written."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from wafer.csl.semantics.builtins.arguments import gated, local_task
from wafer.csl.semantics.builtins.imports import check_params
from wafer.csl.semantics.builtins.layout import LayoutState, Tile
from wafer.csl.semantics.builtins.tasks import control_entry, finish_tasks
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, Failure
from wafer.csl.semantics.core.unit import SRAM, WORD, Unit
from wafer.csl.semantics.core.values import Cell, Function, Module, Reference, Value
from wafer.csl.semantics.footprint import ERROR, footprint, runtime_bytes
from wafer.csl.semantics.language.calls import write_functions
from wafer.csl.semantics.language.names import declared, signature
from wafer.csl.semantics.language.statements import run
from wafer.csl.syntax import tree
from wafer.csl.syntax.releases import release
from wafer.csl.syntax.source import CslError, Diagnostic, Position, suggestion
from wafer.machine.codes import Op
from wafer.machine.image import COLUMNS, ENTRIES, NO_COLOR, Program

T = TypeVar("T")
_COLORS_BIND = (1, 4)  # last release in which an operand's color initializes its queue


def attempt(unit: Unit, step: Callable[..., T], *arguments: Any) -> T | None:
    """The result of a step; None if it fails, with the problem noted."""
    try:
        return step(*arguments)
    except Failure as failure:
        if failure.problem is not None:
            unit.problems.append(failure.problem)
    except CslError as error:
        unit.problems += error.problems
    return None


def _run_blocks(unit: Unit, module: Module) -> None:
    """Import what a file imports, run the comptime blocks of all, then its own."""
    ev = Evaluator(unit, module)
    known = len(unit.modules)
    for name in unit.files.opened(module.path).importing:
        attempt(unit, declared, ev, module, name)
    for imported in unit.modules[known:]:
        if imported is not module and not imported.settled:
            imported.settled = True
            _run_blocks(unit, imported)
    with unit.leading(module.imported):
        for block in module.blocks:
            attempt(unit, run, Evaluator(unit, module), block)


def _global_cell(unit: Unit, module: Module, name: str) -> Cell | None:
    """A file's variable, or constant, that can lie in a PE's memory; None if it cannot."""
    try:
        cell = declared(Evaluator(unit, module), module, name)
        if isinstance(cell, Cell) and types.size_of(cell.type):
            return cell
    except (Failure, CslError):
        module.members.pop(name, None)  # reported where it is used, if it is
    except TypeError:  # a type of compile time alone
        pass
    return None


def _check_declarations(unit: Unit) -> None:
    """Report what is wrong with declared types and values that no code reads.

    What they name may have no value: a param that is not given is an error only where it is used.
    """
    for module in unit.modules:
        for name, node in module.declarations.items():
            if module.library or name in module.members or not isinstance(node, tree.Variable):
                continue
            if node.type is None or node.kind == "param":
                continue
            if node.kind == "const" and not _is_numeric(unit, module, node):
                continue
            try:
                declared(Evaluator(unit, module), module, name)
            except Failure as failure:  # reported anew where it is used
                own = {part.at for part, _ in tree.walk(node)}
                if failure.problem is not None and failure.problem.at in own:
                    unit.problems.append(failure.problem)
            except CslError:
                module.members.pop(name, None)


def _is_numeric(unit: Unit, module: Module, node: tree.Variable) -> bool:
    """Whether a constant is declared as a number or an array of them."""
    assert node.type is not None
    try:
        kind = Evaluator(unit, module).type(node.type)
    except (Failure, CslError):
        return isinstance(node.type, tree.Name)
    return types.is_number(kind.element if isinstance(kind, types.Array) else kind)


def _place_variables(unit: Unit) -> None:
    """Give variables addresses in the order of their declarations; programs rely on neighbours.

    What is no array, and keeps its value, lies behind them: the vendor's compiler makes a constant
    of it. Where all that files mention is more than there is room for, only what the code uses gets
    a place.
    """
    cells = list[tuple[Cell, Position]]()
    changed = frozenset[str]().union(*(unit.files.opened(m.path).changed for m in unit.modules))
    for module in sorted(unit.modules, key=lambda module: module.library):
        mentioned = unit.files.opened(module.path).mentioned
        for name, declaration in module.declarations.items():
            if not isinstance(declaration, tree.Variable):
                continue
            exported = "export" in declaration.modifiers
            if exported or (declaration.kind == "var" and name in mentioned):
                cell = _global_cell(unit, module, name)
                if cell is None:
                    continue
                if exported or name in changed or isinstance(cell.type, types.Array):
                    cells.append((cell, declaration.at))
    if sum(types.size_of(cell.type) for cell, _ in cells) <= SRAM - runtime_bytes(unit):
        for cell, at in cells:
            unit.address(Reference(cell), at)


def _place_rest(unit: Unit) -> bool:
    """Put variables that the code has no use for behind all others, as far as there is room.

    Debuggers read them. Returns whether there were any.
    """
    end, room = unit.end, SRAM - footprint(unit).total(ERROR) + unit.end
    for module in unit.modules:
        for name, declaration in module.declarations.items():
            if module.library or not isinstance(declaration, tree.Variable):
                continue
            cell = _global_cell(unit, module, name) if declaration.kind == "var" else None
            if cell is None or cell.address is not None:
                continue
            multiple = max(cell.alignment, WORD)
            if unit.end + multiple + types.size_of(cell.type) <= room:
                unit.address(Reference(cell), declaration.at)
    return unit.end > end


def _check_exports(unit: Unit, layout: LayoutState) -> None:
    for name, (target, at) in unit.setup.exports.items():
        if name not in layout.exports:
            message = f"'{name}' is exported here, but the layout has no @export_name for it"
            unit.problems.append(Diagnostic(at, message, suggestion(name, layout.exports)))
            continue
        if isinstance(target, Function):
            kind = signature(Evaluator(unit, target.module), target)
        else:
            kind = target.part()
        wanted = layout.kinds[name]
        same = kind == wanted or (
            isinstance(kind, types.Pointer)
            and isinstance(wanted, types.Pointer)
            and (kind.target, kind.many) == (wanted.target, wanted.many)
        )
        if not same:
            message = f"'{name}' is a {kind}, and the layout exports a {wanted}"
            unit.problems.append(Diagnostic(at, message))


def _given(params: Value) -> dict[str, Value]:
    """Params by name, as @set_tile_code gives them."""
    given = dict(params.data) if isinstance(params.data, dict) else {}
    if isinstance(params.type, types.Struct):
        kinds = dict(params.type.fields)
        given = {name: Value(kinds[name], data) for name, data in given.items()}
    return given


def _initial_gates(unit: Unit, module: Module) -> tuple[int, np.ndarray]:
    """Active local tasks, and what is blocked, as bits."""
    ev, active, blocked = Evaluator(unit, module), 0, np.zeros(5, np.int32)
    for value, at in unit.setup.active:
        number = attempt(unit, local_task, ev, value, at)
        active |= 1 << (number or 0)
    for value, blocks, at in unit.setup.gates:
        gate, number = attempt(unit, gated, ev, value, at) or (0, 0)
        if blocks:
            blocked[gate] |= 1 << number
        else:
            blocked[gate] &= ~(1 << number)
    return active, blocked


def _write(unit: Unit) -> tuple[bool, np.ndarray | None]:
    """Write all code; whether some runs before any task, and the memory at the start."""
    for name in ENTRIES:
        for function in unit.setup.bindings.get(name, {}).values():
            unit.request(function, {})
    for target, _ in unit.setup.exports.values():
        if isinstance(target, Function):
            unit.request(target, {})
    starts = bool(unit.code.rows)
    if starts:
        unit.code.add(Op.RETURN)
    attempt(unit, write_functions, unit)
    memory = attempt(unit, unit.memory)
    if _place_rest(unit) or unit.functions.waiting:  # functions that only data points to
        memory = attempt(unit, unit.memory)
        attempt(unit, write_functions, unit)
        memory = attempt(unit, unit.memory)
    return starts, memory


def _first_instruction(unit: Unit, function: Function) -> int:
    label = unit.request(function, {}).label
    assert label.target is not None
    return label.target


def _task_table(unit: Unit, name: str) -> np.ndarray:
    entries = np.full(ENTRIES[name], -1, np.int32)
    for number, function in unit.setup.bindings.get(name, {}).items():
        entries[number] = _first_instruction(unit, function)
    return entries


def _tables(unit: Unit) -> dict[str, np.ndarray]:
    tables = unit.tables.arrays()
    old = unit.sdk and release(unit.sdk)[:2] <= _COLORS_BIND
    if unit.arch == "wse3" and not old:  # a descriptor's color does not stand for its queue's
        queue, color, sends = (COLUMNS["fabrics"].index(n) for n in ("queue", "color", "sends"))
        rows = tables["fabrics"]
        unbound = [not row[sends] and row[queue] not in {-1, *unit.setup.queues} for row in rows]
        rows[np.array(unbound, bool), color] = NO_COLOR
    queues, setup = np.full((16, len(COLUMNS["queues"])), -1, np.int32), unit.setup
    for queue, (color, priority, _) in setup.queues.items():
        queues[queue, :3] = color, priority, control_entry(unit, queue)
    for queue, (_, limit, turn) in setup.rotating.items():
        queues[queue, 3:] = limit, turn
    return tables | {"queues": queues}


def compile_program(unit: Unit, tile: Tile, layout: LayoutState) -> Program | None:
    """The code of a tile.

    Args:
        unit: empty; holds routes, and problems if there are any, afterwards.
        tile: file and params.
        layout: which names it exports.

    Returns:
        None if there are problems.
    """
    params = _given(tile.params)
    module = attempt(unit, unit.files.instance, tile.file, tile.importer, params, tile.at)
    if module is None:
        return None
    module.settled = True
    unit.modules.append(module)
    unit.exported = tuple(layout.exports)
    check_params(Evaluator(unit, module), module, tile.file, params.keys(), tile.at)
    _run_blocks(unit, module)
    unit.setup.complete = True
    attempt(unit, finish_tasks, Evaluator(unit, module))
    _check_exports(unit, layout)
    _check_declarations(unit)
    _place_variables(unit)
    variables = {
        n: (t, at) for n, (t, at) in unit.setup.exports.items() if isinstance(t, Reference)
    }
    for target, at in variables.values():
        attempt(unit, unit.address, target, at)
    active, blocked = _initial_gates(unit, module)
    starts, memory = _write(unit)
    frame = None if unit.problems else attempt(unit, unit.functions.frame_size)
    if memory is None or frame is None:
        return None
    files = tuple(dict.fromkeys(place.file for place in unit.code.places))
    lines = [(files.index(place.file), place.line) for place in unit.code.places]
    return Program(
        name=tile.file,
        code=unit.code.table(),
        lines=np.array(lines, np.int32).reshape(-1, 2),
        files=files,
        messages=tuple(unit.messages),
        memory=memory,
        tables=_tables(unit),
        **{name: _task_table(unit, name) for name in ENTRIES},
        start=0 if starts else -1,
        active=active,
        blocked=blocked,
        functions={
            name: _first_instruction(unit, target)
            for name, (target, _) in unit.setup.exports.items()
            if isinstance(target, Function)
        },
        symbols=unit.symbols(),
        exports={
            name: unit.symbol(target.part(), unit.address(target, at))
            for name, (target, at) in variables.items()
        },
        frame=frame,
        footprint=footprint(unit),
        tasks={
            function.node.name: _first_instruction(unit, function)
            for bound in unit.setup.bindings.values()
            for function in bound.values()
        },
        high=0,
        level=3,
        waits=False,
    )
