"""The one attention entry of the library: any layout, any variant, several implementations."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float, Key

from wafer.vsl.bias import BiasFn, RelativeBias
from wafer.vsl.implementations.blocks import TileBias, blocks
from wafer.vsl.implementations.dense import dense, padded
from wafer.vsl.implementations.fused import fused, supported
from wafer.vsl.implementations.intervals import BlockSizes, Window, key_intervals, normalize_window
from wafer.vsl.implementations.scores import QKV, KeySide, Learned, QuerySide, Rule, ScorePair
from wafer.vsl.implementations.triton import triton
from wafer.vsl.layout import AnyArray, Layout, nan_unless
from wafer.vsl.native.kernels import LIBRARY
from wafer.vsl.noise import hash_bits, seed_of

Implementation = Literal[
    "auto", "native", "blocks", "dense", "padded", "pallas", "pallas_interpret"
]

_AUTO: contextvars.ContextVar[Implementation] = contextvars.ContextVar("auto", default="auto")

_SIZES = BlockSizes(64, 64)
"""Fastest of 32, 64, 128 on 2 AVX-512 cores; larger tiles waste work at sequence ends."""

_SCORES = 2**30  # bytes of a padded batch's scores up to which a GPU computes all of them


@contextlib.contextmanager
def attention_as(implementation: Implementation) -> Iterator[None]:
    """Let ``auto`` mean ``implementation`` for what is traced inside.

    ``dense`` makes a program readable as plain operations: products of packed streams are XLA's
    then too.
    """
    token = _AUTO.set(implementation)
    try:
        yield
    finally:
        _AUTO.reset(token)


def may_be_native() -> bool:
    """Whether what is traced now may call native kernels: not inside ``attention_as`` of others."""
    return _AUTO.get() in {"auto", "native"}


def attention(
    q: Float[Array, "T N H"],
    k: Float[Array, "S K H"],
    v: Float[Array, "S K H"],
    layout: Layout,
    *,
    causal: bool,
    scale: float | None = None,
    window: int | Window | None = None,
    alibi_slopes: Float[AnyArray, " N"] | None = None,
    relative_bias: RelativeBias | BiasFn | None = None,
    softcap: float | None = None,
    sink_tokens: int = 0,
    dropout_rate: float = 0.0,
    dropout_key: Key[Array, ""] | None = None,
    kv_layout: Layout | None = None,
    kv_finite: bool = False,
    implementation: Implementation = "auto",
) -> Float[Array, "T N H"]:
    """Scaled dot-product attention within each sequence of a stream.

    Scores are float32 whatever the inputs are. Tokens at padding and slack are neither read (they
    may hold NaN) nor written: their output is 0. All of it is NaN if a layout is not ``complete``.

    Args:
        q: queries; head n uses key head ``n // (N // K)``.
        k: keys of the same stream, or of ``kv_layout``'s.
        v: values, like ``k``.
        layout: where the query sequences lie.
        causal: a query sees no later position of its sequence.
        scale: factor of the dot products; default ``H ** -0.5``.
        window: W keeps the W positions (i - W, i], own position included, or |i - j| < W when
            not causal; a pair (left, right) keeps [i - left, i + right].
        alibi_slopes: slope per head, bias ``-slope * |i - j|``; differentiable.
        relative_bias: a :class:`RelativeBias`, or a function (query positions [q], key positions
            [k]) -> [N, q, k]; gradients flow to the table and to float arrays the function
            closes over. The function is evaluated per tile, so it must be cheap.
        softcap: c limits scaled products to ``c * tanh(s / c)``, before biases.
        sink_tokens: first tokens of each sequence that stay visible outside the window.
        dropout_rate: probability of dropping an attention weight, by (sequence, query position,
            head, key position): the same weights in every layout and implementation.
        dropout_key: consumed; None switches dropout off.
        kv_layout: cross-attention: query sequence b sees key sequence b.
        kv_finite: no slot of ``k`` and ``v`` is NaN or infinite, so that those at padding need not
            be set to 0.
        implementation: ``blocks`` visits the block pairs that exist; ``dense`` builds [T, S]
            scores (reference; the one with forward-mode derivatives); ``padded`` builds [B, S, S]
            scores per row of a padded batch; ``pallas`` runs the block ranges as Triton kernels
            on an NVIDIA GPU (no relative bias, no dropout), ``pallas_interpret`` the same
            anywhere, slowly; ``native`` runs the block ranges in C++ on a CPU (no soft cap, sink
            tokens or bias function, no ALiBi across layouts); ``auto`` chooses dense when the
            stream is tiny, else native or pallas where one of them can be had, on a GPU padded
            while its scores take at most 1 GiB, and else blocks.

    Returns:
        [T, N, H] in q's dtype.

    Raises:
        ValueError: shapes that do not fit the layout, bad window, ``padded`` without rows.
    """
    kv = layout if kv_layout is None else kv_layout
    _check(q, k, v, layout, kv)
    heads, group = k.shape[1], q.shape[1] // k.shape[1]
    rate = 0.0 if dropout_key is None else dropout_rate
    rule = Rule(
        scale=q.shape[2] ** -0.5 if scale is None else scale,
        softcap=softcap,
        sink_tokens=sink_tokens,
        dropout_rate=rate,
    )
    low, high, sink = key_intervals(
        layout, kv_layout, causal=causal, window=normalize_window(window, causal=causal)
    )
    noise = None
    if dropout_key is not None and rate:
        noise = hash_bits(hash_bits(seed_of(dropout_key), layout.sequences), layout.positions)
    pair = ScorePair(
        QuerySide(layout.positions, low, high, sink, noise),
        KeySide(kv.positions, jnp.arange(kv.capacity, dtype=jnp.int32)),
    )
    slopes = None if alibi_slopes is None else jnp.asarray(alibi_slopes, jnp.float32)
    learned = Learned(slopes=slopes)

    by_distance = isinstance(relative_bias, RelativeBias) and kv_layout is None
    other_bias = (relative_bias is not None and not by_distance) or (
        slopes is not None and kv_layout is not None
    )
    native = supported(rule, learned, function_bias=other_bias)
    qkv = QKV(q.reshape(-1, heads, group, q.shape[2]), k, v)
    unfit = _unfit_for_pallas(rule, qkv, relative_bias)
    chosen = _choose(implementation, layout, kv, native=native, unfit=unfit, heads=q.shape[1])

    if isinstance(relative_bias, RelativeBias) and by_distance and chosen in {"native", "blocks"}:
        learned = learned._replace(profile=_profile(relative_bias, layout.capacity))
    complete = layout.complete & kv.complete
    if chosen == "native":
        return fused(rule, qkv, learned, pair, kv.valid, complete=complete).reshape(q.shape)
    valid = layout.valid[:, None, None]
    real = jnp.array(True) if kv_finite else kv.valid[:, None, None]  # other slots may hold NaN
    qkv = jax.tree.map(
        lambda x, real: jnp.where(real, x, 0), qkv, QKV(valid[..., None], real, real)
    )
    if chosen == "blocks" and relative_bias is not None and not by_distance:
        tile_bias, floats, others = _hoist(relative_bias)
        learned = learned._replace(consts=floats)
        out = blocks(rule, qkv, learned, pair, sizes=_SIZES, tile_bias=tile_bias, consts=others)
    elif chosen == "blocks":
        out = blocks(rule, qkv, learned, pair, sizes=_SIZES)
    elif chosen.startswith("pallas"):
        out = triton(rule, qkv, learned, pair, sizes=_SIZES, interpret=chosen != "pallas")
    elif chosen == "padded":
        rule = dataclasses.replace(rule, bias=relative_bias)
        out = padded(rule, qkv, learned, pair, _rows(layout, kv))
    else:
        rule = dataclasses.replace(rule, bias=relative_bias)
        out = dense(rule, qkv, learned, pair)
    return nan_unless(complete, jnp.where(valid, out.reshape(q.shape), 0))


def _check(q: Array, k: Array, v: Array, layout: Layout, kv: Layout) -> None:
    if k.shape != v.shape or q.shape[2:] != k.shape[2:] or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"attention: q {q.shape}, k {k.shape}, v {v.shape}: expected q [T, N, H] and k, v "
            "[S, K, H] with N a multiple of K"
        )
    for name, x, lay in (("q", q, layout), ("k", k, kv)):
        if x.shape[0] != lay.capacity:
            raise ValueError(
                f"attention: {name} has {x.shape[0]} token slots but its layout has "
                f"{lay.capacity}; cross-attention takes the keys' layout as kv_layout"
            )


def _choose(
    implementation: Implementation,
    layout: Layout,
    kv: Layout,
    *,
    native: bool,
    unfit: str,
    heads: int,
) -> str:
    if implementation == "native" and not native:
        raise ValueError(
            "implementation='native' has no soft cap, sink tokens or bias function, and no bias "
            "across layouts; use implementation='blocks'"
        )
    if implementation == "native" and jax.default_backend() != "cpu":
        raise ValueError(
            f"implementation='native' is for CPUs, and programs run on "
            f"{jax.default_backend().upper()} here; use implementation='auto'"
        )
    if implementation.startswith("pallas") and unfit:
        raise ValueError(f"implementation='pallas' {unfit}; use implementation='blocks'")
    implementation = _AUTO.get() if implementation == "auto" else implementation
    if implementation != "auto":
        return implementation
    if layout.capacity * kv.capacity <= 128 * 128:
        return "dense"
    if jax.default_backend() == "gpu":
        return _choose_on_gpu(layout, kv, unfit=unfit, heads=heads)
    return "native" if native and LIBRARY.usable() else "blocks"


def _choose_on_gpu(layout: Layout, kv: Layout, *, unfit: str, heads: int) -> str:
    """Compiled by XLA for a GPU, blocks take 30 times as long as the scores of whole rows."""
    if not unfit:
        return "pallas"
    if layout.rows is None or kv.rows is None or layout.rows[0] != kv.rows[0]:
        return "blocks"
    return "padded" if 4 * heads * layout.capacity * kv.rows[1] <= _SCORES else "blocks"


def _unfit_for_pallas(rule: Rule, qkv: QKV, bias: RelativeBias | BiasFn | None) -> str:
    width = qkv.q.shape[-1]
    if bias is not None or rule.dropout_rate:
        return "has no relative bias and no dropout of attention weights"
    if width < 16 or width & (width - 1):
        return f"needs heads of a power of two of at least 16 features, got {width}"
    return ""


def _rows(layout: Layout, kv: Layout) -> int:
    if layout.rows is None or kv.rows is None or layout.rows[0] != kv.rows[0]:
        raise ValueError(
            f"implementation='padded' needs layouts of padded rows, got rows={layout.rows} and "
            f"{kv.rows}; use padded_layout, or implementation='blocks'"
        )
    return layout.rows[0]


def _profile(bias: RelativeBias, capacity: int) -> Float[Array, "N E"]:
    """The bias by distance, as the block kernel reads it.

    In one stream, key position - query position = key slot - query slot for every visible pair,
    so a bias of the relative position is one row per head: looked up once per call.
    """
    total = capacity + (-capacity % _SIZES.q)
    distances = jnp.arange(-total, total + _SIZES.k, dtype=jnp.int32)
    return bias.by_relative(distances).astype(jnp.float32)


def _hoist(bias: BiasFn) -> tuple[TileBias, tuple[Array, ...], tuple[Array, ...]]:
    """Make what a bias function closes over an argument, so that its gradient can be returned.

    Returns:
        (function of the closed-over arrays and positions, float arrays, other arrays).
    """
    q_tile, k_tile = jnp.zeros((_SIZES.q,), jnp.int32), jnp.zeros((_SIZES.k,), jnp.int32)
    closed = jax.make_jaxpr(bias)(q_tile, k_tile)
    trained = [jnp.issubdtype(c.dtype, jnp.floating) for c in closed.consts]
    floats = tuple(c for c, t in zip(closed.consts, trained, strict=True) if t)
    others = tuple(c for c, t in zip(closed.consts, trained, strict=True) if not t)

    def tile_bias(
        floats: tuple[Array, ...], others: tuple[Array, ...], q_pos: Array, k_pos: Array
    ) -> Array:
        one, two = iter(floats), iter(others)
        consts = [next(one) if t else next(two) for t in trained]
        (out,) = jaxpr_as_fun(closed.replace(consts=consts))(q_pos, k_pos)
        return out.astype(jnp.float32)

    return tile_bias, floats, others
