"""How the next token is taken from the scores of the last one, as transformers defines it."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Sampling(NamedTuple):
    """What is done with the scores of a row, in this order; static."""

    #: scores of tokens that the row has are divided by it, or multiplied where they are negative
    #: (Keskar et al. 2019)
    repetition_penalty: float = 1.0
    #: scores are divided by it; 0 takes the most likely token, and nothing below counts
    temperature: float = 0.0
    top_k: int | None = None  #: only the k likeliest stay
    #: only the likeliest that together have this probability (Holtzman et al. 2020)
    top_p: float | None = None
    #: only those with this share of the likeliest one's probability (Nguyen et al. 2024)
    min_p: float | None = None


def check_sampling(sampling: Sampling) -> None:
    """Refuse what has no meaning.

    Raises:
        ValueError: a number out of its range; the message names it.
    """
    penalty, temperature, top_k, top_p, min_p = sampling
    rules = (
        ("repetition_penalty", penalty, 0 < penalty < math.inf, "above 0"),
        ("temperature", temperature, 0 <= temperature < math.inf, "0 or more"),
        ("top_k", top_k, top_k is None or (top_k >= 1 and top_k == int(top_k)), "at least 1"),
        ("top_p", top_p, top_p is None or 0 < top_p <= 1, "above 0 and at most 1"),
        ("min_p", min_p, min_p is None or 0 <= min_p <= 1, "from 0 to 1"),
    )
    for name, value, right, expected in rules:
        if not right:
            raise ValueError(f"{name}: expected {expected}, got {value}")


def next_token(
    scores: Float[Array, "B V"],
    seen: Bool[Array, "B V"] | None,
    sampling: Sampling,
    key: Array,
) -> Int[Array, " B"]:
    """Take one token per row.

    Args:
        scores: the model's logits.
        seen: tokens that the row has; read by the penalty alone.
        sampling: see ``Sampling``.
        key: consumed where the temperature is above 0.
    """
    scores = scores.astype(jnp.float32)
    if seen is not None:
        penalty = sampling.repetition_penalty
        less = jnp.where(scores < 0, scores * penalty, scores / penalty)
        scores = jnp.where(seen, less, scores)
    if sampling.temperature == 0:
        return best_token(scores)
    # The largest becomes 0 and stays it: no temperature, however small, overflows.
    scores = (scores - scores.max(-1, keepdims=True)) / max(sampling.temperature, 1e-30)
    for name, keep in _FILTERS.items():
        limit = getattr(sampling, name)
        if limit is not None:
            scores = jnp.where(keep(scores, limit), scores, -jnp.inf)
    # As jax.random.categorical draws, but for its argmax.
    return best_token(scores + jax.random.gumbel(key, scores.shape))


def best_token(scores: Float[Array, "*B V"]) -> Int[Array, "*B"]:
    """Return ``scores.argmax(-1)``, by vectors: XLA's CPU loop for that takes 4 ns a number."""
    top = scores.max(-1, keepdims=True)
    token = jax.lax.broadcasted_iota(jnp.int32, scores.shape, scores.ndim - 1)
    is_top = (scores == top) | jnp.isnan(scores)  # argmax gives the first NaN
    return jnp.where(is_top, token, scores.shape[-1]).min(-1)


def _of_the_probability(scores: Array, p: float) -> Array:
    order = jnp.argsort(scores, axis=-1)
    upward = jnp.cumsum(jax.nn.softmax(jnp.take_along_axis(scores, order, -1), -1), -1)
    kept = (upward > 1 - p).at[:, -1].set(True)
    return jnp.put_along_axis(jnp.zeros(scores.shape, bool), order, kept, -1, inplace=False)


_FILTERS = {
    "top_k": lambda x, k: x >= jax.lax.top_k(x, min(k, x.shape[-1]))[0][:, -1:],
    "top_p": _of_the_probability,
    "min_p": lambda x, p: (q := jax.nn.softmax(x, -1)) >= p * q.max(-1, keepdims=True),
}
