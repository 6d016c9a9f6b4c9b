"""From a Python layout to an image: ports, paths, color numbers, then the files of the regions."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wafer.csl.host.errors import HostError
from wafer.csl.host.symbols import find_symbol
from wafer.csl.regions.colors import AllocationError, ColorGroup, allocate, joined, meetings
from wafer.csl.regions.grid import Grid, Used, connect, lead_out
from wafer.csl.regions.problems import fail
from wafer.csl.regions.region import CodeRegion, LayoutPlan, Painted
from wafer.csl.regions.routing import Cell, Color, Route, registers_of
from wafer.csl.semantics.builtins.layout import LayoutState, Tile
from wafer.csl.semantics.builtins.routes import ColorConfig
from wafer.csl.semantics.compile import RULES, image_of, param_value
from wafer.csl.semantics.core import types
from wafer.csl.semantics.core.fabric import Fabric
from wafer.csl.semantics.core.unit import Unit
from wafer.csl.semantics.core.values import Value
from wafer.csl.semantics.files import Files
from wafer.csl.syntax.source import Position, suggestion
from wafer.machine.arch import ARCHITECTURES
from wafer.machine.image import COLUMNS, HostPort, Image, Preset

_WEST_AND_NORTH = 1 << Route.WEST | 1 << Route.NORTH  # places count from the wafer's first PE
_NO_FILTER = (0,) * len(COLUMNS["filters"])


def build(plan: LayoutPlan, folder: Path) -> tuple[Image, dict[str, int]]:
    """Compile a layout.

    Returns:
        The image, and the number of each color by its full name.

    Raises:
        CslError: problems of the layout or of the files.
    """
    code = _code(plan)
    margin = bool(plan.connections or plan.streams)
    width, height = (1 + margin + max((cell[k] for cell in code), default=0) for k in (0, 1))
    nets = _nets(plan)
    used = _used(plan, nets)
    grid = Grid(width, height, code, used)
    for output, input in plan.connections:
        connect(grid, nets[output.painted.color.full_name], output, input)
    edges = {
        port.name: lead_out(grid, nets[port.painted.color.full_name], port) for port in plan.streams
    }
    numbers = _numbers(plan, used, set(nets.values()))
    values = {name: numbers[net] for name, net in nets.items()}
    unit, out = _tiles(plan, folder, (width, height), values)
    both = ARCHITECTURES[plan.arch].switch_both_sides
    out.colors |= dict(_configs(used, numbers, both=both))
    image = image_of(unit, out, {})
    ports = {
        port.name: HostPort(
            values[port.painted.color.full_name], *edges[port.name], not port.is_input
        )
        for port in plan.streams
    }
    presets = tuple(_presets(plan, image))
    image = image._replace(edges=_WEST_AND_NORTH, ports=ports, presets=presets, half=plan.half)
    return image, values


def _code(plan: LayoutPlan) -> dict[Cell, CodeRegion]:
    """The region of each PE with code."""
    if not plan.regions:
        raise HostError("the layout has no region; expected layout.create_code_region(…) first")
    out = dict[Cell, CodeRegion]()
    for region in plan.regions:
        for cell in (region.placed(local) for local in region.params):
            if (other := out.setdefault(cell, region)) is not region:
                fail(
                    region.at,
                    f"regions '{other.name}' and '{region.name}' both have PE {cell}",
                    f"regions lie at (0, 0) until they are placed: {region.name}.place(x, y)",
                )
    return out


def _mentioned(plan: LayoutPlan) -> Iterator[tuple[Color, Position]]:
    """The colors of a layout, with a line that mentions each."""
    for region in plan.regions:
        for params in region.params.values():
            yield from ((v, region.at) for v in params.values() if isinstance(v, Color))
        for painted in region.painted.values():
            yield from ((p.color, p.at) for p in painted.values())
        yield from ((port.painted.color, port.painted.at) for port in region.ports)


def _nets(plan: LayoutPlan) -> dict[str, ColorGroup]:
    """What connections make one, by the colors' full names."""
    given = dict[str, int | None]()
    lines = dict[str, Position]()
    for color, at in _mentioned(plan):
        before = given.setdefault(color.full_name, color.value)
        lines[color.full_name] = at
        if None not in {before, color.value} and before != color.value:
            fail(at, f"color '{color.full_name}' is given as {before} and as {color.value}")
        given[color.full_name] = color.value if before is None else before
    pairs = [(a.painted.color.full_name, b.painted.color.full_name) for a, b in plan.connections]
    out = dict[str, ColorGroup]()
    for name, names in joined(given, pairs).items():
        values = {given[other] for other in names} - {None}
        if len(values) > 1:
            text = " and ".join(f"'{n}' is {given[n]}" for n in names if given[n] is not None)
            fail(lines[name], f"connected colors have one number, but {text}")
        out[name] = ColorGroup(names, next(iter(values), None))
    return out


def _at_ports(region: CodeRegion) -> Iterator[tuple[Cell, Painted]]:
    """What ports make of the colors of a region's PEs: the sides of their edges added."""
    for port in region.ports:
        side = "inputs" if port.is_input else "outputs"
        edge = {side: 1 << port.edge}
        positions = tuple(sides._replace(**edge) for sides in port.painted.positions)
        for local in port.cells:
            yield local, port.painted._replace(positions=positions)


def _known(region: CodeRegion) -> Iterator[tuple[Cell, Painted]]:
    """The colors that a region's PEs know by their params; nothing is said of their routes."""
    for local, params in region.params.items():
        for value in params.values():
            if isinstance(value, Color):
                yield local, Painted(value, (), region.at)


def _used(plan: LayoutPlan, nets: Mapping[str, ColorGroup]) -> Used:
    """What the regions' PEs do with each net; ports go before what is painted."""
    out: Used = {}
    for region in plan.regions:
        painted = ((local, p) for local, its in region.painted.items() for p in its.values())
        for local, use in itertools.chain(_known(region), painted, _at_ports(region)):
            cell, net = region.placed(local), nets[use.color.full_name]
            before = out.setdefault(cell, {}).get(net)
            if before and before.color.full_name != use.color.full_name:
                fail(
                    use.at,
                    f"'{before.color.full_name}' and '{use.color.full_name}' meet at PE {cell},"
                    " and connections make them one color",
                    "receive the words and send them again with another color in between",
                )
            out[cell][net] = use
    return out


def _numbers(plan: LayoutPlan, used: Used, nets: set[ColorGroup]) -> dict[ColorGroup, int]:
    positions = {
        cell: {net: painted.positions for net, painted in there.items()}
        for cell, there in used.items()
    }
    meets = {net: {} for net in nets} | meetings(positions)
    switched = {n for there in positions.values() for n, its in there.items() if len(its) > 1}
    try:
        return allocate(meets, switched, plan.arch)
    except AllocationError as error:
        names = error.net.names
        fail(next(at for color, at in _mentioned(plan) if color.full_name in names), str(error))


def _tiles(
    plan: LayoutPlan, folder: Path, size: tuple[int, int], numbers: Mapping[str, int]
) -> tuple[Unit, LayoutState]:
    """The tiles of a layout, with the colors' numbers as params."""
    entry = folder / "layout"  # whose folder the files are relative to
    fabric = Fabric(size, offsets=(0, 0), memcpy=False)
    files = Files(plan.import_paths, entry)
    unit = Unit(RULES, files, plan.arch, running=False, fabric=fabric, half=plan.half)
    unit.rectangle, out = size, LayoutState()
    for region in plan.regions:
        path = folder / region.file
        if not path.is_file():
            fail(region.at, f"there is no file {region.file} in {folder}")
        declarations = unit.files.module(path, {}).declarations
        known = {n for n, d in declarations.items() if getattr(d, "kind", "") == "param"}
        for local, given in region.params.items():
            if unknown := sorted(given.keys() - known):
                hint = suggestion(unknown[0], known) or f"it has {', '.join(sorted(known))}"
                fail(region.at, f"{region.file} has no param '{unknown[0]}'", hint)
            params = {name: _value(value, numbers) for name, value in given.items()}
            tile = Tile(region.file, str(entry), Value(types.ANONYMOUS, params), region.at)
            out.tiles[region.placed(local)] = tile
    return unit, out


def _configs(
    used: Used, numbers: Mapping[ColorGroup, int], *, both: bool
) -> Iterator[tuple[tuple[int, int, int], ColorConfig]]:
    """What routers do with each color: registers by column, row and number.

    Args:
        used: colors of each router.
        numbers: of the colors.
        both: whether a switch position may change inputs and outputs.
    """
    for (x, y), there in used.items():
        for net, painted in there.items():
            if not painted.positions:
                continue
            try:
                registers = registers_of(painted.positions, both=both)
            except ValueError as error:
                fail(painted.at, f"color '{painted.color.name}' at PE ({x}, {y}): {error}")
            yield (x, y, numbers[net]), ColorConfig(*registers, _NO_FILTER, painted.at)


def _value(value: Any, numbers: Mapping[str, int]) -> Value:
    return param_value(numbers[value.full_name] if isinstance(value, Color) else value)


def _presets(plan: LayoutPlan, image: Image) -> Iterator[Preset]:
    """Values of variables that the layout gives, once they are known to fit."""
    for region in plan.regions:
        x, y = region.origin
        for name, values, at in region.tiled:
            for local in region.params:
                cell = region.placed(local)
                try:
                    symbol = find_symbol(image, *cell, name)
                except HostError as error:
                    fail(at, str(error))
                if (size := values[local[1], local[0]].nbytes) != symbol.bytes:
                    fail(
                        at,
                        f"'{name}' of PE {cell} is a {symbol.type} of {symbol.bytes} bytes, and"
                        f" gets {values.shape[2]} values of {values.dtype}, {size} bytes",
                    )
            yield Preset(name, x, y, values.view(np.uint8))
