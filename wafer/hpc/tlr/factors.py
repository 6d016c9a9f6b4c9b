"""How does a dense matrix become tiles of low rank?"""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError


class Factors(NamedTuple):
    """Tiles of a matrix, each the sum of as many terms as its rank: u v^H.

    Terms stand tile column by tile column, and in these tile row by tile row.
    """

    shape: tuple[int, int]  #: rows and columns of the matrix
    tile: int  #: rows and columns of a tile; beyond the matrix' border tiles are 0
    ranks: np.ndarray  #: [tile rows, tile columns] int64
    left: np.ndarray  #: [terms, tile] complex64, u, with the singular value
    right: np.ndarray  #: [terms, tile] complex64, v

    def dense(self) -> np.ndarray:
        """The matrix that they stand for, of `shape`, complex64."""
        rows, columns = self.ranks.shape
        tiles = np.zeros((rows, columns, self.tile, self.tile), np.complex64)
        column, row = np.divmod(np.repeat(np.arange(self.ranks.size), self.ranks.T.ravel()), rows)
        np.add.at(tiles, (row, column), self.left[:, :, None] * self.right[:, None].conj())
        whole = tiles.swapaxes(1, 2).reshape(rows * self.tile, columns * self.tile)
        return whole[: self.shape[0], : self.shape[1]]


def compress(matrix: np.ndarray, tile: int, tolerance: float) -> Factors:
    """Cut a matrix into square tiles and keep of each its largest singular values.

    Every tile may lose its share of the error, so the whole error's Frobenius norm is at most
    `tolerance` times that of the matrix, but for rounding to single precision.

    Args:
        matrix: [rows, columns], real or complex.
        tile: rows and columns of a tile.
        tolerance: 0 to 1; with 0 only singular values of 0 go, which rounding leaves few of.

    Raises:
        WaferError: a matrix that is not one or not finite, a number out of range.
    """
    _check(matrix, tile, tolerance)
    tiles = _tiles(matrix.astype(np.complex128), tile)
    u, singular, vh = np.linalg.svd(tiles)
    limit = (tolerance * np.linalg.norm(matrix)) ** 2 / (tiles.shape[0] * tiles.shape[1])
    lost = np.cumsum(np.square(singular)[..., ::-1], axis=-1)[..., ::-1]  # from each value on
    kept = (lost > limit) & (singular > 0)
    columns, rows, terms = np.nonzero(kept.swapaxes(0, 1))
    left = u[rows, columns, :, terms] * singular[rows, columns, terms, None]
    right = vh[rows, columns, terms].conj()
    height, width = matrix.shape
    return Factors(
        (height, width),
        tile,
        kept.sum(axis=-1),
        left.astype(np.complex64),
        right.astype(np.complex64),
    )


def _tiles(matrix: np.ndarray, tile: int) -> np.ndarray:
    """[tile rows, tile columns, tile, tile], with zeros beyond the border."""
    rows, columns = (-(-size // tile) for size in matrix.shape)
    behind = (rows * tile - matrix.shape[0], columns * tile - matrix.shape[1])
    whole = np.pad(matrix, [(0, more) for more in behind])
    return whole.reshape(rows, tile, columns, tile).swapaxes(1, 2)


def _check(matrix: np.ndarray, tile: int, tolerance: float) -> None:
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise WaferError(f"matrix: shape {matrix.shape}; expected [rows, columns], each at least 1")
    if not np.isfinite(matrix.astype(np.complex64)).all():
        raise WaferError("matrix: holds values that are not finite in single precision")
    if tile < 1:
        raise WaferError(f"tile: {tile}; expected at least 1 row and column")
    if not 0 <= tolerance <= 1:
        raise WaferError(f"tolerance: {tolerance}; expected 0 to 1, relative to the matrix' norm")
