"""Cycles of the programs in ``wafer.hpc``, simulated and by closed form: docs/results/hpc.md.

python tests/bench/hpc.py [--quick]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import harness

from wafer.hpc import krylov, mandelbrot, wave

LIMIT = 100
SYSTEMS = ((1, 1, 100), (3, 3, 100), (12, 12, 8), (12, 12, 200))
WAVES = ((1, 1, 100, 10), (3, 3, 100, 10), (12, 12, 8, 10), (9, 9, 1000, 10), (128, 128, 8, 100))


def rows(quick):
    """Pairs: the case, and its simulated cycles with those of the closed form."""
    for size in (1, 2, 4):
        pes, block = (size, size), (16 // size, 16 // size)
        steps, spent = mandelbrot.run(pes, block, -2 - 1.25j, 2.5 / 16, LIMIT)
        name = f"mandelbrot, 16 x 16 pixels on {size} x {size} PEs"
        yield name, (spent, mandelbrot.cycles(steps, pes, LIMIT))
    for height, width, cells, steps in WAVES[: 2 if quick else None]:
        field = np.random.default_rng(cells).standard_normal((height, width, cells))
        spent = wave.run(field, np.full(field.shape, 0.4), steps)[1]
        name = f"wave, {height} x {width} PEs of {cells} cells, {steps} steps"
        yield name, (spent, wave.cycles(height, width, cells, steps))
    for method in krylov.METHODS:
        for shape in SYSTEMS[: 2 if quick else None]:
            points = np.ones((7, *shape)) * np.array([7.0, *[-1.0] * 6]).reshape(7, 1, 1, 1)
            right = np.random.default_rng(0).standard_normal(shape)
            spent = krylov.run(method, points, right, 5).cycles
            name = f"{method}, {shape[0]} x {shape[1]} PEs of {shape[2]} cells, 5 iterations"
            yield name, (spent, krylov.cycles(method, *shape, 5))


if __name__ == "__main__":
    options = harness.arguments(__doc__.splitlines()[0]).parse_args()
    harness.cycles(
        {name: {"simulated": a, "closed form": b} for name, (a, b) in rows(options.quick)}
    )
