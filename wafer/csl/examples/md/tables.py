"""Tantalum by Finnis and Sinclair, Phil. Mag. A 50 (1984) 45, and the tables that PEs read.

E = sum of embedding(sum of density(r)) over atoms + sum of pair(r) over pairs; Angstrom and eV.
"""

import numpy as np

D, A, C = 4.076980, 2.591061, 4.20  # ends of density and pair, binding
C0, C1, C2 = 1.2157373, 0.0271471, -0.1217350
CUTOFF = 4.20
CLOSEST, DENSITIES = 1.5, (0.5, 32.5)  # from where on and between which tables are exact
FINER = 4  # segments of densities for one of distances, as in pe.csl


def density(r):
    """Of a neighbour by distance, and the derivative."""
    return np.where(r < D, (r - D) ** 2, 0), np.where(r < D, 2 * (r - D), 0)


def pair(r):
    """Energy of a pair by distance, and the derivative."""
    inner = C0 + C1 * r + C2 * r * r
    slope = 2 * (r - C) * inner + (r - C) ** 2 * (C1 + 2 * C2 * r)
    return np.where(r < C, (r - C) ** 2 * inner, 0), np.where(r < C, slope, 0)


def embedding(rho):
    """Energy of an atom by the density where it is, and the derivative."""
    return -A * np.sqrt(rho), -A / (2 * np.sqrt(rho))


def tables(segments):
    """Exported names and what PEs read there, float32.

    Cubic Hermite pieces over squares of distances, so that no root and no division is needed, and
    over densities: forces are the exact derivatives of the tables' energies. ``ranges`` has the end
    and begin of squares, their segments per unit, and begin and segments per unit of densities;
    ``slopes`` the pair's and the density's parabolas of twice the derivative by the square, that is
    of the derivative by the distance over the distance.
    """
    low, high = CLOSEST**2, CUTOFF**2
    r = np.sqrt(np.linspace(low, high, segments + 1))
    least, most = DENSITIES
    rho = np.linspace(least, most, FINER * segments + 1)
    per_square, per_density = segments / (high - low), FINER * segments / (most - least)
    of_density, density_slope = _pieces(density(r)[0], density(r)[1] / (2 * r), per_square)
    of_pair, pair_slope = _pieces(pair(r)[0], pair(r)[1] / (2 * r), per_square)
    values = {
        "ranges": np.array([high, low, per_square, least, per_density]),
        "density": of_density,
        "pair": of_pair,
        "slopes": np.hstack([2 * pair_slope, 2 * density_slope]),
        "embedding": np.hstack(_pieces(*embedding(rho), per_density)),
    }
    return {name: of.astype(np.float32).ravel() for name, of in values.items()}


def _pieces(values, slopes, per_unit):
    """[n, 4] cubics of the place in a segment, 0 to 1, and [n, 3] their derivatives by unit."""
    left, right = slopes[:-1] / per_unit, slopes[1:] / per_unit
    rise = values[1:] - values[:-1]
    cubic = np.stack([values[:-1], left, 3 * rise - 2 * left - right, left + right - 2 * rise], 1)
    return cubic, cubic[:, 1:] * np.array([1, 2, 3]) * per_unit
