"""Generation of an encoder-decoder: encode once, keep every layer's cross keys and values."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from wafer import vsl
from wafer.models.families.seq2seq import Seq2SeqEmbed, embed_table, final_norm, lm_logits
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.layers.attention import stream_attend
from wafer.models.layers.basic import project
from wafer.models.layers.blocks import Block, Stream, no_dropout
from wafer.models.layers.caches import KVCache, cached_attend, chunk_layout, init_cache
from wafer.models.paths import Params
from wafer.vsl import Layout


class SourceMemory(NamedTuple):
    """What the decoder reads of the source."""

    keys: tuple[Array, ...]  #: keys, values: one [B * S, K, H] array per decoder layer
    values: tuple[Array, ...]
    layout: Layout  #: of the source rows


def encode_source(
    cfg: Seq2SeqConfig,
    params: Params,
    tokens: Int[Array, "B S"],
    lengths: Int[Array, " B"],
    capacity: int,
) -> KVCache:
    """Run the encoder and prepare a cache for ``capacity`` target tokens per row.

    Args:
        cfg: the model's configuration.
        params: its parameters.
        tokens: source rows, padded at the end.
        lengths: real tokens of each row.
        capacity: target slots, the start token included.
    """
    rows, size = tokens.shape
    layout = vsl.padded_layout(lengths, size, validate=False)
    branch = {"params": params["embed"]}
    module = Seq2SeqEmbed(cfg, cfg.vocab_size)
    x: Any = module.apply(branch, tokens.reshape(-1), layout.positions, no_dropout)
    attend = stream_attend(layout, None, 0.0)
    shared = params.get("encoder_position")
    for i in range(cfg.num_hidden_layers):
        branch = {"params": params[f"encoder_layers_{i}"]}
        args = (Stream(x), layout.positions, attend, no_dropout, shared)
        out: Any = Block(cfg.encoder_block).apply(branch, *args)
        x = out.x
    x = final_norm(cfg, params.get("encoder_norm_f"), x)

    def heads(i: int, name: str) -> Array:
        dense = params[f"decoder_layers_{i}"]["cross"][name]
        h = project(x, dense["kernel"])
        h = h + dense["bias"].astype(h.dtype) if "bias" in dense else h
        return h.reshape(-1, cfg.num_kv_heads, cfg.head_dim)

    layers = range(cfg.decoder_layers)
    memory = SourceMemory(
        tuple(heads(i, "key") for i in layers), tuple(heads(i, "value") for i in layers), layout
    )
    return init_cache(cfg, rows, capacity, cfg.decoder_layers, memory)


def decode_target(
    cfg: Seq2SeqConfig,
    params: Params,
    tokens: Int[Array, "B S"],
    added: Int[Array, " B"],
    cache: KVCache,
) -> tuple[Float[Array, "B S V"], KVCache]:
    """Run S target tokens per row through the decoder; see ``generation.decode_step``."""
    rows, size = tokens.shape
    layout = chunk_layout(cache.length, added, size)
    memory: SourceMemory = cache.extra
    embed = Seq2SeqEmbed(cfg, cfg.tgt_vocab_size or cfg.vocab_size)
    branch = {"params": embed_table(cfg, params)}
    y: Any = embed.apply(branch, tokens.reshape(-1), layout.positions, no_dropout)
    cross_attend = stream_attend(layout, None, 0.0, memory.layout)
    seen: list[tuple[Array, Array]] = []
    for i in range(cfg.decoder_layers):
        attend = cached_attend(cache.keys[i], cache.values[i], cache.length, layout, seen)
        out: Any = Block(cfg.decoder_block, cross=True).apply(
            {"params": params[f"decoder_layers_{i}"]},
            Stream(y),
            layout.positions,
            attend,
            no_dropout,
            params.get("decoder_position"),
            memory=(memory.keys[i], memory.values[i]),
            cross_attend=cross_attend,
        )
        y = out.x
    logits = lm_logits(cfg, params, y).reshape(rows, size, -1)
    keys, values = zip(*seen, strict=True)
    return logits, KVCache(keys, values, cache.length + jnp.asarray(added), memory)
