"""Position encodings beyond those of ``vsl.bias``: rotary and sinusoids.

Shapes: T token slots, N heads, H head size, R rotated features (even, R <= H).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from models.schema import Section

__all__ = [
    "RopeScaling",
    "rotary_frequencies",
    "rotate",
    "sinusoids",
]


class RopeScaling(Section):
    """Arguments of ``pos_scaling_type: llama3`` (Llama 3.1's frequency-dependent interpolation).

    Attributes:
        low_freq_factor: wavelengths above context / low are divided by the full factor.
        high_freq_factor: wavelengths below context / high are left alone.
        original_max_position_embeddings: the context the model was pre-trained with.
    """

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


def rotary_frequencies(
    rotary_dim: int, theta: float, factor: float = 1.0, llama3: RopeScaling | None = None
) -> np.ndarray:
    """Compute the R/2 angular frequencies theta^(-2i/R), interpolated when asked.

    Args:
        rotary_dim: R.
        theta: the base (``rope_theta``).
        factor: linear interpolation divides every frequency by it.
        llama3: apply Llama 3.1's rule with ``factor`` instead.

    Returns:
        [R/2] float32, in the arithmetic of the reference (float32 throughout).
    """
    exponent = np.arange(0, rotary_dim, 2, dtype=np.float32) / np.float32(rotary_dim)
    frequencies = np.float32(1.0) / np.power(np.float32(theta), exponent, dtype=np.float32)
    if llama3 is None:
        return (frequencies / np.float32(factor)).astype(np.float32)
    context = llama3.original_max_position_embeddings
    low, high = llama3.low_freq_factor, llama3.high_freq_factor
    wavelength = np.float32(2 * math.pi) / frequencies
    smooth = (np.float32(context) / wavelength - np.float32(low)) / np.float32(high - low)
    blended = (1 - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    slow = wavelength > context / low
    fast = wavelength < context / high
    kept = np.where(fast, frequencies, blended)
    return np.where(slow, frequencies / np.float32(factor), kept).astype(np.float32)


def rotate(
    x: Float[Array, "T N H"],
    positions: Int[Array, " T"],
    frequencies: np.ndarray,
    *,
    interleaved: bool,
) -> Float[Array, "T N H"]:
    """Rotate the first R features of every head by position times frequency.

    Args:
        x: queries or keys.
        positions: position of each slot in its sequence.
        frequencies: [R/2], see ``rotary_frequencies``.
        interleaved: pairs are (0, 1), (2, 3), ... as in GPT-J and the vendor's own layout; else
            feature i pairs with i + R/2 as in NeoX and LLaMA.
    """
    half = frequencies.shape[0]
    angle = positions.astype(jnp.float32)[:, None, None] * frequencies
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    turned, rest = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([out.astype(x.dtype), rest], axis=-1)


def sinusoids(length: int, features: int) -> np.ndarray:
    """Compute the fixed table of Vaswani et al. 2017, sines in the first half, cosines after.

    Returns:
        [length, features] float32.
    """
    pos = np.arange(length, dtype=np.float64)[:, None]
    angle = pos / np.power(10000.0, 2 * (np.arange(features) // 2) / features)
    table = np.zeros((length, features))
    half = features - features // 2
    table[:, :half] = np.sin(angle[:, 0::2])
    table[:, half:] = np.cos(angle[:, 1::2])
    return table.astype(np.float32)
