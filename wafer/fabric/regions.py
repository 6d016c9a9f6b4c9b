"""Routes between and inside rectangles of PEs: streams that one region gathers and another shares.

A stream is one colour. The PEs of a line put their words on it one after another, each letting
those behind it pass when it is done (as ``gather_program`` does); the last one's control wavelet
sets the switches back, so that the line is ready again. The colour then runs to the other region
along a shortest free path and is multicast to all its PEs, whose filters keep each one's share.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from wafer.fabric.errors import RouteError
from wafer.fabric.ops import FabOut, Op, control_wavelet, fabout, mov32
from wafer.fabric.program import Filter, Layout

__all__ = [
    "Rectangle",
    "Stream",
    "Wires",
    "chains",
    "find_stream",
    "pes_of",
    "reset_switches",
    "share",
    "spot",
]

_STEPS = {"N": (0, -1), "E": (1, 0), "S": (0, 1), "W": (-1, 0)}
_BACK = {"N": "S", "E": "W", "S": "N", "W": "E"}
Spot = tuple[int, int]  # (x, y)


class Rectangle(Protocol):
    """What is read of a region: its name, north-west corner and size."""

    @property
    def name(self) -> str:
        """Name of the kernel."""
        ...

    @property
    def x(self) -> int:
        """Westernmost column."""
        ...

    @property
    def y(self) -> int:
        """Northernmost row."""
        ...

    @property
    def width(self) -> int:
        """Columns."""
        ...

    @property
    def height(self) -> int:
        """Rows."""
        ...


class Stream(NamedTuple):
    """A stream as found, and its colour once it is routed.

    line: (x, y) of the senders, in the order of their words
    steps: sides by which it leaves the first sender and every PE until it is in the region
    target: the region
    color: its colour, -1 before `Wires.connect`
    """

    line: tuple[Spot, ...]
    steps: tuple[str, ...]
    target: Rectangle
    color: int = -1

    def out(self, place: Spot) -> FabOut:
        """The descriptor a sender sends with: all but the last then let the others pass."""
        return fabout(self.color, advance_switch=place != self.line[-1])

    def resets(self, place: Spot) -> bool:
        """Whether this sender is to set the switches back."""
        return len(self.line) > 1 and place == self.line[-1]


def pes_of(region: Rectangle) -> list[Spot]:
    """All (x, y) of a region, row by row."""
    return [
        (x, y)
        for y in range(region.y, region.y + region.height)
        for x in range(region.x, region.x + region.width)
    ]


def spot(layout: Layout, place: Spot) -> np.ndarray:
    """[H, W] bool, True at one PE."""
    mask = np.zeros((layout.height, layout.width), bool)
    mask[place[1], place[0]] = True
    return mask


def reset_switches(stream: Stream, thread: int | None = None) -> Op:
    """What the last of several senders sends when its words are on their way."""
    out = fabout(stream.color, control=True)
    return mov32(out, control_wavelet("SWITCH_ADV"), 1, thread=thread)


def share(first: int, words: int, period: int) -> Filter:
    """Keep words ``first .. first + words - 1`` of every ``period``."""
    start = (period - first) % period
    return Filter(kind="counter", high=words - 1, limit=period - 1, start=start)


def find_stream(
    size: tuple[int, int], line: Sequence[Spot], target: Rectangle, source: str
) -> Stream:
    """Find the way of a stream: out at the end of its line from where the path is shorter.

    Args:
        size: (H, W).
        line: senders, neighbours in a row or column, outside the region.
        target: the region.
        source: who sends, for the message.

    Raises:
        RouteError: there is no path.
    """
    goal = set(pes_of(target))
    found = []
    for order in (tuple(line), tuple(line)[::-1])[: len(line)]:
        steps = _path(size, order[0], goal, set(order[1:]))
        if steps is not None:
            found.append(Stream(order, tuple(steps), target))
    if not found:
        raise RouteError(
            f"no path from {source!r}, PE {line[0]}, to region {target.name!r}: leave a free row or"
            " column beside the regions"
        )
    return min(found, key=lambda stream: len(stream.steps))


def _path(
    size: tuple[int, int], start: Spot, target: set[Spot], walls: set[Spot]
) -> list[str] | None:
    """Sides by which a shortest path leaves each PE from ``start`` until it is in ``target``."""
    came: dict[Spot, tuple[Spot, str] | None] = {start: None}
    queue = collections.deque([start])
    while queue:
        at = queue.popleft()
        if at in target:
            steps = []
            while (before := came[at]) is not None:
                at, side = before
                steps.append(side)
            return steps[::-1]
        for side in _STEPS:
            to = _moved(at, side)
            inside = 0 <= to[0] < size[1] and 0 <= to[1] < size[0]
            if inside and to not in came and to not in walls:
                came[to] = (at, side)
                queue.append(to)
    return None


class Wires:
    """Streams on a layout: those that share no PE share a colour.

    Args:
        layout: the layout.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._taken: dict[tuple[int, int], set[Spot]] = {}

    def connect(self, stream: Stream, filters: dict[Spot, Filter | None], queue: int) -> Stream:
        """Route a stream.

        Args:
            stream: from :func:`find_stream`.
            filters: what each PE of the target keeps; one without a filter keeps all.
            queue: input queue of its colour at the target; two streams into one region need two.

        Returns:
            The stream with its colour.

        Raises:
            RouteError: no colour is left.
        """
        path = [stream.line[0]]
        for side in stream.steps:
            path.append(_moved(path[-1], side))
        used = {*stream.line, *path, *pes_of(stream.target)}
        stream = stream._replace(color=self._color(used, queue))
        layout, line, color = self.layout, stream.line, stream.color
        for rank, place in enumerate(line):
            behind = None if rank + 1 == len(line) else _side(place, line[rank + 1])
            ahead = stream.steps[0] if rank == 0 else _side(place, line[rank - 1])
            switches = [{"rx": behind}] if behind else []
            where = spot(layout, place)
            layout.route(color, "RAMP", ahead, where, switches=switches, ring=bool(behind))
        for at, came, goes in zip(path[1:], stream.steps, stream.steps[1:], strict=False):
            layout.route(color, _BACK[came], goes, spot(layout, at))
        _multicast(layout, stream, path[-1], _BACK[stream.steps[-1]], filters)
        return stream

    def _color(self, pes: set[Spot], queue: int) -> int:
        free = [c for (c, q), taken in self._taken.items() if q == queue and not taken & pes]
        color = free[0] if free else self.layout.color(queue=queue)
        self._taken.setdefault((color, queue), set()).update(pes)
        return color


def _moved(place: Spot, side: str) -> Spot:
    dx, dy = _STEPS[side]
    return place[0] + dx, place[1] + dy


def _side(place: Spot, other: Spot) -> str:
    """The side of a PE on which its neighbour lies."""
    return next(side for side in _STEPS if _moved(place, side) == other)


def _multicast(
    layout: Layout,
    stream: Stream,
    entry: Spot,
    came: str,
    filters: dict[Spot, Filter | None],
) -> None:
    """From the entry along its column, from there along every row."""
    inside = set(pes_of(stream.target))
    for x, y in inside:
        if x == entry[0]:
            source = came if y == entry[1] else "S" if y < entry[1] else "N"
            onward = ["E", "W", *("N" if y <= entry[1] else ""), *("S" if y >= entry[1] else "")]
        else:
            source, onward = ("E", ["W"]) if x < entry[0] else ("W", ["E"])
        sides = [side for side in onward if _moved((x, y), side) in inside]
        where = spot(layout, (x, y))
        layout.route(stream.color, source, ["RAMP", *sides], where, filter=filters.get((x, y)))


def chains(layout: Layout, region: Rectangle, colors: Sequence[int], axis: str) -> None:
    """Route systolic chains to a region's first column (``axis="x"``) or first row (``"y"``).

    Args:
        layout: the layout.
        region: the rectangle.
        colors: two, that alternate from PE to PE: rank r sends on ``colors[r % 2]``.
        axis: direction of the chains.
    """
    towards, behind = ("W", "E") if axis == "x" else ("N", "S")
    x, y = layout.x - region.x, layout.y - region.y
    inside = (x >= 0) & (x < region.width) & (y >= 0) & (y < region.height)
    rank, size = (x, region.width) if axis == "x" else (y, region.height)
    for parity, color in enumerate(colors):
        own = rank % 2 == parity
        layout.route(color, "RAMP", towards, inside & own & (rank > 0))
        layout.route(color, behind, "RAMP", inside & ~own & (rank < size - 1))
