"""Beam search for encoder-decoders, with the scores and the end of transformers' ``generate``."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from wafer.models.base import Model
from wafer.models.families.seq2seq_config import Seq2SeqConfig
from wafer.models.generation.decode import StepFn, empty_rows, end_ids, is_end, prompt_rows
from wafer.models.layers.caches import KVCache
from wafer.models.paths import Params
from wafer.models.user.flags import own_flags


class Beams(NamedTuple):
    """The best sequence of each row."""

    #: [B, max_new_tokens] int32, ``end_id`` (the first of several) from its end on
    tokens: np.ndarray
    #: [B] float32 sum of the tokens' log-probabilities over (tokens) ** length_penalty
    scores: np.ndarray


class _State(NamedTuple):
    """Of B rows and K beams, after ``i`` tokens."""

    i: Array
    sums: Array  #: [B, K] log-probabilities of the beams that go on
    tokens: Array  #: [B, K, T] theirs
    last: Array  #: [B, K] the last of them
    #: best, best_tokens: [B, K], [B, K, T] scores of sequences that ended, -inf where there is none
    best: Array
    best_tokens: Array
    closed: Array  #: [B] no beam of the row can become better than those
    cache: KVCache


@own_flags()
def beam_search(
    model: Model,
    params: Params,
    source_ids: ArrayLike,
    max_new_tokens: int,
    *,
    num_beams: int,
    end_id: int | Sequence[int],
    length_penalty: float = 1.0,
    lengths: ArrayLike | None = None,
) -> Beams:
    """Find likely continuations of the start token, given a source.

    Args:
        model: an encoder-decoder.
        params: its parameters.
        source_ids: [S] or [B, S] int token ids; rows shorter than S are padded at the end.
        max_new_tokens: a sequence that has so many ends there.
        num_beams: beams per row.
        end_id: token, or tokens, that end a sequence and count as part of it.
        length_penalty: above 0 long sequences gain, below 0 short ones.
        lengths: [B] real tokens of each row; default all S.

    Raises:
        ValueError: another kind of model, a number out of its range.
    """
    if not isinstance(model.config, Seq2SeqConfig):
        raise ValueError(f"{model.config.name}: beam search is for encoder-decoders")
    if num_beams < 1:
        raise ValueError(f"num_beams: expected at least 1, got {num_beams}")
    if not math.isfinite(length_penalty):
        raise ValueError(f"length_penalty: expected a finite number, got {length_penalty}")
    source, sizes = prompt_rows(model, source_ids, lengths, max_new_tokens)
    step, params, start, _, cache = empty_rows(
        model, params, source.repeat(num_beams, 0), sizes.repeat(num_beams), max_new_tokens
    )
    tokens, scores = _search(
        step,
        params,
        start.reshape(len(source), num_beams),
        cache,
        count=max_new_tokens,
        ends=end_ids(end_id),
        penalty=float(length_penalty),
    )
    return Beams(np.asarray(tokens), np.asarray(scores))


def _pick(values: Array, order: Array) -> Array:
    """Per row, those of [B, X, ...] that [B, K] indices name."""
    return jax.vmap(lambda row, i: row[i])(values, order)


def _with_ended(s: _State, scores: Array, tokens: Array) -> _State:
    """The best K of the sequences that had ended and of [B, X] new ones."""
    scores = jnp.concatenate([s.best, jnp.where(s.closed[:, None], -jnp.inf, scores)], 1)
    best, order = jax.lax.top_k(scores, s.best.shape[1])
    every = jnp.concatenate([s.best_tokens, tokens], 1)
    return s._replace(best=best, best_tokens=_pick(every, order))


@functools.partial(jax.jit, static_argnames=("step", "count", "ends", "penalty"))
def _search(
    step: StepFn,
    params: Params,
    start: Array,
    cache: KVCache,
    *,
    count: int,
    ends: tuple[int, ...],
    penalty: float,
) -> tuple[Array, Array]:
    rows, beams = start.shape
    kept = (1 + len(ends)) * beams
    one = jnp.ones((rows * beams,), jnp.int32)

    def extend(s: _State) -> _State:
        logits, cache = step(params, s.last.reshape(-1, 1), one, s.cache)
        chances = jax.nn.log_softmax(logits[:, 0].astype(jnp.float32), -1)
        size = chances.shape[-1]
        sums = (s.sums[..., None] + chances.reshape(rows, beams, size)).reshape(rows, -1)
        # More than go on: each beam may end once by each of ``ends``.
        sums, flat = jax.lax.top_k(sums, kept)
        beam, token = flat // size, flat % size
        tokens = _pick(s.tokens, beam).at[:, :, s.i].set(token)
        ended, length = is_end(token, ends), (s.i + 1.0) ** penalty
        among = ended & (jnp.arange(kept) < beams)
        s = _with_ended(s, jnp.where(among, sums / length, -jnp.inf), tokens)
        order = jnp.argsort(ended, axis=1, stable=True)[:, :beams]
        place = (jnp.arange(rows)[:, None] * beams + _pick(beam, order)).reshape(-1)
        return _State(
            i=s.i + 1,
            sums=_pick(sums, order),
            tokens=_pick(tokens, order),
            last=_pick(token, order),
            best=s.best,
            best_tokens=s.best_tokens,
            closed=s.closed | (s.best[:, -1] >= sums[:, 0] / length),
            cache=cache._replace(
                keys=tuple(k[place] for k in cache.keys),
                values=tuple(v[place] for v in cache.values),
            ),
        )

    nothing = jnp.full((rows, beams), -jnp.inf)
    filled = jnp.full((rows, beams, count), ends[0], jnp.int32)
    sums = nothing.at[:, 0].set(0)  # all beams begin alike: one of them counts
    closed = jnp.zeros((rows,), bool)
    s: Any = _State(jnp.int32(0), sums, filled, start, nothing, filled, closed, cache)
    s = jax.lax.while_loop(lambda s: (s.i < count) & ~s.closed.all(), extend, s)
    s = _with_ended(s, s.sums / s.i.astype(jnp.float32) ** penalty, s.tokens)
    return s.best_tokens[:, 0], s.best[:, 0]
