"""Operations that must not cross a sequence boundary.

Packed training goes wrong elsewhere exactly here: next-token labels that pair the last token of
one sequence with the first of the next, means of means, pooled padding. All functions take a
stream [T, ...] and its layout, and ignore whatever padding and slack hold.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vsl.layout import Layout

__all__ = [
    "expand",
    "first_token",
    "global_mean",
    "last_token",
    "loss_sums",
    "ragged_slots",
    "ragged_take",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "shift_labels",
]


def _column(condition: Array, x: Array) -> Array:
    return condition.reshape(-1, *(1,) * (x.ndim - 1))


def shift_labels(
    tokens: Int[Array, " T"], layout: Layout, fill: int = 0
) -> tuple[Int[Array, " T"], Float[Array, " T"]]:
    """Next-token targets inside each sequence.

    Args:
        tokens: token ids.
        layout: where the sequences lie.
        fill: label where there is no next token.

    Returns:
        (labels, weights): the last token of a sequence, padding and slack have weight 0.
    """
    slot = jnp.arange(layout.capacity, dtype=jnp.int32)
    has_next = slot + 1 < layout.ends
    return jnp.where(has_next, jnp.roll(tokens, -1), fill), has_next.astype(jnp.float32)


def _ids(layout: Layout) -> Array:
    """Segment numbers with padding sent out of range, where scatters drop it."""
    return jnp.where(layout.valid, layout.segments, layout.lengths.shape[0])


def segment_sum(x: Array, layout: Layout) -> Array:
    """Sum over each sequence: [T, ...] -> [B, ...]; 0 for an empty one."""
    x = jnp.where(_column(layout.valid, x), x, 0)
    return jax.ops.segment_sum(x, _ids(layout), layout.lengths.shape[0])


def segment_mean(x: Array, layout: Layout) -> Array:
    """Mean over each sequence: [T, ...] -> [B, ...]; 0 for an empty one."""
    total = segment_sum(x, layout)
    return total / _column(jnp.maximum(layout.lengths, 1), total).astype(total.dtype)


def segment_max(x: Array, layout: Layout, empty: float = 0.0) -> Array:
    """Maximum over each sequence: [T, ...] -> [B, ...]; ``empty`` for an empty one."""
    top = jax.ops.segment_max(x, _ids(layout), layout.lengths.shape[0])
    return jnp.where(_column(layout.lengths > 0, top), top, jnp.asarray(empty, x.dtype))


def expand(x: Array, layout: Layout) -> Array:
    """Give each token its sequence's value: [B, ...] -> [T, ...]; 0 at padding and slack."""
    return x.at[_ids(layout)].get(mode="fill", fill_value=0)


def ragged_slots(layout: Layout, at: Layout, positions: Int[Array, " M"]) -> Int[Array, " M"]:
    """Turn positions inside sequences into slots of the stream.

    Args:
        layout: the stream's layout.
        at: layout of the wanted tokens, M slots; sequence b of it reads sequence b of x.
        positions: wanted position inside the sequence, per slot of ``at``.

    Returns:
        [M] int32; T at slack of ``at`` and at positions beyond a sequence's end.
    """
    seq = jnp.maximum(at.segments, 0)
    inside = at.valid & (positions >= 0) & (positions < layout.lengths[seq])
    return jnp.where(inside, layout.offsets[seq] + positions, layout.capacity)


def ragged_take(x: Array, layout: Layout, at: Layout, positions: Int[Array, " M"]) -> Array:
    """Read tokens at positions inside their sequences, for example those masked for BERT.

    Args:
        x: [T, ...] values of the stream.
        layout: the stream's layout.
        at: layout of the wanted tokens, see :func:`ragged_slots`.
        positions: wanted position inside the sequence, per slot of ``at``.

    Returns:
        [M, ...]; 0 at slack of ``at`` and at positions beyond a sequence's end.
    """
    return x.at[ragged_slots(layout, at, positions)].get(mode="fill", fill_value=0)


def first_token(x: Array, layout: Layout) -> Array:
    """First token of each sequence: [T, ...] -> [B, ...]; 0 for an empty one."""
    return x.at[layout.offsets].get(mode="fill", fill_value=0)


def last_token(x: Array, layout: Layout) -> Array:
    """Last token of each sequence: [T, ...] -> [B, ...]; 0 for an empty one."""
    last = jnp.where(layout.lengths > 0, layout.offsets + layout.lengths - 1, layout.capacity)
    return x.at[last].get(mode="fill", fill_value=0)


def loss_sums(
    losses: Float[Array, " T"], weights: Float[Array, " T"], layout: Layout
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(sum of weighted token losses, sum of weights), blind to padding even if it holds NaN."""
    used = layout.valid & (weights != 0)
    total = jnp.sum(jnp.where(used, losses * weights, 0))
    return total, jnp.sum(jnp.where(used, weights, 0))


def global_mean(
    loss_sum: Float[Array, ""], weight: Float[Array, ""], axis_name: str | None = None
) -> Float[Array, ""]:
    """Loss per token over all shards: the ratio of the sums, not the mean of the shards' means."""
    if axis_name is not None:
        loss_sum, weight = jax.lax.psum((loss_sum, weight), axis_name)
    return loss_sum / jnp.maximum(weight, 1e-9)
