"""The key-value cache of generation, and attention that reads and extends it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from wafer import vsl
from wafer.models.layers.block_config import BlockConfig
from wafer.vsl import Layout
from wafer.vsl.implementations.cached import attend_cached


class KVCache(NamedTuple):
    """Keys and values of what was seen so far."""

    keys: tuple[Array, ...]  #: keys, values: one [B, K, C, H] array per layer, compute dtype
    values: tuple[Array, ...]
    length: Int[Array, " B"]  #: [B] int32 tokens seen per row
    extra: Any = None  #: what a family needs besides (the encoder's output), or None


def init_cache(
    cfg: BlockConfig, batch: int, capacity: int, layers: int, extra: PyTree = None
) -> KVCache:
    """Make an empty cache of ``capacity`` slots per row for each of ``layers`` layers."""
    shape = (batch, cfg.num_kv_heads, capacity, cfg.head_dim)
    # No array twice: a program may take each as its own.
    keys, values = (tuple(jnp.zeros(shape, cfg.dtype) for _ in range(layers)) for _ in range(2))
    return KVCache(keys, values, jnp.zeros((batch,), jnp.int32), extra)


def chunk_layout(length: Int[Array, " B"], added: Int[Array, " B"], size: int) -> Layout:
    """Lay out S new slots per row, of which ``added`` are real, after ``length`` seen ones."""
    rows = vsl.padded_layout(added, size, validate=False)
    positions = rows.positions + jnp.repeat(length, size)
    return Layout(
        lengths=rows.lengths,
        segments=rows.segments,
        positions=jnp.where(rows.valid, positions, 0),
        starts=rows.starts,
        ends=rows.ends,
        rows=rows.rows,
    )


def cached_attend(
    keys: Float[Array, "B K C H"],
    values: Float[Array, "B K C H"],
    length: Int[Array, " B"],
    layout: Layout,
    updated: list[tuple[Array, Array]],
    *,
    native: bool = False,
) -> Callable[..., Array]:
    """Attend to a layer's cache after appending the chunk; the new cache is put into ``updated``.

    Args:
        keys: of the slots so far.
        values: the same.
        length: slots filled so far.
        layout: of the chunk, rows (B, S).
        updated: receives (keys, values) with the chunk written.
        native: a chunk of one token takes one native call, where there is one for it.
    """
    rows, heads, capacity, _ = keys.shape
    slots = (length[:, None] + jnp.arange(layout.capacity // rows)).repeat(heads, 0)
    # XLA for CPUs scatters bfloat16 as float32: the whole cache would become that, and then again.
    word = jnp.dtype(jnp.uint16) if keys.dtype == jnp.bfloat16 else keys.dtype

    def write(cache: Array, new: Array) -> Array:
        # Padding clears slots of tokens that were taken back: they may hold NaN.
        new = jnp.where(layout.valid[:, None, None], new, 0).astype(cache.dtype)
        new = new.reshape(rows, -1, *new.shape[1:]).swapaxes(1, 2)
        # By row and head: for one row alone XLA would copy the whole cache.
        flat, new = (x.reshape(rows * heads, -1, x.shape[-1]).view(word) for x in (cache, new))
        flat = flat.at[jnp.arange(rows * heads)[:, None], slots].set(new, mode="drop")
        return flat.view(cache.dtype).reshape(cache.shape)

    def attend(q: Array, k: Array, v: Array, **rules: Any) -> Array:
        if native and layout.capacity == rows:
            counts = {"length": length, "added": layout.lengths}
            new = attend_cached(q, k, v, (keys, values), **counts, **rules)
            if new is not None:
                updated.append(new[1])
                return new[0]
        full = write(keys, k), write(values, v)
        updated.append(full)
        return vsl.attention(
            q,
            *(x.swapaxes(1, 2).reshape(-1, *k.shape[1:]).astype(q.dtype) for x in full),
            layout=layout,
            kv_layout=vsl.padded_layout(length + layout.lengths, capacity, validate=False),
            kv_finite=True,
            implementation="padded",
            **rules,
        )

    return attend
