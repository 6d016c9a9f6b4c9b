"""Position encodings beyond those of ``wafer.vsl.bias``: rotary and sinusoids.

Shapes: T token slots, N heads, H head size, R rotated features (even, R <= H).
"""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from pydantic import PositiveFloat, PositiveInt

from wafer.models.once import computed_once
from wafer.models.sections import Section

_MANY = 1 << 10  # angles that XLA should not compute several times


class RopeScaling(Section):
    """Arguments of ``pos_scaling_type: llama3`` and ``yarn``: some frequencies are interpolated."""

    #: the context the model was pre-trained with
    original_max_position_embeddings: PositiveInt = 8192
    #: llama3: wavelengths above context / low are divided by the full factor
    low_freq_factor: PositiveFloat = 1.0
    #: llama3: wavelengths below context / high are left alone
    high_freq_factor: PositiveFloat = 4.0
    #: yarn: features that turn more often than this in the context are left alone
    beta_fast: PositiveFloat = 32.0
    #: yarn: features that turn less often are divided by the full factor
    beta_slow: PositiveFloat = 1.0
    #: yarn: multiplies queries and keys; default 0.1 ln(factor) + 1
    attention_factor: PositiveFloat | None = None


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


def yarn_frequencies(rotary_dim: int, theta: float, factor: float, rule: RopeScaling) -> np.ndarray:
    """Compute the R/2 frequencies of YaRN (Peng et al. 2023): a ramp between plain and divided.

    A feature makes context * frequency / 2 pi turns within the original context. Features with
    more than ``beta_fast`` turns keep their frequency, those with fewer than ``beta_slow`` get it
    divided by ``factor``; between them the mix is linear in the feature's index.
    """
    plain = rotary_frequencies(rotary_dim, theta)
    context = rule.original_max_position_embeddings

    def feature(turns: float) -> float:
        return rotary_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(feature(rule.beta_fast)), 0)
    high = min(math.ceil(feature(rule.beta_slow)), rotary_dim - 1)
    width = np.float32(high - low if high != low else 0.001)
    ramp = (np.arange(rotary_dim // 2, dtype=np.float32) - np.float32(low)) / width
    divided = np.clip(ramp, 0, 1)
    return (plain / np.float32(factor) * divided + plain * (1 - divided)).astype(np.float32)


def yarn_factor(factor: float, rule: RopeScaling) -> float:
    """Return what YaRN multiplies rotated queries and keys by."""
    if rule.attention_factor is not None:
        return rule.attention_factor
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0


def rotate(
    x: Float[Array, "T N H"],
    positions: Int[Array, " T"],
    frequencies: np.ndarray,
    *,
    interleaved: bool,
    gain: float = 1.0,
) -> Float[Array, "T N H"]:
    """Rotate the first R features of every head by position times frequency.

    Args:
        x: queries or keys.
        positions: position of each slot in its sequence.
        frequencies: [R/2], see ``rotary_frequencies``.
        interleaved: pairs are (0, 1), (2, 3), ... as in GPT-J; else
            feature i pairs with i + R/2 as in NeoX and LLaMA.
        gain: multiplies the rotated features (``yarn_factor``).
    """
    half = frequencies.shape[0]
    angle = positions.astype(jnp.float32)[:, None, None] * frequencies
    turn = lambda angle: (jnp.cos(angle) * gain, jnp.sin(angle) * gain)
    cos, sin = computed_once(turn, angle) if angle.size >= _MANY else turn(angle)
    turned, unrotated = x[..., : 2 * half].astype(jnp.float32), x[..., 2 * half :]
    if interleaved:
        a, b = turned[..., 0::2], turned[..., 1::2]
        out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(turned.shape)
    else:
        a, b = turned[..., :half], turned[..., half:]
        out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return jnp.concatenate([out.astype(x.dtype), unrotated], axis=-1)


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
