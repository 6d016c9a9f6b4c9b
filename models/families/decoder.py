"""The one decoder: embedding, blocks, head; and the ``Model`` bundle around them.

Parameters: ``embed/token/embedding``, ``layers_3/attn/query/kernel``, ``layers_3/norm1/scale``,
``norm_f/scale``, ``lm_head/kernel``; ``position/...`` is what all layers share (ALiBi slopes, the
relative table). Letters: T slots, D hidden, F filter, V vocabulary, L layers.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from wafer import vsl
from wafer.models.alias import decoder_alias
from wafer.models.base import Aux, Batch, DropKey, Model, StageFn
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.preference import preference_aux
from wafer.models.layers.basic import Embedding, Norm, vocabulary_scores
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
    start_stream,
    stream_dropout,
)
from wafer.models.layers.initializers import make_initializer
from wafer.models.losses import balance_loss, language_model_aux
from wafer.models.paths import Params


class Embed(nn.Module):
    """Token embedding plus learned or fixed positions, normalised and scaled when asked."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(
        self, tokens: Int[Array, " T"], positions: Int[Array, " T"], drop: Drop
    ) -> Float[Array, "T D"]:
        """Embed the tokens at their positions."""
        cfg = self.cfg
        init = make_initializer(cfg.init_of("embedding"))
        x = Embedding(cfg.vocab_size, cfg.hidden_size, init, name="token")(tokens)
        x = add_positions(cfg, x, positions, init)
        if cfg.embedding_layer_norm:
            x = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm")(x)
        x = (x * cfg.embeddings_scale).astype(cfg.dtype)
        return drop(x, cfg.dropout("embedding"))


class Head(nn.Module):
    """Final norm and vocabulary scores; without a head, the normalised activations."""

    cfg: DecoderConfig

    @nn.compact
    def __call__(
        self, x: Float[Array, "T D"], table: Float[vsl.AnyArray, "V D"] | vsl.Weight | None = None
    ) -> Float[Array, "T scores"]:
        """Score.

        Args:
            x: the last layer's output.
            table: the token embedding when it is shared.
        """
        cfg = self.cfg
        if cfg.norm_first:
            x = Norm(cfg.norm_type, cfg.layer_norm_epsilon, name="norm_f")(x)
        if not cfg.with_lm_head:
            return x
        init = make_initializer(cfg.init_of("head"))
        logits = vocabulary_scores(x, table, cfg.vocab_size, init, bias=cfg.use_bias_in_output)
        if cfg.logits_scale != 1.0:
            logits = logits * jnp.asarray(cfg.logits_scale, logits.dtype)
        if cfg.final_logit_softcapping is not None:
            cap = cfg.final_logit_softcapping
            logits = cap * jnp.tanh(logits / cap)
        return logits


def layer_kinds(cfg: DecoderConfig) -> list[str]:
    """Name the kind of each layer: 'layer' (local) or 'layer_global'."""
    return ["layer" if local else "layer_global" for local in cfg.local_layers]


def _init(cfg: DecoderConfig, key: Array) -> Params:
    ids = jnp.zeros((1,), jnp.int32)
    x = jnp.zeros((1, cfg.hidden_size), cfg.dtype)
    table = jnp.zeros((cfg.vocab_size, cfg.hidden_size)) if cfg.share_embedding_weights else None
    embed = draw(Embed(cfg), jax.random.fold_in(key, 0), ids, ids, drop=no_dropout)
    head = draw(Head(cfg), jax.random.fold_in(key, 2), x, table)
    return {"embed": embed} | init_layers(cfg, key) | head


def _embed(cfg: DecoderConfig, params: Params, carry: PyTree, batch: Batch, key: DropKey) -> Stream:
    del carry
    layout = batch.layout
    drop = stream_dropout(layout, key)
    x: Any = Embed(cfg).apply({"params": params["embed"]}, batch.tokens, layout.positions, drop)
    return start_stream(cfg, x)


def _layer(block: Block, params: Params, carry: Stream, batch: Batch, key: DropKey) -> Stream:
    shared = params.get("position")
    return apply_layer(block, params["layer"], carry, batch.layout, key=key, shared=shared)


def _head(
    cfg: DecoderConfig, params: Params, carry: Stream, batch: Batch, key: DropKey
) -> Array | tuple[Array, Array]:
    del key
    logits = apply_head(cfg, params, carry.x, batch.layout)
    return logits if carry.routed is None else (logits, carry.routed)


def apply_head(
    cfg: DecoderConfig, params: Params, x: Float[Array, "T D"], layout: vsl.Layout | None = None
) -> Float[Array, "T scores"]:
    """Run the head on a tree (or stage) holding ``norm_f``, ``lm_head`` and the tied ``embed``.

    Args:
        cfg: configuration.
        params: the tree.
        x: the last layer's output.
        layout: of x where it is a stream, whose slack need not be scored.
    """
    branches: Any = {k: v for k, v in params.items() if k in {"norm_f", "lm_head"}}
    tied = cfg.share_embedding_weights and cfg.with_lm_head
    table = params["embed"]["token"]["embedding"] if tied else None
    if layout is not None:
        branches = vsl.stream_kernels(branches, layout)
        table = table if table is None else vsl.stream_table(table, layout)
    scores: Any = Head(cfg).apply({"params": branches}, x, table)
    return scores


def _head_roles(cfg: DecoderConfig) -> tuple[str, ...]:
    tied = cfg.share_embedding_weights and cfg.with_lm_head
    own_head = cfg.with_lm_head and (not tied or cfg.use_bias_in_output)
    has_norm = cfg.norm_first
    roles = [("norm_f", has_norm), ("embed", tied), ("lm_head", own_head)]
    return tuple(name for name, used in roles if used)


def _objective(cfg: DecoderConfig, carry: PyTree, batch: Batch) -> Aux:
    routed = None
    if isinstance(carry, tuple):
        carry, routed = carry
    if cfg.dpo is None:
        aux = language_model_aux(cfg, carry, batch)
    else:
        aux = preference_aux(cfg.dpo, carry, batch)
    if routed is None or cfg.moe is None:
        return aux
    balance = balance_loss(routed, batch, cfg.num_hidden_layers)
    added = cfg.moe.balance_weight * balance * aux.weight
    return aux._replace(loss_sum=aux.loss_sum + added)


def build_decoder(cfg: DecoderConfig) -> Model:
    """Assemble the bundle: 'embed', 'layers_0', ..., 'head'."""
    kinds = layer_kinds(cfg)
    shared = ("position",) if has_shared(cfg) else ()
    head_roles = _head_roles(cfg)
    fns: dict[str, tuple[tuple[str, ...], StageFn]] = {
        "embed": (("embed",), functools.partial(_embed, cfg))
    }
    for kind in dict.fromkeys(kinds):
        fns[kind] = (("layer", *shared), functools.partial(_layer, Block(cfg, kind == "layer")))
    fns["head"] = (head_roles, functools.partial(_head, cfg))
    return Model(
        config=cfg,
        init=functools.partial(_init, cfg),
        stages=stack_stages(kinds, shared, head_roles),
        kinds=fns,
        objective=functools.partial(_objective, cfg),
        alias=decoder_alias,
    )
