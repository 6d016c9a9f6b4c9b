"""Cycles of ``wafer.hpc.nbody``: docs/results/examples.md.

python tests/bench/hpc_nbody.py

--picture FILE draws one run, --random N compares the closed form on as many random cases.
"""

import pathlib
import sys

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

from wafer.hpc import nbody
from wafer.hpc.nbody import pictures

# Rows and columns of PEs, bodies of a PE, steps.
CASES = ((1, 1, 1, 2), (1, 1, 32, 2), (5, 7, 1, 2), (5, 7, 8, 2), (32, 32, 1, 1))


def cluster(count):
    """Bodies at random in a ball's neighbourhood."""
    rng = np.random.default_rng(count)
    places, velocities = rng.standard_normal((2, count, 3))
    return nbody.Bodies(places, 0.3 * velocities, np.full(count, 1 / count))


def rows(cases):
    """The case, and its simulated cycles with those of the closed form."""
    for height, width, each, steps in cases:
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
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--picture", help="draw a run of sixteen bodies to this file")
    parser.add_argument("--random", type=int, default=0, help="so many random cases")
    options = parser.parse_args()
    if options.picture:
        draw(options.picture)
    for pes, bodies, error in errors(options.random):
        print(pes, bodies, f"{error:+.1%}")
    cases = CASES[:4] if options.quick else CASES
    harness.cycles({name: {"simulated": a, "closed form": b} for name, (a, b) in rows(cases)})
