"""Molecular dynamics with the embedded-atom method, one atom per PE, step by step."""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.hpc import host
from wafer.hpc.md.picture import neighbourhood
from wafer.hpc.md.places import assign, lattice, reach_of
from wafer.hpc.md.potential import (
    MASS,
    TANTALUM,
    TANTALUM_MASS,
    Potential,
    finnis_sinclair,
    tables,
)

__all__ = [
    "MASS",
    "TANTALUM",
    "TANTALUM_MASS",
    "Motion",
    "Potential",
    "assign",
    "cycles",
    "finnis_sinclair",
    "lattice",
    "neighbourhood",
    "reach_of",
    "run",
]

MOST_REACH = 4  # two axes of nine colors; there are 24
_SEGMENTS = 128
_RESULTS = (("position", 3), ("velocity", 3), ("force", 3), ("energy", 1))
_NOBODY = 1.0e5  # Angstrom between PEs without an atom, which are farther from all others


# Cycles of a step on WSE-2. Per candidate: six operations with two per cycle, four with one, and
# three instructions, are counted. The others are read off runs of 1 x 1 to 5 x 5 PEs, of atoms
# without neighbours, and of up to eight.
_STEP, _CANDIDATE, _ROW, _START = 201, 10, 7, -3
_TURN, _LATE_TURN, _AXIS = 40, 14, -2  # besides its words; of PEs who hear the first, and of others
_NEIGHBOUR, _ENERGY = 95.5, 24


def cycles(height: int, width: int, reach: int, neighbours: int, steps: int) -> int:
    """The closed form of ``run``'s cycles, within 5 %.

    Args:
        height: rows of PEs.
        width: PEs of a row.
        reach: PEs on either side of which a PE hears.
        neighbours: atoms within the cutoff of the atom that has most.
        steps: in time; forces are found once more than that.
    """
    slots = 2 * reach + 1
    each = _STEP + _CANDIDATE * slots * slots + _ROW * slots + _NEIGHBOUR * neighbours
    # Coordinates and derivatives of one atom along a row, of a row's atoms along a column.
    for size, words in ((width, 4), (height, 4 * slots)):
        near, later = min(size, reach + 1), min(max(0, size - reach - 1), reach)
        if size > 1:
            each += (_TURN + words) * near + (_LATE_TURN + words) * later + _AXIS
    return round(_START + (steps + 1) * each + _ENERGY * neighbours)


class Motion(NamedTuple):
    """Where atoms are after a run, each in the order in which they were given."""

    positions: np.ndarray  #: [atoms, 3] float32, Angstrom
    velocities: np.ndarray  #: [atoms, 3] float32, Angstrom per ps
    forces: np.ndarray  #: [atoms, 3] float32, eV per Angstrom
    energies: np.ndarray  #: [atoms] float32, eV: embedding, and half of the pairs'
    cycles: int  #: of the call


def run(
    positions: np.ndarray,
    velocities: np.ndarray,
    steps: int,
    *,
    pes: np.ndarray,
    reach: int,
    potential: Potential = TANTALUM,
    mass: float = TANTALUM_MASS,
    step: float = 0.002,
) -> Motion:
    """Simulate the program: the velocity form of leapfrog, with open boundaries.

    After Santos et al. 2024 (arXiv 2405.07898): an atom per PE, its neighbours among those of
    (2 reach + 1)^2 PEs.

    Args:
        positions: [atoms, 3], Angstrom.
        velocities: [atoms, 3], Angstrom per ps.
        steps: 0 (forces and energies alone) to 65,535.
        pes: [height, width] int, the atom of each PE, -1 for none; of ``assign``.
        reach: PEs along each axis within which neighbours are, 1 to 4; ``reach_of`` tells.
        potential: of all atoms.
        mass: of an atom, eV ps^2 / Angstrom^2.
        step: in time, ps.

    Raises:
        WaferError: shapes that do not belong together, an atom on no PE or on two, values out of
            range, neighbours out of reach at the begin or at the end.
    """
    _check(positions, velocities, pes)
    _check_numbers(reach, mass, step)
    _check_reach(positions, pes, reach, potential.cutoff, "at the begin")
    height, width = pes.shape
    wafer = host.runtime("md", width=width, height=height, reach=reach, segments=_SEGMENTS)
    for name, values in tables(potential, _SEGMENTS)._asdict().items():
        host.write(wafer, name, np.broadcast_to(values.reshape(-1), (height, width, values.size)))
    host.write(wafer, "position", _spread(positions, pes))
    moving = np.where(pes[..., None] < 0, 0, velocities[pes]).astype(np.float32)
    host.write(wafer, "velocity", moving)
    start = wafer.cycles
    wafer.launch("march", steps, step, step / mass)
    spent = wafer.cycles - start
    places = np.argsort(np.where(pes < 0, len(positions), pes), axis=None)[: len(positions)]
    results = [host.read(wafer, *result, np.float32) for result in _RESULTS]
    after, moved, forces, energies = (r.reshape(pes.size, -1)[places] for r in results)
    _check_reach(after, pes, reach, potential.cutoff, f"after {steps} steps")
    return Motion(after, moved, forces, energies[:, 0], spent)


def _spread(positions: np.ndarray, pes: np.ndarray) -> np.ndarray:
    """[height, width, 3] float32; PEs without an atom are alone, each at a place of its own."""
    nobody = np.zeros((*pes.shape, 3))
    nobody[..., 0] = _NOBODY * (10 + np.arange(pes.size)).reshape(pes.shape)
    return np.where(pes[..., None] < 0, nobody, positions[pes]).astype(np.float32)


def _check(positions: np.ndarray, velocities: np.ndarray, pes: np.ndarray) -> None:
    if positions.ndim != 2 or positions.shape[1] != 3 or not len(positions):
        raise WaferError(f"positions: shape {positions.shape}; expected [atoms, 3], some atoms")
    if velocities.shape != positions.shape:
        raise WaferError(
            f"velocities: shape {velocities.shape}; expected the positions', {positions.shape}"
        )
    for name, values in (("positions", positions), ("velocities", velocities)):
        if not (np.abs(values) < _NOBODY).all():
            raise WaferError(f"{name}: holds values that are no numbers, or beyond {_NOBODY:.0f}")
    there = np.sort(pes[pes >= 0], axis=None) if pes.ndim == 2 else np.zeros(0)
    if not np.array_equal(there, np.arange(len(positions))):
        raise WaferError(
            f"pes: shape {pes.shape}; expected [height, width] with each of the {len(positions)}"
            " atoms once and -1 elsewhere, as md.assign gives it"
        )


def _check_numbers(reach: int, mass: float, step: float) -> None:
    if not 1 <= reach <= MOST_REACH:
        raise WaferError(f"reach: {reach}; expected 1 to {MOST_REACH} PEs along each axis")
    for name, value in (("mass", mass), ("step", step)):
        if not 0 < value < np.inf:
            raise WaferError(f"{name}: {value}; expected a positive number")


def _check_reach(
    positions: np.ndarray, pes: np.ndarray, reach: int, cutoff: float, when: str
) -> None:
    needed = reach_of(positions, pes, cutoff)
    if needed > reach:
        raise WaferError(
            f"reach: {reach}, but {when} atoms within {cutoff} Angstrom are on PEs {needed} apart;"
            " take a larger reach, another `assign`, or fewer steps between two of them"
        )
