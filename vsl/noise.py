"""Random bits addressed by coordinates, so that where a token lies in memory does not matter.

A padded and a packed batch must drop the same units. Random numbers drawn for an array shape
cannot do that; bits that are a function of (key, sequence, position, unit) can, also block by
block inside attention, in any order, forward and backward. The function is the finaliser of
MurmurHash3 applied after each coordinate: counter-based like threefry, far cheaper, and good
enough for dropout, the only use here.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Integer, Key, UInt32

from wafer.vsl.layout import Layout


def seed_of(key: Key[Array, ""]) -> UInt32[Array, ""]:
    """One word drawn from a typed key, which is consumed."""
    return jax.random.bits(key, (), jnp.uint32)


def hash_bits(
    state: UInt32[Array, "..."], coordinate: Integer[Array, "..."]
) -> UInt32[Array, "..."]:
    """Absorb one coordinate into a state; shapes broadcast.

    The golden-ratio multiple keeps small coordinates apart before mixing.
    """
    h = state ^ (coordinate.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) + 1)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)


def keep_threshold(rate: float) -> int:
    """Bits below this uint32 value mean keep.

    Raises:
        ValueError: a rate outside [0, 1).
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout rate {rate}: expected 0 <= rate < 1")
    return min(round((1.0 - rate) * 2**32), 2**32 - 1)


def dropout(
    key: Key[Array, ""], x: Float[Array, "T ..."], layout: Layout, rate: float
) -> Float[Array, "T ..."]:
    """Drop units of each token, the same ones however the batch is laid out.

    Args:
        key: typed PRNG key, consumed.
        x: [T, ...] one row per token slot.
        layout: where the sequences lie; the number of a token's sequence and its position address
            the noise.
        rate: probability of dropping a unit, 0 <= rate < 1.

    Returns:
        x with dropped units 0 and the others divided by ``1 - rate``.
    """
    if rate == 0.0:
        return x
    threshold = jnp.uint32(keep_threshold(rate))
    token = hash_bits(hash_bits(seed_of(key), layout.sequences), layout.positions)
    width = x.size // max(x.shape[0], 1)
    bits = hash_bits(token[:, None], jnp.arange(width, dtype=jnp.uint32)[None, :])
    keep = (bits < threshold).reshape(x.shape)
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))
