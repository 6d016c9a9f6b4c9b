"""How many cycles do lookups take, from the particles' numbers alone?"""

from typing import NamedTuple

import numpy as np

from wafer.machine.costs import UNROLLED

# Cycles on WSE-2. Words on their way and elements of operations are counted; the rest is read off
# runs of one PE, of columns of two PEs and of rows of two and three, with up to 40 particles.
_START = 90  # the call, and the end of it
# A particle that starts on a PE: compared with no limit, with one or with two; and its loop's code.
_OWN = ((10, 3), (13, 9), (16, 14))
_COMING = 17  # an energy that comes along the column
_QUEUES = 11  # energies that are on their way before a PE listens
_SORTED = 25  # of a direction: the marks behind the last energies
_QUIET = 51  # a round of balancing in which nothing moves
_ROUND = 81  # one in which something moves
_MOVED = 2.5  # an energy that moves: a cycle to leave, one to come, half a cycle to pack it
_PREPARE = 13  # a particle that is about to be looked up, once
_VISIT = 25  # particles of a PE that are looked up, and move on, once per column
_MOVE = 57
_HOP = 1.0  # of the way back
_PARTICLE = 16.5  # a particle on a PE
_STEP = 11.45  # of the search
_MEET = 1.25  # a cross section's cycles: the operands meet in a bank in a quarter of all cases


class _Lookup(NamedTuple):
    """A nuclide's cycles besides search and sections, how often it adds those, its loop's code."""

    cycles: float
    additions: int
    code: int


_LOOKUPS = {False: _Lookup(95.4, 2, 92), True: _Lookup(37.4, 1, 30)}


def closed_form(
    streams: tuple[np.ndarray, np.ndarray],
    history: list[np.ndarray],
    *,
    particles: int,
    nuclides: int,
    points: int,
    channels: int,
    stochastic: bool,
) -> int:
    """The cycles of ``run``.

    Args:
        streams: [height, width] energies that leave each PE to the south, where they start on it,
            and in all; and the same to the north: see ``problem.travels``.
        history: [height, width] particles of each PE before balancing and after every round.
        particles: that start on a PE.
        nuclides: of a PE.
        points: of a nuclide's grid, in a band.
        channels: cross sections of a point.
        stochastic: as in ``run``.
    """
    width = history[0].shape[1]
    lookup = _LOOKUPS[stochastic]
    each = lookup.cycles + _STEP * depth(points - 1) + _MEET * lookup.additions * channels
    visit = _PARTICLE + nuclides * each + _loop(nuclides, lookup.code)
    most = history[-1].max(axis=1)  # of each row
    rest = width * (_VISIT + most * visit) + most * (_PREPARE + (1 + channels) / 2)
    if width > 1:
        rest = rest + (width - 1) * (_MOVE + 2 * most * (1 + channels)) + _HOP * width
    for before in history[:-1]:
        away = (before // 2).max(axis=1)
        rest = rest + np.where(away > 0, _ROUND + _MOVED * away, _QUIET)
    return round(_START + (_sorting(streams, particles) + rest).max())


def _loop(rounds: int, code: int) -> int:
    """Cycles of a loop's tests and steps, which cost nothing if it is unrolled."""
    return 4 * rounds + 2 if rounds * code > UNROLLED else 0


def depth(intervals: float) -> float:
    """Steps of a binary search that ends in one of so many intervals, on average."""
    whole = int(np.log2(intervals))
    return whole + 2 * (1 - 2**whole / intervals)


def _sorting(streams: tuple[np.ndarray, np.ndarray], particles: int) -> np.ndarray:
    """[height], when the PEs of a row have their particles: southward first, then northward."""
    (own_south, all_south), (own_north, all_north) = streams
    each, code = _OWN[min(own_south.shape[0] - 1, 2)]
    ready = np.full(own_south.shape, float(each * particles + _loop(particles, code)))
    if own_south.shape[0] == 1:
        return ready[:, 0]
    ready = _pass(own_south, all_south, ready)
    return _pass(own_north[::-1], all_north[::-1], ready[::-1])[::-1].max(axis=1)


def _pass(own: np.ndarray, every: np.ndarray, ready: np.ndarray) -> np.ndarray:
    """When each PE of a column is through with a direction; the first one only sends.

    A PE sends its own energies as fast as the next one takes them, which first sends its own.
    """
    height = ready.shape[0]
    listens = ready.copy()
    for y in range(height - 2, -1, -1):
        late = own[y] - _QUEUES
        listens[y] += own[y]
        waits = np.maximum(listens[y], listens[y + 1] + _COMING * late)
        listens[y] = np.where(late > 0, waits, listens[y])
    through = listens.copy()
    for y in range(1, height):
        through[y] = np.maximum(listens[y] + _COMING * every[y - 1], through[y - 1]) + _SORTED
    return through
