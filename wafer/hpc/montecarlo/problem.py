"""How are a material and its particles divided among PEs?"""

from typing import NamedTuple

import numpy as np

from wafer.errors import WaferError
from wafer.spec import WSE2

BEYOND = np.float32(3e38)  # an energy above all others: fills grids that end early
_MEMORY = WSE2.sram_bytes - 2 * 1024  # bytes of a PE for data, without code


class Nuclides(NamedTuple):
    """What a material is made of."""

    #: [nuclides, points], energies at which cross sections are known; growing, the first 0 or more,
    #: the same first and last one for all nuclides
    grids: np.ndarray
    sections: np.ndarray  #: [nuclides, points, channels], microscopic cross sections there
    densities: np.ndarray  #: [nuclides]


def edges(grids: np.ndarray, bands: int) -> np.ndarray:
    """[bands - 1] energies between bands that share the points of all grids evenly."""
    every = np.sort(grids, axis=None)
    return every[np.arange(1, bands) * every.size // bands]


def bands(energies: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The particles' bands.

    Returns:
        Starting rows, bands and columns as counts, [height, bands, width]; and the particles of a
        column in each band, [bands, width].
    """
    height, width, _ = energies.shape
    counts = np.zeros((height, height, width), np.int64)
    row, column, _ = np.indices(energies.shape)
    np.add.at(counts, (row, np.searchsorted(edges, energies, side="right"), column), 1)
    return counts, counts.sum(axis=0)


def travels(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energies that leave PEs to the south and to the north.

    Args:
        counts: [height, bands, width] of ``bands``.

    Returns:
        For each direction [2, height, width]: of those that start on a PE, and of all.
    """
    south = np.zeros((2, counts.shape[0], counts.shape[2]), np.int64)
    north = np.zeros_like(south)
    for y in range(counts.shape[0]):
        south[0, y], north[0, y] = counts[y, y + 1 :].sum(0), counts[y, :y].sum(0)
        south[1, y] = counts[: y + 1, y + 1 :].sum((0, 1))
        north[1, y] = counts[y:, :y].sum((0, 1))
    return south, north


def balance(counts: np.ndarray, rounds: int) -> list[np.ndarray]:
    """Particles of each PE before balancing, and after each round of it."""
    history = [counts]
    for _ in range(rounds):
        away = history[-1] // 2
        history.append(history[-1] - away + np.roll(away, 1, axis=1))
    return history


def tables(nuclides: Nuclides, edges: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """What every PE holds: points of its band, with one more on either side.

    Returns:
        [bands, width, nuclides of a PE, points] float32 energies, and the same with [channels] of
        cross sections. Grids with fewer points end beyond all energies.
    """
    grids, sections, _ = nuclides
    count, channels = edges.size + 1, sections.shape[-1]
    spans = np.zeros((count, grids.shape[0], 2), np.int64)
    spans[-1, :, 1] = grids.shape[1] - 1
    for n, grid in enumerate(grids):
        spans[1:, n, 0] = np.searchsorted(grid, edges, side="right") - 1
        spans[:-1, n, 1] = np.searchsorted(grid, edges, side="left")
    points = int((spans[..., 1] - spans[..., 0]).max()) + 1
    of_bands = np.full((count, grids.shape[0], points), BEYOND, np.float32)
    their = np.zeros((count, grids.shape[0], points, channels), np.float32)
    for band, n in np.ndindex(spans.shape[:2]):
        first, end = spans[band, n, 0], spans[band, n, 1] + 1
        of_bands[band, n, : end - first] = grids[n, first:end]
        their[band, n, : end - first] = sections[n, first:end]
    shape = (count, width, grids.shape[0] // width, points)
    return of_bands.reshape(shape), their.reshape(*shape, channels)


def checked(nuclides: Nuclides, energies: np.ndarray) -> Nuclides:
    """The material in single precision.

    Raises:
        WaferError: as ``run`` says.
    """
    grids, sections, densities = (np.asarray(values, np.float32) for values in nuclides)
    if energies.ndim != 3 or 0 in energies.shape:
        raise WaferError(
            f"energies: shape {energies.shape}; expected [height, width, particles], each at"
            " least 1"
        )
    if grids.ndim != 2 or grids.shape[1] < 2 or sections.shape[:2] != grids.shape:
        raise WaferError(
            f"nuclides: grids of shape {grids.shape} and sections of shape {sections.shape};"
            " expected [nuclides, points] with two points or more, and the same with [channels]"
        )
    if sections.ndim != 3 or densities.shape != grids.shape[:1]:
        raise WaferError(
            f"nuclides: sections of shape {sections.shape} and densities of shape"
            f" {densities.shape}; expected [nuclides, points, channels] and [nuclides]"
        )
    width = energies.shape[1]
    if grids.shape[0] % width:
        raise WaferError(
            f"nuclides: {grids.shape[0]} for {width} columns of PEs; expected a multiple: add some"
            " of density 0"
        )
    _check_energies(grids, energies)
    return Nuclides(grids, sections, densities)


def _check_energies(grids: np.ndarray, energies: np.ndarray) -> None:
    grows = (np.diff(grids, axis=1) > 0).all(axis=1)
    if not grows.all():
        n = int(np.argmin(grows))
        raise WaferError(f"nuclides: the grid of nuclide {n} does not grow in single precision")
    low, high = grids[0, [0, -1]]
    if low < 0 or (grids[:, 0] != low).any() or (grids[:, -1] != high).any():
        raise WaferError(
            "nuclides: expected grids that begin at the same energy, 0 or more, and end at the same"
        )
    outside = ~((energies.astype(np.float32) >= low) & (energies.astype(np.float32) <= high))
    if outside.any():
        y, x, k = np.argwhere(outside)[0].tolist()
        raise WaferError(
            f"energies: {energies[y, x, k]} of particle {k} at row {y}, column {x}; expected"
            f" {low} to {high}, where the grids are"
        )


def check_memory(nuclides: int, points: int, channels: int, particles: int, room: int) -> None:
    """Of a PE with so many nuclides, points of each, and ``room`` for particles at once.

    Raises:
        WaferError: its memory does not hold them.
    """
    tables = 4 * nuclides * (points * (1 + channels) + 1)
    of_particles = 4 * (3 * particles + 2 * room + 2 * (1 + room * (1 + channels)))
    if tables + of_particles > _MEMORY:
        raise WaferError(
            f"nuclides, energies: {tables:,} bytes of tables and {of_particles:,} of particles on"
            f" a PE; its memory holds {_MEMORY:,}: take more PEs or fewer particles"
        )
