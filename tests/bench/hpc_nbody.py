"""Cycles of ``wafer.hpc.nbody``: docs/results/hpc-nbody.md.

python tests/bench/hpc_nbody.py

--picture FILE draws one run, --random N compares the closed form on as many random cases.
"""

import argparse
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from wafer.hpc import nbody
from wafer.hpc.nbody import pictures

# Rows and columns of PEs, bodies of a PE, steps.
CASES = ((1, 1, 1, 2), (1, 1, 32, 2), (5, 7, 1, 2), (5, 7, 8, 2), (32, 32, 1, 1))
LARGER = ((32, 32, 16), (750, 994, 1), (750, 994, 16))  # by the closed form alone
CLOCK = 0.85e9


def cluster(count):
    """Bodies at random in a ball's neighbourhood."""
    rng = np.random.default_rng(count)
    places, velocities = rng.standard_normal((2, count, 3))
    return nbody.Bodies(places, 0.3 * velocities, np.full(count, 1 / count))


def rows():
    """The case, and its simulated cycles with those of the closed form."""
    for height, width, each, steps in CASES:
        count = height * width * each
        states = nbody.run((height, width), cluster(count), steps, 1e-3, softening=0.05)
        closed = nbody.cycles((height, width), count, steps)
        name = f"{height} x {width} PEs, {each} bodies each, {steps} steps"
        yield name, (int(states.cycles[-1]), closed)


def errors(count):
    """Errors of the closed form on random cases of two steps."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        pes, bodies = tuple(rng.integers(1, 9, 2).tolist()), int(rng.integers(1, 200))
        states = nbody.run(pes, cluster(bodies), 2, 1e-3, softening=0.05)
        yield pes, bodies, nbody.cycles(pes, bodies, 2) / states.cycles[-1] - 1


def draw(path):
    """Sixteen bodies on 2 x 2 PEs."""
    bodies = cluster(16)
    states = nbody.run((2, 2), bodies, 1500, 0.004, softening=0.05, every=15)
    energies = nbody.energy(states, bodies.masses, 0.05)
    pictures.draw(states, energies).savefig(path, dpi=90)
    print("largest change of the energy", np.abs(energies / energies[0] - 1).max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--picture")
    parser.add_argument("--random", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.picture:
        draw(arguments.picture)
    for pes, bodies, error in errors(arguments.random):
        print(pes, bodies, f"{error:+.1%}")
    counted = dict(rows())
    for name, (spent, closed) in counted.items():
        print(f"{name:<44} {spent:>9,} {closed:>9,} {closed / spent - 1:+.1%}")
    for height, width, each in LARGER:
        count = height * width * each
        step = nbody.cycles((height, width), count, 2) - nbody.cycles((height, width), count, 1)
        pairs = count**2 * CLOCK / step
        print(
            f"{height} x {width} PEs, {each} bodies each: {step:,} cycles of a step,"
            f" {CLOCK / step:,.4g} steps/s, {pairs:.3g} pairs/s"
        )
    print(json.dumps(counted))
