"""Cycles and bandwidth of ``wafer.hpc.tlr``: docs/results/hpc-tlr.md.

python tests/bench/hpc_tlr.py [--picture FILE]
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

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


def rows():
    """Pairs: the case, and simulated cycles, those of the form, both bandwidths, error, ranks."""
    for tile, tiles, rank in ONE_PE:
        low_rank = random(tile, tiles, rank)
        x = np.random.default_rng(0).standard_normal(tile)
        spent = tlr.run(low_rank, x, (1, 1), tiles * rank)[1]
        closed = tlr.cycles(low_rank, tiles * rank)
        name = f"1 PE, tile {tile}, {tiles} x rank {rank}"
        yield name, (spent, closed, *tlr.bandwidth(low_rank, tiles * rank, spent))
    matrix = waves()
    x = np.random.default_rng(0).standard_normal(POINTS)
    for tile, terms in WAVES:
        low_rank = tlr.compress(matrix, tile, TOLERANCE)
        y, spent = tlr.run(low_rank, x, PES, terms)
        error = float(np.linalg.norm(y - matrix @ x) / np.linalg.norm(matrix @ x))
        size = float(low_rank.ranks.sum() * 2 * tile / POINTS**2)
        closed = tlr.cycles(low_rank, terms)
        ranks = [int(low_rank.ranks.min()), int(low_rank.ranks.max())]
        name = f"{POINTS} x {POINTS}, tile {tile}, {len(tlr.chunks(low_rank, terms))} PEs"
        figures = tlr.bandwidth(low_rank, terms, spent)
        yield name, (spent, closed, *figures, error, size, ranks)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--picture"]:
        tlr.draw(tlr.compress(waves(), *PICTURE[:2]), PICTURE[2], sys.argv[2])
        sys.exit()
    counted = dict(rows())
    for name, (spent, closed, once, moved, *more) in counted.items():
        print(f"{name:<32} {spent:>7,} {closed:>7,} {closed / spent - 1:+.1%}", end="")
        print(f" {once:.2f} {moved:.2f} bytes/cycle", *more)
    print(json.dumps(counted))
