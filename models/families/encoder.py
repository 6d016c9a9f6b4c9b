"""The one encoder: token, position and segment embeddings, shared layers, heads.

Parameters: ``embed/{token,position,segment,epigenetic}/embedding``, ``embed/norm``,
``layers_i/...`` as the decoder's, heads at the top (``pooler/kernel``, ``mlm_dense/kernel``,
``classifier/kernel``, ...).
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from wafer import vsl
from wafer.models.alias import encoder_alias
from wafer.models.base import Batch, DropKey, Model
from wafer.models.families.encoder_config import EncoderConfig
from wafer.models.families.encoder_heads import Heads, encoder_aux
from wafer.models.layers.basic import Embedding, Mixed, Norm
from wafer.models.layers.blocks import (
    Block,
    Drop,
    Stream,
    add_positions,
    apply_layer,
    draw,
    has_shared,
    init_layers,
    no_dropout,
    stack_stages,
    stream_dropout,
)
from wafer.models.layers.initializers import make_initializer
from wafer.models.paths import Params


class EncoderEmbed(nn.Module):
    """Sum of token, position, segment and epigenetic embeddings, normalised."""

    cfg: EncoderConfig

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, " T"],
        layout: vsl.Layout,
        segments: Int[Array, " T"],
        drop: Drop,
        shares: Float[Array, "T E"] | None = None,
    ) -> Float[Array, "T D"]:
        """Embed.

        Args:
            tokens: ids.
            layout: where their sequences lie.
            segments: sentence numbers (token_type_ids).
            drop: dropout.
            shares: how much of a token is in each epigenetic state; its embedding is the mean of
                the states' so weighted. Only with ``epigenetic_vocab_size``.
        """
        cfg = self.cfg
        init = make_initializer(cfg.init_of("embedding"))
        size = cfg.hidden_size
        x = Embedding(cfg.vocab_size, size, init, name="token")(tokens)
        if cfg.include_padding_in_loss:  # the embedding of padding is never updated
            x = jnp.where((tokens == 0)[:, None], jax.lax.stop_gradient(x), x)
        if cfg.token_dropout:
            x = x * _kept(tokens == cfg.mask_token_id, layout)[:, None]
        if cfg.num_segments:
            x = x + Embedding(cfg.num_segments, size, init, name="segment")(segments)
        if shares is not None:
            x = x + Mixed(shares.shape[-1], size, init, name="epigenetic")(shares)
        x = add_positions(cfg, x, layout.positions, init) * cfg.embeddings_scale
        if cfg.use_embedding_layer_norm:
            x = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm")(x)
        return drop(x.astype(cfg.dtype), cfg.dropout("embedding"))


def _computed(cfg: EncoderConfig, layout: vsl.Layout) -> vsl.Layout:
    """Return the layout of the slots that compute: with padding where it carries loss."""
    if not cfg.include_padding_in_loss:
        return layout
    if layout.rows is None:
        raise ValueError("include_padding_in_loss: rows without padding; drop the key or keep rows")
    rows, size = layout.rows
    whole = vsl.padded_layout(jnp.full((rows,), size, jnp.int32), size, validate=False)
    return whole.numbered(layout.first)


def _layer(cfg: EncoderConfig, params: Params, carry: Stream, batch: Batch, key: DropKey) -> Stream:
    layout, shared = _computed(cfg, batch.layout), params.get("position")
    keys = None if layout is batch.layout else batch.layout
    own = params["layer"]
    return apply_layer(Block(cfg), own, carry, layout, key=key, shared=shared, keys=keys)


def _init(cfg: EncoderConfig, key: Array) -> Params:
    ids = jnp.zeros((1,), jnp.int32)
    x = jnp.zeros((1, cfg.hidden_size), cfg.dtype)
    table = jnp.zeros((cfg.vocab_size, cfg.hidden_size)) if cfg.ties_head else None
    states = cfg.epigenetic_vocab_size
    shares = None if states is None else jnp.zeros((1, states))
    layout = vsl.layout_from_lengths(jnp.ones((1,), jnp.int32), 1)
    first, last = jax.random.fold_in(key, 0), jax.random.fold_in(key, 2)
    embed = draw(EncoderEmbed(cfg), first, ids, layout, ids, drop=no_dropout, shares=shares)
    heads = draw(Heads(cfg), last, x, ids, drop=_no_head_dropout, table=table)
    return {"embed": embed} | init_layers(cfg, key) | heads


def _no_head_dropout(x: Array, *, rows: bool = False) -> Array:
    del rows
    return x


def _head_dropout(
    cfg: EncoderConfig, layout: vsl.Layout, key: Array | None
) -> Callable[..., Array]:
    rate = cfg.dropout("residual") if cfg.classifier_dropout is None else cfg.classifier_dropout
    if key is None or not rate:
        return _no_head_dropout

    def drop(x: Array, *, rows: bool = False) -> Array:
        if not rows:
            return vsl.dropout(key, x, layout, rate)
        row_layout = vsl.layout_from_lengths(
            jnp.ones((x.shape[0],), jnp.int32), x.shape[0], validate=False
        )
        return vsl.dropout(key, x, row_layout, rate)

    return drop


def _shares(cfg: EncoderConfig, batch: Batch) -> Array | None:
    """[T, E] from the second input; a state outside the E (-1: not known) has no share."""
    count = cfg.epigenetic_vocab_size
    if count is None:
        return None
    states = batch.extras.get("epigenetic")
    if states is None or states.shape not in {batch.tokens.shape, (*batch.tokens.shape, count)}:
        raise ValueError(
            f"{cfg.name}: extras['epigenetic'] is {None if states is None else states.shape}; "
            f"expected a state of each token [T], or its share of every state [T, {count}]"
        )
    return states if states.ndim == 2 else jax.nn.one_hot(states, count)


_KEPT_IN_TRAINING = 1 - 0.15 * 0.8  # of ESM's tokens: those that the mask does not hide


def _kept(hidden: Bool[Array, " T"], layout: vsl.Layout) -> Float[Array, " T"]:
    """Compute the factors of embeddings under token dropout (ESM-2, Lin et al. 2022)."""
    masked = (hidden & layout.valid).astype(jnp.float32)
    if layout.rows is None:
        share = vsl.segment_sum(masked, layout) / jnp.maximum(layout.lengths, 1)
        return jnp.where(hidden, 0.0, vsl.expand(_KEPT_IN_TRAINING / (1 - share), layout))
    real = jnp.sum(layout.valid.reshape(layout.rows), axis=1)  # of a row, packed or not
    share = jnp.sum(masked.reshape(layout.rows), axis=1) / jnp.maximum(real, 1)
    factor = jnp.repeat(_KEPT_IN_TRAINING / (1 - share), layout.rows[1])
    return jnp.where(hidden | ~layout.valid, 0.0, factor)


def _embed(cfg: EncoderConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Stream:
    del carry
    layout = _computed(cfg, batch.layout)
    segments = batch.extras.get("segment_ids", jnp.zeros_like(batch.tokens))
    x: Any = EncoderEmbed(cfg).apply(
        {"params": params["embed"]},
        batch.tokens,
        layout,
        segments,
        stream_dropout(layout, key),
        _shares(cfg, batch),
    )
    return Stream(x)


def _scored(batch: Batch) -> vsl.Layout | None:
    """The stream of positions that the masked-language-model head scores."""
    if "masked_positions" not in batch.extras:
        return batch.layout
    weights = batch.extras.get("masked_weights")
    if weights is None or batch.layout.rows is not None:
        return None
    size = weights.shape[0]
    last = jnp.max(jnp.where(weights != 0, jnp.arange(1, size + 1), 0))
    return vsl.layout_from_lengths(last[None], size, validate=False)


def _head(cfg: EncoderConfig, params: Params, carry: Stream, batch: Batch, key: DropKey) -> Any:
    branches: Any = {k: v for k, v in params.items() if k != "embed"}
    layout = _computed(cfg, batch.layout)
    table = params["embed"]["token"]["embedding"] if cfg.ties_head else None
    scored = _scored(batch) if cfg.has_mlm else None
    if scored is not None:
        parts = [name for name in ("mlm_dense", "lm_head") if name in branches]
        branches |= {name: vsl.stream_kernels(branches[name], scored) for name in parts}
        table = None if table is None else vsl.stream_table(table, scored)
    return Heads(cfg).apply(
        {"params": branches},
        carry.x,
        layout.offsets,
        _head_dropout(cfg, layout, key),
        table=table,
        gather=batch.extras.get("masked_positions"),
    )


def _head_roles(cfg: EncoderConfig) -> tuple[str, ...]:
    roles = [
        ("norm_f", cfg.use_final_layer_norm),
        ("mlm_dense", cfg.has_mlm),
        ("mlm_norm", cfg.has_mlm),
        ("lm_head_bias", cfg.has_mlm),
        ("embed", cfg.ties_head),
        ("lm_head", cfg.has_mlm and not cfg.ties_head),
        ("pooler", cfg.pools),
        ("nsp", cfg.has_nsp),
        ("classifier", cfg.head in {"classification", "token_classification", "summarization"}),
        ("span", cfg.head in {"qa", "reader"}),
        ("relevance", cfg.head == "reader"),
        ("projection", cfg.head == "embedding" and cfg.projection_dim > 0),
    ]
    return tuple(name for name, used in roles if used)


def build_encoder(cfg: EncoderConfig) -> Model:
    """Assemble the bundle: 'embed', 'layers_0', ..., 'head'; the last carry is a dict."""
    shared = ("position",) if has_shared(cfg) else ()
    roles = _head_roles(cfg)
    return Model(
        config=cfg,
        init=functools.partial(_init, cfg),
        stages=stack_stages(["layer"] * cfg.num_hidden_layers, shared, roles),
        kinds={
            "embed": (("embed",), functools.partial(_embed, cfg)),
            "layer": (("layer", *shared), functools.partial(_layer, cfg)),
            "head": (roles, functools.partial(_head, cfg)),
        },
        objective=functools.partial(encoder_aux, cfg),
        alias=encoder_alias,
    )
