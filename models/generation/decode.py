"""Autoregressive generation with a key-value cache, for decoders and encoder-decoders.

The cache of a layer is [B, K, C, H] with C slots per row; a step appends S tokens per row and
attends to everything before. The first steps take the prompt in blocks, later ones one token.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, PyTree
from numpy.typing import ArrayLike

from wafer.models.base import Model
from wafer.models.factored.adapters import fold_adapters
from wafer.models.factored.factors import factors_of, fold_factors
from wafer.models.factored.lora import lora_of
from wafer.models.families.decoder import Embed, apply_head, layer_kinds
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.generation.sampling import Sampling, check_sampling, next_token
from wafer.models.generation.seq2seq import decode_target, encode_source
from wafer.models.layers.blocks import Block, no_dropout, start_stream
from wafer.models.layers.caches import KVCache, cached_attend, chunk_layout, init_cache
from wafer.models.paths import Params
from wafer.models.user.flags import own_flags

_PROMPT_BLOCK = 512  # tokens of a prompt that are read at once: logits are held for no more


StepFn = Callable[[Params, Array, Array, KVCache], tuple[Array, KVCache]]


def decode_step(
    cfg: DecoderConfig,
    params: Params,
    tokens: Int[Array, "B S"],
    added: Int[Array, " B"],
    cache: KVCache,
) -> tuple[Float[Array, "B S V"], KVCache]:
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
    native = hasattr(params["embed"]["token"]["embedding"], "project")
    for i, kind in enumerate(layer_kinds(cfg)):
        at = cache.keys[i], cache.values[i], cache.length
        attend = cached_attend(*at, layout, seen, native=native)
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
    return logits, KVCache(keys, values, cache.length + added, cache.extra)


class _Rows(NamedTuple):
    """Rows that are being continued."""

    token: Array  #: [B] int32 the last one of each, which the model has not read yet
    ended: Array  #: [B] bool
    seen: Array | None  #: [B, V] bool tokens of each row, where a penalty needs them
    cache: KVCache  #: of what the model has read


def end_ids(end_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """Return the ids that end a row as a tuple; () for None."""
    if end_id is None:
        return ()
    return (int(end_id),) if np.ndim(end_id) == 0 else tuple(map(int, end_id))  # type: ignore[arg-type]


def is_end(tokens: Int[Array, "*B"], ends: tuple[int, ...]) -> Bool[Array, "*B"]:
    """Whether each token is one of the ids that end a row."""
    return jnp.isin(tokens, jnp.asarray(ends or (-1,)))


def _taken(
    scores: Array, rows: _Rows, key: Array, sampling: Sampling, ends: tuple[int, ...]
) -> _Rows:
    """Rows with their next token; one that has ended gets the first of ``ends``."""
    token = next_token(scores, rows.seen, sampling, key)
    ended, seen = rows.ended, rows.seen
    if ends:
        token = jnp.where(ended, ends[0], token)
        ended = ended | is_end(token, ends)
    if seen is not None:
        seen = seen.at[jnp.arange(len(token)), token].set(True)
    return _Rows(token, ended, seen, rows.cache)


@functools.partial(jax.jit, static_argnames=("step", "sampling", "ends"))
def _begin(
    step: StepFn,
    params: Params,
    prompt: Array,
    lengths: Array,
    cache: KVCache,
    *,
    key: Array,
    sampling: Sampling,
    ends: tuple[int, ...],
) -> _Rows:
    """Read the prompt, in blocks, and take the first token."""
    rows, size = prompt.shape[0], min(prompt.shape[1], _PROMPT_BLOCK)
    blocks = prompt.reshape(rows, -1, size).swapaxes(0, 1)

    def read(carry: tuple[KVCache, Array], block: tuple[Array, Array]) -> PyTree:
        cache, before = carry
        tokens, first = block
        logits, cache = step(params, tokens, jnp.clip(lengths - first, 0, size), cache)
        last = lengths - 1 - first
        at = jnp.clip(last, 0, size - 1)[:, None, None]
        scores = jnp.take_along_axis(logits, at, axis=1)[:, 0].astype(jnp.float32)
        inside = (last >= 0) & (last < size)
        return (cache, jnp.where(inside[:, None], scores, before)), None

    shape = jax.eval_shape(step, params, blocks[0], lengths, cache)[0].shape
    firsts = jnp.arange(len(blocks)) * size
    start = cache, jnp.zeros((rows, shape[-1]), jnp.float32)
    (cache, scores), _ = jax.lax.scan(read, start, (blocks, firsts))
    seen = None
    if sampling.repetition_penalty != 1:
        real = jnp.arange(prompt.shape[1]) < lengths[:, None]
        seen = (
            jnp.zeros(scores.shape, jnp.int32).at[jnp.arange(rows)[:, None], prompt].max(real) > 0
        )
    fresh = _Rows(jnp.zeros((rows,), jnp.int32), jnp.zeros((rows,), bool), seen, cache)
    return _taken(scores, fresh, key, sampling, ends)


@functools.partial(jax.jit, static_argnames=("step", "sampling", "ends"), donate_argnames=("rows",))
def _extend(
    step: StepFn,
    params: Params,
    rows: _Rows,
    keys: Array,
    count: int,
    *,
    sampling: Sampling,
    ends: tuple[int, ...],
) -> tuple[_Rows, Array]:
    """Take ``count`` tokens, or fewer where all rows end; the rows, and [B, len(keys)] tokens.

    ``rows`` is consumed: its cache becomes that of the result.
    """
    one = jnp.ones_like(rows.token)
    tokens = jnp.full((len(one), len(keys)), ends[0] if ends else 0, jnp.int32)

    def unfinished(carry: tuple[Array, _Rows, Array]) -> Array:
        i, rows, _ = carry
        return (i < count) & ~rows.ended.all()

    def extend(carry: tuple[Array, _Rows, Array]) -> tuple[Array, _Rows, Array]:
        i, rows, tokens = carry
        logits, cache = step(params, rows.token[:, None], one, rows.cache)
        rows = _taken(logits[:, 0], rows._replace(cache=cache), keys[i], sampling, ends)
        return i + 1, rows, tokens.at[:, i].set(rows.token)

    _, rows, tokens = jax.lax.while_loop(unfinished, extend, (jnp.int32(0), rows, tokens))
    return rows, tokens


@functools.lru_cache(maxsize=32)
def _decoder_step(cfg: DecoderConfig) -> StepFn:
    # One function object per configuration, so that repeated calls reuse the compilation.
    return functools.partial(decode_step, cfg)


@functools.lru_cache(maxsize=32)
def _seq2seq_steps(cfg: Seq2SeqConfig) -> tuple[StepFn, Callable[..., KVCache]]:
    encode = jax.jit(functools.partial(encode_source, cfg), static_argnums=3)
    return functools.partial(decode_target, cfg), encode


@own_flags()
def generate(
    model: Model, params: Params, prompt_ids: ArrayLike, max_new_tokens: int, **options: Any
) -> np.ndarray:
    """Continue prompts token by token.

    Args:
        model: a decoder with a language-model head, or an encoder-decoder (the prompt is then the
            encoder's input and the continuation starts from the start token).
        params: what ``model.apply`` computes with.
        prompt_ids: [S] or [B, S] int token ids; rows shorter than S are padded at the end.
        max_new_tokens: tokens to add to each row.
        **options: of ``generate_stream``.

    Returns:
        [B, max_new_tokens] int32 the continuations, without the prompts. A row that ended has
        ``end_id``, or the first of several, to the last column.

    Raises:
        ValueError: a model that cannot generate, a prompt that does not fit the positions, a
            missing key, an option out of its range.
    """
    blocks = generate_stream(
        model, params, prompt_ids, max_new_tokens, block=max(1, max_new_tokens), **options
    )
    tokens = np.concatenate(list(blocks), axis=1)
    missing = max_new_tokens - tokens.shape[1]
    ends = end_ids(options.get("end_id"))
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=ends[0] if ends else 0)


@own_flags()
def generate_stream(
    model: Model,
    params: Params,
    prompt_ids: ArrayLike,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    end_id: int | Sequence[int] | None = None,
    key: Array | None = None,
    lengths: ArrayLike | None = None,
    cache_dtype: DTypeLike | None = None,
    block: int = 16,
) -> Iterator[np.ndarray]:
    """Continue prompts and give the tokens as they come.

    Args:
        model: as ``generate`` has it.
        params: the same.
        prompt_ids: the same.
        max_new_tokens: the same.
        temperature: 0 takes the most likely token.
        top_k: sample among the k most likely only.
        top_p: sample among the likeliest that together have this probability.
        min_p: sample among those with this share of the likeliest one's probability.
        repetition_penalty: above 1, tokens that a row has (its prompt's too) become less likely.
        end_id: a row ends after this token, or any of these; when all rows have ended, nothing
            more is computed.
        key: sampling key, consumed; needed unless temperature is 0.
        lengths: [B] real tokens of each prompt; default all S.
        cache_dtype: float32 or bfloat16, of the keys and values that are kept; the model's by
            default.
        block: tokens per array. How many has no influence on the tokens.

    Yields:
        [B, n] int32 tokens, the first one alone and then up to ``block`` at a time.

    Raises:
        ValueError: as ``generate``, before the first token.
    """
    prompt, sizes = prompt_rows(model, prompt_ids, lengths, max_new_tokens)
    if temperature and key is None:
        raise ValueError("key: sampling with temperature > 0 needs a random key")
    sampling = Sampling(repetition_penalty, float(temperature), top_k, top_p, min_p)
    check_sampling(sampling)
    if cache_dtype is not None and jnp.dtype(cache_dtype) not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"cache_dtype: expected float32 or bfloat16, got {cache_dtype}")
    if block < 1:
        raise ValueError(f"block: expected at least 1, got {block}")
    keys = jax.random.split(jax.random.key(0) if key is None else key, max_new_tokens)
    options: Any = {"sampling": sampling, "ends": end_ids(end_id)}
    step, params, rows = begin_rows(
        model, params, prompt, sizes, max_new_tokens, dtype=cache_dtype, key=keys[0], **options
    )

    def blocks() -> Iterator[np.ndarray]:
        state = rows
        yield np.array(state.token)[:, None]  # a copy: the next step consumes the rows
        for first in range(1, max_new_tokens, block):
            if bool(state.ended.all()):
                return
            count = min(block, max_new_tokens - first)
            chosen = keys[np.minimum(np.arange(first, first + block), max_new_tokens - 1)]
            with own_flags():  # the caller's are in force between two blocks
                state, tokens = _extend(step, params, state, chosen, count, **options)
            yield np.asarray(tokens)[:, :count]

    return blocks()


def begin_rows(
    model: Model,
    params: Params,
    prompt: np.ndarray,
    lengths: np.ndarray,
    count: int,
    *,
    dtype: DTypeLike | None = None,
    key: Array | None = None,
    sampling: Sampling = Sampling(),  # noqa: B008 immutable
    ends: tuple[int, ...] = (),
) -> tuple[StepFn, Params, _Rows]:
    """Read prompts and take the first token of each.

    Returns:
        The model's step, the parameters it takes, and the rows, with room for ``count`` tokens.
    """
    step, params, start, start_lengths, cache = empty_rows(
        model, params, prompt, lengths, count, dtype=dtype
    )
    key = jax.random.key(0) if key is None else key
    options: Any = {"key": key, "sampling": sampling, "ends": ends}
    return step, params, _begin(step, params, start, start_lengths, cache, **options)


def empty_rows(
    model: Model,
    params: Params,
    prompt: np.ndarray,
    lengths: np.ndarray,
    count: int,
    *,
    dtype: DTypeLike | None = None,
) -> tuple[StepFn, Params, Array, Array, KVCache]:
    """Prepare to continue prompts by ``count`` tokens.

    Returns:
        The model's step, the parameters it takes, what it reads first, how many real tokens that
        has, and the cache, of ``dtype`` or else the model's.
    """
    params = fold_adapters(lora_of(model.config), params)
    if factors_of(model.config) is not None:
        params = fold_factors(params)
    # Rounded up, so that prompts of nearby lengths share one compilation.
    size = prompt.shape[1]
    prompt = np.pad(prompt, ((0, 0), (0, -size % (16 if size <= _PROMPT_BLOCK else _PROMPT_BLOCK))))
    start, start_lengths = jnp.asarray(prompt), jnp.asarray(lengths, jnp.int32)
    cfg: Any = model.config
    if isinstance(cfg, DecoderConfig):
        step = _decoder_step(cfg)  # pyright: ignore[reportArgumentType] frozen, so hashable
        cache = init_cache(cfg, len(prompt), prompt.shape[1] + count, cfg.num_hidden_layers)
    elif isinstance(cfg, Seq2SeqConfig):
        step, encode = _seq2seq_steps(cfg)  # pyright: ignore[reportArgumentType] frozen
        cache = encode(params, start, start_lengths, count + 1)
        start = jnp.full((len(prompt), 1), cfg.decoder_start_token_id, jnp.int32)
        start_lengths = jnp.ones((len(prompt),), jnp.int32)
    else:
        raise ValueError(
            f"{cfg.name}: only decoders and encoder-decoders generate; for LLaVA without images "
            "build its text_model"
        )
    if dtype is not None:
        keys, values = jax.tree.map(lambda leaf: leaf.astype(dtype), (cache.keys, cache.values))
        cache = cache._replace(keys=keys, values=values)
    return step, params, start, start_lengths, cache


def prompt_rows(
    model: Model, prompt_ids: ArrayLike, lengths: ArrayLike | None, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return prompts as [B, S] and their lengths, which the model can continue by ``count``.

    Raises:
        ValueError: the message says what is wrong with model, prompt or lengths.
    """
    prompt = np.atleast_2d(np.asarray(prompt_ids, np.int32))
    lengths = np.full(len(prompt), prompt.shape[1]) if lengths is None else np.asarray(lengths)
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
    total = int(lengths.max()) + count
    if getattr(cfg, "position_embedding_type", None) in {"learned", "fixed"}:
        limit = cfg.max_position_embeddings
        if isinstance(cfg, DecoderConfig) and total > limit:
            raise ValueError(
                f"prompt of {int(lengths.max())} plus {count} new tokens exceeds "
                f"max_position_embeddings {limit}"
            )
    return prompt, lengths
