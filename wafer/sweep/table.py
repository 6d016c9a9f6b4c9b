"""From runs to a table: mean, standard deviation, and differences between runs of one seed."""

import csv
import math
import pathlib
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from models.files import atomic_write

__all__ = ["Row", "Summary", "markdown", "summaries", "write_csv", "write_runs"]


class Row(NamedTuple):
    """One finished run."""

    arm: str  #: arm, group, seed: which
    group: str
    seed: int
    metric: float  #: of its last evaluation
    parameters: int  #: parameters, kept, tokens, training, inference: see ``Costs``
    kept: int
    tokens: int
    training: float
    inference: float
    seconds: float  #: that its processes took, from start to end


_HEADS = {
    "parameters": "parameters",
    "kept": "weights_kept",
    "tokens": "tokens",
    "training": "training_flops",
    "inference": "inference_flops_per_token",
    "seconds": "seconds",
}


class Summary(NamedTuple):
    """One arm over its seeds; None where there are too few of them."""

    arm: str  #: its name
    runs: int  #: n, how many
    mean: float  #: of the metric
    deviation: float | None  #: of the metric, with n - 1
    pairs: int  #: seeds that the first arm has, too
    difference: float | None  #: mean of (this arm - first arm), seed by seed; None for the first
    error: float | None  #: standard error of that mean

    @property
    def resolved(self) -> bool | None:
        """Whether the difference is at least two standard errors."""
        if self.difference is None or self.error is None:
            return None
        return self.difference != 0 and abs(self.difference) >= 2 * self.error


def summaries(rows: Sequence[Row], first: str) -> list[Summary]:
    """Summarise arms, in the order of their first rows.

    Args:
        rows: of finished runs.
        first: name of the arm that the others are compared with.
    """
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        values.setdefault(row.arm, {})[row.seed] = row.metric
    return [_summary(arm, own, values.get(first, {}), first) for arm, own in values.items()]


def _summary(arm: str, own: dict[int, float], others: dict[int, float], first: str) -> Summary:
    deviation = statistics.stdev(own.values()) if len(own) > 1 else None
    mean = statistics.fmean(own.values())
    paired = [own[seed] - others[seed] for seed in own if seed in others and arm != first]
    difference = statistics.fmean(paired) if paired else None
    error = statistics.stdev(paired) / math.sqrt(len(paired)) if len(paired) > 1 else None
    return Summary(arm, len(own), mean, deviation, len(paired), difference, error)


def markdown(table: Iterable[Summary], metric: str, rows: Sequence[Row]) -> str:
    """Write the table of a sweep."""
    heads = (
        "arm", "n", metric, "standard deviation", "difference to the first", "standard error",
        "resolved", "weights kept", "training FLOPs",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    costs = {row.arm: row for row in rows}
    for one in table:
        cost = costs[one.arm]
        cells = (
            one.arm, str(one.runs), f"{one.mean:.5g}", _number(one.deviation),
            _number(one.difference, sign="+"), _number(one.error),
            {None: "", True: "yes", False: "no"}[one.resolved],
            f"{cost.kept:,}", f"{cost.training:.4g}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.3g}"


def write_csv(path: pathlib.Path, heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a CSV that appears whole."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(lines)


def write_runs(path: pathlib.Path, metric: str, rows: Sequence[Row]) -> None:
    """Write ``runs.csv``: a line for each finished run."""
    heads = ["arm", "group", "seed", metric, *_HEADS.values()]
    write_csv(path, heads, rows)
