"""Deadlocks: which of the waiting things holds up the others.

Each waits for others that wait, in chains. What ends a chain, and so is likely the cause, comes
first: a word that no router will ever take, then what waits for nothing that waits itself.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from wafer.machine.image import Image
from wafer.machine.tools.reports import RAMP, SIDES, Reason, Waiting, neighbor, side_names, sides_of

__all__ = ["by_cause"]

_LONGEST = 1000  # routers that are searched for the senders of a color
Key = tuple[Any, ...]


def by_cause(image: Image, reported: Sequence[object]) -> list[object]:
    """What waits, the likely causes first.

    Args:
        image: that ran.
        reported: of the machine, in the order of the PEs; the text of the JAX machine keeps it.
    """
    waiting = [each for each in reported if isinstance(each, Waiting)]
    if len(waiting) < len(reported):
        return list(reported)
    holders = defaultdict[Key, set[int]](set)
    for number, each in enumerate(waiting):
        for key in _keys(each):
            holders[key].add(number)

    def rank(numbered: tuple[int, Waiting]) -> int:
        number, each = numbered
        if each.refused or each.outside:
            return 0
        return 2 if any(holders[key] - {number} for key in _targets(image, each)) else 1

    return [each for _, each in sorted(enumerate(waiting), key=rank)]


def _keys(each: Waiting) -> Iterator[Key]:
    """What others may name it by."""
    x, y = each.x, each.y
    if each.code == Reason.IN_ROUTER:
        yield ("router", x, y, each.detail)
        yield ("routers", x, y)
    elif each.code == Reason.WORD_UNREAD:
        yield ("queue", x, y, each.detail)
    else:
        yield ("pe", x, y)


def _targets(image: Image, each: Waiting) -> Iterator[Key]:
    """What it waits for."""
    x, y = each.x, each.y
    if each.code == Reason.IN_ROUTER:
        for side in each.full:
            kind = "queue" if side == "RAMP" else "router"
            yield (kind, *neighbor(x, y, side), each.detail)
        if "RAMP" in each.full:  # a queue that an operation reads is not listed as one
            yield ("pe", x, y)
    elif each.code == Reason.FOR_ROOM:
        yield ("routers", x, y)
    elif each.code == Reason.FOR_DATA and each.detail >= 0:
        for cell in _upstream(image, x, y, each.detail):
            yield ("router", *cell, each.detail)
            yield ("pe", *cell)
    else:
        yield ("pe", x, y)


def _upstream(image: Image, x: int, y: int, color: int) -> list[tuple[int, int]]:
    """The routers by which words of a color come to a PE, as they are configured."""
    height, width = image.tiles.shape
    seen, waiting = {(x, y)}, [(x, y)]
    while waiting and len(seen) < _LONGEST:
        cell = waiting.pop()
        for side in side_names(sides_of(image, *cell, color, enter=True) & (1 << RAMP) - 1):
            other = neighbor(*cell, side)
            inside = 0 <= other[0] < width and 0 <= other[1] < height
            back = SIDES.index(side) ^ 1
            new = inside and other not in seen
            if new and sides_of(image, *other, color, enter=False) >> back & 1:
                seen.add(other)
                waiting.append(other)
    return sorted(seen - {(x, y)})
