"""Log-likelihoods of continuations: sequences share a stream without padding.

A program embeds a whole stream of token slots, but scores the vocabulary only where a continuation
is read. Sequences with equal inputs are computed once: a question whose answers are one token each
costs as much as one answer.
"""

import functools
import typing
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from wafer import vsl
from wafer.models.base import Batch, Model
from wafer.models.families.decoder import apply_head
from wafer.models.families.decoder_config import DecoderConfig
from wafer.models.paths import Params
from wafer.models.user.flags import own_flags

Tokens = Sequence[int]

TOKENS = 4096  # slots of a stream, unless a sequence is longer
_SEQUENCES = 256  # of a stream
_SCORED = 512  # positions whose scores of the vocabulary are held at once
_LADDER = vsl.Ladder(growth=2.0, multiple=128)  # few shapes: each is compiled


class Likelihood(NamedTuple):
    """Likelihood of a continuation under a model."""

    logprob: float  #: nats, the sum over its tokens
    greedy: bool  #: whether each of its tokens is the most likely one


@own_flags()
def log_likelihoods(
    model: Model, params: Params, requests: Sequence[tuple[Tokens, Tokens]], longest: int
) -> list[Likelihood]:
    """Compute the log-likelihood of each continuation.

    Args:
        model: a decoder with a language-model head.
        params: its parameters; kernels may be any object that the model multiplies by.
        requests: (ids of the context, ids of the continuation), at least one each.
        longest: tokens that the model reads at once; a longer context loses its first tokens.

    Returns:
        One for each request; log-softmax in float32.

    Raises:
        ValueError: another model; an empty context or continuation, a continuation longer than
            ``longest``, or an id outside the vocabulary.
    """
    if not (isinstance(model.config, DecoderConfig) and model.config.with_lm_head):
        raise ValueError(
            f"{model.config.name}: expected a decoder with a language-model head; others have no "
            "likelihood of a continuation"
        )
    readers = _readers(requests, longest)
    size = model.config.vocab_size
    for i, (context, continuation) in enumerate(requests):
        if min(*context, *continuation) < 0 or max(*context, *continuation) >= size:
            raise ValueError(
                f"log_likelihoods: request {i} has an id outside the vocabulary 0..{size - 1}; was "
                "it encoded by another tokenizer?"
            )
    results = [Likelihood(0.0, True)] * len(requests)
    for stream, scored in _streams(readers, max(TOKENS, _LADDER.capacity(longest))):
        found = jax.tree.map(np.asarray, _score(model, params, stream))
        first = 0
        for request, count in scored:
            loss, best = (part[first : first + count] for part in (found.loss, found.best))
            results[request] = Likelihood(-float(loss.sum(dtype=np.float64)), bool(best.all()))
            first += count
    return results


def _readers(
    requests: Sequence[tuple[Tokens, Tokens]], longest: int
) -> dict[tuple[int, ...], list[tuple[int, Tokens]]]:
    """Return inputs of the model -> the requests that read them: (number, continuation)."""
    readers: dict[tuple[int, ...], list[tuple[int, Tokens]]] = {}
    for i, (context, continuation) in enumerate(requests):
        if not context or not 0 < len(continuation) <= longest:
            raise ValueError(
                f"log_likelihoods: request {i} has {len(context)} tokens of context and "
                f"{len(continuation)} of continuation; expected 1 or more, and 1 to {longest}"
            )
        inputs = (*context, *continuation)[-longest - 1 : -1]
        readers.setdefault(inputs, []).append((i, continuation))
    return readers


class _Stream(NamedTuple):
    """Sequences one after another, and what is read of them."""

    tokens: Int[vsl.AnyArray, " T"]
    lengths: Int[vsl.AnyArray, " B"]  #: 0 for an unused place
    places: Int[vsl.AnyArray, " R"]  #: slots whose scores are read, then 0
    labels: Int[vsl.AnyArray, " R"]  #: the token that follows each


def _streams(
    readers: dict[tuple[int, ...], list[tuple[int, Tokens]]], budget: int
) -> Iterator[tuple[_Stream, list[tuple[int, int]]]]:
    """Yield streams of ``budget`` slots at most, and (request, positions read) in their order."""
    inputs = sorted(readers, key=len, reverse=True)
    batches = vsl.budget_batches(map(len, inputs), budget, max_sequences=_SEQUENCES)
    for batch in batches:
        places: list[np.ndarray] = []
        scored, labels, end = [], [], 0
        for own in (inputs[i] for i in batch):
            end += len(own)
            for request, continuation in readers[own]:
                places.append(np.arange(end - len(continuation), end))
                scored.append((request, len(continuation)))
                labels.extend(continuation)
        tokens = [token for i in batch for token in inputs[i]]
        lengths = [len(inputs[i]) for i in batch]
        fill = lambda values, size: np.pad(np.asarray(values, np.int32), (0, size - len(values)))
        read = _LADDER.capacity(len(labels))
        stream = _Stream(
            fill(tokens, _LADDER.capacity(len(tokens))),
            fill(lengths, _SEQUENCES),
            fill(np.concatenate(places), read),
            fill(labels, read),
        )
        yield stream, scored


@functools.partial(jax.jit, static_argnames="model")
def _score(model: Model, params: Params, stream: _Stream) -> vsl.Scored:
    """Compute the cross-entropy of the labels of a stream: [R] float32."""
    tokens, lengths, places, labels = stream
    layout = vsl.layout_from_lengths(lengths, tokens.shape[0], validate=False)
    ids = jnp.asarray(tokens)
    batch = Batch(ids, ids, jnp.zeros(tokens.shape, jnp.float32), layout)
    carry: PyTree = None
    for stage in model.stages[:-1]:  # the last one is the head
        carry = model.kinds[stage.kind][1](model.stage_params(stage, params), carry, batch, None)

    def scored(part: tuple[Array, Array]) -> vsl.Scored:
        return vsl.cross_entropy(apply_head(model.config, params, part[0]), part[1])

    size = min(_SCORED, len(labels))
    parts = carry.x[places].reshape(-1, size, carry.x.shape[-1]), labels.reshape(-1, size)
    found = typing.cast(vsl.Scored, jax.lax.map(scored, parts))
    return vsl.Scored(*(part.reshape(-1) for part in found))
