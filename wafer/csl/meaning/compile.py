"""From a layout file to an image: the layout is evaluated, then each distinct PE program."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wafer.csl.machine.codes import Op
from wafer.csl.machine.image import COLUMNS, Image, Program
from wafer.csl.meaning import descriptors, general, layout as layouts, operations, tasks, types
from wafer.csl.meaning.calls import frame_size, write_functions
from wafer.csl.meaning.descriptors import gated, local_task
from wafer.csl.meaning.evaluator import Evaluator, Failure
from wafer.csl.meaning.expressions import VALUES
from wafer.csl.meaning.files import Files
from wafer.csl.meaning.layout import COLORS, Layout, Tile
from wafer.csl.meaning.names import declared, signature
from wafer.csl.meaning.routes import ColorConfig
from wafer.csl.meaning.statements import STATEMENTS, run
from wafer.csl.meaning.unit import Rules, Unit
from wafer.csl.meaning.values import Cell, Function, Module, Reference, Value, frozen
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import CslError, Position, Problem

__all__ = ["compile_layout"]

_BUILTINS = (
    general.BUILTINS
    | descriptors.BUILTINS
    | operations.BUILTINS
    | tasks.BUILTINS
    | layouts.BUILTINS
)
RULES = Rules(VALUES, STATEMENTS, _BUILTINS)
SRAM = 48 * 1024  # bytes of a PE
_MARGINS = (7, 2)  # columns and rows around a rectangle that memcpy needs
_TASK_TABLES = {
    "local_tasks": 31,
    "data_tasks": 24,
    "control_tasks": 64,
    "teardown_handlers": 24,
    "empty_handlers": 8,
}


def _param(text: Any) -> Value:
    """A parameter from the command line or Python."""
    match text:
        case bool():
            return Value(types.BOOL, text)
        case int() | np.integer():
            return Value(types.COMPTIME_INT, int(text))
        case float():
            return Value(types.COMPTIME_FLOAT, text)
    if text in ("true", "false"):
        return Value(types.BOOL, text == "true")
    try:
        return Value(types.COMPTIME_INT, int(text, 0))
    except ValueError:
        return Value(types.STRING, str(text))


class _Compilation:
    """What all units of one compilation share."""

    def __init__(self, files: Files, arch: str, settings: dict[str, Any]) -> None:
        self.files, self.arch, self.settings = files, arch, settings

    def unit(self, *, running: bool, layout: Layout | None = None) -> Unit:
        return Unit(RULES, self.files, self.arch, running, layout, dict(self.settings))


def _guarded(unit: Unit, action: Any, *arguments: Any) -> Any:
    """The result of a step; None if it fails, with the problem noted."""
    try:
        return action(*arguments)
    except Failure as failure:
        if failure.problem is not None:
            unit.problems.append(failure.problem)
    except CslError as error:
        unit.problems += error.problems
    return None


def _imports(node: tree.Node | None) -> bool:
    return node is not None and any(
        isinstance(n, tree.Builtin) and n.name == "@import_module" for n, _ in tree.walk(node)
    )


def _run_blocks(unit: Unit, module: Module) -> None:
    """Import what a file imports, run the comptime blocks of all, then its own."""
    ev = Evaluator(unit, module)
    known = len(unit.modules)
    for name, declaration in module.declarations.items():
        if isinstance(declaration, tree.Variable) and _imports(declaration.value):
            _guarded(unit, declared, ev, module, name)
    for imported in unit.modules[known:]:
        if imported is not module and not imported.settled:
            imported.settled = True
            _run_blocks(unit, imported)
    for block in module.blocks:
        _guarded(unit, run, Evaluator(unit, module), block)


def _place_variables(unit: Unit) -> None:
    """Give variables addresses in the order of their declarations; programs rely on neighbours.

    Where all that files mention is more than the SRAM holds, only what the code uses gets a place.
    """
    cells = list[tuple[Cell, Position]]()
    for module in sorted(unit.modules, key=lambda module: module.library):
        mentioned = unit.files.mentioned(module.path)
        for name, declaration in module.declarations.items():
            variable = isinstance(declaration, tree.Variable) and declaration.kind == "var"
            if not variable or name not in mentioned:
                continue
            try:
                cell = declared(Evaluator(unit, module), module, name)
                if isinstance(cell, Cell) and cell.running:
                    cells.append((cell, declaration.at))
            except (Failure, CslError):
                module.members.pop(name, None)  # reported where it is used, if it is
    if sum(types.size_of(cell.type) for cell, _ in cells) <= SRAM:
        for cell, at in cells:
            unit.address(Reference(cell), at)


def _layout(shared: _Compilation, path: Path, params: Mapping[str, Any]) -> tuple[Unit, Layout]:
    result = Layout()
    unit = shared.unit(running=False, layout=result)
    block = shared.files.layout(path)
    if block is None:
        at = Position(str(path), 1, 1)
        hint = "compile the file that places others with @set_tile_code"
        raise CslError([Problem(at, "this file has no layout block", hint)])
    module = shared.files.module(path, {name: _param(text) for name, text in params.items()})
    known = {n for n, d in module.declarations.items() if getattr(d, "kind", "") == "param"}
    ev = Evaluator(unit, module)
    if unknown := sorted(params.keys() - known):
        at = Position(str(path), 1, 1)
        message = f"there is no param '{unknown[0]}' in this file"
        raise CslError([Problem(at, message, ev.meant(unknown[0], known))])
    _guarded(unit, run, ev, block.body)
    if not unit.problems and "rectangle" not in unit.settings:
        unit.problems.append(Problem(block.at, "the layout block calls no @set_rectangle"))
    return unit, result


def _check_exports(unit: Unit, layout: Layout, known: dict[str, types.Type]) -> None:
    for name, (target, at) in unit.exports.items():
        if name not in layout.exports:
            ev = Evaluator(unit, next(iter(unit.modules)))
            message = f"'{name}' is exported here, but the layout has no @export_name for it"
            unit.problems.append(Problem(at, message, ev.meant(name, layout.exports)))
            continue
        if isinstance(target, Function):
            kind = signature(Evaluator(unit, target.module), target)
        else:
            kind = target.part()
        wanted = known[name]
        same = kind == wanted or (
            isinstance(kind, types.Pointer)
            and isinstance(wanted, types.Pointer)
            and (kind.target, kind.many) == (wanted.target, wanted.many)
        )
        if not same:
            message = f"'{name}' is a {kind}, and the layout exports a {wanted}"
            unit.problems.append(Problem(at, message))


def _task_tables(unit: Unit) -> dict[str, dict[int, Any]]:
    return {
        name: {
            number: unit.request(function, {}).label
            for number, function in unit.bindings.get(name, {}).items()
        }
        for name in _TASK_TABLES
    }


def _write(unit: Unit, module: Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """All code of a program; labels of its tasks and exported functions."""
    labels = _task_tables(unit)
    functions = {
        name: unit.request(target, {}).label
        for name, (target, _) in unit.exports.items()
        if isinstance(target, Function)
    }
    start = bool(unit.code.rows)
    if start:
        unit.code.add(Op.RETURN)
    _guarded(unit, write_functions, unit)
    return labels, functions | ({"": None} if start else {})


def _initial_gates(unit: Unit, module: Module) -> tuple[int, np.ndarray]:
    """Active local tasks, and what is blocked, as bits."""
    ev, active, blocked = Evaluator(unit, module), 0, np.zeros(5, np.int32)
    for value, at in unit.active:
        number = _guarded(unit, local_task, ev, value, at)
        active |= 1 << (number or 0)
    for value, blocks, at in unit.gates:
        gate, number = _guarded(unit, gated, ev, value, at) or (0, 0)
        if blocks:
            blocked[gate] |= 1 << number
        else:
            blocked[gate] &= ~(1 << number)
    return active, blocked


def _filled(table: dict[int, Any], size: int) -> np.ndarray:
    entries = np.full(size, -1, np.int32)
    for number, label in table.items():
        entries[number] = label.target
    return entries


def _program(
    shared: _Compilation, tile: Tile, layout: Layout, unit_settings: dict[str, Any]
) -> tuple[Unit, Program | None]:
    unit = shared.unit(running=True)
    unit.settings = dict(unit_settings)
    given = dict(tile.params.data) if isinstance(tile.params.data, dict) else {}
    if isinstance(tile.params.type, types.Struct):
        kinds = dict(tile.params.type.fields)
        given = {name: Value(kinds[name], data) for name, data in given.items()}
    module = _guarded(unit, shared.files.instance, tile.file, tile.importer, given, tile.at)
    if module is None:
        return unit, None
    module.settled = True
    unit.modules.append(module)
    _run_blocks(unit, module)
    _check_exports(unit, layout, layout.kinds)
    _place_variables(unit)
    addresses = {
        name: _guarded(unit, unit.address, target, at)
        for name, (target, at) in unit.exports.items()
        if not isinstance(target, Function)
    }
    active, blocked = _initial_gates(unit, module)
    labels, functions = _write(unit, module)
    _guarded(unit, unit.memory)  # which asks for functions that only data points to
    _guarded(unit, write_functions, unit)
    memory = _guarded(unit, unit.memory)
    frame = _guarded(unit, frame_size, unit)
    if unit.problems:
        return unit, None
    return unit, _assembled(
        unit, tile, labels, functions, addresses, active, blocked, memory, frame
    )


def _assembled(
    unit: Unit, tile: Tile, labels: Any, functions: Any, addresses: Any, *parts: Any
) -> Program:
    active, blocked, memory, frame = parts
    files = tuple(dict.fromkeys(place.file for place in unit.code.places))
    lines = [(files.index(place.file), place.line) for place in unit.code.places]
    queues = np.array([unit.queues.get(k, (-1, -1)) for k in range(16)], np.int32)
    tables = {
        name: np.array(rows, np.int32).reshape(-1, len(COLUMNS[name]))
        for name, rows in unit.tables.items()
        if name != "filters"
    }
    symbols = unit.symbol_table()
    for name, address in addresses.items():
        symbols[name] = unit.symbol(name, address)
    return Program(
        name=tile.file,
        code=unit.code.table(),
        lines=np.array(lines, np.int32).reshape(-1, 2),
        files=files,
        messages=tuple(unit.messages),
        memory=memory,
        tables=tables | {"queues": queues},
        **{name: _filled(labels[name], size) for name, size in _TASK_TABLES.items()},
        start=0 if "" in functions else -1,
        active=active,
        blocked=blocked,
        functions={name: label.target for name, label in functions.items() if name},
        symbols=symbols,
        frame=frame,
        tasks={
            function.node.name: unit.request(function, {}).label.target
            for functions_of in unit.bindings.values()
            for function in functions_of.values()
        },
    )


def _image(
    shared: _Compilation, layout: Layout, programs: dict[Any, Any], size: tuple[int, int], rest: Any
) -> Image:
    width, height = size
    tiles = np.full((height, width), -1, np.int32)
    colors = np.zeros((height, width, COLORS), np.int32)
    switches = np.full((height, width, COLORS), 5 << 8 | 5 << 4 | 5, np.int32)
    routed = np.zeros((height, width, COLORS), bool)
    filters = np.zeros((height, width, COLORS, len(COLUMNS["filters"])), np.int32)
    order = list(programs)

    def configure(x: int, y: int, color: int, config: ColorConfig) -> None:
        colors[y, x, color], switches[y, x, color] = config.color, config.switch
        filters[y, x, color], routed[y, x, color] = config.filter, True

    for (x, y), tile in layout.tiles.items():
        if tile is None:
            continue
        key = _key(tile)
        tiles[y, x] = order.index(key)
        for color, config in programs[key][0].routes.items():
            configure(x, y, color, config)
    for (x, y, color), config in layout.colors.items():
        configure(x, y, color, config)
    return Image(
        arch=shared.arch,
        programs=tuple(program for _, program in programs.values()),
        tiles=tiles,
        colors=colors,
        switches=switches,
        routed=routed,
        filters=filters,
        exports=tuple(layout.exports.values()),
        **rest,
    )


def _key(tile: Tile) -> Any:
    return tile.file, tile.importer, frozen(tile.params)


def _streams(modules: list[Module]) -> dict[int, str]:
    """Colours that memcpy carries, from the params of <memcpy/get_params>."""
    return {
        value.data: name
        for module in modules
        if module.name == "<memcpy/get_params>"
        for name, value in module.params.items()
        if name.startswith(("MEMCPYH2D_", "MEMCPYD2H_"))
    }


def compile_layout(
    path: str | Path,
    params: Mapping[str, Any] | None = None,
    *,
    arch: str = "wse2",
    fabric: tuple[int, int] | None = None,
    offsets: tuple[int, int] = (4, 1),
    import_paths: tuple[str, ...] = (),
) -> Image:
    """Compile a program.

    Args:
        path: of the file with the layout block.
        params: values of its params, by name; text is read as the command line's.
        arch: 'wse2' or 'wse3'.
        fabric: columns and rows of the whole fabric; None: as many as the program needs.
        offsets: of the program's rectangle in it.
        import_paths: folders that are searched for imported files, after the importer's own.

    Raises:
        CslError: every problem of the program.
    """

    def fits(ev: Evaluator, at: Position) -> None:
        rectangle = ev.unit.settings["rectangle"]
        needed = [length + margin for length, margin in zip(rectangle, _MARGINS, strict=True)]
        found = fabric or tuple(needed)
        if any(have < need for have, need in zip(found, needed, strict=True)):
            what = f"a rectangle of {rectangle[0]} x {rectangle[1]} PEs does not fit"
            hint = f"it needs --fabric-dims={needed[0]},{needed[1]} or more"
            ev.fail(at, f"{what} on a fabric of {found[0]} x {found[1]}", hint)
        ev.unit.settings["fabric"] = found

    files = Files(import_paths)
    shared = _Compilation(files, arch, {"offsets": offsets, "fits": fits})
    unit, layout = _layout(shared, Path(path), params or {})
    unit.raise_problems()
    programs: dict[Any, Any] = {}
    problems = list[Problem]()
    for tile in layout.tiles.values():
        if tile is not None and (key := _key(tile)) not in programs:
            programs[key] = _program(shared, tile, layout, unit.settings)
            problems += programs[key][0].problems
    if problems:
        raise CslError(dict.fromkeys(problems), files.source(problems[0].at))
    rest = {"streams": _streams(unit.modules), "params": dict(params or {})}
    return _image(shared, layout, programs, unit.settings["rectangle"], rest)
