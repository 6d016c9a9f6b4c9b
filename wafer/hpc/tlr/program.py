"""Which PE has which terms, how the product runs, and what it should take."""

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.tlr.factors import Factors
from wafer.spec import WSE2

_MEMORY, _CODE = (
    WSE2.sram_bytes,
    2 * 1024,
)  # bytes of a PE, and of it for the program's instructions

# Cycles on WSE-2. Those of an element are counted: a multiplication with a sum takes one, to clear
# or to add two, where banks allow it. The others are read off runs of one PE with tiles of 1 to 39.
_START, _ROW, _COLUMN, _TERM, _IDLE = 118, 20, 9, 13, 12
_TILES, _ROWS = 21, 6  # most rounds of loops that are unrolled: together up to 150 cycles


def chunks(factors: Factors, terms: int) -> np.ndarray:
    """Where the terms of each PE's chunk lie: a tile column's in as few equal parts as can be.

    Args:
        factors: of the matrix.
        terms: most of a chunk.

    Returns:
        [chunks, 3] int64: tile column, first term, term behind the last one.
    """
    if terms < 1:
        raise WaferError(f"terms: {terms}; expected at least 1 term for a PE")
    first, rows = 0, []
    for column, count in enumerate(factors.ranks.sum(axis=0).tolist()):
        parts = -(-count // terms)
        ends = [first + count * part // parts for part in range(1, parts + 1)]
        rows += [(column, *pair) for pair in zip([first, *ends], ends, strict=False)]
        first += count
    return np.array(rows, np.int64).reshape(-1, 3)


def _tile_rows(factors: Factors) -> np.ndarray:
    """[terms] int64: the tile row of each."""
    count = factors.ranks.shape[0]
    return np.repeat(np.arange(factors.ranks.size) % count, factors.ranks.T.ravel())


def run(
    factors: Factors, vector: np.ndarray, pes: tuple[int, int], terms: int
) -> tuple[np.ndarray, int]:
    """Simulate the product: the host adds up what PEs have for a row.

    Args:
        factors: of the matrix.
        vector: [columns], real or complex.
        pes: rows and columns of PEs; each has one chunk, row by row, or none.
        terms: most of a chunk.

    Returns:
        [rows] complex64, and the cycles of the call.

    Raises:
        WaferError: a vector that does not fit or is not finite, too few PEs or too little memory.
    """
    _check_vector(factors, vector)
    plan = chunks(factors, terms)
    _check_plan(factors, plan, pes, terms)
    tile, row, rows = factors.tile, _row(factors.tile), _most_rows(factors, plan)
    (height, width), tile_rows = pes, _tile_rows(factors)
    wafer = host.runtime("tlr", width=width, height=height, tile=tile, terms=terms, rows=rows)
    arrays = _arrays(factors, vector, plan, height * width, terms)
    for name, values in arrays.items():
        host.write(wafer, name, values.reshape(height, width, -1))
    start = wafer.cycles
    wafer.launch("multiply")
    spent = wafer.cycles - start
    sums = host.read(wafer, "result", 1 + row * rows, np.float32).reshape(height * width, -1)
    pairs = sums[:, 1:].reshape(-1, rows, row)[:, :, : 2 * tile]
    whole = np.zeros((factors.ranks.shape[0], tile), np.complex64)
    for own, (_, first, last) in zip(pairs, plan, strict=False):
        present = np.unique(tile_rows[first:last])
        whole[present] += own[: len(present), :tile] + 1j * own[: len(present), tile:]
    return whole.ravel()[: factors.shape[0]], spent


def _arrays(
    factors: Factors, vector: np.ndarray, plan: np.ndarray, pes: int, terms: int
) -> dict[str, np.ndarray]:
    """What the host copies: name to [PEs, items], of 32 bits each."""
    tile, columns, rows = factors.tile, factors.ranks.shape[1], _most_rows(factors, plan)
    parts = np.zeros(columns * tile, np.complex64)
    parts[: factors.shape[1]] = vector
    out = {
        "right": np.zeros((pes, 2 * tile * terms), np.float32),
        "left": np.zeros((pes, 2 * tile * terms), np.float32),
        "vector": np.zeros((pes, 2 * tile), np.float32),
        "counts": np.zeros((pes, 1 + rows), np.uint32),
    }
    tile_rows = _tile_rows(factors)
    for pe, (column, first, last) in enumerate(plan):
        v, u = factors.right[first:last], factors.left[first:last]
        size = 2 * tile * (last - first)
        out["right"][pe, :size] = np.concatenate([np.real(v), -np.imag(v)]).T.ravel()
        out["left"][pe, :size] = np.concatenate([np.real(u), np.imag(u)], axis=1).ravel()
        x = parts[column * tile : (column + 1) * tile]
        out["vector"][pe] = np.concatenate([np.real(x), np.imag(x)])
        counts = np.unique(tile_rows[first:last], return_counts=True)[1]
        out["counts"][pe, : 1 + len(counts)] = [last - first, *counts]
    return out


def cycles(factors: Factors, terms: int) -> int:
    """The closed form of ``run``'s cycles, exact: those of the PE with most to do.

    Args:
        factors: of the matrix.
        terms: most of a PE's chunk.
    """
    plan, tile = chunks(factors, terms), factors.tile
    if len(plan) == 0:
        return _IDLE
    count, rows = int((plan[:, 2] - plan[:, 1]).max()), _most_rows(factors, plan)
    v_phase = tile * (4 * count + _COLUMN) + 2 * count + _combined(count) + _looped(tile, _TILES)
    u_phase = count * (4 * tile + _TERM) + rows * (_ROW + _row(tile) + _combined(tile))
    return _START + v_phase + u_phase + _looped(rows, _ROWS)


def bandwidth(factors: Factors, terms: int, spent: int) -> tuple[float, float]:
    """Bytes of memory per cycle and PE that has terms.

    A product of an m x n matrix counts m n + m + n words in the first figure, as of a machine that
    keeps vectors at hand, and three words per element in the second: a column's and a sum's, and
    the sum's again as it is written. A phase is four such products, as numbers are complex.

    Args:
        factors: of the matrix.
        terms: most of a PE's chunk.
        spent: cycles of the product.
    """
    plan, tile = chunks(factors, terms), factors.tile
    tile_rows = _tile_rows(factors)
    count = plan[:, 2] - plan[:, 1]
    rows = np.array([len(np.unique(tile_rows[first:last])) for _, first, last in plan])
    once = int((2 * tile * count + 2 * count + tile + tile * rows).sum())
    moved = int((3 * 2 * tile * count).sum())
    both = np.array([once, moved]) * 4 * 4 / (max(len(plan), 1) * spent)
    return float(both[0]), float(both[1])


def _combined(size: int) -> int:
    """Cycles in which four real products of so many words become two.

    A cycle takes two words, or one where both operands begin in banks that meet.
    """
    return size if size % 4 == 2 else 2 * (size + size % 2)


def _looped(rounds: int, unrolled: int) -> int:
    """Cycles of a loop's tests, steps and jumps."""
    return 4 * rounds + 2 if rounds > unrolled else 0


def _row(tile: int) -> int:
    """Words of a tile row's sums: columns begin in the first or the third bank."""
    return -(-2 * tile // 4) * 4


def _most_rows(factors: Factors, plan: np.ndarray) -> int:
    """Tile rows of the chunk that has most of them, at least 1."""
    tile_rows = _tile_rows(factors)
    return max([len(np.unique(tile_rows[first:last])) for _, first, last in plan], default=1)


def _check_vector(factors: Factors, vector: np.ndarray) -> None:
    if vector.shape != factors.shape[1:]:
        raise WaferError(
            f"vector: shape {vector.shape}; expected {factors.shape[1:]}, as the matrix has"
            f" {factors.shape[1]} columns"
        )
    if not np.isfinite(vector.astype(np.complex64)).all():
        raise WaferError("vector: holds values that are not finite in single precision")


def _check_plan(factors: Factors, plan: np.ndarray, pes: tuple[int, int], terms: int) -> None:
    if min(pes) < 1 or len(plan) > pes[0] * pes[1]:
        raise WaferError(
            f"pes: {pes[0]} x {pes[1]}; expected at least {len(plan)} PEs for as many chunks of at"
            f" most {terms} terms: take more PEs, or a larger `terms`"
        )
    tile, rows = factors.tile, _most_rows(factors, plan)
    words = 4 * tile * terms + 6 * terms + 2 * tile + 2 * rows * _row(tile) + rows + 5
    if 4 * words > _MEMORY - _CODE:
        raise WaferError(
            f"terms: {terms} of tiles of {tile} in {rows} tile rows take {4 * words:,} bytes of a"
            f" PE; expected at most {_MEMORY - _CODE:,}: take a smaller `terms` and more PEs"
        )
