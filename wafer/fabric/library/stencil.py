"""The 25-point star stencil of the 3-D wave equation, z in PE memory."""

import jax.numpy as jnp
import numpy as np

from wafer.fabric.library.collectives import local, shift
from wafer.fabric.program.arrays import AnyArray as Array
from wafer.spec import WSE2, WaferSpec

__all__ = ["COEFFICIENTS", "RADIUS", "halo_stencil_cycles", "wave_cycles", "wave_step"]

RADIUS = 4
# Eighth-order second derivative.
COEFFICIENTS = np.array([-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560], np.float32)
_FMACS = 4 * RADIUS + 2 * RADIUS + 1  # one per point
_INTEGER_DIVISION = 50  # a subroutine on the CE


def wave_step(
    u: Array, previous: Array, speed: Array, clock: Array, *, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Advance ``u_tt = c^2 laplace(u)`` by one time step with zero values outside the grid.

    Jacquelin, Araya-Polo & Meng, SC'22: one PE holds a column of Z cells, four neighbours in each
    of four directions send theirs. Cycles: 16 shifts of Z words (over 1 to 4 hops), then 25 fmacs
    and two updates of Z elements.

    Args:
        u: [H, W, Z] field now.
        previous: [H, W, Z] field one step ago.
        speed: [H, W, Z], ``(c dt / dx)^2``.
        clock: [H, W].
        spec: the machine.

    Returns:
        [H, W, Z] field one step on, and the clock.
    """
    cells = u.shape[2]
    neighbours = []
    for hops in range(1, RADIUS + 1):
        for side in "NESW":
            if hops >= u.shape[0 if side in "NS" else 1]:
                neighbours.append(jnp.zeros_like(u))
                continue
            moved, clock = shift(u, clock, side, hops=hops, spec=spec)
            neighbours.append(moved)

    def update(u: Array, previous: Array, speed: Array) -> Array:
        laplace = 3 * COEFFICIENTS[0] * u
        for hops in range(1, RADIUS + 1):
            padded = jnp.pad(u, ((0, 0), (0, 0), (hops, hops)))
            near = [padded[..., 2 * hops :], padded[..., :cells]]
            near += neighbours[4 * (hops - 1) : 4 * hops]
            laplace = laplace + COEFFICIENTS[hops] * sum(near)
        return 2 * u - previous + speed * laplace

    cycles = (_FMACS + 2) * (cells + spec.op_launch)
    return local(update, clock, u, previous, speed, cycles=cycles)


def wave_cycles(cells: int, spec: WaferSpec = WSE2) -> int:
    """Cycles of :func:`wave_step` at a PE far from the edges, to within the links' latency.

    A shift over h hops takes ``max(2, h) Z``, h streams sharing every link; then 27 operations.
    """
    shifts = 4 * sum(max(2, hops) for hops in range(1, RADIUS + 1))
    return shifts * cells + (_FMACS + 2) * (cells + spec.op_launch)


def halo_stencil_cycles(
    radius: int, rows: int, columns: int, sides: int, *, divides: bool, spec: WaferSpec = WSE2
) -> int:
    """Cycles per iteration of a 2-D star stencil whose halo arrives word by word in data tasks.

    The program of CStencil (Elia-Belli/stencil-cerebras): ``4 radius + 1`` operations over the
    tile, and one task per word of the lines that ``sides`` neighbours send; its descriptors send
    one line whatever the radius.

    Args:
        radius: of the star.
        rows: of a PE's tile.
        columns: of a PE's tile.
        sides: neighbours of the PE.
        divides: whether the task divides to find its address, as that for any radius does.
        spec: the machine.
    """
    words = sides * max(rows, columns)
    task = spec.op_reload + (_INTEGER_DIVISION if divides else 0)
    return (4 * radius + 1) * (rows * columns + spec.op_launch) + words * task
