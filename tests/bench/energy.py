"""Counts and energy of example programs: docs/guides/energy.md.

python tests/bench/energy.py [--quick]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script

PES, HERTZ = 850_000, 0.85e9  # of a wafer


def _wave():
    field = np.random.default_rng(0).standard_normal((9, 9, 300))
    runner = runtime("wave", height=9, width=9, cells=300)
    script("wave").run(runner, field, np.full(field.shape, 0.4), 10)
    return runner


def _cg():
    right = np.random.default_rng(0).standard_normal((12, 12, 200))
    points = np.ones((7, *right.shape)) * np.array([7.0, *[-1.0] * 6]).reshape(7, 1, 1, 1)
    runner = runtime("krylov", height=12, width=12, cells=200, iterations=5, method=0)
    script("krylov").run(runner, points, right, 5)
    return runner


def _life():
    cells = np.random.default_rng(12).integers(0, 2, (12, 12))
    runner = runtime("life", width=12, height=12)
    script("life").run(runner, cells, 30)
    return runner


def _mandelbrot():
    runner = runtime("mandelbrot", width=4, height=4, rows=4, columns=4)
    script("mandelbrot").run(runner, (4, 4), -2 - 1.25j, 2.5 / 16, 100)
    return runner


def rows(programs):
    """Counts of each program, and the energy of a PE's cycle."""
    out = {}
    for program in programs:
        runner = program()
        counts, spent = runner.counts, runner.energy()
        per_cycle = spent.total / runner.cycles / (runner.whole.width * runner.whole.height)
        columns = {
            "flops": counts.flops,
            "words": counts.reads + counts.writes,
            "hops": counts.hops,
            "instructions": counts.instructions,
            "pJ a PE and cycle": per_cycle,
            "kW of a wafer": per_cycle * 1e-15 * PES * HERTZ,
        }
        name = program.__name__[1:]
        print(name, columns, {k: f"{v / spent.total:.0%}" for k, v in spent._asdict().items()})
        out |= {f"{name} / {column}": value for column, value in columns.items()}
    return out


if __name__ == "__main__":
    few = harness.arguments(__doc__.splitlines()[0]).parse_args().quick
    programs = (_life, _mandelbrot) if few else (_wave, _cg, _life, _mandelbrot)
    harness.report(rows(programs), units=lambda name: "", where=harness.ANY)
