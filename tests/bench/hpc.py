"""Cycles of the programs in ``wafer.hpc``, simulated and by closed form: docs/results/hpc.md.

python tests/bench/hpc.py
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from wafer.hpc import life, mandelbrot

GENERATIONS, LIMIT = 30, 100


def rows():
    """Pairs: the case, and its simulated cycles with those of the closed form."""
    for size in (1, 3, 12):
        cells = np.random.default_rng(size).integers(0, 2, (size, size))
        spent = life.run(cells, GENERATIONS)[1]
        name = f"life, {size} x {size}, {GENERATIONS} generations"
        yield name, (spent, life.cycles(size, size, GENERATIONS))
    for size in (1, 2, 4):
        pes, block = (size, size), (16 // size, 16 // size)
        steps, spent = mandelbrot.run(pes, block, -2 - 1.25j, 2.5 / 16, LIMIT)
        name = f"mandelbrot, 16 x 16 pixels on {size} x {size} PEs"
        yield name, (spent, mandelbrot.cycles(steps, pes, LIMIT))


if __name__ == "__main__":
    counted = dict(rows())
    for name, (spent, closed) in counted.items():
        print(f"{name:<40} {spent:>8,} {closed:>8,} {closed / spent - 1:+.1%}")
    print(json.dumps(counted))
