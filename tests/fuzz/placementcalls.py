"""Tempering of floor plans with damaged trees, wafers, connections and ladders."""

import dataclasses

import numpy as np

from fuzz.values import damaged_array
from wafer.placement import native, trees

_POINTS, _KERNELS = 61, 8


def _tree(rng):
    curves = np.minimum.accumulate(
        np.random.default_rng(rng.randrange(1000)).integers(5, 60, size=(_KERNELS, _POINTS)), axis=1
    )
    leaves = [trees.leaf(at, curve) for at, curve in enumerate(curves)]
    half = rng.randrange(1, _KERNELS - 1)
    parts = trees.join(False, leaves[:half]), trees.join(True, leaves[half:])
    return leaves, trees.join(rng.random() < 0.5, parts)


def _damaged_tree(rng):
    leaves, tree = _tree(rng)
    at = rng.randrange(len(leaves))
    kinds = [
        lambda: {"kernel": rng.choice([-1, 0, 8, 10**6])},
        lambda: {"heights": damaged_array(leaves[at].heights, rng)},
        lambda: {"heights": leaves[at].heights[::-1]},
        lambda: {"heights": np.full(_POINTS, rng.choice([-1, 0, 1, 60, 61, 10**6]))},
        lambda: {"count": rng.choice([0, -1, 7])},
    ]
    leaves[at] = dataclasses.replace(leaves[at], **rng.choice(kinds)())
    if rng.random() < 0.3:
        return dataclasses.replace(tree, count=rng.choice([-1, 0, 3, 9, 10**6]))
    try:
        return trees.join(rng.random() < 0.5, leaves)
    except (ValueError, IndexError, TypeError):  # NumPy does not add such curves
        return dataclasses.replace(tree, parts=tuple(leaves))


def _room(rng):
    odd = [-1, 0, 1, 30, 60, 61, 2**31, 2**40]
    size = lambda: rng.choice([30, 30, rng.choice(odd)])
    edges = [(i, (3 * i + 1) % _KERNELS) for i in range(_KERNELS)]
    if rng.random() < 0.3:
        edges[rng.randrange(len(edges))] = rng.choice(
            [(-1, 0), (0, 8), (0, 0), (0,), (0, 1, 2), (2**31, 1), (0.5, 1)]
        )
    room = trees.Room(30, 30, [])
    room.width, room.height, room.edges = size(), size(), edges  # it builds lists of its own
    return room


def temper_calls(rng):
    """Calls with one or more arguments wrong."""
    odd = [0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"), 5.0]
    heat = lambda: rng.choice([5.0, 5.0, rng.choice(odd)])
    while True:
        tree = _damaged_tree(rng) if rng.random() < 0.5 else _tree(rng)[1]
        replicas = rng.choice([2, 2, 8, 0, -1, 10**9])
        ladder = native.Ladder(heat(), heat(), heat(), replicas)
        moves = rng.choice([500, 5000, 0, -1, 2**63])
        seed = rng.choice([0, 1, -1, 2**64 - 1])
        room = _room(rng)
        yield lambda call=(tree, room, seed, moves, ladder): native.temper(*call)
