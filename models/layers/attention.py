"""Attention of every stack: projections, positions, then whoever ``attend`` is.

``attend`` hides how keys are stored: ``vsl.attention`` over a stream in training, a cache in
generation. It is called once per layer as ``attend(q, k, v, **rules)``.
"""

import functools
import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from wafer import vsl
from wafer.models.layers.basic import Dense, Norm, dense_together, leaf
from wafer.models.layers.block_config import BlockConfig, FixedSparse
from wafer.models.layers.initializers import make_initializer
from wafer.models.layers.positions import rotary_frequencies, rotate, yarn_factor, yarn_frequencies
from wafer.models.paths import Params
from wafer.vsl import Layout

Attend = Callable[..., Array]
"""(q [T, N, H], k [T, K, H], v [T, K, H], **rules of vsl.attention) -> [T, N, H]"""

Memory = Float[Array, "S D"] | tuple[Float[Array, "S K H"], Float[Array, "S K H"]]
"""The encoder's output, or keys and values already projected from it."""

_HIDDEN = -1e30


def stream_attend(
    layout: Layout, key: Array | None, rate: float, kv_layout: Layout | None = None
) -> Attend:
    """Attend within the sequences of a stream, with dropout of attention weights.

    Args:
        layout: of the queries.
        key: dropout key, consumed; None switches dropout off.
        rate: probability of dropping an attention weight.
        kv_layout: of the keys in cross-attention.
    """
    return functools.partial(
        vsl.attention, layout=layout, kv_layout=kv_layout, dropout_rate=rate, dropout_key=key
    )


def _falcon_bias(cfg: BlockConfig) -> Callable[[Array, Array], Array]:
    """Bias of Falcon-RW: slope * key position in bfloat16, scaled like the scores.

    Rounding makes it depend on the key's own position, not on the distance alone.
    """
    slopes = vsl.alibi_slopes(cfg.num_heads).astype(jnp.bfloat16)

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
        same_block = query[:, None] // block == key[None] // block
        column = (key % block)[None, None]
        summary = (column < last) & (column >= last - size * rule.num_verts)
        return jnp.where(same_block[None] | summary, 0.0, _HIDDEN)

    return bias


def _rotated(cfg: BlockConfig, x: Array, positions: Array, *, local: bool) -> Array:
    """Rotate queries or keys by the configured rule; ``local``: of a layer with the window."""
    size, theta, factor = cfg.rotary_features, cfg.rope_theta, cfg.pos_scaling_factor
    rule, gain = cfg.pos_scaling_extra_args, 1.0
    if local and cfg.rope_theta_local is not None:
        frequencies = rotary_frequencies(size, cfg.rope_theta_local)
    elif cfg.pos_scaling_type == "yarn" and rule is not None:
        frequencies, gain = yarn_frequencies(size, theta, factor, rule), yarn_factor(factor, rule)
    else:
        llama3 = rule if cfg.pos_scaling_type == "llama3" else None
        frequencies = rotary_frequencies(size, theta, factor, llama3)
    return rotate(x, positions, frequencies, interleaved=cfg.rotary_interleaved, gain=gain)


class Attention(nn.Module):
    """Multi-head, grouped or multi-query attention, to its own stream or to a memory."""

    cfg: BlockConfig  #: the stack's knobs
    local: bool = True  #: whether this layer has the sliding window or the fixed sparse pattern
    cross: bool = False  #: keys and values come from ``memory``, without position rules

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "T D"],
        positions: Int[Array, " T"],
        attend: Attend,
        *,
        shared: Params | None = None,
        depth: Float[Array, ""] | None = None,
        memory: Memory | None = None,
    ) -> Float[Array, "T D"]:
        """Project, rotate, attend, project.

        Args:
            x: normalised activations.
            positions: position of each slot in its sequence.
            attend: see the module.
            shared: the tree's 'position' branch: ALiBi slopes or the relative table.
            depth: 1-based layer number when scores are divided by it.
            memory: where keys and values come from in cross-attention.
        """
        cfg = self.cfg
        window = cfg.attention_sliding_window_length if self.local and not self.cross else None
        q, k, v = self._project(x, memory)
        if cfg.position_embedding_type == "rotary" and not self.cross:
            local = window is not None
            q, k = (_rotated(cfg, h, positions, local=local) for h in (q, k))
        if depth is not None:
            q = q / depth.astype(q.dtype)
        out = attend(
            q,
            k,
            v,
            causal=cfg.causal and not self.cross,
            scale=cfg.attention_scale,
            softcap=cfg.attention_logit_softcapping,
            window=window,
            sink_tokens=0 if window is None else cfg.attention_sink_tokens,
            **({} if self.cross else self._bias(shared)),
        )
        init = make_initializer(cfg.init_of("attention_out"))
        dense = Dense(cfg.hidden_size, cfg.use_ffn_bias_in_attention, init, name="out")
        return dense(out.reshape(x.shape[0], -1))

    def _project(
        self, x: Float[Array, "T D"], memory: Memory | None
    ) -> tuple[Float[Array, "T N H"], Float[Array, "S K H"], Float[Array, "S K H"]]:
        if memory is None:
            q, k, v = self._heads(x, "query", "key", "value")
        else:
            (q,) = self._heads(x, "query")
            if isinstance(memory, tuple):
                return q, *memory
            k, v = self._heads(memory, "key", "value")
        if self.cfg.attention_type == "scaled_cosine":
            q, k = self._cosine(q, k)
        return q, k, v

    def _heads(self, x: Float[Array, "T D"], *names: str) -> list[Float[Array, "T N H"]]:
        layers = [self._projection(name) for name in names]
        pairs = zip(names, dense_together(x, layers), strict=True)
        return [self._per_head(name, h) for name, h in pairs]

    def _projection(self, name: str) -> Dense:
        cfg, query = self.cfg, name == "query"
        init = make_initializer(cfg.init_of("query" if query else "attention"))
        features = (cfg.num_heads if query else cfg.num_kv_heads) * cfg.head_dim
        return Dense(features, cfg.use_projection_bias_in_attention, init, name=name)

    def _per_head(self, name: str, h: Float[Array, "T F"]) -> Float[Array, "T N H"]:
        cfg = self.cfg
        if cfg.clip_qkv is not None:
            h = jnp.clip(h, -cfg.clip_qkv, cfg.clip_qkv)
        heads = (h.shape[0], -1, cfg.head_dim)
        h = h if cfg.attention_qk_norm_whole else h.reshape(heads)
        if cfg.attention_qk_norm_layer and name != "value":
            h = Norm(cfg.attention_qk_norm_layer, cfg.attention_qk_norm_eps, name=f"{name}_norm")(h)
        return h.reshape(heads)

    def _cosine(self, q: Array, k: Array) -> tuple[Array, Array]:
        """Normalise q and k; a learned scale per head, at most 100, sharpens (Liu et al. 2022)."""
        start = math.log(10.0)
        scale = leaf(self, "cosine_scale", lambda _, s: jnp.full(s, start), (self.cfg.num_heads,))
        q, k = (
            h * jax.lax.rsqrt(jnp.sum(jnp.square(h), -1, keepdims=True) + 1e-12) for h in (q, k)
        )
        return q * jnp.exp(jnp.minimum(scale, math.log(100.0)))[:, None].astype(q.dtype), k

    def _bias(self, shared: Params | None) -> dict[str, object]:
        cfg = self.cfg
        kind = cfg.position_embedding_type
        if kind == "alibi" and cfg.alibi_style == "falcon":
            return {"relative_bias": _falcon_bias(cfg)}
        if kind == "alibi":
            return {"alibi_slopes": _slopes(cfg, shared) / cfg.pos_scaling_factor}
        if kind == "relative":
            assert shared is not None
            table = vsl.RelativeBias(
                table=shared["relative"]["embedding"],
                bidirectional=not cfg.causal,
                max_distance=cfg.max_relative_distance,
            )
            return {"relative_bias": table}
        if cfg.fixed_sparse_attention and self.local:
            return {"relative_bias": fixed_sparse_bias(cfg.fixed_sparse_attention, cfg.num_heads)}
        return {}


def _slopes(cfg: BlockConfig, shared: Params | None) -> Float[vsl.AnyArray, " N"]:
    if not shared or "slopes" not in shared:
        return vsl.alibi_slopes(cfg.num_heads)
    slopes = shared["slopes"]
    return slopes if cfg.alibi_trainable_slopes else jax.lax.stop_gradient(slopes)
