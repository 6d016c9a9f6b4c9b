"""What padding costs on a set of lengths, and what variable-length batches will give."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from wafer.vsl.packing import Ladder, budget_batches


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaddingReport:
    """Padding statistics of a dataset.

    Attributes:
        sequences: number of sequences.
        tokens: real tokens.
        longest: longest sequence, tokens.
        mean: mean length, tokens.
        max_length: length rows are padded to, tokens.
        padding: share of padded slots that hold no token.
        ideal: ``max_length / mean``, the speed-up if work followed real tokens exactly.
        expected: padded slots over the slots of the packed batches: the speed-up of token-wise
            work, ladder slack included. Attention gains more.
        utilisation: real tokens over slots of the packed batches.
        shapes: distinct batch capacities, each one compilation.
        budget_utilisation: the same as ``utilisation`` with a token budget; None if not asked.
    """

    sequences: int
    tokens: int
    longest: int
    mean: float
    max_length: int
    padding: float
    ideal: float
    expected: float
    utilisation: float
    shapes: tuple[int, ...]
    budget_utilisation: float | None = None

    def __str__(self) -> str:
        lines = [
            f"sequences {self.sequences}, tokens {self.tokens}",
            f"longest {self.longest}, mean {self.mean:.1f}, padded to {self.max_length}: "
            f"{self.padding:.1%} padding",
            f"ideal speed-up {self.ideal:.2f}x, expected {self.expected:.2f}x or better "
            f"(slots used {self.utilisation:.1%})",
            f"{len(self.shapes)} shapes to compile: {', '.join(map(str, self.shapes))}",
        ]
        if self.budget_utilisation is not None:
            lines.append(f"token budget: 1 shape, slots used {self.budget_utilisation:.1%}")
        return "\n".join(lines)


def padding_report(
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    *,
    max_length: int | None = None,
    ladder: Ladder | None = None,
    budget: int | None = None,
    max_sequences: int | None = None,
) -> PaddingReport:
    """Measure what padding costs, before training.

    Args:
        lengths: [N] tokens of each sequence, in data order.
        batch_size: sequences per batch.
        max_length: length rows are padded to; default the longest.
        ladder: capacities of the packed batches.
        budget: also try batches of this many token slots.
        max_sequences: sequence slots of a budget batch; default ``budget``.

    Raises:
        ValueError: no sequences, an empty sequence, or one longer than ``max_length``.
    """
    lengths = np.asarray(lengths)
    if lengths.size == 0 or (lengths < 1).any():
        problem = (
            "no sequences" if lengths.size == 0 else f"sequence {int(lengths.argmin())} is empty"
        )
        raise ValueError(f"padding_report: {problem}")
    longest = int(lengths.max())
    max_length = longest if max_length is None else max_length
    if longest > max_length:
        raise ValueError(
            f"padding_report: sequence {int(lengths.argmax())} has {longest} tokens > max_length "
            f"{max_length}"
        )
    ladder = ladder or Ladder()
    edges = range(0, lengths.size, batch_size)
    slots = [ladder.capacity(int(lengths[at : at + batch_size].sum())) for at in edges]
    tokens = int(lengths.sum())
    filled = None
    if budget is not None:
        sequences = budget if max_sequences is None else max_sequences
        count = sum(1 for _ in budget_batches(lengths, budget, max_sequences=sequences))
        filled = tokens / (count * budget)
    return PaddingReport(
        sequences=lengths.size,
        tokens=tokens,
        longest=longest,
        mean=tokens / lengths.size,
        max_length=max_length,
        padding=1 - tokens / (lengths.size * max_length),
        ideal=lengths.size * max_length / tokens,
        expected=lengths.size * max_length / sum(slots),
        utilisation=tokens / sum(slots),
        shapes=tuple(sorted(set(slots))),
        budget_utilisation=filled,
    )
