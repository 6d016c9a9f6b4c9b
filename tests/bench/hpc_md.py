"""Cycles of ``wafer.hpc.md``, simulated and by closed form: docs/results/examples.md.

python tests/bench/hpc_md.py [--quick] [--drift]
"""

import pathlib
import sys

import harness
import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

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


def rows(cases):
    """Pairs: the case, and its cycles, steps per second and energy of an atom's step."""
    for cells, block in cases:
        positions, pes, reach, near = crystal(cells, block)
        velocities = np.random.default_rng(0).normal(0, 1, positions.shape)
        with counted() as runtimes:
            ends = [md.run(positions, velocities, n, pes=pes, reach=reach) for n in (0, STEPS)]
        each = (ends[1].cycles - ends[0].cycles) / STEPS
        spent = [runtime.energy().total for runtime in runtimes]
        picojoules = (spent[1] - spent[0]) / STEPS / len(positions)
        name = f"{pes.shape[0]} x {pes.shape[1]} PEs, reach {reach}, {near} neighbours"
        closed = md.cycles(*pes.shape, reach, near, STEPS)
        yield (
            name,
            {
                "simulated": ends[1].cycles,
                "closed form": closed,
                "cycles of a step": each,
                "steps per second": HERTZ / each,
                "nJ per atom and step": picojoules / 1e3,
            },
        )


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
        yield f"step of {1e3 * step:.0f} fs", float(total(round(2 / step), step) - start)


if __name__ == "__main__":
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--drift", action="store_true", help="the error of the energy after 2 ps")
    options = parser.parse_args()
    if options.drift:
        harness.report(dict(drift()), "hpc_md_drift", lambda name: "eV", harness.ANY)
    else:
        harness.cycles(dict(rows(CASES[: 2 if options.quick else None])))
