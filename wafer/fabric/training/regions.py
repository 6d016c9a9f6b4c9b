"""Streams between and inside rectangles of PEs: one region gathers a stream, another shares it out.

A stream is one color. The PEs of a line put their words on it one after another, each letting
those behind it pass when it is done (as ``gather_program`` does); the last one's control wavelet
sets the switches back, so that the line is ready again. The color then runs to the other region
along a cheapest free path and is multicast to all its PEs, whose filters keep each one's share.

A link takes one word per cycle in each direction, whatever the color. Of the two streams into a
layer one comes by the free column west of its region and runs east along every row, the other by
the free row north of it and runs south down every column. Chains and lines of senders run against
them, west and north. Paths between regions are the cheapest by hops and by what the links carry
already.
"""

import collections
import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from wafer.fabric.errors import RouteError
from wafer.fabric.library.routes import chain_routes
from wafer.fabric.program.layout import Layout
from wafer.fabric.program.ops import FabOut, Op, control_wavelet, fabout, mov32
from wafer.fabric.program.tables import Filter
from wafer.machine.arch import OPPOSITE, STEPS, neighbor
from wafer.spec import Region

Spot = tuple[int, int]  # (x, y)
Link = tuple[Spot, str]  # the side by which a PE's words leave
_PER_HOP = 8  # words on a link that are avoided like one hop more
_FULL = 1000  # hops taken to avoid a link that another stream has
_SHARED = 0.75  # and that both together fill to this part: they would leave each other waiting


def pes_of(region: Region) -> list[Spot]:
    """All (x, y) of a region, row by row."""
    return [
        (x, y)
        for y in range(region.y, region.y + region.height)
        for x in range(region.x, region.x + region.width)
    ]


def side(place: Spot, other: Spot) -> str:
    """The side of a PE on which its neighbour lies."""
    return next(s for s in STEPS if neighbor(*place, s) == other)


def lane(region: Region, towards: str) -> list[Spot]:
    """The free PEs by which a stream comes into a region to run "E" or "S"."""
    if towards == "E":
        return [(region.x - 1, region.y + k) for k in range(region.height)]
    return [(region.x + k, region.y - 1) for k in range(region.width)]


def tree(region: Region, towards: str, start: Spot, port: str) -> dict[Spot, tuple[str, list[str]]]:
    """Where each PE takes a stream from, and the sides by which it passes it on.

    Args:
        region: the rectangle.
        towards: "E": along its lane and the rows; "S": along its lane and the columns; "": along
            the column of ``start``, both ways along the rows.
        start: where the stream enters, in the lane if there is one.
        port: the side from which it does.
    """
    along, across = {"E": ("NS", "E"), "S": ("WE", "S"), "": ("NS", "WE")}[towards]
    inside = {*pes_of(region)}
    trunk = lane(region, towards) if towards else [p for p in inside if p[0] == start[0]]
    spread, reached = {start: (port, list[str]())}, [start]
    for pe in reached:  # grows
        for to in along + across:
            adjacent = neighbor(*pe, to)
            if adjacent in (trunk if to in along else inside) and adjacent not in spread:
                spread[pe][1].append(to)
                spread[adjacent] = OPPOSITE[to], []
                reached.append(adjacent)
    return spread


def line_links(line: Sequence[Spot]) -> list[Link]:
    """Links between the senders of a line, towards the first."""
    return [(place, side(place, line[i])) for i, place in enumerate(line[1:])]


class Links:
    """Words per micro-batch that cross every link.

    Args:
        size: (H, W).
        most: words that a link carries without being the slowest part of the network.
    """

    def __init__(self, size: tuple[int, int], most: int) -> None:
        self.size, self.most = size, most
        self.words: collections.Counter[Link] = collections.Counter()

    def add(self, links: Iterable[Link], words: int) -> None:
        """Let a stream of so many words cross the links."""
        for link in links:
            self.words[link] += words

    def path(self, start: Spot, goal: set[Spot], walls: set[Spot], words: int) -> list[str] | None:
        """Sides by which the cheapest path leaves each PE from ``start`` until it is at a goal."""
        best, queue = {start: 0}, [(0, start, "")]
        while queue:
            cost, pe, steps = heapq.heappop(queue)
            if cost > best[pe]:
                continue
            if pe in goal:
                return [*steps]
            for to in STEPS:
                adjacent = neighbor(*pe, to)
                inside = 0 <= adjacent[0] < self.size[1] and 0 <= adjacent[1] < self.size[0]
                if not inside or adjacent in walls:
                    continue
                carried = self.words[pe, to]
                full = carried > 0 and carried + words > _SHARED * self.most
                total = cost + 1 + carried // _PER_HOP + _FULL * full
                if total < best.get(adjacent, total + 1):
                    best[adjacent] = total
                    heapq.heappush(queue, (total, adjacent, steps + to))
        return None


class RegionStream(NamedTuple):
    """A stream as found, and its color once it is routed."""

    line: tuple[Spot, ...]  #: (x, y) of the senders, in the order of their words
    #: sides by which it leaves the first sender and every PE until it is in the region
    steps: tuple[str, ...]
    target: Region  #: the region
    towards: str = ""  #: how it enters and spreads, see `tree`
    colors: tuple[int, ...] = ()  #: that micro-batches take in turn; none before `Wires.connect`

    @property
    def way(self) -> list[Spot]:
        """PEs from the first sender to the one where it spreads."""
        path = [self.line[0]]
        for to in self.steps:
            path.append(neighbor(*path[-1], to))
        return path

    def color(self, m: int) -> int:
        """Color of a micro-batch."""
        return self.colors[m % len(self.colors)]

    def out(self, place: Spot, m: int) -> FabOut:
        """The descriptor a sender sends with: all but the last then let the others pass."""
        return fabout(self.color(m), advance_switch=place != self.line[-1])

    def resets(self, place: Spot) -> bool:
        """Whether this sender is to set the switches back."""
        return len(self.line) > 1 and place == self.line[-1]


def spot(layout: Layout, pe: Spot) -> np.ndarray:
    """[H, W] bool, True at one PE."""
    mask = np.zeros((layout.height, layout.width), bool)
    mask[pe[1], pe[0]] = True
    return mask


def reset_switches(stream: RegionStream, m: int, thread: int | None = None) -> Op:
    """What the last of several senders sends when its words are on their way."""
    out = fabout(stream.color(m), control=True)
    return mov32(out, control_wavelet("SWITCH_ADV"), 1, thread=thread)


def find_stream(
    links: Links,
    lines: Sequence[Sequence[Spot]],
    target: Region,
    *,
    towards: str,
    words: int,
    source: str,
) -> RegionStream:
    """Find the way of a stream and count its words on the links.

    Args:
        links: what they carry already.
        lines: possible orders of the senders, neighbours in a row or column outside the region.
        target: the region.
        towards: how it spreads in the region, see `tree`.
        words: of a micro-batch.
        source: who sends, for the message.

    Raises:
        RouteError: there is no path.
    """
    inside = set(pes_of(target))
    goal = set(lane(target, towards)) if towards else inside
    candidates = []
    for line in lines:
        walls = {*line[1:], *(inside - goal)}
        steps = links.path(line[0], goal, walls, words)
        if steps is not None:
            candidates.append(RegionStream(tuple(line), tuple(steps), target, towards))
    if not candidates:
        raise RouteError(
            f"no path from {source!r}, PE {lines[0][0]}, to region {target.name!r}: leave a free"
            " row or column beside the regions"
        )
    stream = min(candidates, key=lambda stream: len(stream.steps))
    links.add(way_links(stream), words)
    return stream


def way_links(stream: RegionStream) -> list[Link]:
    """Links of a stream's way to its region, and of the lane by which it spreads there."""
    path = stream.way
    links = [*zip(path, stream.steps, strict=False)]
    if not stream.towards:
        return links
    spread = tree(stream.target, stream.towards, path[-1], "")
    lanes = lane(stream.target, stream.towards)
    return links + [(place, to) for place in lanes for to in spread[place][1]]


class Wires:
    """Streams on a layout: those that share no PE share a color.

    Args:
        layout: the layout.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._taken: dict[tuple[int, int], set[Spot]] = {}

    def connect(
        self, stream: RegionStream, filters: dict[Spot, Filter | None], queue: int
    ) -> RegionStream:
        """Route a stream by one more color.

        Args:
            stream: from :func:`find_stream`.
            filters: what each PE of the target keeps; one without a filter keeps all.
            queue: input queue of the color at the target; all colors of the streams into one
                region need different ones.

        Returns:
            The stream with the color added to its others.

        Raises:
            RouteError: no color is left.
        """
        lanes = lane(stream.target, stream.towards) if stream.towards else []
        used = {*stream.line, *stream.way, *lanes, *pes_of(stream.target)}
        color = self._color(used, queue)
        self._route(stream, color, filters)
        return stream._replace(colors=(*stream.colors, color))

    def _route(self, stream: RegionStream, color: int, filters: dict[Spot, Filter | None]) -> None:
        layout, line, path = self.layout, stream.line, stream.way
        for rank, pe in enumerate(line):
            behind = None if rank + 1 == len(line) else side(pe, line[rank + 1])
            ahead = stream.steps[0] if rank == 0 else side(pe, line[rank - 1])
            switches = [{"rx": behind}] if behind else []
            where = spot(layout, pe)
            layout.route(color, "RAMP", ahead, where, switches=switches, ring=bool(behind))
        for pe, came, goes in zip(path[1:], stream.steps, stream.steps[1:], strict=False):
            layout.route(color, OPPOSITE[came], goes, spot(layout, pe))
        spread = tree(stream.target, stream.towards, path[-1], OPPOSITE[stream.steps[-1]])
        taken = set(pes_of(stream.target))
        for pe, (source, onward) in spread.items():
            ports = ["RAMP", *onward] if pe in taken else onward
            layout.route(color, source, ports, spot(layout, pe), filter=filters.get(pe))

    def _color(self, pes: set[Spot], queue: int) -> int:
        free = [c for (c, q), taken in self._taken.items() if q == queue and not taken & pes]
        color = free[0] if free else self.layout.color(queue=queue)
        self._taken.setdefault((color, queue), set()).update(pes)
        return color


def chains(layout: Layout, region: Region, colors: Sequence[int], axis: str) -> None:
    """Route systolic chains to a region's first column (``axis="x"``) or first row (``"y"``).

    Args:
        layout: the layout.
        region: the rectangle.
        colors: two, that alternate from PE to PE: rank r sends on ``colors[r % 2]``.
        axis: direction of the chains.
    """
    x, y = layout.x - region.x, layout.y - region.y
    inside = (x >= 0) & (x < region.width) & (y >= 0) & (y < region.height)
    if axis == "x":
        chain_routes(layout, colors, x, region.width - 1, inside)
    else:
        chain_routes(layout, colors, y, region.height - 1, inside, towards="N")
