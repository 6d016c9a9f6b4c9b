"""Monte Carlo transport's macroscopic cross-section lookup, the kernel of XSBench."""

import jax
import jax.numpy as jnp

from wafer.fabric.library.collectives import broadcast, local, reduce
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.spec import WSE2, WaferSpec

__all__ = ["cross_section_lookup"]

_SEARCH_STEP = 10  # load, compare, branch, update bounds: scalar code
_INTERPOLATE = 12  # two loads and a fused multiply-add per reaction channel, plus the fraction


def cross_section_lookup(
    grid: Array,
    tables: Array,
    density: Array,
    energy: Array,
    clock: Array,
    *,
    spec: WaferSpec = WSE2,
) -> tuple[Array, Array]:
    """Sum interpolated cross sections over all nuclides, for a batch of particles per row.

    Tramm et al., "Efficient algorithms for Monte Carlo particle transport on AI accelerator
    hardware" (2024): nuclide data never move. Here each PE of a row holds some nuclides; the row's
    particles are broadcast from column 0 and the partial sums reduced back to it. Cycles: broadcast
    of B words, ``B nuclides (10 ceil(log2 G) + 12)``, reduce of B R words.

    Args:
        grid: [H, W, nuclides, G] ascending energies.
        tables: [H, W, nuclides, G, R] cross sections of R reactions on the grid.
        density: [H, W, nuclides].
        energy: [H, W, B] particle energies; column 0 is read. Outside the grid they extrapolate.
        clock: [H, W].
        spec: the machine.

    Returns:
        [H, W, B, R] with the macroscopic cross sections in column 0, and the clock.
    """
    energy, clock = broadcast(energy, clock, axis="x", spec=spec)
    points, nuclides = grid.shape[3], grid.shape[2]

    def one(grid: Array, table: Array, energy: Array) -> Array:
        low = jnp.clip(jnp.searchsorted(grid, energy, side="right") - 1, 0, points - 2)
        fraction = (energy - grid[low]) / (grid[low + 1] - grid[low])
        return table[low] + fraction[:, None] * (table[low + 1] - table[low])

    def pe(grid: Array, table: Array, density: Array, energy: Array) -> Array:
        micro = jax.vmap(one, in_axes=(0, 0, None))(grid, table, energy)
        return jnp.einsum("n,nbr->br", density, micro)

    steps = max(1, (points - 1).bit_length())
    cycles = energy.shape[2] * nuclides * (_SEARCH_STEP * steps + _INTERPOLATE)
    macro, clock = local(
        jax.vmap(jax.vmap(pe)), clock, grid, tables, density, energy, cycles=cycles
    )
    return reduce(macro, clock, axis="x", spec=spec)
