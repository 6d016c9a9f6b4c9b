"""Cycles and bandwidth of ``wafer.hpc.tlr``: docs/results/examples.md.

python tests/bench/hpc_tlr.py [--quick] [--picture FILE]
"""

import pathlib
import sys

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

from wafer.hpc import tlr

ONE_PE = ((25, 1, 64), (25, 16, 4), (50, 1, 32), (50, 8, 4), (70, 1, 23))
WAVES = ((25, 64), (50, 32), (70, 23))
POINTS, PES = 560, (20, 20)
TOLERANCE = 1e-3
PICTURE = (50, TOLERANCE, 32)  # tile, tolerance and terms


def random(tile, rows, rank):
    """One tile column of `rows` tiles of a rank."""
    rng, count = np.random.default_rng(tile), rows * rank
    shape = (2, count, tile)
    left, right = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype("c8")
    return tlr.Factors((rows * tile, tile), tile, np.full((rows, 1), rank), left, right)


def waves():
    """Waves from points of one line to points of another that touches it."""
    from_, to = np.linspace(0, 1, POINTS)[:, None], np.linspace(0, 1, POINTS)[None]
    distance = np.hypot(from_ - to, 0.05)
    return np.exp(200j * distance) / distance


def columns(low_rank, terms, spent):
    """Cycles, and bytes per cycle and PE: of matrices and vectors once, of all reads and writes."""
    once, moved = tlr.bandwidth(low_rank, terms, spent)
    return {
        "simulated": spent,
        "closed form": tlr.cycles(low_rank, terms),
        "bytes per cycle and PE": once,
        "all reads and writes": moved,
    }


def rows(quick):
    """Pairs: the case, and its columns."""
    for tile, tiles, rank in ONE_PE:
        low_rank = random(tile, tiles, rank)
        x = np.random.default_rng(0).standard_normal(tile)
        spent = tlr.run(low_rank, x, (1, 1), tiles * rank)[1]
        name = f"1 PE, tile {tile}, {tiles} x rank {rank}"
        yield name, columns(low_rank, tiles * rank, spent)
    matrix = waves()
    x = np.random.default_rng(0).standard_normal(POINTS)
    for tile, terms in WAVES[: 1 if quick else None]:
        low_rank = tlr.compress(matrix, tile, TOLERANCE)
        y, spent = tlr.run(low_rank, x, PES, terms)
        if np.linalg.norm(y - matrix @ x) > 2 * TOLERANCE * np.linalg.norm(matrix @ x):
            sys.exit(f"tile {tile}: the product is further off than its tolerance {TOLERANCE}")
        name = f"{POINTS} x {POINTS} waves, tile {tile}, {len(tlr.chunks(low_rank, terms))} PEs"
        yield name, columns(low_rank, terms, spent)


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--picture", help="draw ranks of tiles, to this file, and end")
    options = parser.parse_args()
    if options.picture:
        tlr.draw(tlr.compress(waves(), *PICTURE[:2]), PICTURE[2], options.picture)
        sys.exit()
    harness.cycles(dict(rows(options.quick)))
