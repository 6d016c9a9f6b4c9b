"""Rows that pack several documents: Model Zoo's ``attention_span`` and ``position_ids``.

Since Model Zoo 1.9 a VSL row carries, per key j, how many later queries may attend it
(``attention_span``, counting down to 0 inside each document) and its position
(``position_ids``, counting up from 0). Causal: query i sees key j iff j <= i <= j + span[j].
"""

import jax.numpy as jnp
from jaxtyping import Bool, Int, Num

from vsl.layout import AnyArray, Layout

__all__ = ["layout_from_spans"]


def layout_from_spans(
    attention_span: Int[AnyArray, "B S"],
    position_ids: Int[AnyArray, "B S"],
    loss_mask: Num[AnyArray, "B S"] | Bool[AnyArray, "B S"] | None = None,
    max_sequences: int | None = None,
) -> Layout:
    """Describe packed rows, flattened, as a stream with gaps.

    Padding has span 0 and position 0, and so has a document of one token; the loss mask tells
    them apart. Where both agree the slot carries no loss, so treating it as padding is exact.

    Args:
        attention_span: later queries of the same document, per key.
        position_ids: position inside the document.
        loss_mask: [B, S] the row's ``attention_mask``; None takes slots with span and position 0
            for padding.
        max_sequences: static bound on the documents of the batch, which are then counted through;
            by default there are B * S segments, S for each row, always enough.

    Returns:
        The layout, with ``rows == (B, S)``; usable under jit.
    """
    batch, length = attention_span.shape
    span = jnp.asarray(attention_span, jnp.int32).reshape(-1)
    position = jnp.asarray(position_ids, jnp.int32).reshape(-1)
    total = batch * length
    valid = (span > 0) | (position > 0)
    if loss_mask is not None:
        valid |= jnp.asarray(loss_mask).reshape(-1) != 0
    slot = jnp.arange(total, dtype=jnp.int32)
    first = valid & (position == 0)
    if max_sequences is None:  # a row's numbers do not depend on the rows before it
        inside = jnp.cumsum(first.reshape(batch, length), axis=1, dtype=jnp.int32) - 1
        seq, count = inside.reshape(-1) + slot // length * length, total
    else:
        seq, count = jnp.cumsum(first, dtype=jnp.int32) - 1, max_sequences
    lengths = jnp.zeros((count,), jnp.int32)
    lengths = lengths.at[jnp.where(first, seq, count)].set(span + 1, mode="drop")
    return Layout(
        lengths=lengths,
        segments=jnp.where(valid, seq, -1),
        positions=jnp.where(valid, position, 0),
        starts=jnp.where(valid, slot - position, total),
        ends=jnp.where(valid, slot + span + 1, 0),
        rows=(batch, length),
    )
