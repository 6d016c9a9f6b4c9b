"""What a model is asked to predict: next tokens, masked tokens, corrupted spans, middles.

Pure functions on token ids, given a generator where they are random: preprocessing calls them
once, a processor with dynamic masking calls them at every reading.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wafer.errors import DataError


class Pair(NamedTuple):
    """One encoder-decoder example, without padding and end marks on the input side."""

    source: np.ndarray  #: [n] int32 what the encoder reads
    target: np.ndarray  #: [m] int32 what the decoder must write


def next_token(tokens: np.ndarray) -> np.ndarray:
    """[n] tokens to the [3, n-1] rows input ids, loss mask (all 1), labels."""
    tokens = np.asarray(tokens, np.int32)
    return np.stack([tokens[:-1], np.ones(len(tokens) - 1, np.int32), tokens[1:]])


def conversation(
    turns: Sequence[tuple[Sequence[int], Sequence[int]]], *, eos_id: int, pad_id: int
) -> np.ndarray:
    """[3, n] rows of prompts and completions in turns, each pair ended by ``eos_id``.

    Loss lies on the completions and their end marks alone: the mask is 1 from the position that
    predicts a completion's first token (the prompt's last token, or the separator) up to the
    completion's last token, which predicts ``eos_id``.

    Args:
        turns: (prompt, completion) token ids.
        eos_id: ends each pair.
        pad_id: label of the last position.
    """
    tokens: list[int] = []
    learned: list[int] = []
    for prompt, completion in turns:
        tokens += [*prompt, *completion, eos_id]
        learned += [0] * len(prompt) + [1] * (len(completion) + 1)
    return np.array([tokens, [*learned[1:], 0], [*tokens[1:], pad_id]], np.int32)


def mask_tokens(
    tokens: np.ndarray,
    rng: np.random.Generator,
    *,
    mask_id: int,
    vocab_size: int,
    special_ids: Sequence[int] = (),
    rate: float = 0.15,
    most: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Hide tokens for masked language modelling (Devlin et al. 2019, section 3.1).

    ``rate`` of the tokens that are not special are chosen, at least one; of those 80 % become
    ``mask_id``, 10 % a random token that is not special, 10 % stay.

    Args:
        tokens: [n] ids, without padding.
        rng: draws the choice.
        mask_id: id of the mask token.
        vocab_size: V.
        special_ids: never chosen and never drawn as replacement; ``mask_id`` is one of them.
        rate: share of the tokens to predict.
        most: largest number of tokens to predict.

    Returns:
        [n] the ids to read, and [n] int32 1 where the original must be predicted.
    """
    special = np.unique([mask_id, *special_ids])
    candidates = np.flatnonzero(~np.isin(tokens, special))
    count = min(max(1, round(len(candidates) * rate)), len(candidates))
    count = count if most is None else min(count, most)
    chosen = rng.permutation(candidates)[:count]
    hidden, target = tokens.copy(), np.zeros(len(tokens), np.int32)
    target[chosen] = 1
    action = rng.random(count)
    hidden[chosen[action < 0.8]] = mask_id
    replaced = chosen[action >= 0.9]
    # The k-th id that is not special: shift k past each special id below it, in order.
    drawn = rng.integers(0, vocab_size - len(special), len(replaced))
    for used in special:
        drawn += drawn >= used
    hidden[replaced] = drawn
    return hidden, target


def noise_spans(length: int, density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """(hidden tokens, spans) of a sequence of ``length`` tokens."""
    hidden = min(max(round(length * density), 1), length - 1)
    return hidden, min(max(round(hidden / mean_span), 1), length - hidden)


def raw_length(source: int, density: float = 0.15, mean_span: float = 3.0) -> tuple[int, int]:
    """(longest raw sequence whose corrupted form with its end mark fits, its target length)."""
    length, target = 2, 0
    while True:
        hidden, spans = noise_spans(length, density, mean_span)
        if length - hidden + spans + 1 > source:
            return length - 1, target
        length, target = length + 1, hidden + spans + 1


def longest_source(
    source: int, target: int, sentinels: int, density: float = 0.15, mean_span: float = 3.0
) -> int:
    """Return the longest raw sequence whose corrupted form fits T5's rows.

    Args:
        source: tokens of an encoder's row.
        target: tokens of a decoder's row.
        sentinels: ids after the vocabulary.
        density: share of hidden tokens.
        mean_span: mean length of a hidden span.

    Raises:
        DataError: targets or sentinels that cannot do for it.
    """
    raw, needed = raw_length(source, density, mean_span)
    if needed > target:
        raise DataError(
            f"tgt_max_sequence_length: {target} is too short: {raw} tokens, the most that fit a "
            f"source of {source}, have targets of up to {needed}"
        )
    spans = noise_spans(raw, density, mean_span)[1]
    if spans > sentinels:
        raise DataError(
            f"extra_ids: {sentinels} sentinels, but a row of {raw} tokens hides {spans} spans; "
            "raise it, or shorten the sources"
        )
    return raw


def _pieces(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Cut ``total`` into ``count`` positive lengths, uniformly at random."""
    cuts = np.sort(rng.permutation(total - 1)[: count - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def corrupt_spans(
    tokens: np.ndarray,
    rng: np.random.Generator,
    *,
    vocab_size: int,
    density: float = 0.15,
    mean_span: float = 3.0,
) -> Pair:
    """Replace random spans by sentinels; the target spells them out (Raffel et al. 2020, 3.1.4).

    Sentinel k has id ``vocab_size - 1 - k``. Visible and hidden spans alternate, a visible one
    first.

    Args:
        tokens: [n] ids, n >= 2.
        rng: draws the spans.
        vocab_size: V with the sentinels, which are its last ids.
        density: share of hidden tokens.
        mean_span: mean length of a hidden span.
    """
    hidden, spans = noise_spans(len(tokens), density, mean_span)
    visible_lengths = _pieces(len(tokens) - hidden, spans, rng)
    hidden_lengths = _pieces(hidden, spans, rng)
    source: list[np.ndarray] = []
    target: list[np.ndarray] = []
    offset = 0
    for k, (visible, gone) in enumerate(zip(visible_lengths, hidden_lengths, strict=True)):
        sentinel = np.array([vocab_size - 1 - k], np.int32)
        source += [tokens[offset : offset + visible], sentinel]
        target += [sentinel, tokens[offset + visible : offset + visible + gone]]
        offset += visible + gone
    return Pair(np.concatenate(source).astype(np.int32), np.concatenate(target).astype(np.int32))


def fill_in_the_middle(
    text: str,
    encode: Callable[[str], list[int]],
    rng: np.random.Generator,
    marks: tuple[int, int, int],
    spm: bool,
) -> list[int]:
    """Move the middle of a text behind its end (Bavarian et al. 2022).

    The cut is between characters, so that a model also learns to fill inside a word.

    Args:
        text: what to cut.
        encode: text to ids.
        rng: draws the two cuts.
        marks: ids of the prefix, middle and suffix marks.
        spm: suffix first ("SPM", with the marks of the paper's variant 2), else prefix first
            ("PSM").
    """
    first, second = sorted(rng.integers(0, len(text) + 1, 2).tolist())
    prefix, middle, suffix = (encode(t) for t in (text[:first], text[first:second], text[second:]))
    pre, mid, suf = marks
    if spm:
        return [pre, suf, *suffix, mid, *prefix, *middle]
    return [pre, *prefix, suf, *suffix, mid, *middle]
