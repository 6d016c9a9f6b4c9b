"""Pipes and queues of wavelets, for all PEs and colors at once."""

import jax.numpy as jnp
from jaxtyping import Array

from wafer.fabric.engines.state import Lanes

__all__ = ["fifo_step", "flow", "moving", "occupancy", "pipe_step", "shift_from"]


def shift_from(plane: Array, side: str) -> Array:
    """Each PE's view of its neighbour on a side; zero beyond the edge.

    Args:
        plane: [..., H, W].
        side: "N", "E", "S" or "W".
    """
    if side in "NS":
        edge = jnp.zeros_like(plane[..., :1, :])
        if side == "N":
            return jnp.concatenate([edge, plane[..., :-1, :]], axis=-2)
        return jnp.concatenate([plane[..., 1:, :], edge], axis=-2)
    edge = jnp.zeros_like(plane[..., :, :1])
    if side == "W":
        return jnp.concatenate([edge, plane[..., :, :-1]], axis=-1)
    return jnp.concatenate([plane[..., :, 1:], edge], axis=-1)


def occupancy(lanes: Lanes) -> Array:
    """[C, H, W] int32 wavelets held."""
    return (lanes.flag != 0).sum(axis=1, dtype=jnp.int32)


def fifo_step(lanes: Lanes, pop: Array, data: Array, flag: Array) -> Lanes:
    """Drop the head where ``pop``, then append where ``flag`` is not 0.

    Args:
        lanes: [C, D, H, W].
        pop: [C, H, W] bool.
        data: [C, H, W] uint32 arriving payload.
        flag: [C, H, W] uint8 arriving flag bits, 0 where nothing arrives.
    """
    zero = jnp.zeros_like(lanes.flag[:, :1])
    drop = pop[:, None]
    flags = jnp.where(drop, jnp.concatenate([lanes.flag[:, 1:], zero], 1), lanes.flag)
    tail = jnp.concatenate([lanes.data[:, 1:], lanes.data[:, :1]], 1)
    values = jnp.where(drop, tail, lanes.data)
    before = jnp.concatenate([zero + 1, flags[:, :-1]], 1)
    here = (flags == 0) & (before != 0) & (flag != 0)[:, None]
    return Lanes(jnp.where(here, data[:, None], values), jnp.where(here, flag[:, None], flags))


def flow(lanes: Lanes, leaves: Array) -> list[Array]:
    """Which stages of an elastic pipe move on, given whether the last one may leave.

    Args:
        lanes: [C, D, H, W], stage 0 first.
        leaves: [C, H, W] bool, room behind the last stage.

    Returns:
        D + 1 arrays [C, H, W] bool: entry k says that stage k has room for a new wavelet this
        cycle; entry D is ``leaves``.
    """
    room = [leaves]
    for stage in range(lanes.flag.shape[1] - 1, -1, -1):
        room.append((lanes.flag[:, stage] == 0) | room[-1])
    return room[::-1]


def pipe_step(lanes: Lanes, room: list[Array], data: Array, flag: Array) -> Lanes:
    """Move an elastic pipe by one cycle and take in a wavelet where ``flag`` is not 0.

    The caller has seen that ``room[0]`` holds wherever a wavelet enters.
    """
    datas, flags = [], []
    for stage in range(lanes.flag.shape[1]):
        moved = room[stage + 1]
        held = jnp.where(moved, 0, lanes.flag[:, stage]).astype(jnp.uint8)
        if stage == 0:
            into, value = flag, data
        else:
            into = jnp.where(room[stage], lanes.flag[:, stage - 1], 0).astype(jnp.uint8)
            value = lanes.data[:, stage - 1]
        flags.append(held | into)
        datas.append(jnp.where(into != 0, value, lanes.data[:, stage]))
    if not flags:
        return lanes
    return Lanes(jnp.stack(datas, 1), jnp.stack(flags, 1))


def moving(lanes: Lanes, room: list[Array]) -> Array:
    """[] bool: whether any wavelet of a pipe moves on this cycle."""
    moved = jnp.bool_(False)
    for stage in range(lanes.flag.shape[1]):
        moved = moved | ((lanes.flag[:, stage] != 0) & room[stage + 1]).any()
    return moved
