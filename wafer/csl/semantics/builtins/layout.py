"""The layout block: which file runs on which PE, what each color does there, what is exported."""

import dataclasses

from wafer.csl.semantics.builtins.routes import ColorConfig, color_config
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.evaluator import Evaluator, described
from wafer.csl.semantics.core.values import Value
from wafer.csl.syntax import tree
from wafer.csl.syntax.source import Position
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.image import Export


@dataclasses.dataclass(frozen=True)
class Tile:
    """The code of a PE: a file, the one that names it, its params, and where that is said."""

    file: str
    importer: str
    params: Value
    at: Position


@dataclasses.dataclass(eq=False)
class LayoutState:
    """What the layout block has said so far.

    Attributes:
        tiles: by (x, y).
        colors: by (x, y, color).
        exports: by name, in order.
        kinds: their types.
        lines: where they are exported.
    """

    tiles: dict[tuple[int, int], Tile | None] = dataclasses.field(default_factory=dict)
    colors: dict[tuple[int, int, int], ColorConfig] = dataclasses.field(default_factory=dict)
    exports: dict[str, Export] = dataclasses.field(default_factory=dict)
    kinds: dict[str, types.Type] = dataclasses.field(default_factory=dict)
    lines: dict[str, Position] = dataclasses.field(default_factory=dict)


def _layout(ev: Evaluator, node: tree.Builtin) -> LayoutState:
    if ev.unit.layout is None:
        ev.fail(node.at, f"{node.name} belongs into the layout block")
    return ev.unit.layout


def _numbers(ev: Evaluator, nodes: tuple[tree.Node, ...]) -> list[int]:
    values = [ev.known(node) for node in nodes]
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value.data, bool) or not isinstance(value.data, int):
            ev.fail(node.at, f"expected a number, found {described(value)}")
    return [value.data for value in values]


def _set_rectangle(ev: Evaluator, node: tree.Builtin) -> None:
    _layout(ev, node)
    width, height = _numbers(ev, node.arguments)
    if ev.unit.rectangle is not None:
        ev.fail(node.at, "@set_rectangle is called twice")
    if width < 1 or height < 1:
        ev.fail(node.at, f"a rectangle of {width} x {height} PEs has none")
    columns, rows = ARCHITECTURES[ev.unit.arch].fabric
    if width > columns or height > rows:
        size, arch = f"{width} x {height} PEs", ev.unit.arch
        ev.fail(node.at, f"a rectangle of {size}; the fabric of {arch} has {columns} x {rows}")
    if misfit := ev.unit.fabric.misfit((width, height), ev.unit.arch):
        ev.fail(node.at, *misfit)
    ev.unit.rectangle = width, height


def _place(ev: Evaluator, node: tree.Builtin) -> tuple[int, int]:
    x, y = _numbers(ev, node.arguments[:2])
    if ev.unit.rectangle is None:
        ev.fail(node.at, f"{node.name} before @set_rectangle")
    width, height = ev.unit.rectangle
    if not (0 <= x < width and 0 <= y < height):
        ev.fail(node.at, f"PE ({x}, {y}) is outside of the rectangle of {width} x {height}")
    return x, y


def _set_tile_code(ev: Evaluator, node: tree.Builtin) -> None:
    layout, place = _layout(ev, node), _place(ev, node)
    if place in layout.tiles:
        ev.fail(node.at, f"PE {place} gets its code twice")
    none = Value(types.ANONYMOUS, {})
    if len(node.arguments) == 2:  # before 1.0 the layout's file may have the code as well
        path = ev.unit.files.layout_path
        declarations = ev.unit.files.opened(path).declarations
        has_tasks = any(getattr(d, "kind", "") == "task" for d in declarations)
        layout.tiles[place] = Tile(str(path), str(path), none, node.at) if has_tasks else None
        return
    file = ev.text(node.arguments[2])
    params = ev.known(node.arguments[3]) if len(node.arguments) > 3 else none
    layout.tiles[place] = Tile(file, ev.module.path, params, node.at)


def _set_color_config(ev: Evaluator, node: tree.Builtin) -> None:
    layout, (x, y) = _layout(ev, node), _place(ev, node)
    color, config = color_config(ev, node)
    if layout.colors.setdefault((x, y, color), config) is not config:
        ev.fail(node.at, f"color {color} of PE ({x}, {y}) is configured twice")


def _export_name(ev: Evaluator, node: tree.Builtin) -> None:
    layout, name = _layout(ev, node), ev.text(node.arguments[0])
    kind = ev.type(node.arguments[1])
    if isinstance(kind, types.Array | types.Struct):
        ev.fail(node.at, f"'{name}' cannot be exported as {kind}", "export a pointer [*]T to it")
    mutable = len(node.arguments) > 2 and bool(ev.known(node.arguments[2]).data)
    if name in layout.exports:
        ev.fail(node.at, f"'{name}' is exported twice")
    layout.exports[name] = Export(name, str(kind), mutable)
    layout.kinds[name], layout.lines[name] = kind, node.at


BUILTINS = {
    "@set_rectangle": _set_rectangle,
    "@set_tile_code": _set_tile_code,
    "@set_color_config": _set_color_config,
    "@export_name": _export_name,
}
