"""Self-attention of the decoder: projections, positions, then whoever ``attend`` is.

``attend`` hides how keys are stored: ``vsl.attention`` over a stream in training, a cache in
generation. It is called once per layer as ``attend(q, k, v, **rules)``.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

import vsl
from models.decoder_config import DecoderConfig, FixedSparse
from models.initializers import make_initializer
from models.layers import Dense, Norm, leaf
from models.positions import mpt_alibi_slopes, rotary_frequencies, rotate
from vsl import Layout

__all__ = ["Attend", "Attention", "decoder_slopes", "fixed_sparse_bias", "stream_attend"]

Attend = Callable[..., Array]
"""(q [T, N, H], k [T, K, H], v [T, K, H], **rules of vsl.attention) -> [T, N, H]"""

_HIDDEN = -1e30


def stream_attend(layout: Layout, key: Array | None, rate: float) -> Attend:
    """Attend within the sequences of a stream, with dropout of attention weights."""
    return functools.partial(vsl.attention, layout=layout, dropout_rate=rate, dropout_key=key)


def decoder_slopes(cfg: DecoderConfig) -> np.ndarray:
    """Compute the [N] ALiBi slopes of a configuration."""
    if cfg.alibi_style == "mpt":
        return mpt_alibi_slopes(cfg.num_heads)
    return vsl.alibi_slopes(cfg.num_heads)


def _falcon_bias(cfg: DecoderConfig) -> Callable[[Array, Array], Array]:
    """Bias of Falcon-RW: slope * key position in bfloat16, scaled like the scores.

    Rounding makes it depend on the key's own position, not on the distance alone.
    """
    slopes = decoder_slopes(cfg).astype(jnp.bfloat16)

    def bias(query: Int[Array, " q"], key: Int[Array, " k"]) -> Float[Array, "N q k"]:
        per_key = jnp.asarray(slopes)[:, None] * key.astype(jnp.bfloat16)[None]
        per_key = per_key.astype(jnp.float32)[:, None] * cfg.attention_scale
        return jnp.broadcast_to(per_key, (cfg.num_heads, query.shape[0], key.shape[0]))

    return bias


def fixed_sparse_bias(rule: FixedSparse, num_heads: int) -> Callable[[Array, Array], Array]:
    """Build the bias that hides keys outside the "fixed" pattern: 0 or a large negative number."""
    block, size = rule.local_attn_ctx, rule.vert_size
    groups = max(block // size, 1) if rule.different_layout_per_head else 1
    last = np.asarray([block - size * (n % groups) for n in range(num_heads)])[:, None, None]

    def bias(query: Int[Array, " q"], key: Int[Array, " k"]) -> Float[Array, "N q k"]:
        same = query[:, None] // block == key[None] // block
        column = (key % block)[None, None]
        summary = (column < last) & (column >= last - size * rule.num_verts)
        return jnp.where(same[None] | summary, 0.0, _HIDDEN)

    return bias


class Attention(nn.Module):
    """Multi-head, grouped or multi-query causal self-attention.

    Attributes:
        cfg: the decoder's knobs.
        local: whether this layer has the sliding window or the fixed sparse pattern.
    """

    cfg: DecoderConfig
    local: bool = True

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "T D"],
        positions: Int[Array, " T"],
        attend: Attend,
        shared: Any = None,
        depth: Array | None = None,
    ) -> Float[Array, "T D"]:
        """Project, rotate, attend, project.

        Args:
            x: normalised activations.
            positions: position of each slot in its sequence.
            attend: see the module.
            shared: the tree's 'position' branch: ALiBi slopes or the relative table.
            depth: [] float32 1-based layer number when scores are divided by it.
        """
        cfg = self.cfg
        q, k, v = self._project(x)
        if cfg.position_embedding_type == "rotary":
            llama3 = cfg.pos_scaling_extra_args if cfg.pos_scaling_type == "llama3" else None
            frequencies = rotary_frequencies(
                cfg.rotary_features, cfg.rope_theta, cfg.pos_scaling_factor, llama3
            )
            q, k = (
                rotate(h, positions, frequencies, interleaved=cfg.rotary_interleaved)
                for h in (q, k)
            )
        if depth is not None:
            q = q / depth.astype(q.dtype)
        out = attend(
            q,
            k,
            v,
            causal=True,
            scale=cfg.attention_scale,
            softcap=cfg.attention_logit_softcapping,
            window=cfg.attention_sliding_window_length if self.local else None,
            **self._bias(shared),
        )
        init = make_initializer(cfg.init_of("attention_out"))
        dense = Dense(cfg.hidden_size, cfg.use_ffn_bias_in_attention, init, name="out")
        return dense(out.reshape(x.shape[0], -1))

    def _project(self, x: Array) -> tuple[Array, Array, Array]:
        cfg, size = self.cfg, self.cfg.head_dim
        init = make_initializer(cfg.init_of("attention"))
        heads = []
        for name, count in (
            ("query", cfg.num_heads),
            ("key", cfg.num_kv_heads),
            ("value", cfg.num_kv_heads),
        ):
            h = Dense(count * size, cfg.use_projection_bias_in_attention, init, name=name)(x)
            if cfg.clip_qkv is not None:
                h = jnp.clip(h, -cfg.clip_qkv, cfg.clip_qkv)
            h = h.reshape(x.shape[0], count, size)
            if cfg.attention_qk_norm_layer and name != "value":
                kind, eps = cfg.attention_qk_norm_layer, cfg.attention_qk_norm_eps
                h = Norm(kind, eps, name=f"{name}_norm")(h)
            heads.append(h)
        q, k, v = heads
        if cfg.attention_type == "scaled_cosine":
            q, k = self._cosine(q, k)
        return q, k, v

    def _cosine(self, q: Array, k: Array) -> tuple[Array, Array]:
        """Normalise q and k; a learned scale per head, at most 100, sharpens (Liu et al. 2022)."""
        start = math.log(10.0)
        scale = leaf(self, "cosine_scale", lambda _, s: jnp.full(s, start), (self.cfg.num_heads,))
        q, k = (
            h * jax.lax.rsqrt(jnp.sum(jnp.square(h), -1, keepdims=True) + 1e-12) for h in (q, k)
        )
        return q * jnp.exp(jnp.minimum(scale, math.log(100.0)))[:, None].astype(q.dtype), k

    def _bias(self, shared: Any) -> dict[str, Any]:
        cfg = self.cfg
        kind = cfg.position_embedding_type
        if kind == "alibi" and cfg.alibi_style == "falcon":
            return {"relative_bias": _falcon_bias(cfg)}
        if kind == "alibi":
            return {"alibi_slopes": _slopes(cfg, shared) / cfg.pos_scaling_factor}
        if kind == "relative":
            table = vsl.RelativeBias(
                table=shared["relative"]["embedding"],
                bidirectional=False,
                max_distance=cfg.max_relative_distance,
            )
            return {"relative_bias": table}
        if cfg.fixed_sparse_attention and self.local:
            return {"relative_bias": fixed_sparse_bias(cfg.fixed_sparse_attention, cfg.num_heads)}
        return {}


def _slopes(cfg: DecoderConfig, shared: Any) -> Array | np.ndarray:
    if not shared or "slopes" not in shared:
        return decoder_slopes(cfg)
    slopes = shared["slopes"]
    return slopes if cfg.alibi_trainable_slopes else jax.lax.stop_gradient(slopes)
