"""Products that skip zeros: sparse matrix-vector, a weight-streamed layer, tile low-rank."""

import jax.numpy as jnp
import numpy as np

from wafer.fabric.library.collectives import broadcast, local, reduce
from wafer.fabric.library.dense import FMACS_LOOP, tile_matmul_cycles
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.spec import WSE2, WaferSpec

__all__ = ["CYCLES_PER_ENTRY", "sparse_matvec", "streamed_sparse_layer", "tlr_matvec"]

# Load index, load x, multiply, accumulate to a computed address: scalar code, no DSD.
CYCLES_PER_ENTRY = 8


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
    x, clock = broadcast(x, clock, axis="y", spec=spec)
    values, rows, cols, counts = tiles
    live = jnp.arange(values.shape[2]) < counts[..., None]

    def tile(values: Array, x: Array) -> Array:
        terms = jnp.where(live, values * jnp.take_along_axis(x, cols, axis=2), 0)
        h, w = np.indices(values.shape[:2])
        out = jnp.zeros((*values.shape[:2], height), values.dtype)
        return out.at[h[..., None], w[..., None], rows].add(terms)

    y, clock = local(tile, clock, values, x, cycles=CYCLES_PER_ENTRY * counts)
    return reduce(y, clock, axis="x", spec=spec)


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
    kept = np.asarray(mask).sum(axis=(1, 2))
    tokens, width = x.shape[3], x.shape[1]
    per_weight = 1 + tokens + spec.op_launch
    arrival = np.arange(width) + 2 * spec.ramp_latency + 1
    cycles = kept[:, None] * per_weight + np.where(kept[:, None] > 0, arrival, 0)
    partial, clock = local(
        lambda weight, x: jnp.einsum("hfd,hwft->hwdt", jnp.where(mask, weight, 0), x),
        clock,
        weight,
        x,
        cycles=cycles,
    )
    return reduce(partial, clock, axis="y", spec=spec)


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
    x, clock = broadcast(x, clock, axis="y", spec=spec)
    cycles = n * (1 + rank + FMACS_LOOP) + tile_matmul_cycles(m, rank, 1)
    y, clock = local(
        lambda u, v, x: jnp.einsum("hwmr,hwr->hwm", u, jnp.einsum("hwrn,hwn->hwr", v, x)),
        clock,
        u,
        v,
        x,
        cycles=cycles,
    )
    return reduce(y, clock, axis="x", spec=spec)
