"""Regions of code: params, painted routes and ports of a rectangle of PEs."""

import dataclasses
import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from wafer.csl.regions.problems import fail, script_position
from wafer.csl.regions.routing import (
    Cell,
    Color,
    Edge,
    EdgeRouting,
    IntRectangle,
    IntVector,
    RoutingPosition,
    Sides,
)
from wafer.csl.syntax.source import Position


class Painted(NamedTuple):
    """A color on a PE, or at a port: its positions, and the line that says so."""

    color: Color
    positions: tuple[Sides, ...]
    at: Position


class Tiled(NamedTuple):
    """Values of a variable for the PEs of a region: [rows, columns, values of a PE]."""

    name: str
    values: np.ndarray
    at: Position


@dataclasses.dataclass(eq=False)
class RegionPort:
    """An edge of a region by which words of a color enter or leave; one word stream for each PE."""

    region: "CodeRegion"  #: of the port
    painted: Painted  #: its color, and the sides that are not the edge's
    edge: Edge  #: of the region
    size: int  #: words of all PEs together
    name: str  #: with the region's
    is_input: bool  #: whether words enter
    #: line of the connection or stream that uses it, if any does
    users: list[Position] = dataclasses.field(default_factory=list)

    @property
    def cells(self) -> list[Cell]:
        """Its PEs, in the region."""
        width, height = self.region.width, self.region.height
        return list(_edge_cells(self.edge, width, height))


def _edge_cells(edge: Edge, width: int, height: int) -> Iterator[Cell]:
    if edge in {Edge.LEFT, Edge.RIGHT}:
        yield from ((0 if edge == Edge.LEFT else width - 1, y) for y in range(height))
    else:
        yield from ((x, 0 if edge == Edge.TOP else height - 1) for x in range(width))


class CodeRegion:
    """A rectangle of PEs that run one file. Coordinates count in the region.

    Attributes:
        file: with the code.
        name: of the region.
        width, height: columns and rows.
        at: line that makes it.
        origin: column and row of the fabric of its first PE.
        params: for each PE, values of the file's params by name.
        painted: for each PE, colors by full name.
        ports: in order.
        tiled: values of variables.
    """

    def __init__(self, file: str, name: str, width: int, height: int, at: Position) -> None:
        self.file, self.name, self.width, self.height, self.at = file, name, width, height, at
        self.origin: Cell = (0, 0)
        self.params: dict[Cell, dict[str, Any]] = {cell: {} for cell in self._all()}
        self.painted: dict[Cell, dict[str, Painted]] = {cell: {} for cell in self._all()}
        self.ports = list[RegionPort]()
        self.tiled = list[Tiled]()

    def _all(self) -> list[Cell]:
        return [(x, y) for y in range(self.height) for x in range(self.width)]

    def placed(self, cell: Cell) -> Cell:
        """Column and row of the fabric of a PE."""
        return self.origin[0] + cell[0], self.origin[1] + cell[1]

    def _within(self, rectangle: IntRectangle) -> list[Cell]:
        (left, top), (right, bottom) = rectangle
        if not (0 <= left < right <= self.width and 0 <= top < bottom <= self.height):
            fail(
                script_position(),
                f"({left}, {top}) to ({right}, {bottom}) is not inside of region '{self.name}' of"
                f" {self.width} x {self.height} PEs",
                "the lower right corner is not included",
            )
        return [(x, y) for y in range(top, bottom) for x in range(left, right)]

    def _single(self, cell: IntVector) -> list[Cell]:
        x, y = cell
        return self._within(IntRectangle(IntVector(x, y), IntVector(x + 1, y + 1)))

    def place(self, x: int, y: int) -> None:
        """Put the first PE at a column and row of the fabric."""
        x, y = operator.index(x), operator.index(y)
        if min(x, y) < 0:
            fail(script_position(), f"region '{self.name}' is placed at ({x}, {y}), off the fabric")
        self.origin = x, y

    def color(self, name: str, value: int | None = None) -> Color:
        """A color of this region alone, whatever others are called."""
        return Color(name, value, self.name)

    def set_param(self, cell: IntVector, name: str | Color, value: Any = None) -> None:
        """Set a param of one PE.

        Args:
            cell: of the region.
            name: of the param; a color alone goes to the param of its name.
            value: of the param.
        """
        self._set(self._single(cell), name, value)

    def set_param_range(self, range: IntRectangle, name: str | Color, value: Any = None) -> None:
        """Set a param of the PEs of a rectangle.

        Args:
            range: of the region.
            name: of the param; a color alone goes to the param of its name.
            value: of the param.
        """
        self._set(self._within(range), name, value)

    def set_param_all(self, name: str | Color, value: Any = None) -> None:
        """Set a param of all PEs."""
        self._set(self._all(), name, value)

    def _set(self, cells: list[Cell], name: str | Color, value: Any) -> None:
        if isinstance(name, Color):
            name, value = name.name, name
        if value is None:
            fail(script_position(), f"the param '{name}' gets no value", "set_param_all(name, 1)")
        for cell in cells:
            self.params[cell][name] = value

    def paint(self, cell: IntVector, color: Color, positions: Sequence[RoutingPosition]) -> None:
        """Set what the router of one PE does with a color.

        Args:
            cell: of the region.
            color: of the words.
            positions: the route, then the switch positions.
        """
        self._paint(self._single(cell), color, positions)

    def paint_range(
        self, range: IntRectangle, color: Color, positions: Sequence[RoutingPosition]
    ) -> None:
        """Set what the routers of a rectangle of PEs do with a color.

        Args:
            range: of the region.
            color: of the words.
            positions: the route, then the switch positions.
        """
        self._paint(self._within(range), color, positions)

    def paint_all(
        self, color: Color, positions: Sequence[RoutingPosition], edges: Sequence[EdgeRouting] = ()
    ) -> None:
        """Set what the routers of all PEs do with a color.

        Args:
            color: of the words.
            positions: the route, then the switch positions.
            edges: edges whose PEs have other positions.
        """
        self._paint(self._all(), color, positions)
        for edge, its in edges:
            self._paint(list(_edge_cells(edge, self.width, self.height)), color, its)

    def _paint(self, cells: list[Cell], color: Color, positions: Sequence[RoutingPosition]) -> None:
        at = script_position()
        painted = Painted(color, tuple(position.sides for position in positions), at)
        for number, sides in enumerate(painted.positions):
            for what, mask in sides._asdict().items():
                if not mask:
                    fail(at, f"position {number} of color '{color.name}' has no {what}")
        if not painted.positions:
            fail(at, f"color '{color.name}' is painted without a position")
        for cell in cells:
            self.painted[cell][color.full_name] = painted

    def _port(
        self,
        color: Color,
        edge: Edge,
        positions: Sequence[RoutingPosition],
        size: int,
        prefix: str = "",
        *,
        is_input: bool,
    ) -> RegionPort:
        """Let words of a color enter or leave by an edge, at all PEs there.

        Args:
            color: of the words.
            edge: of the region.
            positions: of the routers without the edge's side: outputs alone of an input port,
                inputs alone of an output port.
            size: words of all PEs together.
            prefix: makes a second port of a color unique.
            is_input: whether they enter.
        """
        at, name = script_position(), f"{self.name}.{color.name}{prefix}"
        mine, others = ("outputs", "inputs") if is_input else ("inputs", "outputs")
        for position in positions:
            if not getattr(position.sides, mine) or getattr(position.sides, others):
                fail(
                    at,
                    f"a position of port '{name}' has {mine} and no {others}: those are the edge's"
                    " side",
                    f"RoutingPosition().set_{mine[:-1]}([Route.RAMP])",
                )
        if not positions:
            fail(at, f"port '{name}' has no position")
        if any(port.name == name for port in self.ports):
            fail(at, f"region '{self.name}' has two ports of '{color.name}'", "give one a prefix")
        painted = Painted(color, tuple(position.sides for position in positions), at)
        port = RegionPort(self, painted, Edge(edge), operator.index(size), name, is_input)
        if port.size % len(port.cells):
            fail(at, f"{port.size} words of port '{name}' do not divide over {len(port.cells)} PEs")
        for other in self.ports:
            shared = set(other.cells) & set(port.cells)
            if shared and other.painted.color.full_name == color.full_name:
                fail(
                    at,
                    f"ports '{other.name}' and '{name}' have one color, and both PE {min(shared)}",
                    "use another color for one of them",
                )
        self.ports.append(port)
        return port

    create_input_port = functools.partialmethod(_port, is_input=True)
    create_output_port = functools.partialmethod(_port, is_input=False)

    def set_symbol_all(self, name: str, data: np.ndarray, width: int, height: int) -> None:
        """Give all PEs their part of a matrix before the program starts.

        Args:
            name: of a variable.
            data: [height, width], also flat; cut into equal tiles, which lie row by row.
            width: columns of the data.
            height: rows.
        """
        at, data = script_position(), np.asarray(data)
        if data.size != width * height or width % self.width or height % self.height:
            fail(
                at,
                f"{data.size} values as {height} x {width} cannot be cut into equal tiles for"
                f" {self.height} x {self.width} PEs",
            )
        tiles = data.reshape(self.height, height // self.height, self.width, width // self.width)
        values = tiles.swapaxes(1, 2).reshape(self.height, self.width, -1)
        self.tiled.append(Tiled(name, np.ascontiguousarray(values), at))


class LayoutPlan(NamedTuple):
    """A whole layout."""

    arch: str  #: 'wse2' or 'wse3'
    regions: list[CodeRegion]  #: in order
    connections: list[tuple[RegionPort, RegionPort]]  #: output port, input port
    streams: list[RegionPort]  #: ports that the host uses
    import_paths: tuple[str, ...] = ()  #: folders of imported files
    half: str = "f16"  #: of ``codes.HALVES``: the format of 16-bit floats
