"""Potentials of the embedded-atom method, and the tables that PEs read them from."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

MASS = 1.0364269e-4  # of an atomic mass unit in eV ps2 / Angstrom2
TANTALUM_MASS = 180.94788 * MASS

_FINER = 4  # segments of densities for one of distances, as in pe.csl
_Curve = Callable[[np.ndarray], np.ndarray]


class Potential(NamedTuple):
    """E = sum of embedding(sum of density(r)) over atoms + sum of pair(r) over pairs.

    Curves take and give float64 arrays; lengths in Angstrom, energies in eV.
    """

    cutoff: float  #: from which on density and pair are 0, with their first derivatives
    closest: float  #: distance from which on tables are exact; nearer they go on as cubics
    density: _Curve  #: density, density_slope: of a neighbour by distance, and its derivative
    density_slope: _Curve
    pair: _Curve  #: pair, pair_slope: energy of a pair by distance, and its derivative
    pair_slope: _Curve
    #: embedding, embedding_slope: energy of an atom by density, and its derivative
    embedding: _Curve
    embedding_slope: _Curve
    densities: tuple[float, float]  #: (least, most) for which tables are exact


def finnis_sinclair(
    density_end: float,
    binding: float,
    pair_end: float,
    pair_factors: tuple[float, float, float],
    *,
    closest: float,
    densities: tuple[float, float],
) -> Potential:
    """The N-body potential of Finnis and Sinclair, Phil. Mag. A 50 (1984) 45, with beta 0.

    Args:
        density_end: d, Angstrom; the density of a neighbour is (r - d)^2 before.
        binding: A, eV / Angstrom; the embedding energy is -A sqrt(density).
        pair_end: c, Angstrom; the pair energy is (r - c)^2 (c0 + c1 r + c2 r^2) before.
        pair_factors: c0, c1 and c2, eV by powers of Angstrom.
        closest: as in ``Potential``.
        densities: as in ``Potential``.
    """
    d, c, (c0, c1, c2) = density_end, pair_end, pair_factors

    def pair(r: np.ndarray) -> np.ndarray:
        return np.where(r < c, (r - c) ** 2 * (c0 + c1 * r + c2 * r * r), 0)

    def pair_slope(r: np.ndarray) -> np.ndarray:
        inner = c0 + c1 * r + c2 * r * r
        return np.where(r < c, 2 * (r - c) * inner + (r - c) ** 2 * (c1 + 2 * c2 * r), 0)

    return Potential(
        cutoff=max(c, d),
        closest=closest,
        density=lambda r: np.where(r < d, (r - d) ** 2, 0),
        density_slope=lambda r: np.where(r < d, 2 * (r - d), 0),
        pair=pair,
        pair_slope=pair_slope,
        embedding=lambda rho: -binding * np.sqrt(rho),
        embedding_slope=lambda rho: -binding / (2 * np.sqrt(rho)),
        densities=densities,
    )


# Body-centred cubic with 3.3058 Angstrom and 8.1 eV per atom: 8 + 6 neighbours in the cutoff.
TANTALUM = finnis_sinclair(
    density_end=4.076980,
    binding=2.591061,
    pair_end=4.20,
    pair_factors=(1.2157373, 0.0271471, -0.1217350),
    closest=1.5,
    densities=(0.5, 32.5),
)


class Tables(NamedTuple):
    """What PEs read, float32, for n segments each, four times as many of densities."""

    #: [5], of squares of distances: end, begin, segments per unit; of densities: begin, segments
    #: per unit
    ranges: np.ndarray
    density: np.ndarray  #: [n, 4], a cubic per segment of squares of distances
    pair: np.ndarray  #: [n, 4], as that
    #: [n, 6], of the pair energy and of the density: parabolas of twice the derivative by the
    #: square, which is the derivative by the distance over the distance
    slopes: np.ndarray
    #: [4 n, 7], a cubic per segment of densities, and the parabola of its derivative
    embedding: np.ndarray


def tables(potential: Potential, segments: int) -> Tables:
    """Cubic Hermite pieces: forces are the exact derivatives of the tables' energies.

    Args:
        potential: to be tabulated.
        segments: of tables over squares of distances.
    """
    low, high = potential.closest**2, potential.cutoff**2
    r = np.sqrt(np.linspace(low, high, segments + 1))
    least, most = potential.densities
    rho = np.linspace(least, most, _FINER * segments + 1)
    per_square, per_density = segments / (high - low), _FINER * segments / (most - least)
    density, density_slope = _pieces(
        potential.density(r), potential.density_slope(r) / (2 * r), per_square
    )
    pair, pair_slope = _pieces(potential.pair(r), potential.pair_slope(r) / (2 * r), per_square)
    embedding = _pieces(potential.embedding(rho), potential.embedding_slope(rho), per_density)
    return Tables(
        ranges=np.array([high, low, per_square, least, per_density], np.float32),
        density=density.astype(np.float32),
        pair=pair.astype(np.float32),
        slopes=np.hstack([2 * pair_slope, 2 * density_slope]).astype(np.float32),
        embedding=np.hstack(embedding).astype(np.float32),
    )


def _pieces(values: np.ndarray, slopes: np.ndarray, per_unit: float) -> tuple[np.ndarray, ...]:
    """[n, 4] cubics of the place in a segment, 0 to 1, and [n, 3] their derivatives by unit."""
    left, right = slopes[:-1] / per_unit, slopes[1:] / per_unit
    rise = values[1:] - values[:-1]
    cubic = np.stack([values[:-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise], 1)
    return cubic, cubic[:, 1:] * np.array([1, 2, 3]) * per_unit
