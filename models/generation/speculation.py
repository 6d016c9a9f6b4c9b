"""Greedy generation with a draft: a cheap model proposes tokens, the model verifies them together.

One pass over several tokens reads the weights once, so a token that the draft guesses right costs a
pass of the draft only. What comes out is the model's own greedy text (Leviathan et al. 2023, with a
temperature of 0).
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree
from numpy.typing import ArrayLike

from wafer.models.base import Model
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.generation.decode import StepFn, begin_rows, end_ids, is_end, prompt_rows
from wafer.models.generation.sampling import best_token
from wafer.models.layers.caches import KVCache
from wafer.models.paths import Params
from wafer.models.user.flags import own_flags


class Speculated(NamedTuple):
    """What was generated."""

    tokens: np.ndarray  #: [B, max_new_tokens] int32, as ``generate`` has them
    accepted: float  #: share of the draft's proposals that the model would have taken itself
    passes: int  #: how many times the model read its weights, the prompt's not counted


class _State(NamedTuple):
    """Rows between two passes of the model."""

    token: Array  #: [B] the last one of each, unread
    written: Array  #: [B] tokens so far
    ended: Array  #: [B] bool
    tokens: Array  #: [B, count + k + 1]; those from ``written`` on are not meant
    cache: KVCache  #: cache, draft_cache: of what was read and accepted
    draft_cache: KVCache
    proposed: Array  #: proposed, accepted, passes: counts over all rows
    accepted: Array
    passes: Array


@own_flags()
def speculate(
    model: Model,
    params: Params,
    draft: tuple[Model, Params],
    prompt_ids: ArrayLike,
    max_new_tokens: int,
    *,
    draft_tokens: int = 4,
    end_id: int | Sequence[int] | None = None,
    lengths: ArrayLike | None = None,
) -> Speculated:
    """Continue prompts by the likeliest token, which a draft guesses first.

    Args:
        model: a decoder.
        params: its parameters.
        draft: a decoder with the same vocabulary, and its parameters: the model with fewer weights
            kept, or a smaller one.
        prompt_ids: as ``generate`` has them.
        max_new_tokens: the same.
        draft_tokens: proposals for each pass of the model, from 1 to 15.
        end_id: as ``generate_stream`` has it.
        lengths: the same.

    Raises:
        ValueError: as ``generate``; models that do not fit one another.
    """
    drafter, draft_params = draft
    for each in (model, drafter):
        if not isinstance(each.config, DecoderConfig):
            raise ValueError(f"{each.config.name}: only decoders verify and draft tokens")
    prompt_rows(drafter, prompt_ids, lengths, max_new_tokens)
    prompt, sizes = prompt_rows(model, prompt_ids, lengths, max_new_tokens)
    if drafter.config.vocab_size != model.config.vocab_size:
        raise ValueError(
            f"the draft has {drafter.config.vocab_size} tokens and the model "
            f"{model.config.vocab_size}; they must share a tokenizer"
        )
    if not 1 <= draft_tokens <= 15:
        raise ValueError(f"draft_tokens: expected 1 to 15, got {draft_tokens}")
    ends = end_ids(end_id)
    room = max_new_tokens + draft_tokens + 1
    step, params, rows = begin_rows(model, params, prompt, sizes, room)
    draft_step, draft_params, guessed = begin_rows(drafter, draft_params, prompt, sizes, room)
    state = _run(
        (step, draft_step),
        (params, draft_params),
        (rows.cache, guessed.cache),
        rows.token,
        k=draft_tokens,
        count=max_new_tokens,
        ends=ends,
    )
    tokens = np.asarray(state.tokens)[:, :max_new_tokens]
    if ends:
        at_end = np.isin(tokens, ends)
        tokens = np.where(np.cumsum(at_end, 1) - at_end > 0, ends[0], tokens)
    return Speculated(tokens, int(state.accepted) / max(1, int(state.proposed)), int(state.passes))


@functools.partial(jax.jit, static_argnames=("steps", "k", "count", "ends"))
def _run(
    steps: tuple[StepFn, StepFn],
    params: tuple[Params, Params],
    caches: tuple[KVCache, KVCache],
    first: Array,
    *,
    k: int,
    count: int,
    ends: tuple[int, ...],
) -> _State:
    (step, draft_step), (weights, draft_weights) = steps, params

    def propose(token: Array, added: Array, cache: KVCache) -> tuple[Array, KVCache]:
        """[B, k] guesses; the last of them is read as well, in case it is accepted."""

        def guess(carry: tuple[Array, KVCache], i: Array) -> PyTree:
            token, cache = carry
            real = (i < added).astype(jnp.int32)
            logits, cache = draft_step(draft_weights, token[:, None], real, cache)
            token = best_token(logits[:, 0])
            return (token, cache), token

        (_, cache), guesses = jax.lax.scan(guess, (token, cache), jnp.arange(k + 1))
        return guesses.T[:, :k], cache

    def unfinished(s: _State) -> Array:
        return (~s.ended & (s.written < count)).any()

    def verify(s: _State) -> _State:
        added = jnp.where(s.ended, 0, jnp.clip(count - s.written, 0, k + 1))
        guesses, draft_cache = propose(s.token, added, s.draft_cache)
        read = jnp.concatenate([s.token[:, None], guesses], 1)
        logits, cache = step(weights, read, added, s.cache)
        best = best_token(logits)
        checked = jnp.arange(k) < added[:, None] - 1
        accepted = jnp.cumprod((guesses == best[:, :k]) & checked, 1).sum(1)
        new = jnp.where(added > 0, accepted + 1, 0)
        back = new - added  # what was read and not accepted is overwritten
        last = jnp.take_along_axis(best, accepted[:, None], 1)[:, 0]
        ended = (is_end(best, ends) & (jnp.arange(k + 1) < new[:, None])).any(1)
        put = jax.vmap(lambda row, tokens, i: jax.lax.dynamic_update_slice(row, tokens, (i,)))
        return _State(
            token=jnp.where(new > 0, last, s.token),
            written=s.written + new,
            ended=s.ended | ended,
            tokens=put(s.tokens, best, s.written),
            cache=cache._replace(length=cache.length + back),
            draft_cache=draft_cache._replace(length=draft_cache.length + back),
            proposed=s.proposed + checked.sum(),
            accepted=s.accepted + accepted.sum(),
            passes=s.passes + 1,
        )

    zero, rows = jnp.int32(0), len(first)
    tokens = jnp.zeros((rows, count + k + 1), jnp.int32).at[:, 0].set(first)
    written = jnp.ones((rows,), jnp.int32)
    state = _State(first, written, is_end(first, ends), tokens, *caches, zero, zero, zero)
    return jax.lax.while_loop(unfinished, verify, state)
