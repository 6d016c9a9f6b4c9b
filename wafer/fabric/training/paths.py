"""Ways of streams: how they spread in a region, and paths between regions that share no full link.

A link takes one word per cycle in each direction, whatever the color. Of the two streams into a
layer one comes by the free column west of its region and runs east along every row, the other by
the free row north of it and runs south down every column. Chains and lines of senders run against
them, west and north. Paths between regions are the cheapest by hops and by what the links carry
already.
"""

import collections
import heapq
from collections.abc import Iterable, Sequence

from wafer.machine.arch import OPPOSITE, STEPS
from wafer.spec import Region

__all__ = [
    "Link",
    "Links",
    "Spot",
    "lane",
    "line_links",
    "moved",
    "pes_of",
    "side",
    "tree",
]

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


def moved(place: Spot, to: str) -> Spot:
    """The neighbour on a side."""
    dx, dy = STEPS[to]
    return place[0] + dx, place[1] + dy


def side(place: Spot, other: Spot) -> str:
    """The side of a PE on which its neighbour lies."""
    return next(s for s in STEPS if moved(place, s) == other)


def lane(region: Region, towards: str) -> list[Spot]:
    """The free PEs by which a stream comes into a region to run "E" or "S"."""
    if towards == "E":
        return [(region.x - 1, region.y + k) for k in range(region.height)]
    return [(region.x + k, region.y - 1) for k in range(region.width)]


def tree(region: Region, towards: str, start: Spot, came: str) -> dict[Spot, tuple[str, list[str]]]:
    """Where each PE takes a stream from, and the sides by which it passes it on.

    Args:
        region: the rectangle.
        towards: "E": along its lane and the rows; "S": along its lane and the columns; "": along
            the column of ``start``, both ways along the rows.
        start: where the stream enters, in the lane if there is one.
        came: the side from which it does.
    """
    trunk = lane(region, towards) if towards else [p for p in pes_of(region) if p[0] == start[0]]
    inside = {*trunk, *pes_of(region)}
    spread = {}
    for x, y in inside:
        if (x, y) in trunk and towards == "S":
            source = "E" if x < start[0] else "W"
            onward = "S" + "W" * (x <= start[0]) + "E" * (x >= start[0])
        elif (x, y) in trunk:
            source = "S" if y < start[1] else "N"
            onward = "E" + "W" * (not towards) + "N" * (y <= start[1]) + "S" * (y >= start[1])
        elif towards:
            source, onward = OPPOSITE[towards], towards
        else:
            source, onward = ("E", "W") if x < start[0] else ("W", "E")
        source = came if (x, y) == start else source
        ends = trunk if towards and (x, y) in trunk else inside
        within = lambda s, at=(x, y), ends=ends: moved(at, s) in (inside if s in "ES" else ends)
        spread[x, y] = source, [s for s in onward if within(s)]
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

    def _cost(self, link: Link, words: int) -> int:
        there = self.words[link]
        full = there > 0 and there + words > _SHARED * self.most
        return 1 + there // _PER_HOP + _FULL * full

    def path(self, start: Spot, goal: set[Spot], walls: set[Spot], words: int) -> list[str] | None:
        """Sides by which the cheapest path leaves each PE from ``start`` until it is at a goal."""
        came: dict[Spot, tuple[Spot, str]] = {}
        best = {start: 0}
        queue = [(0, start)]
        while queue:
            cost, at = heapq.heappop(queue)
            if cost > best[at]:
                continue
            if at in goal:
                steps = []
                while at != start:
                    at, to = came[at]
                    steps.append(to)
                return steps[::-1]
            for to in STEPS:
                there = moved(at, to)
                inside = 0 <= there[0] < self.size[1] and 0 <= there[1] < self.size[0]
                if not inside or there in walls:
                    continue
                total = cost + self._cost((at, to), words)
                if total < best.get(there, total + 1):
                    best[there], came[there] = total, (at, to)
                    heapq.heappush(queue, (total, there))
        return None
