"""Which keys each query sees, as one interval of stream slots per query.

Every mask of this package (segments, causal order, sliding window, cross-attention) is an
interval ``[low, high)`` of key slots, because the tokens of a sequence are neighbours in the
stream. That is what lets attention visit a contiguous range of key blocks per query block and
never build a mask of size T x T.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from wafer.vsl.layout import Layout

Window = tuple[int, int]


class BlockSizes(NamedTuple):
    """Static tile sizes."""

    q: int  #: queries per block
    k: int  #: keys per block


class Keys(NamedTuple):
    """The keys each of T queries may see."""

    low: Int[Array, " T"]  #: [T] int32 first visible key slot
    #: [T] int32 one past the last visible key slot; ``high <= low`` where nothing is visible
    high: Int[Array, " T"]
    #: [T] int32 first key slot of the query's sequence: with ``sink_tokens=n`` the slots ``sink <=
    #: j < min(sink + n, high)`` are visible as well
    sink: Int[Array, " T"]


_LARGEST_WINDOW = 2**30  # so that position + window is int32


def normalize_window(window: int | Window | None, *, causal: bool) -> Window | None:
    """Turn a window into (keys to the left, keys to the right) of the query itself.

    Args:
        window: W means the W key positions (i - W, i] of a causal model, the query's own included
            (Hugging Face's rule), and |i - j| < W of a bidirectional one. A pair
            (left, right) means [i - left, i + right].
        causal: whether keys right of the query are hidden anyway.

    Raises:
        ValueError: a window that leaves a query without its own key, or too large for int32.
    """
    if window is None:
        return None
    if max((window,) if isinstance(window, int) else window) > _LARGEST_WINDOW:
        raise ValueError(
            f"window={window}: positions are int32, expected at most {_LARGEST_WINDOW}; pass "
            "window=None for no window"
        )
    if isinstance(window, int):
        if window < 1:
            raise ValueError(
                f"window={window}: a query must see at least its own key, so a window of W "
                "positions needs W >= 1; pass window=None for no window"
            )
        return (window - 1, 0 if causal else window - 1)
    left, right = window
    if left < 0 or right < 0:
        raise ValueError(f"window={window}: (left, right) must both be >= 0")
    return (left, 0 if causal else right)


def key_intervals(
    layout: Layout, kv_layout: Layout | None, *, causal: bool, window: Window | None
) -> Keys:
    """Compute the visible key slots of every query.

    Args:
        layout: layout of the queries, [T].
        kv_layout: layout of the keys, [Tk]; None for self-attention. Sequences are matched by
            their index; causal order and windows then compare positions inside the sequences.
        causal: hide keys at later positions.
        window: from :func:`normalize_window`.
    """
    if kv_layout is None:
        start, end = layout.starts, layout.ends
        # The slot of the key that stands at the query's own position.
        diagonal = jnp.arange(layout.capacity, dtype=jnp.int32)
    else:
        seq = jnp.maximum(layout.segments, 0)
        start = jnp.where(layout.valid, kv_layout.offsets[seq], kv_layout.capacity)
        end = jnp.where(layout.valid, start + kv_layout.lengths[seq], 0)
        diagonal = start + layout.positions
    low, high = start, end
    if window is not None:
        low = jnp.maximum(low, diagonal - window[0])
    if causal:
        high = jnp.minimum(high, diagonal + 1)
    elif window is not None:
        high = jnp.minimum(high, diagonal + window[1] + 1)
    return Keys(low=low, high=high, sink=start)


def block_ranges(
    keys: Keys, sizes: BlockSizes, *, sinks: bool
) -> tuple[Int[Array, " I"], Int[Array, " I"]]:
    """Bound, for each block of queries, the key blocks that hold a visible key.

    Args:
        keys: intervals of the queries, their number a multiple of ``sizes.q``.
        sizes: queries and keys per block.
        sinks: whether sink tokens reach back to the start of the sequence.

    Returns:
        (first, last): [I] int32 each, key blocks ``first <= j < last``; equal where none is seen.
    """
    first = keys.sink if sinks else keys.low
    nonempty = keys.high > first
    big = jnp.iinfo(jnp.int32).max
    low = jnp.min(jnp.where(nonempty, first, big).reshape(-1, sizes.q), axis=1) // sizes.k
    high = jnp.max(jnp.where(nonempty, keys.high, 0).reshape(-1, sizes.q), axis=1)
    high = -(-high // sizes.k)
    return jnp.minimum(low, high), high
