"""Counts and energy of programs of ``wafer.hpc``: docs/guides/energy.md.

python tests/bench/energy.py [--quick]
"""

import pathlib
import sys

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[k]) for k in (0, 1, 2)]

import harness
from helpers.examples import runtime, script

from wafer.hpc import counted, krylov, mandelbrot, wave

PES, HERTZ = 850_000, 0.85e9  # of a wafer


def _wave():
    field = np.random.default_rng(0).standard_normal((9, 9, 300))
    with counted() as runtimes:
        wave.run(field, np.full(field.shape, 0.4), 10)
    return runtimes[0]


def _cg():
    right = np.random.default_rng(0).standard_normal((12, 12, 200))
    points = np.ones((7, *right.shape)) * np.array([7.0, *[-1.0] * 6]).reshape(7, 1, 1, 1)
    with counted() as runtimes:
        krylov.run("cg", points, right, 5)
    return runtimes[0]


def _life():
    cells = np.random.default_rng(12).integers(0, 2, (12, 12))
    runner = runtime("life", width=12, height=12)
    script("life").run(runner, cells, 30)
    return runner


def _mandelbrot():
    with counted() as runtimes:
        mandelbrot.run((4, 4), (4, 4), -2 - 1.25j, 2.5 / 16, 100)
    return runtimes[0]


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
