"""Which PE gets which atom, and how far apart neighbours are then."""

import numpy as np

from wafer.errors import WaferError

SIDE = 3.3058  # of a cell of tantalum, Angstrom
_ALIKE = 0.2  # Angstrom: coordinates that differ by less are in one plane of a crystal


def lattice(cells: tuple[int, int, int], side: float = SIDE) -> np.ndarray:
    """[2 cells, 3] float64: atoms of a body-centred cubic crystal.

    Args:
        cells: along x, y and z.
        side: of a cell, Angstrom.
    """
    corners = np.stack(np.meshgrid(*map(np.arange, cells), indexing="ij"), axis=-1).reshape(-1, 3)
    return side * np.concatenate([corners, corners + 0.5])


def assign(positions: np.ndarray, block: tuple[int, int], side: float = SIDE) -> np.ndarray:
    """[height, width] int64: the atom of each PE, -1 for none.

    Squares of the x-y plane get a block of PEs each. Within one, atoms fill row by row, in the
    order of y, then z, so that neighbours in a crystal come to like places in their blocks.

    Args:
        positions: [atoms, 3], Angstrom.
        block: (rows, columns) of PEs.
        side: of a square, Angstrom; a cell of the crystal.

    Raises:
        WaferError: more atoms in a square than PEs in a block.
    """
    squares = np.floor((positions[:, :2] - positions[:, :2].min(axis=0)) / side + 0.25).astype(int)
    columns, rows = squares.max(axis=0) + 1
    out = np.full((rows, columns, *block), -1)
    x, y, z = np.floor(positions.T / _ALIKE + 0.5)
    order = np.lexsort((x, z, y, squares[:, 0], squares[:, 1]))
    square = squares[order, 1] * columns + squares[order, 0]
    rank = np.arange(len(order)) - np.searchsorted(square, square)
    if rank.max() >= block[0] * block[1]:
        raise WaferError(
            f"assign: {rank.max() + 1} atoms in a square of {side} Angstrom, and"
            f" {block[0]} x {block[1]} PEs for them; take larger blocks, or smaller squares"
        )
    out.reshape(rows * columns, -1)[square, rank] = order
    return out.swapaxes(1, 2).reshape(rows * block[0], columns * block[1])


def reach_of(positions: np.ndarray, pes: np.ndarray, distance: float) -> int:
    """PEs along an axis within which all atoms are that are nearer to each other than a distance.

    Args:
        positions: [atoms, 3], Angstrom.
        pes: [height, width], of ``assign``.
        distance: Angstrom.
    """
    rows = np.zeros((len(positions), 2), np.int64)
    rows[pes[pes >= 0]] = np.argwhere(pes >= 0)
    order = np.argsort(positions[:, 0])
    sorted_x, out = positions[order, 0], 0
    for first, atom in enumerate(order):
        end = np.searchsorted(sorted_x, sorted_x[first] + distance)
        others = order[first + 1 : end]
        near = ((positions[others] - positions[atom]) ** 2).sum(axis=1) < distance**2
        apart = np.abs(rows[others[near]] - rows[atom])
        out = max(out, int(apart.max(initial=0)))
    return out
