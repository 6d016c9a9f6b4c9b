"""Operations that must not cross a sequence boundary.

All functions take a stream [T, ...] and its layout, and ignore whatever padding and slack hold.
Sums and maxima of floats are NaN if the layout is not ``complete``.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped

from wafer.vsl.layout import Layout


def _column(condition: Array, x: Array) -> Array:
    return condition.reshape(-1, *(1,) * (x.ndim - 1))


def _ids(layout: Layout) -> Array:
    """Segment numbers with padding sent out of range, where scatters drop it."""
    return jnp.where(layout.valid, layout.segments, layout.lengths.shape[0])


def segment_sum(x: Shaped[Array, " T *D"], layout: Layout) -> Shaped[Array, " B *D"]:
    """Sum over each sequence; 0 for an empty one."""
    x = jnp.where(_column(layout.valid, x), x, 0)
    total = jax.ops.segment_sum(x, _ids(layout), layout.lengths.shape[0])
    return layout.require_complete(total)


def segment_max(
    x: Shaped[Array, " T *D"], layout: Layout, empty: float = 0.0
) -> Shaped[Array, " B *D"]:
    """Return the maximum over each sequence.

    Args:
        x: values by token.
        layout: of the tokens.
        empty: the result of an empty sequence.
    """
    top = jax.ops.segment_max(x, _ids(layout), layout.lengths.shape[0])
    top = jnp.where(_column(layout.lengths > 0, top), top, jnp.asarray(empty, x.dtype))
    return layout.require_complete(top)


def expand(x: Shaped[Array, " B *D"], layout: Layout) -> Shaped[Array, " T *D"]:
    """Give each token its sequence's value; 0 at padding and slack."""
    return x.at[_ids(layout)].get(mode="fill", fill_value=0)


def ragged_slots(layout: Layout, at: Layout, positions: Int[Array, " M"]) -> Int[Array, " M"]:
    """Turn positions inside sequences, such as those masked for BERT, into slots of the stream.

    Args:
        layout: the stream's layout.
        at: layout of the wanted tokens, M slots; sequence b of it reads sequence b of x.
        positions: wanted position inside the sequence, per slot of ``at``.

    Returns:
        [M] int32; T at slack of ``at`` and at positions beyond a sequence's end, for
        ``x.at[slots].get(mode="fill", fill_value=0)``.
    """
    seq = jnp.maximum(at.segments, 0)
    inside = at.valid & (positions >= 0) & (positions < layout.lengths[seq])
    return jnp.where(inside, layout.offsets[seq] + positions, layout.capacity)
