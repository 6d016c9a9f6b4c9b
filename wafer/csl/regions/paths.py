"""Paths over free PEs: breadth-first search, so each is as short as those before it allow."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from wafer.csl.regions.routing import Cell, Route, step

_SIDES = (Route.WEST, Route.EAST, Route.SOUTH, Route.NORTH)
Test = Callable[[Cell], bool]


class Hop(NamedTuple):
    """A router of a path."""

    cell: Cell  #: of the fabric
    enters: Route  #: side by which words come
    leaves: Route  #: side by which they go


def find_path(
    source: Cell, leaves: Route, target: Cell, enters: Route, is_free: Test
) -> list[Hop] | None:
    """The routers between two PEs.

    Args:
        source: that sends.
        leaves: by this side.
        target: that receives.
        enters: by this side.
        is_free: whether a path may use a router.

    Returns:
        In order; none if the PEs are neighbors; None if there is no path.
    """
    first, last = step(source, leaves), step(target, enters)
    if first == target and last == source:
        return []
    cells = _shortest(first, is_free, lambda cell: cell == last)
    return None if cells is None else list(_hops([source, *cells, target]))


def find_lanes(
    ends: Sequence[tuple[Cell, Cell]], leaves: Route, enters: Route, is_free: Test
) -> list[list[Hop] | None]:
    """Paths that share no router, searched from the first pair on, or else from the last.

    Args:
        ends: pairs of PEs: that sends, that receives.
        leaves: side of all that send.
        enters: side of all that receive.
        is_free: whether a path may use a router.

    Returns:
        In the order of the pairs; None where there is no path.
    """
    lanes = _lanes(ends, leaves, enters, is_free)
    return _lanes(ends[::-1], leaves, enters, is_free)[::-1] if None in lanes else lanes


def _lanes(
    ends: Sequence[tuple[Cell, Cell]], leaves: Route, enters: Route, is_free: Test
) -> list[list[Hop] | None]:
    taken = set[Cell]()
    lanes = list[list[Hop] | None]()
    usable: Test = lambda cell: is_free(cell) and cell not in taken
    for source, target in ends:
        path = find_path(source, leaves, target, enters, usable)
        taken |= {hop.cell for hop in path or ()}
        lanes.append(path)
    return lanes


def find_exit(source: Cell, leaves: Route, is_free: Test, is_outside: Test) -> list[Hop] | None:
    """The routers between a PE and the nearest edge of the fabric.

    Args:
        source: that sends.
        leaves: by this side.
        is_free: whether a path may use a router.
        is_outside: whether a place is beyond the fabric's edge.

    Returns:
        In order; none if the side looks out of the fabric; None if there is no path.
    """
    usable: Test = lambda cell: is_outside(cell) or is_free(cell)
    cells = _shortest(step(source, leaves), usable, is_outside)
    return None if cells is None else list(_hops([source, *cells]))


def _shortest(first: Cell, usable: Test, is_end: Test) -> list[Cell] | None:
    """Usable cells from the first one to an end."""
    if not usable(first):
        return None
    before = dict[Cell, Cell | None]({first: None})
    waiting = deque([first])
    while waiting:
        cell = waiting.popleft()
        if is_end(cell):
            way = [cell]
            while (previous := before[way[-1]]) is not None:
                way.append(previous)
            return way[::-1]
        for following in (step(cell, side) for side in _SIDES):
            if following not in before and usable(following):
                before[following] = cell
                waiting.append(following)
    return None


def _hops(cells: list[Cell]) -> Iterator[Hop]:
    """The routers between the first cell and the last one."""
    for previous, cell, following in zip(cells, cells[1:], cells[2:], strict=False):
        enters, leaves = (
            next(side for side in _SIDES if step(cell, side) == other)
            for other in (previous, following)
        )
        yield Hop(cell, enters, leaves)
