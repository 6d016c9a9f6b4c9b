"""Cycles of the programs in ``wafer.hpc``, simulated and by closed form: docs/results/hpc.md.

python tests/bench/hpc.py [--quick] [--picture FILE]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import harness
from matplotlib.figure import Figure

from wafer.hpc import fft, krylov, life, mandelbrot, wave

GENERATIONS, LIMIT = 30, 100
SYSTEMS = ((1, 1, 100), (3, 3, 100), (12, 12, 8), (12, 12, 200))
WAVES = ((1, 1, 100, 10), (3, 3, 100, 10), (12, 12, 8, 10), (9, 9, 1000, 10), (128, 128, 8, 100))


def rows(quick):
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


def draw():
    """One simulated answer each of life, Mandelbrot, the solvers and the Fourier transform."""
    figure = Figure(figsize=(10, 2.8), layout="constrained")
    cells, colors, residual, spectrum = figure.subplots(1, 4)
    start = np.zeros((16, 16), int)
    start[1:4, 1:4] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
    trace = sum(life.run(start, n)[0] * (n / 20 + 1) for n in (0, 20, 40))
    cells.imshow(trace, cmap="Blues")
    cells.set(title="a glider, 0, 20, 40 generations", xticks=[], yticks=[])
    steps = mandelbrot.run((8, 8), (8, 8), -2 - 1.25j, 2.5 / 64, 60)[0]
    colors.imshow(np.log(steps), cmap="magma")
    colors.set(title="Mandelbrot, 8 x 8 PEs", xticks=[], yticks=[])
    points = np.ones((7, 6, 6, 20)) * np.array([6.5, *[-1.0] * 6]).reshape(7, 1, 1, 1)
    right = np.random.default_rng(0).standard_normal((6, 6, 20))
    for method in krylov.METHODS:
        squares = krylov.run(method, points, right, 30, limit=1e-10).squares
        residual.semilogy(np.sqrt(squares), label=method)
    residual.legend()
    residual.set(title="norm of the residual", xlabel="iteration")
    at = np.arange(256)
    signal = np.cos(2 * np.pi * 20 * at / 256) + 0.4 * np.cos(2 * np.pi * 71 * at / 256)
    spectrum.plot(np.abs(fft.run(signal, (1, 8))[0])[:128])
    spectrum.set(title="spectrum of two waves, 8 PEs", xlabel="frequency")
    for panel in figure.axes:
        panel.title.set_size(9)
    return figure


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--picture", help="draw the answers, to this file, and end")
    options = parser.parse_args()
    if options.picture:
        draw().savefig(options.picture, dpi=80)
        sys.exit()
    harness.cycles(
        {name: {"simulated": a, "closed form": b} for name, (a, b) in rows(options.quick)}
    )
