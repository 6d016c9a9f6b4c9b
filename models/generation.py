"""Autoregressive generation with a key-value cache, for decoders and encoder-decoders.

The cache of a layer is [B, C, K, H] with C slots per row; a step appends S tokens per row and
attends to everything before. The first step takes the whole prompt, later ones one token.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from models.adapters import fold_adapters
from models.base import Model
from models.families.decoder import Embed, apply_head, layer_kinds
from models.families.decoder_config import DecoderConfig
from models.families.seq2seq_config import Seq2SeqConfig
from models.layers.blocks import Block, no_dropout, start_stream
from models.layers.caches import Cache, cached_attend, chunk_layout, init_cache
from models.lora import lora_of
from models.paths import Params
from models.seq2seq_generation import decode_target, encode_source

__all__ = ["decode_step", "generate"]


StepFn = Callable[[Params, Array, Array, Cache], tuple[Array, Cache]]


def decode_step(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, "B S"],
    added: Int[Array, " B"],
    cache: Cache,
) -> tuple[Float[Array, "B S V"], Cache]:
    """Run S tokens per row through the decoder, reading and extending the cache.

    Args:
        cfg: the decoder's configuration.
        params: its parameters.
        tokens: the chunk; rows are padded at the end.
        added: real tokens of each row's chunk.
        cache: state before the chunk.

    Returns:
        Logits of every slot of the chunk, and the cache after it.
    """
    rows, size = tokens.shape
    layout = chunk_layout(cache.length, added, size)
    embed = {"params": params["embed"]}
    x: Any = Embed(cfg).apply(embed, tokens.reshape(-1), layout.positions, no_dropout)
    stream: Any = start_stream(cfg, x)
    seen: list[tuple[Array, Array]] = []
    for i, kind in enumerate(layer_kinds(cfg)):
        attend = cached_attend(cache.keys[i], cache.values[i], cache.length, layout, seen)
        stream = Block(cfg, kind == "layer").apply(
            {"params": params[f"layers_{i}"]},
            stream,
            layout.positions,
            attend,
            no_dropout,
            params.get("position"),
        )
    logits = apply_head(cfg, params, stream.x).reshape(rows, size, -1)
    keys, values = zip(*seen, strict=True)
    return logits, Cache(keys, values, cache.length + added, cache.extra)


def _sample(logits: Array, temperature: float, top_k: int | None, key: Array) -> Array:
    if temperature == 0:
        return logits.argmax(-1).astype(jnp.int32)
    logits = logits.astype(jnp.float32) / temperature
    if top_k is not None:
        kept = jax.lax.top_k(logits, top_k)[0][:, -1:]
        logits = jnp.where(logits >= kept, logits, -jnp.inf)
    return jax.random.categorical(key, logits).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("step", "count", "temperature", "top_k"))
def _run(
    step: StepFn,
    params: Params,
    prompt: Array,
    lengths: Array,
    cache: Cache,
    *,
    key: Array,
    count: int,
    temperature: float,
    top_k: int | None,
) -> Array:
    logits, cache = step(params, prompt, lengths, cache)
    last = jnp.take_along_axis(logits, (lengths - 1)[:, None, None], axis=1)[:, 0]
    one = jnp.ones_like(lengths)

    def body(carry: tuple[Array, Cache], key: Array) -> tuple[tuple[Array, Cache], Array]:
        scores, cache = carry
        token = _sample(scores, temperature, top_k, key)
        logits, cache = step(params, token[:, None], one, cache)
        return (logits[:, 0], cache), token

    keys = jax.random.split(key, count)
    (scores, _), tokens = jax.lax.scan(body, (last, cache), keys[:-1])
    final = _sample(scores, temperature, top_k, keys[-1])
    return jnp.concatenate([tokens, final[None]]).T


@functools.lru_cache(maxsize=32)
def _decoder_step(cfg: Any) -> StepFn:
    # One function object per configuration, so that repeated calls reuse the compilation.
    return functools.partial(decode_step, cfg)


@functools.lru_cache(maxsize=32)
def _seq2seq_steps(cfg: Any) -> tuple[StepFn, Callable[..., Cache]]:
    encode = jax.jit(functools.partial(encode_source, cfg), static_argnums=3)
    return functools.partial(decode_target, cfg), encode


def generate(
    model: Model,
    params: Params,
    prompt_ids: ArrayLike,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    key: Array | None = None,
    lengths: ArrayLike | None = None,
) -> np.ndarray:
    """Continue prompts token by token.

    Args:
        model: a decoder with a language-model head, or an encoder-decoder (the prompt is then the
            encoder's input and the continuation starts from the start token).
        params: what ``model.apply`` computes with.
        prompt_ids: [S] or [B, S] int token ids; rows shorter than S are padded at the end.
        max_new_tokens: tokens to add to each row.
        temperature: 0 takes the most likely token.
        top_k: sample among the k most likely only.
        key: sampling key, consumed; needed unless temperature is 0.
        lengths: [B] real tokens of each row; default all S.

    Returns:
        [B, max_new_tokens] int32 the continuations, without the prompts.

    Raises:
        ValueError: a model that cannot generate, a prompt that does not fit the positions, a
            missing key.
    """
    prompt = np.atleast_2d(np.asarray(prompt_ids, np.int32))
    lengths = np.full(len(prompt), prompt.shape[1]) if lengths is None else np.asarray(lengths)
    _check(model, prompt, lengths, max_new_tokens, missing_key=bool(temperature) and key is None)
    key = jax.random.key(0) if key is None else key
    params = fold_adapters(lora_of(model.config), params)
    # Rounded up, so that prompts of nearby lengths share one compilation.
    prompt = np.pad(prompt, ((0, 0), (0, -prompt.shape[1] % 16)))
    start, start_lengths = jnp.asarray(prompt), jnp.asarray(lengths, jnp.int32)
    cfg: Any = model.config
    if isinstance(cfg, DecoderConfig):
        step = _decoder_step(cfg)  # pyright: ignore[reportArgumentType] frozen, so hashable
        capacity = prompt.shape[1] + max_new_tokens
        cache = init_cache(cfg, len(prompt), capacity, cfg.num_hidden_layers)
    elif isinstance(cfg, Seq2SeqConfig):
        step, encode = _seq2seq_steps(cfg)  # pyright: ignore[reportArgumentType] frozen
        cache = encode(params, start, start_lengths, max_new_tokens + 1)
        start = jnp.full((len(prompt), 1), cfg.decoder_start_token_id, jnp.int32)
        start_lengths = jnp.ones((len(prompt),), jnp.int32)
    else:
        raise ValueError(
            f"{cfg.name}: only decoders and encoder-decoders generate; for LLaVA without images "
            "build its text_model"
        )
    top_k = None if top_k is None else min(top_k, model.config.vocab_size)
    tokens = _run(
        step,
        params,
        start,
        start_lengths,
        cache,
        key=key,
        count=max_new_tokens,
        temperature=float(temperature),
        top_k=top_k,
    )
    return np.asarray(tokens)


def _check(
    model: Model,
    prompt: np.ndarray,
    lengths: np.ndarray,
    count: int,
    *,
    missing_key: bool,
) -> None:
    cfg = model.config
    if not getattr(cfg, "with_lm_head", False):
        raise ValueError(f"{cfg.name}: cannot generate without a language-model head")
    if lengths.shape != (len(prompt),) or lengths.min() < 1 or lengths.max() > prompt.shape[1]:
        raise ValueError(
            f"lengths: {lengths.tolist()} must give 1 to {prompt.shape[1]} tokens for each of the "
            f"{len(prompt)} prompts"
        )
    if prompt.min() < 0 or prompt.max() >= cfg.vocab_size:
        raise ValueError(
            f"prompt_ids: values {prompt.min()}..{prompt.max()} outside the vocabulary "
            f"0..{cfg.vocab_size - 1}; was it encoded by another tokenizer?"
        )
    if count < 1:
        raise ValueError(f"max_new_tokens: expected at least 1, got {count}")
    if missing_key:
        raise ValueError("key: sampling with temperature > 0 needs a random key")
    total = int(lengths.max()) + count
    if getattr(cfg, "position_embedding_type", None) in {"learned", "fixed"}:
        limit = cfg.max_position_embeddings
        if isinstance(cfg, DecoderConfig) and total > limit:
            raise ValueError(
                f"prompt of {int(lengths.max())} plus {count} new tokens exceeds "
                f"max_position_embeddings {limit}"
            )
