"""The key-value cache of generation, and attention that reads and extends it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from wafer import vsl
from wafer.models.layers.block_config import BlockConfig
from wafer.vsl import Layout


class KVCache(NamedTuple):
    """Keys and values of what was seen so far."""

    keys: tuple[Array, ...]  #: keys, values: one [B, C, K, H] array per layer, compute dtype
    values: tuple[Array, ...]
    length: Int[Array, " B"]  #: [B] int32 tokens seen per row
    extra: Any = None  #: what a family needs besides (the encoder's output), or None


def init_cache(
    cfg: BlockConfig, batch: int, capacity: int, layers: int, extra: PyTree = None
) -> KVCache:
    """Make an empty cache of ``capacity`` slots per row for each of ``layers`` layers."""
    shape = (batch, capacity, cfg.num_kv_heads, cfg.head_dim)
    empty = tuple(jnp.zeros(shape, cfg.dtype) for _ in range(layers))
    return KVCache(empty, empty, jnp.zeros((batch,), jnp.int32), extra)


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
    keys: Float[Array, "B C K H"],
    values: Float[Array, "B C K H"],
    length: Int[Array, " B"],
    layout: Layout,
    updated: list[tuple[Array, Array]],
) -> Callable[..., Array]:
    """Attend to a layer's cache after appending the chunk; the new cache is put into ``updated``.

    Args:
        keys: of the slots so far.
        values: the same.
        length: slots filled so far.
        layout: of the chunk, rows (B, S).
        updated: receives (keys, values) with the chunk written.
    """
    rows, capacity = keys.shape[:2]

    def write(cache: Array, new: Array) -> Array:
        new = new.reshape(rows, -1, *new.shape[1:]).astype(cache.dtype)
        place = jax.vmap(lambda c, n, i: jax.lax.dynamic_update_slice(c, n, (i, 0, 0)))
        return place(cache, new, length)

    def attend(q: Array, k: Array, v: Array, **rules: Any) -> Array:
        full_k, full_v = write(keys, k), write(values, v)
        updated.append((full_k, full_v))
        return vsl.attention(
            q,
            full_k.reshape(rows * capacity, *k.shape[1:]).astype(q.dtype),
            full_v.reshape(rows * capacity, *v.shape[1:]).astype(q.dtype),
            layout,
            kv_layout=vsl.padded_layout(length + layout.lengths, capacity, validate=False),
            implementation="padded",
            **rules,
        )

    return attend
