"""Bodies that attract each other: direct sums of all pairs on PEs, and a leapfrog in time."""

from typing import NamedTuple

import numpy as np

import wafer.csl
from wafer.errors import WaferError
from wafer.hpc import host
from wafer.machine.costs import UNROLLED
from wafer.spec import WSE2

__all__ = ["Bodies", "States", "cycles", "energy", "run"]

_MEMORY = WSE2.sram_bytes - 2 * 1024  # bytes of a PE for data, without code

# Cycles on WSE-2. Elements of operations and words are counted; the others are read off runs of one
# PE with 1 to 32 bodies, and of rows of two and eight PEs.
_FORCES = 100  # a call: to load registers, and the end
_VISITOR = 49  # a visiting body: 33 operations
_VISITOR_CODE = 17  # of their loop, which decides whether it is unrolled
_PASS, _TO_NEXT_ROW = 44, 4  # bodies go on; and what it takes more along a column
_CALL, _STEP, _MOVED, _MEET = 13, 43, 12, 2  # the leapfrog; per body; and if some share a bank


class Bodies(NamedTuple):
    """Where bodies begin."""

    places: np.ndarray  #: [bodies, 3]
    velocities: np.ndarray  #: [bodies, 3]
    masses: np.ndarray  #: [bodies], times the constant of gravity


class States(NamedTuple):
    """Bodies at the start and after every so many steps, float32."""

    places: np.ndarray  #: [states, bodies, 3]
    velocities: np.ndarray  #: [states, bodies, 3]
    accelerations: np.ndarray  #: [states, bodies, 3]
    #: [states], of all calls until then; the first one's only task are its accelerations
    cycles: np.ndarray


def run(
    pes: tuple[int, int],
    bodies: Bodies,
    steps: int,
    dt: float,
    *,
    softening: float,
    every: int | None = None,
) -> States:
    """Simulate the program, in single precision.

    Args:
        pes: rows and columns of PEs; each gets as many bodies, and some have places left over.
        bodies: 1 or more.
        steps: 0 to 65,535.
        dt: time of a step.
        softening: a length that keeps close bodies' forces finite (Plummer): a distance r counts as
            the root of r^2 + softening^2.
        every: steps from one state to the next one; all of them where None.

    Raises:
        WaferError: shapes that do not belong together, values that are not finite, a number out of
            range, more bodies than the memory of the PEs holds.
    """
    every = every or max(steps, 1)
    _check_bodies(pes, bodies)
    _check_times(steps, every, dt, softening)
    (height, width), count = pes, len(bodies.masses)
    per_pe = -(-count // (height * width))
    at = host.runtime("nbody", width=width, height=height, bodies=per_pe)
    values = np.concatenate([bodies.places, bodies.masses[:, None]], axis=1)
    host.write(at, "places", _columns(values, pes, per_pe))
    host.write(at, "velocities", _columns(bodies.velocities, pes, per_pe))
    start = at.cycles
    at.launch("attract", softening**2)
    states = [(*_state(at, per_pe, count), at.cycles - start)]
    for first in range(0, steps, every):
        at.launch("march", min(every, steps - first), dt)
        states.append((*_state(at, per_pe, count), at.cycles - start))
    return States(*(np.stack(part) for part in zip(*states, strict=True)))


def cycles(pes: tuple[int, int], bodies: int, steps: int) -> int:
    """The closed form of ``run``'s cycles with one call of all steps, within 5 %; exact on one PE.

    Args:
        pes: rows and columns of PEs.
        bodies: of all PEs.
        steps: of the leapfrog.
    """
    height, width = pes
    here = -(-bodies // (height * width))
    pairs = -(-here // 2)
    # A visitor's operations: twelve take two elements a cycle, three two cycles for each.
    # The softening is loaded once for all.
    seen = 1 + here * (12 * pairs + 24 * here + _VISITOR)
    if here * _VISITOR_CODE > UNROLLED:
        seen += 4 * here + 2
    forces = _FORCES + 2 * here + 3 * pairs + height * width * seen
    forces += (height * width - 1) * (_PASS + 8 * here) + (height - 1) * _TO_NEXT_ROW
    step = _STEP + here * (_MOVED + (_MEET if here % 4 else 0))
    return forces + _CALL * (steps > 0) + steps * (forces + step)


def _columns(values: np.ndarray, pes: tuple[int, int], per_pe: int) -> np.ndarray:
    """[bodies, columns] as [height, width, columns times bodies of a PE], filled up with zeros."""
    height, width = pes
    all_places = np.zeros((height * width * per_pe, values.shape[1]), np.float32)
    all_places[: len(values)] = values
    return all_places.reshape(height, width, per_pe, -1).swapaxes(2, 3).reshape(height, width, -1)


def _state(
    at: wafer.csl.Runtime, per_pe: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, velocities and accelerations, [bodies, 3] each."""

    def read(name: str, columns: int, skip: int, size: int) -> np.ndarray:
        values = host.read(at, name, skip + columns * size, np.float32)[..., skip:]
        values = values.reshape(*values.shape[:2], columns, size)[:, :, :3, :per_pe]
        return values.swapaxes(2, 3).reshape(-1, 3)[:count]

    block = (per_pe + 3) // 4 * 4
    return (
        read("places", 4, 0, per_pe),
        read("velocities", 3, 0, per_pe),
        read("accelerations", 3, 2, block),
    )


def energy(states: States, masses: np.ndarray, softening: float) -> np.ndarray:
    """[states] float64, of motion and of attraction, for masses times the constant of gravity."""
    mass = masses.astype(np.float64)
    moving = (mass[:, None] * states.velocities.astype(np.float64) ** 2).sum((1, 2)) / 2
    first, second = np.triu_indices(len(mass), 1)
    places = states.places.astype(np.float64)
    squares = ((places[:, first] - places[:, second]) ** 2).sum(-1) + softening**2
    return moving - (mass[first] * mass[second] / np.sqrt(squares)).sum(-1)


def _check_bodies(pes: tuple[int, int], bodies: Bodies) -> None:
    if min(pes) < 1:
        raise WaferError(f"pes: {pes}; expected at least one row and one column")
    count = len(bodies.masses)
    shapes = tuple(np.shape(part) for part in bodies)
    if count == 0 or shapes != ((count, 3), (count, 3), (count,)):
        raise WaferError(
            "bodies: places, velocities and masses of shapes {}, {} and {}; expected [bodies, 3]"
            " twice, and [bodies]".format(*shapes)
        )
    for name, values in zip(bodies._fields, bodies, strict=True):
        if not np.isfinite(values.astype(np.float32)).all():
            raise WaferError(f"bodies: {name} hold values that are not finite in single precision")
    per_pe = -(-count // (pes[0] * pes[1]))
    bytes_of_pe = 4 * (7 * per_pe + 2 * 4 * per_pe + 9 * (per_pe + 4))
    if bytes_of_pe > _MEMORY:
        raise WaferError(
            f"bodies: {per_pe} on a PE take {bytes_of_pe:,} bytes; its memory holds {_MEMORY:,}:"
            " take more PEs"
        )


def _check_times(steps: int, every: int, dt: float, softening: float) -> None:
    if not 0 <= steps < 2**16:
        raise WaferError(f"steps: {steps}; expected 0 to 65,535")
    if every < 1:
        raise WaferError(f"every: {every}; expected 1 or more steps")
    if not (np.isfinite(dt) and 1e-6 <= softening <= 1e6):
        raise WaferError(
            f"dt, softening: {dt} and {softening}; expected a finite time, and a length of 1e-6 to"
            " 1e6, as a PE divides by distances from its own bodies to themselves"
        )
