"""Grids of cells with z in PE memory: BiCGStab on a 7-point operator, the 25-point wave stencil."""

import jax
import jax.numpy as jnp
import numpy as np

from wafer.fabric.library import timing
from wafer.fabric.library.collectives import all_reduce, shift
from wafer.fabric.library.timing import Array
from wafer.spec import WSE2, WaferSpec

__all__ = ["COEFFICIENTS", "bicgstab", "seven_point", "wave_step"]

_RADIUS = 4
# Eighth-order second derivative.
COEFFICIENTS = np.array([-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560], np.float32)
_FMACS = 4 * _RADIUS + 2 * _RADIUS + 1  # one per point


def seven_point(
    coefficients: Array, x: Array, clock: Array, *, spec: WaferSpec = WSE2
) -> tuple[Array, Array]:
    """Apply a 7-point operator with zero values outside the grid.

    Cycles: four shifts of Z words, then 7 fmacs of Z elements.

    Args:
        coefficients: [7, H, W, Z]: centre, from N, E, S, W, below (z - 1), above (z + 1).
        x: [H, W, Z].
        clock: [H, W].
        spec: the machine.
    """
    near = []
    for side in "SWNE":  # what comes from the north has travelled south
        moved, clock = shift(x, clock, side, spec=spec)
        near.append(moved)

    padded = jnp.pad(x, ((0, 0), (0, 0), (1, 1)))
    terms = [x, *near, padded[..., :-2], padded[..., 2:]]
    total = sum(coefficients[i] * term for i, term in enumerate(terms))
    return total, timing.local_time(clock, 7 * (x.shape[2] + spec.op_launch))


def bicgstab(
    coefficients: Array, b: Array, iterations: int, clock: Array, *, spec: WaferSpec = WSE2
) -> tuple[Array, Array, Array]:
    """Solve a 7-point system by a fixed number of BiCGStab iterations from 0.

    Cycles per iteration: two operators, four inner products (Z fmacs and one scalar all-reduce
    over the grid each) and six vector updates of Z elements.

    Args:
        coefficients: [7, H, W, Z], see :func:`seven_point`.
        b: [H, W, Z] right-hand side.
        iterations: how many.
        clock: [H, W].
        spec: the machine.

    Returns:
        x [H, W, Z], the final squared residual norm [], and the clock.
    """
    cells = b.shape[2] + spec.op_launch

    def dot(u: Array, v: Array, clock: Array) -> tuple[Array, Array]:
        part, clock = (u * v).sum(-1, keepdims=True), timing.local_time(clock, cells)
        total, clock = all_reduce(part, clock, axes="xy", spec=spec)
        return total[0, 0, 0], clock

    def iterate(carry: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        x, r, p, rho, clock = carry  # residual r, direction p, rho: product of r with the shadow
        ap, clock = seven_point(coefficients, p, clock, spec=spec)
        shadow_ap, clock = dot(b, ap, clock)
        alpha = rho / shadow_ap
        s = r - alpha * ap
        a_s, clock = seven_point(coefficients, s, clock + cells, spec=spec)
        top, clock = dot(a_s, s, clock)
        bottom, clock = dot(a_s, a_s, clock)
        omega = top / bottom
        x = x + alpha * p + omega * s
        r = s - omega * a_s
        new_rho, clock = dot(b, r, clock + 3 * cells)
        beta = new_rho / rho * alpha / omega
        p = r + beta * (p - omega * ap)
        return (x, r, p, new_rho, (clock + 2 * cells).astype(jnp.int32)), None

    rho, clock = dot(b, b, clock)
    carry = (jnp.zeros_like(b), b, b, rho, jnp.asarray(clock, jnp.int32))
    (x, r, _, _, clock), _ = jax.lax.scan(iterate, carry, None, length=iterations)
    return x, (r * r).sum(), clock


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
    for hops in range(1, _RADIUS + 1):
        for side in "NESW":
            if hops >= u.shape[0 if side in "NS" else 1]:
                neighbours.append(jnp.zeros_like(u))
                continue
            moved, clock = shift(u, clock, side, hops=hops, spec=spec)
            neighbours.append(moved)

    laplace = 3 * COEFFICIENTS[0] * u
    for hops in range(1, _RADIUS + 1):
        padded = jnp.pad(u, ((0, 0), (0, 0), (hops, hops)))
        near = [padded[..., 2 * hops :], padded[..., :cells]]
        near += neighbours[4 * (hops - 1) : 4 * hops]
        laplace = laplace + COEFFICIENTS[hops] * sum(near)
    clock = timing.local_time(clock, (_FMACS + 2) * (cells + spec.op_launch))
    return 2 * u - previous + speed * laplace, clock
