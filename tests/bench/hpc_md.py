"""Cycles of ``wafer.hpc.md``, simulated and by closed form: docs/results/hpc-md.md.

python tests/bench/hpc_md.py [--drift]
"""

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from wafer.hpc import counted, md

# Cells of the crystal, PEs for each.
CASES = [((4, 4, 1), (2, 1)), ((4, 4, 2), (2, 2)), ((4, 4, 3), (3, 2)), ((5, 4, 6), (4, 3))]
STEPS, HERTZ = 3, 0.85e9


def crystal(cells, block):
    """Positions, PEs, reach, and the neighbours of the atom that has most."""
    positions = md.lattice(cells)
    pes = md.assign(positions, block)
    apart = np.linalg.norm(positions[None] - positions[:, None], axis=2)
    near = int((apart < md.TANTALUM.cutoff).sum(axis=1).max()) - 1
    return positions, pes, md.reach_of(positions, pes, md.TANTALUM.cutoff + 0.2), near


def rows():
    """Pairs: the case, and simulated cycles, the closed form's, those of a step, pJ of a step."""
    for cells, block in CASES:
        positions, pes, reach, near = crystal(cells, block)
        velocities = np.random.default_rng(0).normal(0, 1, positions.shape)
        with counted() as runtimes:
            ends = [md.run(positions, velocities, n, pes=pes, reach=reach) for n in (0, STEPS)]
        each = (ends[1].cycles - ends[0].cycles) / STEPS
        spent = [runtime.energy().total for runtime in runtimes]
        picojoules = (spent[1] - spent[0]) / STEPS / len(positions)
        name = f"{pes.shape[0]} x {pes.shape[1]} PEs, reach {reach}, {near} neighbours"
        closed = md.cycles(*pes.shape, reach, near, STEPS)
        yield name, (ends[1].cycles, closed, each, picojoules)


def drift():
    """Pairs: step in ps, and the total energy per atom after 2 ps less that at the start, eV.

    All atoms are within reach of each other, so that it does not matter where they go.
    """
    positions, pes, _, _ = crystal((2, 2, 2), (2, 2))
    velocities = np.random.default_rng(1).normal(0, 1, positions.shape)

    def total(steps, step):
        motion = md.run(positions, velocities, steps, pes=pes, reach=3, step=step)
        moving = md.TANTALUM_MASS / 2 * (motion.velocities.astype(float) ** 2).sum()
        return (moving + motion.energies.astype(float).sum()) / len(positions)

    start = total(0, 0.002)
    for step in (0.004, 0.002):
        yield str(step), float(total(round(2 / step), step) - start)


if __name__ == "__main__":
    counts = dict(rows())
    for name, (spent, closed, each, picojoules) in counts.items():
        print(f"{name:<44} {spent:>7,} {closed:>7,} {closed / spent - 1:+.1%}", end="")
        print(f" {each:>7,.0f} a step, {HERTZ / each:>9,.0f}/s, {picojoules / 1e3:.1f} nJ an atom")
    if "--drift" in sys.argv:
        counts |= (drifts := dict(drift()))
        print(drifts)
    print(json.dumps(counts))
