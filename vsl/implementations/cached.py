"""Attention of one new token of each row to the row's key-value cache, one native call on a CPU.

XLA runs a dozen small programs for it, and threads that the next product needs fall asleep.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from wafer.vsl.attend import may_be_native
from wafer.vsl.native.kernels import LIBRARY

_WIDTH_STEP = 16  # features of a head are a multiple
_TYPES = (jnp.float32, jnp.bfloat16)


def attend_cached(
    q: Float[Array, "B N H"],
    k: Float[Array, "B K H"],
    v: Float[Array, "B K H"],
    cache: tuple[Float[Array, "B K C H"], Float[Array, "B K C H"]],
    *,
    length: Int[Array, " B"],
    added: Int[Array, " B"],
    causal: bool,
    scale: float | None = None,
    sink_tokens: int = 0,
    **rules: Any,
) -> tuple[Array, tuple[Array, Array]] | None:
    """Write a token's key and value into the cache, and attend to what it holds then.

    Args:
        q: queries, float32; head n uses key head ``n // (N // K)``.
        k: the token's keys.
        v: its values.
        cache: keys and values, float32 or bfloat16.
        length: slots of each row that are filled.
        added: 0 for a row without a token; its slot and its output become 0.
        causal: as of ``attention``.
        scale: the same.
        sink_tokens: the same.
        **rules: others of ``attention``, None where they are not there.

    Returns:
        [B, N, H] float32, NaN where the cache was full, and the cache; None where this is not for
        the native kernel: a window, soft cap, bias or type that it does not have, or no library.
    """
    plain = causal and not sink_tokens and all(rule is None for rule in rules.values())
    fits = q.shape[2] % _WIDTH_STEP == 0 and cache[0].dtype in _TYPES
    if not (plain and fits and q.dtype == jnp.float32 and may_be_native() and LIBRARY.usable()):
        return None
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, *cache)]
    in_place = {3: 1, 4: 2}
    run = jax.ffi.ffi_call(
        "wafer_attention_cached", shapes, vmap_method="sequential", input_output_aliases=in_place
    )
    counts = (count.astype(jnp.int32) for count in (length, added))
    scale = q.shape[2] ** -0.5 if scale is None else scale
    tokens = (x.astype(q.dtype) for x in (q, k, v))
    out, keys, values = run(*tokens, *cache, *counts, scale=np.float32(scale))
    return out, (keys, values)
