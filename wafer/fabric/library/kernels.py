"""Kernels on tiles: dense and sparse products, tile low-rank, lookup of cross sections.

Cost of one ``@fmacs`` over n elements in a CSL loop: ``1 + n`` cycles and 43 of loop overhead, read
off csl-examples' 4 x 4 SUMMA with tiles of 14 (45,783 cycles on Cerebras's simulator).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.library import timing
from wafer.fabric.library.collectives import broadcast, local, reduce
from wafer.fabric.library.timing import Array
from wafer.spec import WSE2, WaferSpec

__all__ = [
    "CYCLES_PER_ENTRY",
    "FMACS_LOOP",
    "cannon",
    "cross_section_lookup",
    "gemv",
    "sparse_matvec",
    "streamed_sparse_layer",
    "summa",
    "tile_matmul_cycles",
    "tlr_matvec",
]

FMACS_LOOP = 43  # cycles of a CSL loop turn around one fmacs (SUMMA of csl-examples)
# Load index, load x, multiply, accumulate to a computed address: scalar code, no DSD.
CYCLES_PER_ENTRY = 8
_SEARCH_STEP = 10  # load, compare, branch, update bounds: scalar code
_INTERPOLATE = 12  # two loads and a fused multiply-add per reaction channel, plus the fraction


def tile_matmul_cycles(m: int, k: int, n: int) -> int:
    """``k n`` turns of an fmacs over m rows: ``k n (1 + m + 43)``."""
    return k * n * (1 + m + FMACS_LOOP)


def _matvec(
    product: Callable[..., Array],
    x: Array,
    clock: Array,
    *tiles: Array,
    cycles: int | Array,
    algorithm: str = "auto",
    spec: WaferSpec,
) -> tuple[Array, Array]:
    """Broadcast x down the columns, compute with each PE's tiles, reduce to column 0."""
    x, clock = broadcast(x, clock, axis="y", spec=spec)
    y, clock = local(product, clock, *tiles, x, cycles=cycles)
    return reduce(y, clock, axis="x", algorithm=algorithm, spec=spec)


def gemv(
    a: Array, x: Array, clock: Array, *, algorithm: str = "auto", spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Multiply a matrix of tiles by a vector that enters at the top row.

    The vector is broadcast down the columns, each PE adds ``n`` scaled columns of its tile, and
    the partial sums are reduced along the rows to column 0 (csl-examples ``gemv-collectives_2d``).
    Cycles: ``n + H + 4``, then ``n (1 + m + 43)``, then the reduce of m words.

    Args:
        a: [H, W, m, n] tiles.
        x: [H, W, n]; row 0 is read.
        clock: [H, W].
        algorithm: of the reduce.
        spec: the machine.

    Returns:
        [H, W, m] with the product in column 0, and the clock.
    """
    m, n = a.shape[2:]
    product = lambda a, x: jnp.einsum("hwmn,hwn->hwm", a, x)
    cycles = tile_matmul_cycles(m, n, 1)
    return _matvec(product, x, clock, a, cycles=cycles, algorithm=algorithm, spec=spec)


def _square(a: Array, b: Array, name: str) -> tuple[int, int, int, int]:
    """(P, m, k, n) of two grids of tiles."""
    if a.shape[0] != a.shape[1] or b.shape[:2] != a.shape[:2] or a.shape[3] != b.shape[2]:
        raise FabricError(
            f"{name}: tiles {a.shape} and {b.shape}; expected [P, P, m, k] and [P, P, k, n]"
        )
    return a.shape[0], *a.shape[2:], b.shape[3]


def summa(a: Array, b: Array, clock: Array, *, spec: WaferSpec = WSE2) -> tuple[Array, Array]:
    """Multiply square grids of tiles: step s broadcasts column s of A and row s of B.

    Van de Geijn & Watts' SUMMA as in csl-examples ``gemm-collectives_2d``. Broadcasts of the next
    step overlap the products of this one: ``first broadcast + P max(products, broadcast)``.

    Args:
        a: [P, P, m, k].
        b: [P, P, k, n].
        clock: [P, P].
        spec: the machine.

    Returns:
        [P, P, m, n] and the clock.
    """
    size, m, k, n = _square(a, b, "summa")

    def step(c: Array, s: Array) -> tuple[Array, None]:
        left = jax.lax.dynamic_index_in_dim(a, s, axis=1)
        right = jax.lax.dynamic_index_in_dim(b, s, axis=0)
        return c + jnp.einsum("hwmk,hwkn->hwmn", left, right), None

    start = jnp.zeros((size, size, m, n), a.dtype)
    c, _ = jax.lax.scan(step, start, jnp.arange(size))
    products = tile_matmul_cycles(m, k, n)
    arrived = timing.broadcast_time(clock, m * k, 0, spec)
    arrived = timing.broadcast_time(arrived.T, k * n, 0, spec).T
    stream = m * k + k * n + size + spec.hop_to_hop
    return c, timing.local_time(arrived, products + (size - 1) * max(products, stream))


def cannon(a: Array, b: Array, clock: Array, *, spec: WaferSpec = WSE2) -> tuple[Array, Array]:
    """Multiply square grids of tiles that rotate: rows of A westwards, columns of B northwards.

    Row i starts i tiles ahead. On a mesh the ring is folded, so that a rotation is two hops:
    ``skew + P max(products, rotation)``. Arguments and results as of :func:`summa`.
    """
    size, m, k, n = _square(a, b, "cannon")
    ahead = (np.arange(size)[:, None] + np.arange(size)) % size
    a = a[np.arange(size)[:, None], ahead]
    b = b[ahead, np.arange(size)]

    def step(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple, None]:
        c, a, b = carry
        c = c + jnp.einsum("hwmk,hwkn->hwmn", a, b)
        return (c, jnp.roll(a, -1, axis=1), jnp.roll(b, -1, axis=0)), None

    start = jnp.zeros((size, size, m, n), a.dtype)
    (c, _, _), _ = jax.lax.scan(step, (start, a, b), None, length=size)
    products = tile_matmul_cycles(m, k, n)
    words = m * k + k * n
    rotation = 2 * words + 2 + 2 * spec.ramp_latency + 1
    skew = (size - 1) * words + (size - 1) + 2 * spec.ramp_latency + 1
    total = skew + products + (size - 1) * max(products, rotation)
    return c, timing.local_time(clock.max() + 0 * clock, total)


def sparse_matvec(
    tiles: tuple[Array, Array, Array, Array],
    x: Array,
    height: int,
    clock: Array,
    *,
    spec: WaferSpec = WSE2,
) -> tuple[Array, Array]:
    """Multiply a sparse matrix of tiles by a vector that enters at the top row.

    Coordinate tiles after Luczynski's SpMM; only stored entries cost cycles:
    ``broadcast + 8 max(counts) + reduce``.

    Args:
        tiles: values [H, W, E], row and column inside the tile [H, W, E] int32, and how many of
            the E entries exist [H, W].
        x: [H, W, n]; row 0 is read.
        height: m, rows of a tile.
        clock: [H, W].
        spec: the machine.

    Returns:
        [H, W, m] with the product in column 0, and the clock.
    """
    values, rows, cols, counts = tiles
    live = jnp.arange(values.shape[2]) < counts[..., None]

    def tile(values: Array, x: Array) -> Array:
        terms = jnp.where(live, values * jnp.take_along_axis(x, cols, axis=2), 0)
        h, w = np.indices(values.shape[:2])
        out = jnp.zeros((*values.shape[:2], height), values.dtype)
        return out.at[h[..., None], w[..., None], rows].add(terms)

    return _matvec(tile, x, clock, values, cycles=CYCLES_PER_ENTRY * counts, spec=spec)


def streamed_sparse_layer(
    weight: Array, mask: np.ndarray, x: Array, clock: Array, *, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Apply a sparse layer whose weights stream in, one wavelet per kept weight.

    Activations stay (Lie, Hot Chips 33 and 34): row h of PEs holds the inputs ``F_h`` of all
    tokens, spread along the row. A kept weight is multicast along its input's row and triggers one
    fmacs over the PE's tokens; zeros are never sent. Partial outputs are reduced down the columns.
    Cycles: ``max over rows of kept (1 + T + launch) + W + 4``, then the reduce of D T words.

    Args:
        weight: [H, F, D] weights of each row's F inputs to D outputs.
        mask: [H, F, D] bool, NumPy (the pattern is fixed): which weights are sent.
        x: [H, W, F, T] activations.
        clock: [H, W].
        spec: the machine.

    Returns:
        [H, W, D, T] with the outputs in row 0, and the clock.
    """
    nonzeros = np.asarray(mask).sum(axis=(1, 2))
    tokens, width = x.shape[3], x.shape[1]
    per_weight = 1 + tokens + spec.op_launch
    arrival = np.arange(width) + 2 * spec.ramp_latency + 1
    cycles = nonzeros[:, None] * per_weight + np.where(nonzeros[:, None] > 0, arrival, 0)
    partial = jnp.einsum("hfd,hwft->hwdt", jnp.where(mask, weight, 0), x)
    return reduce(partial, timing.local_time(clock, cycles), axis="y", spec=spec)


def tlr_matvec(
    u: Array, v: Array, x: Array, clock: Array, *, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Multiply a tile low-rank matrix by a vector: ``y = sum over tiles of U (V x)``.

    Ltaief et al., SC'23 (seismic redatuming): both factors of a tile stay in one PE.
    Cycles: broadcast of n, ``n (1 + r + 43) + r (1 + m + 43)``, reduce of m.

    Args:
        u: [H, W, m, r] left factors.
        v: [H, W, r, n] right factors.
        x: [H, W, n]; row 0 is read.
        clock: [H, W].
        spec: the machine.

    Returns:
        [H, W, m] with the product in column 0, and the clock.
    """
    m, rank, n = u.shape[2], u.shape[3], v.shape[3]
    product = lambda u, v, x: jnp.einsum("hwmr,hwr->hwm", u, jnp.einsum("hwrn,hwn->hwr", v, x))
    cycles = n * (1 + rank + FMACS_LOOP) + tile_matmul_cycles(m, rank, 1)
    return _matvec(product, x, clock, u, v, cycles=cycles, spec=spec)


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
    macro = jax.vmap(jax.vmap(pe))(grid, tables, density, energy)
    return reduce(macro, timing.local_time(clock, cycles), axis="x", spec=spec)
