"""Macroscopic cross sections of particles, with energy bands in rows and nuclides in columns.

The kernel that Monte Carlo particle transport spends most time in, as Tramm et al. 2023 ("Efficient
algorithms for Monte Carlo particle transport on AI accelerator hardware") divide it among PEs.
"""

from typing import NamedTuple

import numpy as np

import wafer.csl
from wafer.hpc import host
from wafer.hpc.montecarlo import problem
from wafer.hpc.montecarlo.form import closed_form
from wafer.hpc.montecarlo.problem import Nuclides

__all__ = ["Nuclides", "Tally", "cycles", "loads", "run"]


class Tally(NamedTuple):
    """What became of the particles, PE by PE."""

    #: [height, width] lists, float32, of the particles that a PE held at the end
    energies: list[list[np.ndarray]]
    #: [height, width] lists, [particles, channels] float32: their macroscopic cross sections
    sections: list[list[np.ndarray]]
    loads: np.ndarray  #: [height, width], particles of a PE after sorting and balancing
    #: cycles at which the last PE had sorted, had balanced and had all sections
    phases: tuple[int, int, int]
    cycles: int  #: of the call

    def by_energy(self) -> tuple[np.ndarray, np.ndarray]:
        """All particles, [particles] and [particles, channels], by growing energy."""
        energies = np.concatenate([of_pe for row in self.energies for of_pe in row])
        sections = np.concatenate([of_pe for row in self.sections for of_pe in row])
        order = np.argsort(energies, kind="stable")
        return energies[order], sections[order]


def run(
    nuclides: Nuclides,
    energies: np.ndarray,
    *,
    rounds: int | None = None,
    stochastic: bool = False,
) -> Tally:
    """Simulate one lookup for every particle, in single precision.

    Args:
        nuclides: as many as fit evenly into the columns.
        energies: [height, width, particles], of the particles that start on each PE.
        rounds: of load balancing along the rows; twice the width where None, as in the paper.
        stochastic: take the cross sections of a point beside the energy, by chance, so that they
            are right on average, and not those in between.

    Raises:
        WaferError: shapes that do not belong together, grids that do not grow, energies beyond the
            grids, more data than the memory of a PE holds.
    """
    nuclides = problem.checked(nuclides, energies)
    height, width, particles = energies.shape
    energies = energies.astype(np.float32)
    edges = problem.edges(nuclides.grids, height)
    rounds = _rounds(width, rounds)
    _, counts = problem.bands(energies, edges)
    room = max(int(after.max()) for after in problem.balance(counts, rounds))
    grids, sections = problem.tables(nuclides, edges, width)
    per_pe, points, channels = *grids.shape[2:], sections.shape[-1]
    problem.check_memory(per_pe, points, channels, particles, room)
    wafer = host.runtime(
        "montecarlo",
        width=width,
        height=height,
        particles=particles,
        room=room,
        rounds=rounds,
        nuclides=per_pe,
        points=points,
        channels=channels,
        stochastic=int(stochastic),
    )
    ends = np.concatenate([[0], edges, [problem.BEYOND]]).astype(np.float32)
    limits = np.stack([ends[:-1], ends[1:]], axis=-1)
    densities = nuclides.densities.reshape(1, width, per_pe)
    host.write(wafer, "start", energies)
    host.write(wafer, "limits", np.repeat(limits[:, None], width, axis=1))
    host.write(wafer, "grid", grids.reshape(height, width, -1))
    host.write(wafer, "sections", sections.reshape(height, width, -1))
    host.write(wafer, "densities", np.repeat(densities, height, axis=0))
    begin = wafer.cycles
    wafer.launch("look_up")
    return _tally(wafer, wafer.cycles - begin, room, channels)


def loads(
    nuclides: Nuclides, energies: np.ndarray, rounds: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Particles of each PE when they are sorted, and when they are balanced: [height, width] each.

    By arithmetic alone, nothing is simulated. Arguments are those of ``run``.
    """
    nuclides = problem.checked(nuclides, energies)
    height, width, _ = energies.shape
    edges = problem.edges(nuclides.grids, height)
    _, counts = problem.bands(energies.astype(np.float32), edges)
    return counts, problem.balance(counts, _rounds(width, rounds))[-1]


def cycles(
    nuclides: Nuclides,
    energies: np.ndarray,
    *,
    rounds: int | None = None,
    stochastic: bool = False,
) -> int:
    """The closed form of ``run``'s cycles, within 5 % unless few are looked up.

    With a dozen lookups of the fullest PE or fewer it is within 7 %. It follows the numbers of
    particles in each band, which decide how long the PEs wait for each other, and takes the mean
    for all else, such as the steps of a search. Arguments are ``run``'s.
    """
    nuclides = problem.checked(nuclides, energies)
    height, width, particles = energies.shape
    edges = problem.edges(nuclides.grids, height)
    starts, counts = problem.bands(energies.astype(np.float32), edges)
    grids, sections = problem.tables(nuclides, edges, width)
    return closed_form(
        problem.travels(starts),
        problem.balance(counts, _rounds(width, rounds)),
        particles=particles,
        nuclides=grids.shape[2],
        points=grids.shape[3],
        channels=sections.shape[-1],
        stochastic=stochastic,
    )


def _rounds(width: int, rounds: int | None) -> int:
    return 0 if width == 1 else 2 * width if rounds is None else rounds


def _tally(at: wafer.csl.Runtime, spent: int, room: int, channels: int) -> Tally:
    """Read what the PEs hold."""
    size = 1 + channels
    half = 1 + room * size
    both = host.read(at, "result", 2 * half, np.float32)
    values = both[..., half:] if at.whole.width % 2 == 0 else both[..., :half]
    counts = values[..., 0].astype(int)
    rows = [
        [of_pe[1 : 1 + n * size].reshape(n, size) for of_pe, n in zip(row, ns, strict=True)]
        for row, ns in zip(values, counts, strict=True)
    ]
    stamps = host.read(at, "stamps", 4, np.uint32).astype(np.int64)
    phases = (stamps[..., 1:] - stamps[..., :1].min()).max((0, 1))
    return Tally(
        [[of_pe[:, 0] for of_pe in row] for row in rows],
        [[of_pe[:, 1:] for of_pe in row] for row in rows],
        # A PE ends with what its eastern neighbour began with.
        np.roll(counts, 1, axis=1),
        (int(phases[0]), int(phases[1]), int(phases[2])),
        spent,
    )
