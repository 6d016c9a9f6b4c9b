"""Counts and energy of programs of ``wafer.hpc``: docs/guides/energy.md.

python tests/bench/energy.py
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from wafer.hpc import counted, krylov, life, mandelbrot, wave

PES, HERTZ = 850_000, 0.85e9  # of a wafer


def _wave():
    field = np.random.default_rng(0).standard_normal((9, 9, 300))
    wave.run(field, np.full(field.shape, 0.4), 10)


def _cg():
    right = np.random.default_rng(0).standard_normal((12, 12, 200))
    points = np.ones((7, *right.shape)) * np.array([7.0, *[-1.0] * 6]).reshape(7, 1, 1, 1)
    krylov.run("cg", points, right, 5)


def _life():
    life.run(np.random.default_rng(12).integers(0, 2, (12, 12)), 30)


def _mandelbrot():
    mandelbrot.run((4, 4), (4, 4), -2 - 1.25j, 2.5 / 16, 100)


if __name__ == "__main__":
    rows = {}
    for program in (_wave, _cg, _life, _mandelbrot):
        with counted() as runtimes:
            program()
        counts, spent = runtimes[0].counts, runtimes[0].energy()
        pes = runtimes[0].whole.width * runtimes[0].whole.height
        per_cycle = spent.total / runtimes[0].cycles / pes
        name = program.__name__[1:]
        words = counts.reads + counts.writes
        rows[name] = [counts.flops, words, counts.hops, counts.instructions, per_cycle]
        watts = per_cycle * 1e-12 * PES * HERTZ
        print(
            f"{name:<12} {counts.flops:>12,} flops {words:>12,} words {counts.hops:>10,} hops",
            end="",
        )
        print(f" {counts.instructions:>9,} instr. {per_cycle:.2f} pJ/PE/cycle {watts / 1e3:.2f} kW")
        print("   ", {k: f"{v / spent.total:.0%}" for k, v in spent._asdict().items()})
    print(json.dumps(rows))
