"""Slicing trees improved in C++, called through ctypes.

Optional: without the library (no compiler at install) ``available`` is False and
:func:`wafer.placement.trees.optimise` anneals in Python.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vsl.native.library import Library
from wafer.placement.trees import Room, Tree, join, leaves_of

__all__ = ["Ladder", "available", "suits", "target", "temper"]

_LIBRARY = Library(
    what="tempering of floor plans",
    package="wafer.placement.native",
    handlers=(),
    instead="annealing in Python",
)
available = _LIBRARY.available
target = _LIBRARY.target
_LANES = 32
_BESIDE, _STACKED = -1, -2
_MOST_REPLICAS = 1024


class Ladder(NamedTuple):
    """Temperatures of the replicas and what leaving the wafer costs, in PEs of wire.

    Attributes:
        hot, cold: first and last temperature; those between are spaced evenly in their logarithm.
        price: of a PE too many in x or y.
        replicas: how many plans.
    """

    hot: float
    cold: float
    price: float
    replicas: int = 8


def suits(tree: Tree) -> bool:
    """Whether ``temper`` can take a tree: some kernels, no wheels, a wafer that fits 16 bits."""
    no_wheel = lambda node: not node.boxes and all(no_wheel(part) for part in node.parts)
    return tree.count > 2 and len(tree.heights) < 16_000 and no_wheel(tree)


def _tokens(tree: Tree) -> list[int]:
    """A tree of two parts per node, each node before its parts."""
    if not tree.parts:
        return [tree.kernel]
    cut, out = _BESIDE if tree.beside else _STACKED, []
    for part in tree.parts[:-1]:
        out += [cut, *_tokens(part)]
    return out + _tokens(tree.parts[-1])


def _tree(tokens: Sequence[int], kernels: Sequence[Tree]) -> Tree:
    stack: list[Tree] = []
    for token in reversed(tokens):
        if token >= 0:
            stack.append(kernels[token])
        else:
            stack.append(join(token == _BESIDE, [stack.pop(), stack.pop()]))
    return stack.pop()


def _check_tree(tree: Tree, kernels: Sequence[Tree]) -> None:
    """Each kernel once, and the same points of all their curves, which fall."""
    if [kernel.kernel for kernel in kernels] != list(range(tree.count)) or not suits(tree):
        raise ValueError(
            f"a tree of {tree.count} kernels is to have 3 or more, each once, without wheels, and"
            f" fewer than 16000 points; it has kernels {[k.kernel for k in kernels[:9]]}"
        )
    points = len(kernels[0].heights)
    for kernel in kernels:
        high = np.asarray(kernel.heights)
        whole = high.shape == (points,) and high.dtype.kind in "iu" and points > 0
        if not whole or high.min() < 1 or high.max() > points or (high[1:] > high[:-1]).any():
            raise ValueError(
                f"the curve of kernel {kernel.kernel} is to have {points} whole heights of 1 to"
                f" {points}, none above the one before"
            )


def _check_room(room: Room, points: int, kernels: int) -> None:
    if min(room.width, room.height) < 1 or max(room.width, room.height) >= points:
        raise ValueError(f"curves of {points} points, but {room.width} x {room.height} PEs")
    if not all(0 <= at < kernels for edge in room.edges for at in edge):
        raise ValueError(f"a connection leads beyond the {kernels} kernels")
    if any(len(edge) != 2 for edge in room.edges):
        raise ValueError("a connection is to have two ends")


def _check_search(moves: int, ladder: Ladder) -> None:
    heats = ladder.hot, ladder.cold, ladder.price
    if not all(0 < heat < math.inf for heat in heats) or not 1 <= ladder.replicas <= _MOST_REPLICAS:
        raise ValueError(
            f"{ladder}: temperatures and the price are to be positive and finite, and the replicas"
            f" 1 to {_MOST_REPLICAS}"
        )
    if not 0 <= moves < 1 << 62:
        raise ValueError(f"{moves} moves; there can be 0 to {1 << 62}")


def temper(
    tree: Tree, room: Room, seed: int, moves: int, ladder: Ladder
) -> tuple[Tree | None, float]:
    """Shorter wires by changes of the tree, at several temperatures at once (parallel tempering).

    Plans change places between neighbouring temperatures, so that what hot ones come upon the cold
    ones improve. Where hardly any area is free, annealing alone stays where it began.

    Args:
        tree: where to begin, without wheels; kernels 0 .. count - 1.
        room: wafer and connections.
        seed: of every random choice.
        moves: how many to try in all.
        ladder: temperatures.

    Returns:
        The best tree met that fits, None if none did, and its wire length in PEs.

    Raises:
        RuntimeError: the library is not built.
        ValueError: the tree, the wafer, a connection or the ladder is not one that can be.
        MemoryError: there is not enough of it for the replicas.
    """
    function = _LIBRARY.loaded().wafer_temper
    function.restype = ctypes.c_double
    kernels = leaves_of(tree)
    _check_tree(tree, kernels)
    points = len(kernels[0].heights)
    _check_room(room, points, tree.count)
    _check_search(moves, ladder)
    padded = -(-points // _LANES) * _LANES  # a box that is wider still is as high
    high = np.stack([np.pad(k.heights, (0, padded - points), mode="edge") for k in kernels])
    high = np.ascontiguousarray(np.where(high >= points, padded, high), np.int16)
    _, kinds = np.unique(high, axis=0, return_inverse=True)
    kinds = np.ascontiguousarray(kinds, np.int32).ravel()
    edges = np.ascontiguousarray(room.edges, np.int32).reshape(-1, 2)
    begin, best = np.array(_tokens(tree), np.int32), np.zeros(2 * tree.count - 1, np.int32)
    sizes = [tree.count, padded, room.width, room.height, len(edges), ladder.replicas]
    heats = np.array([ladder.hot, ladder.cold, ladder.price])
    arrays = (np.array(sizes, np.int32), high, kinds, edges, begin)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (*arrays, heats, best)]
    length = function(*pointers[:5], ctypes.c_uint64(seed), ctypes.c_int64(moves), *pointers[5:])
    if math.isnan(length):
        raise MemoryError(f"{ladder.replicas} replicas of {tree.count} kernels")
    if math.isinf(length):
        return None, math.inf
    return _tree(best.tolist(), kernels), length
