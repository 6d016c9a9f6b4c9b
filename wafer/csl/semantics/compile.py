"""From a layout file to an image: the layout is evaluated, then each distinct PE program."""

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wafer.csl.semantics.builtins import (
    descriptors,
    general,
    imports,
    layout as layouts,
    maps,
    operations,
    symbols,
    tasks,
)
from wafer.csl.semantics.builtins.arguments import number_of
from wafer.csl.semantics.builtins.layout import LayoutState, Tile
from wafer.csl.semantics.builtins.routes import ColorConfig
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, Failure, described
from wafer.csl.semantics.core.fabric import Fabric
from wafer.csl.semantics.core.unit import Limits, Rules, Unit
from wafer.csl.semantics.core.values import Module, Value, frozen
from wafer.csl.semantics.files import Files
from wafer.csl.semantics.footprint import check_memory, footprint
from wafer.csl.semantics.language.coerce import coerce
from wafer.csl.semantics.language.expressions import VALUES
from wafer.csl.semantics.language.statements import STATEMENTS, run
from wafer.csl.semantics.program import attempt, compile_program
from wafer.csl.semantics.routed import misrouted, unbound_tasks
from wafer.csl.syntax import tree
from wafer.csl.syntax.releases import release
from wafer.csl.syntax.source import (
    CslError,
    Diagnostic,
    Position,
    emit_warnings,
    suggestion,
)
from wafer.errors import CompileError
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.codes import HALVES, NO_SWITCH
from wafer.machine.costs import costs_for
from wafer.machine.image import COLORS, COLUMNS, Image, Program

_BUILTINS = (
    general.BUILTINS
    | imports.BUILTINS
    | descriptors.BUILTINS
    | operations.BUILTINS
    | maps.BUILTINS
    | tasks.BUILTINS
    | symbols.BUILTINS
    | layouts.BUILTINS
)
RULES = Rules(VALUES, STATEMENTS, _BUILTINS)
_STACK = 20_000  # Python's calls within each other


def param_value(text: Any) -> Value:
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


def _layout(unit: Unit, path: Path, params: Mapping[str, Any]) -> LayoutState:
    """Evaluate a file's layout block."""
    layout = unit.layout = LayoutState()
    declarations = unit.files.opened(path).declarations
    block = next((d for d in declarations if isinstance(d, tree.LayoutBlock)), None)
    if block is None:
        at = Position(str(path), 1, 1)
        hint = "compile the file that places others with @set_tile_code"
        raise CslError([Diagnostic(at, "this file has no layout block", hint)])
    module = unit.files.module(path, {name: param_value(text) for name, text in params.items()})
    known = {n for n, d in module.declarations.items() if getattr(d, "kind", "") == "param"}
    ev = Evaluator(unit, module)
    if unknown := sorted(params.keys() - known):
        at = Position(str(path), 1, 1)
        message = f"there is no param '{unknown[0]}' in this file"
        raise CslError([Diagnostic(at, message, suggestion(unknown[0], known))])
    for name, given in params.items():
        with contextlib.suppress(Failure):  # a type that depends on what has no value
            _check_param(ev, module, name, given)
    attempt(unit, run, ev, block.body)
    if not unit.problems and unit.rectangle is None:
        unit.problems.append(Diagnostic(block.at, "the layout block calls no @set_rectangle"))
    unit.raise_problems()
    return layout


def _check_param(ev: Evaluator, module: Module, name: str, given: Any) -> None:
    """Report a value of the command line that its param's type does not hold."""
    node = module.declarations[name]
    value = module.params[name]
    if isinstance(node, tree.FunctionDecl) or node.type is None:
        return
    kind = ev.type(node.type)
    color = kind == types.COLOR
    try:
        if color and types.is_number(value.type):
            number_of(ev, value, node.at)
        else:
            coerce(ev, value, kind, node.at)
    except Failure as failure:
        if failure.problem:
            option = f"--{'colors' if color else 'params'}={name}:{given}"
            text = f"{option}: the param '{name}' is of type {kind}, found {described(value)}"
            problem = Diagnostic(node.at, text, "colors go from 0 to 63" if color else "")
            raise CslError([problem], ev.unit.files.source(node.at)) from None


class _Compiled(NamedTuple):
    """A program, and what its code configures: color -> configuration, and streams."""

    program: Program
    routes: dict[int, ColorConfig]
    streams: dict[int, str]


def _programs(unit: Unit, layout: LayoutState) -> dict[Any, _Compiled]:
    """The distinct programs of a layout, by their tiles' keys."""
    out = dict[Any, _Compiled | None]()
    problems, largest = list[Diagnostic](), (-1, unit)
    for tile in filter(None, layout.tiles.values()):
        if (key := _key(tile)) not in out:
            own = unit.of_program()
            program = compile_program(own, tile, layout)
            out[key] = program and _Compiled(program, own.setup.routes, _streams(own.modules, own))
            problems += own.problems
            if program and (size := footprint(own).total()) > largest[0]:
                largest = size, own
    errors, warnings = check_memory(largest[1])
    problems += errors
    unit.warnings += warnings
    if problems:
        raise CslError(dict.fromkeys(problems), unit.files.source(problems[0].at))
    return {key: compiled for key, compiled in out.items() if compiled}


def _check_exported(unit: Unit, layout: LayoutState, programs: list[Program]) -> None:
    """Warn of names that the layout exports and no PE."""
    for name, at in layout.lines.items():
        if not any(name in p.functions or name in p.exports for p in programs):
            message = f"no PE exports '{name}', which the layout exports"
            unit.warnings.append(Diagnostic(at, message, f"@export_symbol({name}) in a PE's file"))


class _Wiring(NamedTuple):
    """Arrays of an image, by PE and color; places has the lines of configurations once each."""

    colors: np.ndarray
    switches: np.ndarray
    routed: np.ndarray
    filters: np.ndarray
    route_lines: np.ndarray
    route_places: dict[str, int]

    def configure(self, x: int, y: int, color: int, config: ColorConfig) -> None:
        self.colors[y, x, color], self.switches[y, x, color] = config.color, config.switch
        self.filters[y, x, color], self.routed[y, x, color] = config.filter, True
        place = f"{config.at.file}:{config.at.line}"
        self.route_lines[y, x, color] = self.route_places.setdefault(place, len(self.route_places))


def _key(tile: Tile) -> Any:
    return tile.file, tile.importer, frozen(tile.params)


def _streams(modules: list[Module], program: Unit | None = None) -> dict[int, str]:
    """Colors that memcpy carries: params of its modules, in the layout or, of old, in programs.

    A program of SDK 0.6 takes calls itself: its data task of the color LAUNCH reads their words.
    """
    tasks = program.setup.bindings.get("data_tasks", {}) if program else {}
    return {
        value.data: "MEMCPYH2D_LAUNCH" if name == "LAUNCH" else name
        for module in modules
        if module.name in ("<memcpy/get_params>", "<memcpy_multi/memcpy>")
        for name, value in module.params.items()
        if name.startswith(("MEMCPYH2D_", "MEMCPYD2H_"))
        or (name == "LAUNCH" and value.data in tasks)
    }


def image_of(unit: Unit, layout: LayoutState, params: Mapping[str, Any]) -> Image:
    """Compile the programs of a layout.

    Args:
        unit: of the layout, with its rectangle.
        layout: tiles, colors and exports.
        params: of the layout, by name.

    Raises:
        CslError: every problem of the programs.
    """
    programs = _programs(unit, layout)
    _check_exported(unit, layout, [compiled.program for compiled in programs.values()])
    assert unit.rectangle is not None
    width, height = unit.rectangle
    tiles, shape = np.full((height, width), -1, np.int32), (height, width, COLORS)
    wiring = _Wiring(
        colors=np.zeros(shape, np.int32),
        switches=np.full(shape, NO_SWITCH, np.int32),
        routed=np.zeros(shape, bool),
        filters=np.zeros((*shape, len(COLUMNS["filters"])), np.int32),
        route_lines=np.zeros(shape, np.uint16),
        route_places={"": 0},
    )
    order = {key: k for k, key in enumerate(programs)}
    for (x, y), tile in layout.tiles.items():
        if tile is None:
            continue
        key = _key(tile)
        tiles[y, x] = order[key]
        for color, config in programs[key].routes.items():
            wiring.configure(x, y, color, config)
    for (x, y, color), config in layout.colors.items():
        wiring.configure(x, y, color, config)
        unit.check_reserved("color", color, config.at)
    arrays: dict[str, Any] = wiring._asdict()
    arrays["route_places"] = tuple(wiring.route_places)
    streams = _streams(unit.modules)
    for compiled in programs.values():
        streams |= compiled.streams
    return Image(
        arch=unit.arch,
        programs=tuple(compiled.program for compiled in programs.values()),
        tiles=tiles,
        **arrays,
        exports=tuple(layout.exports.values()),
        streams=streams,
        params=dict(params),
        edges=unit.fabric.edges(unit.rectangle),
    )


@contextlib.contextmanager
def _deep_stack() -> Iterator[None]:
    """Let evaluation call itself as deep as the program's calls need."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _STACK))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def compile_layout(
    path: str | Path,
    params: Mapping[str, Any] | None = None,
    *,
    arch: str = "wse2",
    fabric: tuple[int, int] | None = None,
    offsets: tuple[int, int] = (4, 1),
    buffers: tuple[int, int] = (0, 0),
    import_paths: tuple[str, ...] = (),
    sdk: str = "",
    memcpy: bool = True,
    comptime_func_depth_limit: int | None = None,
    max_inlined_iterations: int | None = None,
    strict: bool = False,
    timing: str = "simulator",
    fp16_format: str = "f16",
) -> Image:
    """Compile a program.

    Args:
        path: of the file with the layout block.
        params: values of its params, by name; text is read as the command line's.
        arch: 'wse2' or 'wse3'.
        fabric: columns and rows of the whole fabric; None: as many as the program needs.
        offsets: columns and rows of it before the program's rectangle.
        buffers: columns between memcpy and the program, to the west and to the east.
        import_paths: folders that are searched for imported files, after the importer's own.
        sdk: release that the program is of, as '1.4'; what others have is an error then. '': it is
            recognised by what the program uses.
        memcpy: whether the fabric has columns and rows around the program for it.
        comptime_func_depth_limit: calls, generic functions or imports within each other while
            compiling; None: 200.
        max_inlined_iterations: rounds of one inline loop; None: any number. Above 1,000,000 it is
            the limit of steps while compiling, too.
        strict: whether what the vendor's compiler takes, and is likely a mistake, is an error.
        timing: 'simulator' or 'silicon', which is known of WSE-3: what its cycles are counted by.
        fp16_format: 'f16', 'bf16' or 'cb16': the one format of 16-bit floats at run time.

    Raises:
        CompileError: no such architecture or release.
        CslError: every problem of the program.
        CompileError: no such timing or format.
    """
    if arch not in ARCHITECTURES:
        raise CompileError(f"no architecture {arch!r}; expected one of {', '.join(ARCHITECTURES)}")
    if sdk:
        release(sdk)  # there is none, or it is an error
    costs_for(arch, timing)
    if fp16_format not in HALVES:
        known = ", ".join(HALVES)
        raise CompileError(f"fp16_format: no format of 16-bit floats ({fp16_format}); use {known}")
    files = Files(import_paths, Path(path))
    place = Fabric(fabric, offsets, buffers, memcpy)
    limits = Limits.of(comptime_func_depth_limit, max_inlined_iterations)
    unit = Unit(RULES, files, arch, running=False, fabric=place, sdk=sdk, limits=limits)
    unit.half = fp16_format
    with _deep_stack():
        layout = _layout(unit, Path(path), params or {})
        image = image_of(unit, layout, params or {})
    warnings = [*unit.warnings, *misrouted(image), *unbound_tasks(image)]
    if strict and warnings:
        raise CslError(dict.fromkeys(warnings), files.source(warnings[0].at))
    emit_warnings(warnings)
    return image._replace(timing=timing, half=fp16_format)
