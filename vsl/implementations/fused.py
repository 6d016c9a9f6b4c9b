"""Attention by the native CPU kernel: what ``blocks`` computes, in one call each way.

XLA runs the block loops of ``blocks`` on one core, a small kernel per tile operation. The
native kernel (``native/attention.cc``) shares blocks and heads out over XLA's thread pool, keeps a
tile in cache through all its operations, and skips within a tile the groups of keys that no query
sees. ``blocks`` is its reference and its fallback.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from wafer.vsl.implementations.scores import QKV, Learned, Rule, ScorePair
from wafer.vsl.native.kernels import LIBRARY
from wafer.vsl.native.library import vary_together
from wafer.vsl.noise import keep_threshold

_TILE = 64
_WIDTH_STEP = 16
_EMPTY = np.zeros((0, 0), np.float32)


class _Integers(NamedTuple):
    """Integer operands."""

    low: Array  #: low, high: [T] visible key slots
    high: Array
    noise: Array  #: [T] dropout state, or [0]
    position: Array  #: [S padded to a tile] position of each key, -1 where there is none
    complete: Array | None  #: [] bool, false makes the result NaN; None where it is true


def supported(rule: Rule, learned: Learned, *, function_bias: bool) -> bool:
    """Whether the kernel computes this call; soft caps, sinks and bias functions it does not.

    Args:
        rule: static settings.
        learned: slopes and profile.
        function_bias: a bias that is no profile by distance is asked for.
    """
    plain = rule.softcap is None and not rule.sink_tokens and not function_bias
    return plain and not learned.consts


def _attributes(rule: Rule, zero: int) -> dict[str, np.generic]:
    rate = rule.dropout_rate
    return {
        "scale": np.float32(rule.scale),
        "keep": np.float32(1.0 / (1.0 - rate)),
        "threshold": np.int64(keep_threshold(rate)),
        "profile_zero": np.int64(zero),
    }


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(rule: Rule, zero: int, qkv: QKV, profile: Array, integers: _Integers) -> Array:
    return _forward(rule, zero, qkv, profile, integers)[0]


def _forward(
    rule: Rule, zero: int, qkv: QKV, profile: Array, integers: _Integers
) -> tuple[Float[Array, "T N H"], Float[Array, "N T"]]:
    length, heads, _ = qkv.q.shape
    results = (
        jax.ShapeDtypeStruct(qkv.q.shape, jnp.float32),
        jax.ShapeDtypeStruct((heads, length), jnp.float32),
    )
    operands = (*qkv, integers.low, integers.high, profile, integers.noise, integers.position)
    attributes = _attributes(rule, zero)
    out, lse = LIBRARY.call("wafer_attention_forward", results, *operands, **attributes)
    if integers.complete is not None:  # here: the backward pass reads the result, and gives NaN
        out = jnp.where(integers.complete, out, jnp.nan)
    return out, lse


def _attend_fwd(rule: Rule, zero: int, qkv: QKV, profile: Array, integers: _Integers) -> PyTree:
    out, lse = _forward(rule, zero, qkv, profile, integers)
    return out, (qkv, profile, integers, out, lse)


def _attend_bwd(rule: Rule, zero: int, residuals: tuple[PyTree, ...], d_out: Array) -> PyTree:
    qkv, profile, integers, out, lse = residuals
    results = tuple(jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (*qkv, profile))
    operands = (*qkv, integers.low, integers.high, profile, integers.noise, integers.position)
    dq, dk, dv, d_profile = LIBRARY.call(
        "wafer_attention_backward", results, *operands, out, lse, d_out, **_attributes(rule, zero)
    )
    return QKV(dq, dk, dv), d_profile, None


_attend.defvjp(_attend_fwd, _attend_bwd)


def fused(
    rule: Rule,
    qkv: QKV,
    learned: Learned,
    pair: ScorePair,
    valid: Bool[Array, " S"],
    *,
    complete: Bool[Array, ""] | np.bool_,
) -> Float[Array, "T K G H"]:
    """Run attention by the native kernel; reverse-mode differentiable, no forward mode.

    Args:
        rule: static settings that ``supported`` accepts.
        qkv: queries [T, K, G, H], keys and values [S, K, H]; computed in float32.
        learned: slopes, or ``profile`` as ``blocks`` takes it.
        pair: the stream's queries and keys.
        valid: true at key slots that hold a token; what others hold is not read, nor what queries
            hold that see nothing.
        complete: of both layouts.

    Returns:
        [T, K, G, H] in q's dtype; 0 at queries that see nothing, NaN unless ``complete``.

    Raises:
        RuntimeError: the library is not built.
    """
    length, heads, group, width = qkv.q.shape
    extra = -width % _WIDTH_STEP
    ready = [
        jnp.pad(x.astype(jnp.float32), ((0, 0), (0, 0), (0, extra)))
        for x in (qkv.q.reshape(length, heads * group, width), qkv.k, qkv.v)
    ]
    total = length + (-length % _TILE)
    profile = jnp.asarray(_EMPTY) if learned.profile is None else learned.profile
    if learned.slopes is not None:
        # ALiBi as a profile: in a sequence, distances of slots are distances of positions.
        distances = jnp.abs(jnp.arange(-total, total + _TILE, dtype=jnp.int32)).astype(jnp.float32)
        slopes = -learned.slopes[:, None] * distances
        profile = slopes if learned.profile is None else profile + slopes
    noise = pair.queries.noise
    position = jnp.where(valid, pair.keys.position, -1)
    integers = _Integers(
        low=pair.queries.low,
        high=pair.queries.high,
        noise=jnp.zeros((0,), jnp.uint32) if noise is None else noise,
        position=jnp.pad(position, (0, -position.shape[0] % _TILE), constant_values=-1),
        complete=None if complete is np.True_ else jnp.asarray(complete),
    )
    leaves, tree = jax.tree.flatten((QKV(*ready), profile, integers))
    out: Any = _attend(rule, total, *jax.tree.unflatten(tree, vary_together(leaves)))
    return out[..., :width].reshape(qkv.q.shape).astype(qkv.q.dtype)
