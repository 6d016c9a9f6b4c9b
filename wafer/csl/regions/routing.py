"""Values that a Python layout is made of: colors, sides, switch positions, coordinates."""

import dataclasses
import enum
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from wafer.machine.arch import PORTS, neighbor
from wafer.machine.codes import NO_POSITION, NO_SWITCH, switch_position

Cell = tuple[int, int]  # column and row of the fabric


class Route(enum.IntEnum):
    """A side of a router; RAMP leads to its PE."""

    WEST = 0
    EAST = 1
    SOUTH = 2
    NORTH = 3
    RAMP = 4


class Edge(enum.IntEnum):
    """An edge of a region; its value is that of the side on which its routers look out."""

    LEFT = Route.WEST
    RIGHT = Route.EAST
    BOTTOM = Route.SOUTH
    TOP = Route.NORTH


class IntVector(NamedTuple):
    """Column and row."""

    x: int
    y: int


class IntRectangle(NamedTuple):
    """PEs from the upper left one to the lower right one, which is not included."""

    upper_left: IntVector
    lower_right: IntVector


class Color(NamedTuple):
    """A symbolic color. Two of one name are one color, unless they are scoped to a region."""

    name: str  #: of it, and of the param that takes it
    value: int | None = None  #: its number; None: any, which the compiler chooses
    scope: str = ""  #: name of the region that it belongs to; '' for all

    @property
    def full_name(self) -> str:
        """The name by which it differs from all others."""
        return f"{self.scope}.{self.name}" if self.scope else self.name


class Sides(NamedTuple):
    """What a router does with a color at one switch position: masks of ``Route``."""

    inputs: int
    outputs: int


_NOWHERE = Sides(0, 0)


@dataclasses.dataclass
class RoutingPosition:
    """Sides by which a color enters and leaves a router; the setters return the position."""

    sides: Sides = _NOWHERE

    def set_input(self, routes: Iterable[Route]) -> Self:
        """Set the sides by which words enter."""
        self.sides = self.sides._replace(inputs=_mask(routes))
        return self

    def set_output(self, routes: Iterable[Route]) -> Self:
        """Set the sides by which words leave."""
        self.sides = self.sides._replace(outputs=_mask(routes))
        return self


class EdgeRouting(NamedTuple):
    """Positions for all PEs of an edge."""

    edge: Edge
    positions: tuple[RoutingPosition, ...]


def get_edge_routing(edge: Edge, positions: Sequence[RoutingPosition]) -> EdgeRouting:
    """Positions that ``paint_all`` is to use on an edge instead of the others."""
    return EdgeRouting(Edge(edge), tuple(positions))


def _mask(routes: Iterable[Route]) -> int:
    return sum(1 << route for route in {Route(route) for route in routes})


def step(cell: Cell, side: int) -> Cell:
    """The neighbor by a side."""
    return neighbor(*cell, PORTS[side])


def registers_of(positions: Sequence[Sides], *, both: bool = False) -> tuple[int, int]:
    """The color's and the switch's register for a route and its switch positions.

    Args:
        positions: sides at each.
        both: whether a position may change inputs and outputs.

    Raises:
        ValueError: more than four, or one that changes nothing, or too much; in words.
    """
    if len(positions) > 4:
        raise ValueError(f"a router has 4 switch positions, found {len(positions)}")
    switch = NO_SWITCH
    for number, (before, after) in enumerate(itertools.pairwise(positions)):
        sides = zip(("rx", "tx"), before, after, strict=True)
        changed = {name: new for name, old, new in sides if old != new}
        if not 1 <= len(changed) <= 1 + both:
            found = "inputs and outputs" if changed else "nothing"
            raise ValueError(
                f"position {number + 1} changes {found} of the one before it; a switch position"
                f" changes the inputs {'and' if both else 'or'} the outputs"
            )
        for name, mask in changed.items():
            if mask.bit_count() != 1:
                raise ValueError(
                    f"position {number + 1} has {mask.bit_count()}"
                    f" {'inputs' if name == 'rx' else 'outputs'}, and a switch position changes to"
                    " one side"
                )
        code = switch_position(changed, both=both)
        switch ^= (NO_POSITION ^ code) << 4 * number
    inputs, outputs = positions[0]
    return outputs | inputs << len(Route), switch
