"""Which examples share a batch, and how many token slots it gets; on the host, in NumPy.

``vsl.batch`` then lays the examples of one batch out.

Two ways to few compiled shapes: keep the batches and round their token count up on a ladder of
capacities, or fill a fixed token budget by first fit over a window of examples (one shape).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Capacities that grow by a bounded factor.

    Attributes:
        growth: largest ratio of neighbouring rungs, once rungs are long enough for ``multiple``.
        multiple: every rung is a multiple of it; also the first rung if nothing is ``fitted``.
        fitted: the first rungs, ascending, as :func:`fit_ladder` chooses them for a dataset; those
            above grow as said.
    """

    growth: float = 1.125
    multiple: int = 128
    fitted: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rungs = {rung for rung in self.fitted if rung > 0 and rung % max(self.multiple, 1) == 0}
        if self.growth <= 1.0 or self.multiple < 1 or list(self.fitted) != sorted(rungs):
            raise ValueError(
                f"{self}: expected growth > 1, multiple >= 1 and ascending multiples of it fitted"
            )

    def capacity(self, tokens: int) -> int:
        """Smallest rung that holds ``tokens``."""
        last = self.fitted[-1] if self.fitted else self.multiple
        rung = next((rung for rung in self.fitted if rung >= tokens), last)
        while rung < tokens:
            grown = int(rung * self.growth) // self.multiple * self.multiple
            rung = max(rung + self.multiple, grown)
        return rung

    def rungs(self, most: int) -> list[int]:
        """All capacities up to the one that holds ``most`` tokens: the shapes there can be."""
        out = [self.capacity(1)]
        while out[-1] < most:
            out.append(self.capacity(out[-1] + 1))
        return out


def fit_ladder(
    lengths: Sequence[int] | np.ndarray,
    batch_size: int,
    *,
    shapes: int = 8,
    multiple: int = 32,
    shuffled: bool = True,
    seed: int = 0,
) -> Ladder:
    """Choose the rungs that waste the fewest slots on the batches of a dataset.

    A geometric ladder spends rungs where batches are rare. Here the token counts of batches are
    cut into ``shapes`` groups by dynamic programming so that the sum of capacities is least;
    larger batches continue in steps of 1.125.

    Args:
        lengths: [N] tokens of each sequence.
        batch_size: sequences per batch.
        shapes: rungs at most; a step is compiled for each.
        multiple: every rung is a multiple of it.
        shuffled: fit to simulated random batches; False when ``lengths`` are already in the order
            of training, whose batches then all fit.
        seed: of the simulated batches.
    """
    lengths = np.asarray(lengths)
    if shuffled:
        need = np.random.default_rng(seed).choice(lengths, (2048, batch_size)).sum(axis=1)
        # Rungs up to what one batch in a thousand exceeds: the extremes would cost much slack.
        need = np.minimum(need, np.quantile(need, 0.999, method="higher"))
    else:
        need = np.add.reduceat(lengths, np.arange(0, lengths.size, batch_size))
    need = -(-need.astype(np.int64) // multiple) * multiple
    sizes, counts = np.unique(need, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # cost[j]: least slots of the batches up to sizes[j] with sizes[j] the last rung.
    cost = below[1:] * sizes.astype(np.float64)
    history = []  # history[n][k]: index of the rung before sizes[k], of n + 2 rungs
    for _ in range(min(shapes, len(sizes)) - 1):
        total = cost[:, None] + (below[None, 1:] - below[1:, None]) * sizes[None, :]
        total = np.where(np.tri(len(sizes), dtype=bool), np.inf, total)
        total[0, 0] = cost[0]  # no size lies below the least: it stays the only rung
        history.append(total.argmin(axis=0))
        cost = total.min(axis=0)
    last = len(sizes) - 1
    rungs = [last]
    for previous in reversed(history):
        rungs.append(int(previous[rungs[-1]]))
    return Ladder(multiple=multiple, fitted=tuple(int(s) for s in sizes[sorted(set(rungs))]))


def first_fit(
    lengths: Sequence[int] | np.ndarray,
    capacity: int,
    *,
    max_sequences: int | None = None,
    decreasing: bool = True,
    newest_first: bool = False,
    urgent: Sequence[bool] | np.ndarray | None = None,
) -> list[list[int]]:
    """Put sequences into bins of ``capacity`` tokens.

    Args:
        lengths: [N] tokens of each sequence.
        capacity: tokens a bin holds.
        max_sequences: sequences a bin holds at most.
        decreasing: place long sequences first (first-fit decreasing); else in the given order.
        newest_first: try the youngest bin first.
        urgent: [N] bool, sequences to place before all others, into the first bins.

    Returns:
        Bins of indices into ``lengths``.

    Raises:
        ValueError: a sequence longer than ``capacity``.
    """
    lengths = np.asarray(lengths)
    if lengths.size and lengths.max() > capacity:
        i = int(lengths.argmax())
        raise ValueError(
            f"sequence {i} has {lengths[i]} tokens > capacity {capacity}: no bin can hold it; "
            "split it, drop it, or raise the capacity"
        )
    order = np.argsort(-lengths, kind="stable") if decreasing else np.arange(lengths.size)
    if urgent is not None:
        order = order[np.argsort(~np.asarray(urgent, bool)[order], kind="stable")]
    limit = lengths.size if max_sequences is None else max_sequences
    bins: list[list[int]] = []
    room: list[int] = []  # free tokens per bin; -1 once it holds `limit` sequences
    for i in order:
        need = int(lengths[i])
        places = range(len(bins) - 1, -1, -1) if newest_first else range(len(bins))
        b = next((b for b in places if room[b] >= need), None)
        if b is None:
            b = len(bins)
            bins.append([])
            room.append(capacity)
        bins[b].append(int(i))
        room[b] = room[b] - need if len(bins[b]) < limit else -1
    return bins


def budget_batches(
    lengths: Iterable[int], budget: int, *, max_sequences: int, window: int = 512
) -> Iterator[list[int]]:
    """Yield batches of nearly ``budget`` tokens each: one shape for all of them.

    A window of examples is packed by first fit, longest first. Of several bins the emptiest
    without late examples is put back into the next window, except at the end. Late examples, which
    have waited a whole window, are placed first.

    Args:
        lengths: tokens of each example, in data order.
        budget: token slots of a batch.
        max_sequences: sequence slots of a batch.
        window: examples looked at together; how far examples may move from data order. Batches
            are only full if it holds the examples of several.

    Yields:
        Indices of the examples of one batch, in data order within the batch.

    Raises:
        ValueError: an example longer than ``budget``, when its window is read.
    """
    source = enumerate(lengths)
    held: list[tuple[int, int]] = []  # (example, its tokens); bins hold indices into it
    ended = False
    while not ended:
        for example, tokens in itertools.islice(source, window - len(held)):
            if tokens > budget:
                raise ValueError(
                    f"example {example} has {tokens} tokens > budget {budget}: no batch can hold "
                    "it; split it, drop it, or raise the budget"
                )
            held.append((example, tokens))
        ended = len(held) < window
        if not held:
            return
        late = [example < held[-1][0] - window for example, _ in held]
        sizes = [tokens for _, tokens in held]
        bins = first_fit(sizes, budget, max_sequences=max_sequences, urgent=late)
        if not ended and len(bins) > 1:
            on_time = [b for b in bins if not any(late[i] for i in b)] or bins[-1:]
            emptiest = min(on_time, key=lambda b: sum(sizes[i] for i in b))
            ready = [b for b in bins if b is not emptiest]
        else:
            ready = bins
        emitted = {i for b in ready for i in b}
        for b in sorted(ready, key=min):
            yield sorted(held[i][0] for i in b)
        held = [item for i, item in enumerate(held) if i not in emitted]
