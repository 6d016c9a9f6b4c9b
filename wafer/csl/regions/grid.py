"""The fabric around the regions: which routers pass on what, and the paths between ports."""

from collections.abc import Callable, Mapping

from wafer.csl.regions.colors import ColorGroup
from wafer.csl.regions.paths import Hop, find_exit, find_lanes
from wafer.csl.regions.problems import fail
from wafer.csl.regions.region import CodeRegion, Painted, RegionPort
from wafer.csl.regions.routing import Cell, Route, Sides, step

_NEEDED = "a path needs PEs without code that no other path of its color uses"
Used = dict[Cell, dict[ColorGroup, Painted]]  # what each router does with each net


class Grid:
    """The fabric around the regions, with what its routers do so far."""

    def __init__(
        self, width: int, height: int, code: Mapping[Cell, CodeRegion], used: Used
    ) -> None:
        self.width, self.height, self.code, self.used = width, height, code, used

    def is_outside(self, cell: Cell) -> bool:
        """Whether a place is beyond the fabric's edge."""
        return not (0 <= cell[0] < self.width and 0 <= cell[1] < self.height)

    def is_free(self, net: ColorGroup) -> Callable[[Cell], bool]:
        """Whether a path of a net may use a router."""
        return lambda cell: (
            not (self.is_outside(cell) or cell in self.code or net in self.used.get(cell, ()))
        )

    def add(self, net: ColorGroup, hops: list[Hop], port: RegionPort) -> None:
        """Let routers pass the words of a port on.

        Args:
            net: that the words are of.
            hops: the routers.
            port: that sends or receives.
        """
        for cell, enters, leaves in hops:
            positions = (Sides(1 << enters, 1 << leaves),)
            painted = Painted(port.painted.color, positions, port.users[0])
            self.used.setdefault(cell, {})[net] = painted

    def obstacle(self, port: RegionPort, cell: Cell) -> str:
        """Why no path begins at a port's PE, if that is knowable."""
        beside = step(cell, port.edge)
        if self.is_outside(beside):
            return f"'{port.name}' looks out of the fabric; place its region further inside"
        if beside in self.code:
            return f"'{port.name}' looks at region '{self.code[beside].name}'; leave PEs between"
        return ""


def connect(grid: Grid, net: ColorGroup, output: RegionPort, input: RegionPort) -> None:
    """Find the paths between the PEs of two ports.

    Args:
        grid: takes the paths.
        net: of both ports.
        output: port that sends.
        input: port that receives.

    Raises:
        CslError: there is none.
    """
    ends = [
        (output.region.placed(a), input.region.placed(b))
        for a, b in zip(output.cells, input.cells, strict=True)
    ]
    lanes = find_lanes(ends, Route(output.edge), Route(input.edge), grid.is_free(net))
    for path, (a, b) in zip(lanes, ends, strict=True):
        if path is None:
            hint = grid.obstacle(output, a) or grid.obstacle(input, b) or _NEEDED
            message = f"there is no path from '{output.name}' at PE {a} to '{input.name}' at PE {b}"
            fail(output.users[0], message, hint)
        grid.add(net, path, output)


def lead_out(grid: Grid, net: ColorGroup, port: RegionPort) -> tuple[int, int, str]:
    """Find the way between a port and the fabric's edge.

    Args:
        grid: takes the way.
        net: of the port.
        port: of one PE.

    Returns:
        Column and row of the PE at the edge, and the side by which it looks out.

    Raises:
        CslError: there is none.
    """
    cell = port.region.placed(port.cells[0])
    hops = find_exit(cell, Route(port.edge), grid.is_free(net), grid.is_outside)
    if hops is None:
        message = f"there is no path between '{port.name}' at PE {cell} and the fabric's edge"
        fail(port.users[0], message, grid.obstacle(port, cell) or _NEEDED)
    (x, y), side = (hops[-1].cell, hops[-1].leaves) if hops else (cell, Route(port.edge))
    if port.is_input:
        hops = [Hop(hop.cell, hop.leaves, hop.enters) for hop in hops]
    grid.add(net, hops, port)
    return x, y, side.name[0]
