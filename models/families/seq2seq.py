"""The one encoder-decoder, and its generation.

The batch's own stream is the target (the decoder's input and labels); the source is in
``batch.extras``: 'source_tokens' [S] and 'source_layout'. Parameters: ``embed``, ``decoder_embed``
when not shared, ``encoder_layers_i``, ``decoder_layers_i`` with ``cross``, ``encoder_norm_f``,
``decoder_norm_f``, ``lm_head``; ``encoder_position`` and ``decoder_position`` hold the relative
tables.
"""

import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from wafer.models.alias import seq2seq_alias
from wafer.models.base import Batch, DropKey, Model, Stage, StageFn
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.layers.attention import stream_attend
from wafer.models.layers.basic import Embedding, Norm, vocabulary_scores
from wafer.models.layers.blocks import (
    Block,
    Drop,
    Stream,
    apply_layer,
    draw,
    has_shared,
    init_shared,
    no_attend,
    no_dropout,
    stream_dropout,
    stream_weights,
)
from wafer.models.layers.initializers import make_initializer
from wafer.models.layers.positions import sinusoids
from wafer.models.losses import language_model_aux
from wafer.models.paths import Params


class Both(NamedTuple):
    """The carry: source [S, D] and target [T, D] activations."""

    source: Array
    target: Array


class Seq2SeqEmbed(nn.Module):
    """Token embedding, scaled, plus positions when they are absolute."""

    cfg: Seq2SeqConfig
    rows: int

    @nn.compact
    def __call__(
        self, tokens: Int[Array, " T"], positions: Int[Array, " T"], drop: Drop
    ) -> Float[Array, "T D"]:
        """Embed the tokens at their positions."""
        cfg, size = self.cfg, self.cfg.hidden_size
        init = make_initializer(cfg.init_of("embedding"))
        x = Embedding(self.rows, size, init, name="token")(tokens)
        if cfg.scale_embedding:
            x = x * size**0.5
        if cfg.position_embedding_type == "fixed":
            x = x + jnp.asarray(sinusoids(cfg.max_position_embeddings, size))[positions]
        elif cfg.position_embedding_type == "learned":
            rows = cfg.max_position_embeddings
            x = x + Embedding(rows, size, init, name="position")(positions)
        if cfg.embeddings_factor != 1:
            x = x * cfg.embeddings_factor
        x, rate = x.astype(cfg.dtype), cfg.dropout("embedding")
        x = drop(x, rate) if cfg.use_pre_encoder_decoder_dropout else x
        return drop(x, rate)


class _Head(nn.Module):
    cfg: Seq2SeqConfig

    @nn.compact
    def __call__(self, x: Array, table: Array | None) -> Array:
        cfg = self.cfg
        if not cfg.is_mup and cfg.logits_scale != 1:
            x = x * jnp.asarray(cfg.logits_scale, x.dtype)
        rows = cfg.tgt_vocab_size or cfg.vocab_size
        init = make_initializer(cfg.init_of("head"))
        scores = vocabulary_scores(x, table, rows, init, bias=cfg.use_bias_in_output)
        return scores * jnp.asarray(cfg.logits_scale, scores.dtype) if cfg.is_mup else scores


def final_norm(cfg: Seq2SeqConfig, branch: PyTree, x: Array) -> Array:
    """Normalise a stack's output, where a norm ends it."""
    if not cfg.norms_ends:
        return x
    out: Any = Norm(cfg.norm_type, cfg.layer_norm_epsilon).apply({"params": branch}, x)
    return out


def embed_table(cfg: Seq2SeqConfig, params: Params) -> PyTree:
    """Return the branch that embeds target tokens."""
    return params["embed" if cfg.share_encoder_decoder_embedding else "decoder_embed"]


def lm_logits(
    cfg: Seq2SeqConfig, params: Params, x: Float[Array, "T D"], drop: Drop = no_dropout
) -> Float[Array, "T V"]:
    """Score the vocabulary from the decoder's last layer.

    Args:
        cfg: configuration.
        params: the tree, or the head's branches of it.
        x: the last layer's output.
        drop: (x, rate) -> x with units dropped.
    """
    x = final_norm(cfg, params.get("decoder_norm_f"), x)
    if cfg.use_dropout_outside_residual_path:
        x = drop(x, cfg.dropout("residual"))
    if not cfg.with_lm_head:
        return x
    tied = cfg.share_embedding_weights
    table = embed_table(cfg, params)["token"]["embedding"] if tied else None
    own = {"lm_head": params["lm_head"]} if "lm_head" in params else {}
    scores: Any = _Head(cfg).apply({"params": own}, x, table)
    return scores


def _stack(
    cfg: Any, key: Array, prefix: str, layers: int, *, cross: bool, ends: bool
) -> dict[str, PyTree]:
    ids = jnp.zeros((1,), jnp.int32)
    x = jnp.zeros((1, cfg.hidden_size), cfg.dtype)
    shared = init_shared(cfg, jax.random.fold_in(key, 1)) if has_shared(cfg) else None
    module = Block(cfg, cross=cross)
    options = {"attend": no_attend, "drop": no_dropout, "shared": shared, "memory": x}
    params: dict[str, Any] = {} if shared is None else {f"{prefix}_position": shared}
    for i in range(layers):
        layer_key = jax.random.fold_in(key, i + 2)
        params[f"{prefix}_layers_{i}"] = draw(module, layer_key, Stream(x), ids, **options)
    if ends:
        norm = Norm(cfg.norm_type, cfg.layer_norm_epsilon)
        params[f"{prefix}_norm_f"] = draw(norm, key, x)
    return params


def _init(cfg: Seq2SeqConfig, key: Array) -> Params:
    ids = jnp.zeros((1,), jnp.int32)
    x = jnp.zeros((1, cfg.hidden_size), cfg.dtype)
    rows = cfg.tgt_vocab_size or cfg.vocab_size
    keys = jax.random.split(key, 5)
    source, target = Seq2SeqEmbed(cfg, cfg.vocab_size), Seq2SeqEmbed(cfg, rows)
    params: dict[str, Any] = {"embed": draw(source, keys[0], ids, ids, drop=no_dropout)}
    if not cfg.share_encoder_decoder_embedding:
        params["decoder_embed"] = draw(target, keys[1], ids, ids, drop=no_dropout)
    encoder, decoder = cfg.encoder_block, cfg.decoder_block
    ends, layers = cfg.norms_ends, (cfg.num_hidden_layers, cfg.decoder_layers)
    params |= _stack(encoder, keys[2], "encoder", layers[0], cross=False, ends=ends)
    params |= _stack(decoder, keys[3], "decoder", layers[1], cross=True, ends=ends)
    if cfg.with_lm_head:
        table = jnp.zeros((rows, cfg.hidden_size)) if cfg.share_embedding_weights else None
        params |= draw(_Head(cfg), keys[4], x, table)
    return params


def _embed(cfg: Seq2SeqConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Both:
    del carry
    keys = (None, None) if key is None else jax.random.split(key)
    source, target = batch.extras["source_layout"], batch.layout
    rows = cfg.tgt_vocab_size or cfg.vocab_size
    x: Any = Seq2SeqEmbed(cfg, cfg.vocab_size).apply(
        {"params": params["embed"]},
        batch.extras["source_tokens"],
        source.positions,
        stream_dropout(source, keys[0]),
    )
    y: Any = Seq2SeqEmbed(cfg, rows).apply(
        {"params": embed_table(cfg, params)},
        batch.tokens,
        target.positions,
        stream_dropout(target, keys[1]),
    )
    return Both(x, y)


def _encoder(cfg: Seq2SeqConfig, params: Params, carry: Both, batch: Batch, key: DropKey) -> Both:
    block = Block(cfg.encoder_block)
    layout = batch.extras["source_layout"]
    source, shared = Stream(carry.source), params.get("encoder_position")
    out = apply_layer(block, params["layer"], source, layout, key=key, shared=shared)
    return Both(out.x, carry.target)


def _encoder_norm(
    cfg: Seq2SeqConfig, params: Params, carry: Both, batch: Batch, key: DropKey
) -> Both:
    source = final_norm(cfg, params.get("encoder_norm_f"), carry.source)
    if cfg.use_dropout_outside_residual_path:
        drop = stream_dropout(batch.extras["source_layout"], key)
        source = drop(source, cfg.dropout("residual"))
    return Both(source, carry.target)


def _decoder(cfg: Seq2SeqConfig, params: Params, carry: Both, batch: Batch, key: DropKey) -> Both:
    block = cfg.decoder_block
    layout, source = batch.layout, batch.extras["source_layout"]
    self_key, cross = (None, None) if key is None else jax.random.split(jax.random.fold_in(key, 0))
    rate = cfg.dropout("attention")
    out: Any = Block(block, cross=True).apply(
        {"params": stream_weights(params["layer"], layout, source)},
        Stream(carry.target),
        layout.positions,
        stream_attend(layout, self_key, rate),
        stream_dropout(layout, key),
        params.get("decoder_position"),
        memory=carry.source,
        cross_attend=stream_attend(layout, cross, rate, source),
    )
    return Both(carry.source, out.x)


def _head(cfg: Seq2SeqConfig, params: Params, carry: Both, batch: Batch, key: DropKey) -> Array:
    return lm_logits(cfg, params, carry.target, stream_dropout(batch.layout, key))


def _head_roles(cfg: Seq2SeqConfig) -> tuple[str, ...]:
    table = "embed" if cfg.share_encoder_decoder_embedding else "decoder_embed"
    tied = cfg.share_embedding_weights and cfg.with_lm_head
    own = cfg.with_lm_head and (not tied or cfg.use_bias_in_output)
    roles = [("decoder_norm_f", cfg.norms_ends), (table, tied), ("lm_head", own)]
    return tuple(name for name, used in roles if used)


def build_seq2seq(cfg: Seq2SeqConfig) -> Model:
    """Assemble the bundle: 'embed', the encoder's layers and norm, the decoder's layers, 'head'."""
    embeds = ("embed",) if cfg.share_encoder_decoder_embedding else ("embed", "decoder_embed")
    shared = has_shared(cfg)
    encoder = ("encoder_position",) if shared else ()
    decoder = ("decoder_position",) if shared else ()
    roles = _head_roles(cfg)
    stages = [Stage("embed", "embed", embeds)]
    for i in range(cfg.num_hidden_layers):
        name = f"encoder_layers_{i}"
        stages.append(Stage(name, "encoder_layer", (name, *encoder)))
    if cfg.norms_ends:
        stages.append(Stage("encoder_norm", "encoder_norm", ("encoder_norm_f",)))
    for i in range(cfg.decoder_layers):
        name = f"decoder_layers_{i}"
        stages.append(Stage(name, "decoder_layer", (name, *decoder)))
    stages.append(Stage("head", "head", roles))
    kinds: dict[str, tuple[tuple[str, ...], StageFn]] = {
        "embed": (embeds, functools.partial(_embed, cfg)),
        "encoder_layer": (("layer", *encoder), functools.partial(_encoder, cfg)),
        "encoder_norm": (("encoder_norm_f",), functools.partial(_encoder_norm, cfg)),
        "decoder_layer": (("layer", *decoder), functools.partial(_decoder, cfg)),
        "head": (roles, functools.partial(_head, cfg)),
    }
    return Model(
        config=cfg,
        init=functools.partial(_init, cfg),
        stages=tuple(stages),
        kinds=kinds,
        objective=functools.partial(language_model_aux, cfg),
        alias=seq2seq_alias,
    )
