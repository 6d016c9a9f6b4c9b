"""Additive attention biases by position: ALiBi and the relative buckets of T5.

Follows Press et al. 2022 (ALiBi; slopes for head counts that are no power of two by the
published interpolation) and Raffel et al. 2020 as coded in Hugging Face's T5.
"""

import dataclasses
import math
import typing
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

BiasFn = Callable[[Array, Array], Array]
"""(query positions [q], key positions [k]) -> bias [N, q, k]."""


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " N"]:
    """Slopes 2^(-8 i / n) of ALiBi, i = 1..n; float32.

    Other head counts take the slopes of the power of two below, then every other slope of the
    power of two above, as the authors do.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (num_heads - power), 2)]
    return np.asarray(slopes, np.float32)


def relative_bucket(
    relative: Int[Array, "..."], *, buckets: int, max_distance: int, bidirectional: bool
) -> Int[Array, "..."]:
    """Bucket of a relative position ``key - query``: exact when near, logarithmic when far.

    Args:
        relative: key position minus query position.
        buckets: number of buckets; half of them per direction when bidirectional.
        max_distance: distances from here on share the last bucket.
        bidirectional: give keys right of the query buckets of their own; otherwise they fall
            into bucket 0.
    """
    base = jnp.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        base = jnp.where(relative > 0, buckets, 0)
        distance = jnp.abs(relative)
    else:
        distance = jnp.maximum(-relative, 0)
    exact = buckets // 2
    ratio = jnp.maximum(distance, 1).astype(jnp.float32) / exact
    far = exact + (jnp.log(ratio) / math.log(max_distance / exact) * (buckets - exact)).astype(
        jnp.int32
    )
    return base + jnp.where(distance < exact, distance, jnp.minimum(far, buckets - 1))


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBias:
    """A trainable T5 bias: one value per bucket of relative position and head.

    Attributes:
        table: [buckets, N]; gradients flow to it.
        bidirectional: static, True in an encoder, False in a decoder.
        max_distance: static, 128 in T5.
    """

    table: Float[Array, "R N"]
    bidirectional: bool = dataclasses.field(default=True, metadata={"static": True})
    max_distance: int = dataclasses.field(default=128, metadata={"static": True})

    def by_relative(self, relative: Int[Array, "..."]) -> Float[Array, "N ..."]:
        """Bias at relative positions ``key - query``."""
        index = relative_bucket(
            relative,
            buckets=self.table.shape[0],
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return jnp.moveaxis(self.table[index], -1, 0)

    def __call__(self, query: Int[Array, " q"], key: Int[Array, " k"]) -> Float[Array, "N q k"]:
        """Bias of a tile, from positions inside the sequences."""
        return self.by_relative(key[None, :] - query[:, None])
