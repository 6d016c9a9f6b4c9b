"""Dense products: GEMV, SUMMA and Cannon's GEMM on a grid of tiles.

Cost of one ``@fmacs`` over n elements in a CSL loop: ``1 + n`` cycles and 43 of loop overhead,
which puts the compute phase of the csl-examples' 4 x 4 SUMMA with tiles of 14 at 45,472 cycles
against 45,783 measured on the vendor's simulator (-0.7 %).
"""

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.errors import FabricError
from wafer.fabric.library import timing
from wafer.fabric.library.collectives import broadcast, local, reduce
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.spec import WSE2, WaferSpec

__all__ = ["FMACS_LOOP", "cannon", "gemv", "summa", "tile_matmul_cycles"]

FMACS_LOOP = 43  # cycles of a CSL loop turn around one fmacs (SUMMA of csl-examples)


def tile_matmul_cycles(m: int, k: int, n: int) -> int:
    """``k n`` turns of an fmacs over m rows: ``k n (1 + m + 43)``."""
    return k * n * (1 + m + FMACS_LOOP)


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
    x, clock = broadcast(x, clock, axis="y", spec=spec)
    y, clock = local(
        lambda a, x: jnp.einsum("hwmn,hwn->hwm", a, x),
        clock,
        a,
        x,
        cycles=tile_matmul_cycles(m, n, 1),
    )
    return reduce(y, clock, axis="x", algorithm=algorithm, spec=spec)


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
