"""Moves the atoms of a metal by the embedded-atom method, one atom per PE."""

import argparse
import json
from pathlib import Path

import numpy as np
from tables import CUTOFF, density, embedding, pair, tables

SIDE = 3.3058  # of a cell of tantalum, Angstrom
MASS = 180.94788 * 1.0364269e-4  # of its atoms, eV ps^2 / Angstrom^2
NOBODY = 1.0e5  # Angstrom between PEs without an atom, which are farther from all others
ALIKE = 0.2  # Angstrom: coordinates that differ by less are in one plane of a crystal


def lattice(cells, side=SIDE):
    """[2 cells, 3]: atoms of a body-centred cubic crystal of cells along x, y and z."""
    corners = np.stack(np.meshgrid(*map(np.arange, cells), indexing="ij"), axis=-1).reshape(-1, 3)
    return side * np.concatenate([corners, corners + 0.5])


def assign(positions, block, side=SIDE):
    """[height, width], the atom of each PE, -1 for none.

    Squares of the x-y plane get a block of (rows, columns) of PEs each. Within one, atoms fill row
    by row, in the order of y, then z, so that neighbours come to like places in their blocks.
    """
    squares = np.floor((positions[:, :2] - positions[:, :2].min(axis=0)) / side + 0.25).astype(int)
    columns, rows = squares.max(axis=0) + 1
    out = np.full((rows, columns, *block), -1)
    x, y, z = np.floor(positions.T / ALIKE + 0.5)
    order = np.lexsort((x, z, y, squares[:, 0], squares[:, 1]))
    square = squares[order, 1] * columns + squares[order, 0]
    rank = np.arange(len(order)) - np.searchsorted(square, square)
    out.reshape(rows * columns, -1)[square, rank] = order
    return out.swapaxes(1, 2).reshape(rows * block[0], columns * block[1])


def reach_of(positions, pes, distance=CUTOFF):
    """PEs along an axis within which all atoms are that are nearer to each other than a distance.

    Atoms do not change their PE: the program's ``reach`` must be as much until its end.
    """
    places = np.argwhere(pes >= 0)[np.argsort(pes[pes >= 0])]
    near = np.linalg.norm(positions - positions[:, None], axis=2) < distance
    return int(np.abs(places - places[:, None]).max(axis=2)[near].max())


def run(runner, positions, velocities, pes, steps, step=0.002, segments=128):
    """Positions, velocities and forces [atoms, 3], energies [atoms], and the cycles of the call.

    Angstrom, ps, eV; of ``steps`` in time, each of ``step`` ps. Forces and energies are the last
    ones; a call of 0 steps finds those alone.
    """
    height, width = pes.shape
    for name, values in tables(segments).items():
        of_all = np.tile(values, height * width)
        runner.memcpy_h2d(runner.get_id(name), of_all, 0, 0, width, height, values.size)
    nobody = np.zeros((*pes.shape, 3))
    nobody[..., 0] = NOBODY * (10 + np.arange(pes.size)).reshape(pes.shape)
    for name, values, empty in (("position", positions, nobody), ("velocity", velocities, 0)):
        of_pes = np.where(pes[..., None] < 0, empty, values[pes]).astype(np.float32)
        runner.memcpy_h2d(runner.get_id(name), of_pes.ravel(), 0, 0, width, height, 3)
    start = runner.cycles
    runner.launch("march", np.uint16(steps), np.float32(step), np.float32(step / MASS))
    cycles = runner.cycles - start
    places = np.flatnonzero(pes.ravel() >= 0)[np.argsort(pes[pes >= 0])]
    results = []
    for name, items in (("position", 3), ("velocity", 3), ("force", 3), ("energy", 1)):
        of_pes = np.zeros((pes.size, items), np.float32)
        runner.memcpy_d2h(of_pes, runner.get_id(name), 0, 0, width, height, items)
        results.append(of_pes[places])
    *vectors, energies = results
    return *vectors, energies[:, 0], cycles


def reference(positions, velocities, steps, step=0.002):
    """The same by sums over all pairs, in double precision and without tables."""
    forces, energies = _forces(positions)
    for _ in range(steps):
        velocities = velocities + step / 2 / MASS * forces
        positions = positions + step * velocities
        forces, energies = _forces(positions)
        velocities = velocities + step / 2 / MASS * forces
    return positions, velocities, forces, energies


def _forces(positions):
    apart = positions - positions[:, None]
    r = np.linalg.norm(apart, axis=2)
    np.fill_diagonal(r, 99)
    (densities, slopes), (energies, pulls) = density(r), pair(r)
    bound, bends = embedding(np.maximum(densities.sum(axis=1), 1e-9))
    pulls = pulls + (bends[:, None] + bends) * slopes
    return ((pulls / r)[..., None] * apart).sum(axis=1), bound + energies.sum(axis=1) / 2


def total(velocities, energies):
    """Energy of motion, and of the atoms where they are, eV."""
    moving = (velocities.astype(float) ** 2).sum() * MASS / 2
    return moving + energies.astype(float).sum()


def main():
    from cerebras.sdk.runtime.sdkruntimepybind import SdkRuntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="out", help="folder of the compiled program")
    parser.add_argument("--cmaddr", help="IP:port of a system")
    parser.add_argument("--cells", type=int, nargs=3, default=(3, 2, 1), help="of the crystal")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    names, params = ("height", "width", "reach", "segments"), Path(args.name, "out.json")
    height, width, reach, segments = (
        int(json.loads(params.read_text())["params"][n]) for n in names
    )
    positions, rng = lattice(args.cells), np.random.default_rng(0)
    pes = assign(positions, (height // args.cells[1], width // args.cells[0]))
    positions += rng.normal(0, 0.05, positions.shape)
    velocities = rng.normal(0, 2, positions.shape)
    runner = SdkRuntime(args.name, cmaddr=args.cmaddr)
    runner.load()
    runner.run()
    first = run(runner, positions, velocities, pes, 0, segments=segments)
    last = run(runner, positions, velocities, pes, args.steps, segments=segments)
    runner.stop()
    needed = max(reach_of(x, pes) for x in (positions, last[0]))
    assert needed <= reach, f"these atoms need reach:{needed}"
    for (x, v, forces, energies, _), steps, loose in ((first, 0, 1), (last, args.steps, 20)):
        want = reference(positions, velocities, steps)
        np.testing.assert_allclose(x, want[0], atol=loose * 1e-5)
        np.testing.assert_allclose(v, want[1], atol=loose * 1e-4)
        np.testing.assert_allclose(forces, want[2], rtol=1e-5, atol=loose * 3e-5)
        np.testing.assert_allclose(energies, want[3], atol=loose * 1e-5)
        np.testing.assert_allclose(forces.sum(axis=0), 0, atol=1e-4)
    before, after = (total(state[1], state[3]) for state in (first, last))
    assert abs(after - before) < 1e-2
    print(f"{len(positions)} atoms, {args.steps} steps: {last[4]} cycles, {after - before:+.1e} eV")
    print("SUCCESS!")


if __name__ == "__main__":
    main()
