"""Shorter wires within a floor plan that fits: annealing by cutting a piece anew.

A move picks a piece and either mirrors it or draws its inside again from the table, so every state
is a legal plan. The energy is the length of all connections between centres.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from wafer.placement.slicing import Piece, Table, leaves, mirror

__all__ = ["Wires", "anneal", "centres_of"]


class Wires(NamedTuple):
    """Connections between positions of the order: sources [E] and targets [E]."""

    sources: np.ndarray
    targets: np.ndarray

    def length(self, centres: np.ndarray) -> float:
        """Sum of L1 distances; centres [n, 2] in PEs."""
        return float(np.abs(centres[self.sources] - centres[self.targets]).sum())


def centres_of(piece: Piece, out: np.ndarray) -> np.ndarray:
    """Write the centres of the piece's kernels into ``out`` [n, 2], by position in the order."""
    for leaf in leaves(piece):
        out[leaf.i] = leaf.x + leaf.width / 2, leaf.y + leaf.height / 2
    return out


def _replace(piece: Piece, path: Sequence[int], new: Piece) -> Piece:
    if not path:
        return new
    parts = list(piece.parts)
    parts[path[0]] = _replace(parts[path[0]], path[1:], new)
    return Piece(piece.i, piece.j, piece.x, piece.y, piece.width, piece.height, tuple(parts))


def _walk(piece: Piece, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Piece]]:
    """All pieces that are cut, with the way to each."""
    if not piece.parts:
        return []
    below = [x for at, part in enumerate(piece.parts) for x in _walk(part, (*path, at))]
    return [(path, piece), *below]


def anneal(
    table: Table, wires: Wires, plan: Piece, rng: np.random.Generator, moves: int
) -> tuple[Piece, float]:
    """Lower the wire length by ``moves`` moves.

    Args:
        table: segments at the plan's time cap.
        wires: connections, in positions of the table's order.
        plan: where to begin.
        rng: source of randomness.
        moves: how many to try.

    Returns:
        The best plan met and its wire length in PEs.
    """
    centres = centres_of(plan, np.empty((table.n, 2)))
    length = wires.length(centres)
    best = plan, length
    pieces = _walk(plan)
    heat = 0.15 * length / max(len(wires.sources), 1)
    for move in range(moves if pieces else 0):
        path, piece = pieces[int(rng.random() * len(pieces))]
        if piece.j - piece.i > 24 and rng.random() < 0.9:
            continue  # a large piece drawn anew hardly ever improves
        draw = rng.random()
        if draw < 0.3:
            new = mirror(piece, piece, draw < 0.15)
        else:
            new = table.sample(rng, piece, rng.random())
        tried = centres_of(new, centres.copy())
        after = wires.length(tried)
        warm = heat * (1 - move / moves) ** 2 + 1e-9
        if after <= length or rng.random() < math.exp((length - after) / warm):
            plan, centres, length = _replace(plan, path, new), tried, after
            pieces = _walk(plan)
            if length < best[1]:
                best = plan, length
    return best
