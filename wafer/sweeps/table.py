"""From runs to a table: mean, standard deviation, and differences between runs of one seed.

Differences are paired by seed and tested by Student's t; all pairs of arms of a table share its
level of 5 % by Holm's method (Holm 1979).
"""

import csv
import itertools
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wafer.errors import ConfigError, Problem
from wafer.models.files import atomic_write

_LEVEL = 0.05


class TrialResult(NamedTuple):
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
    run_file: str = ""  #: digest of its run file's sections and of the run that it comes after


_HEADS = {
    "parameters": "parameters",
    "kept": "weights_kept",
    "tokens": "tokens",
    "training": "training_flops",
    "inference": "inference_flops_per_token",
    "seconds": "seconds",
    "run_file": "run_file",
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
    p: float | None  #: of that difference, as in ``PairedArms``

    @property
    def resolved(self) -> bool | None:
        """Whether the difference is one at 5 %."""
        return None if self.p is None else self.p <= _LEVEL


class PairedArms(NamedTuple):
    """Two arms over the seeds that both have."""

    arm: str
    other: str
    seeds: tuple[int, ...]
    difference: float  #: mean of (arm - other), seed by seed
    error: float | None  #: standard error of that mean; None for one seed
    #: two-sided, by Student's t with n - 1 degrees of freedom, adjusted by Holm's method for all
    #: pairs of the table; None for one seed
    p: float | None

    @property
    def resolved(self) -> bool | None:
        """Whether the difference is one at 5 %."""
        return None if self.p is None else self.p <= _LEVEL


class TuneChoice(NamedTuple):
    """What tuning chose for an arm."""

    multiples: str  #: of the arm's own values, in the order of the tuned keys
    runs: int  #: that it took; 0 where another arm's multiples are taken


def summaries(rows: Sequence[TrialResult], first: str) -> list[Summary]:
    """Summarise arms, in the order of their first rows.

    Args:
        rows: of finished runs.
        first: name of the arm that the others are compared with.
    """
    with_first: dict[str, PairedArms] = {}
    for pair in pairs(rows):
        if pair.other == first:
            with_first[pair.arm] = pair
        elif pair.arm == first:
            with_first[pair.other] = pair._replace(difference=-pair.difference)
    return [_summary(arm, own, with_first.get(arm)) for arm, own in _by_arm(rows).items()]


def _by_arm(rows: Iterable[TrialResult]) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for row in rows:
        values.setdefault(row.arm, {})[row.seed] = row.metric
    return values


def _summary(arm: str, own: dict[int, float], pair: PairedArms | None) -> Summary:
    deviation = statistics.stdev(own.values()) if len(own) > 1 else None
    mean, runs = statistics.fmean(own.values()), len(own)
    if pair is None:
        return Summary(arm, runs, mean, deviation, 0, None, None, None)
    rest = len(pair.seeds), pair.difference, pair.error, pair.p
    return Summary(arm, runs, mean, deviation, *rest)


def pairs(rows: Iterable[TrialResult]) -> list[PairedArms]:
    """Compare every two arms that share a seed, each with those before it.

    Args:
        rows: of finished runs.
    """
    values = _by_arm(rows)
    compared = [
        pair
        for other, arm in itertools.combinations(values, 2)
        if (pair := paired(arm, other, values[arm], values[other])).seeds
    ]
    return holm(compared)


def holm(family: Sequence[PairedArms]) -> list[PairedArms]:
    """Adjust the p of comparisons that share one level (Holm 1979).

    Args:
        family: of ``paired``, each with its own p; None is left out.
    """
    tested = sorted((p, index) for index, pair in enumerate(family) if (p := pair.p) is not None)
    adjusted, highest = dict[int, float](), 0.0
    for rank, (p, index) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - rank) * p))
        adjusted[index] = highest
    return [pair._replace(p=adjusted.get(index)) for index, pair in enumerate(family)]


def paired(
    arm: str, other: str, values: Mapping[int, float], others: Mapping[int, float]
) -> PairedArms:
    """Compare two arms seed by seed; p is of this comparison alone.

    Args:
        arm: name of the first.
        other: name of the second.
        values: seed -> value of the first.
        others: seed -> value of the second.
    """
    seeds = tuple(seed for seed in values if seed in others)
    differences = [values[seed] - others[seed] for seed in seeds]
    mean = statistics.fmean(differences) if seeds else 0.0
    if len(seeds) < 2:
        return PairedArms(arm, other, seeds, mean, None, None)
    error = statistics.stdev(differences) / math.sqrt(len(seeds))
    return PairedArms(arm, other, seeds, mean, error, _two_sided(mean, error, len(seeds) - 1))


def _two_sided(mean: float, error: float, freedom: int) -> float:
    """Chance of a t this far from 0 where there is no difference."""
    from scipy import stats  # half a second to import

    if not error:
        return 0.0 if mean else 1.0
    return float(2 * stats.t.sf(abs(mean) / error, freedom))


Printed = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, heads, rows of cells


def tables(
    arms: Iterable[Summary],
    metric: str,
    rows: Sequence[TrialResult],
    choices: Mapping[str, TuneChoice] | None = None,
) -> tuple[Printed, Printed]:
    """Lay the arms of a sweep out, and its pairs of arms.

    Args:
        arms: of ``summaries``.
        metric: that they hold.
        rows: of finished runs.
        choices: arm -> what tuning chose; two more columns where there are any.
    """
    tuned = choices or {}
    heads = (
        "arm", "n", metric, "standard deviation", "difference to the first", "standard error",
        "p", "resolved", "weights kept", "training FLOPs",
        *(("tuning runs", "multiples") if tuned else ()),
    )  # fmt: skip
    costs = {row.arm: row for row in rows}
    lines = [
        (
            s.arm, str(s.runs), f"{s.mean:.5g}", _number(s.deviation),
            _number(s.difference, sign="+"), _number(s.error), _number(s.p),
            _ANSWERS[s.resolved], f"{costs[s.arm].kept:,}", f"{costs[s.arm].training:.4g}",
            *_tuning_cells(tuned, s.arm),
        )
        for s in arms
    ]  # fmt: skip
    paired = [
        (
            f"{pair.arm} − {pair.other}", " ".join(map(str, pair.seeds)),
            _number(pair.difference, sign="+"), _number(pair.error), _number(pair.p),
            _ANSWERS[pair.resolved],
        )
        for pair in pairs(rows)
    ]  # fmt: skip
    pair_heads = ("arms", "seeds", "difference", "standard error", "p", "resolved")
    return ("Arms", heads, lines), ("Pairs of arms", pair_heads, paired)


def _tuning_cells(choices: Mapping[str, TuneChoice], arm: str) -> tuple[str, ...]:
    if not choices:
        return ()
    choice = choices.get(arm, TuneChoice("", 0))
    return (str(choice.runs or ""), choice.multiples)


def markdown(
    arms: Iterable[Summary],
    metric: str,
    rows: Sequence[TrialResult],
    choices: Mapping[str, TuneChoice] | None = None,
) -> str:
    """Write the tables of a sweep.

    Args:
        arms: of ``summaries``.
        metric: that they hold.
        rows: of finished runs.
        choices: arm -> what tuning chose.
    """
    line = lambda cells: f"| {' | '.join(cells)} |\n"
    return "\n".join(
        line(heads) + "|---" * len(heads) + "|\n" + "".join(map(line, cells))
        for _, heads, cells in tables(arms, metric, rows, choices)
    )


_ANSWERS = {None: "", True: "yes", False: "no"}


def _number(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{value:{sign}.3g}"


def write_csv(path: pathlib.Path, heads: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    """Write a CSV that appears whole."""
    with atomic_write(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(lines)


def write_runs(path: pathlib.Path, metric: str, rows: Sequence[TrialResult]) -> None:
    """Write ``runs.csv``: a line for each finished run."""
    heads = ["arm", "group", "seed", metric, *_HEADS.values()]
    write_csv(path, heads, rows)


def read_runs(path: pathlib.Path) -> tuple[str, list[TrialResult]]:
    """Read what ``write_runs`` wrote: the metric's name, and rows.

    Raises:
        ConfigError: no such file, or another table.
    """
    if not path.is_file():
        raise ConfigError([Problem((), "no such file; expected a table of runs")], str(path))
    with path.open(encoding="utf-8", newline="") as file:
        heads, *lines = [*csv.reader(file)] or [[]]
    if heads[:3] + heads[4:] != ["arm", "group", "seed", *_HEADS.values()]:
        message = f"columns {', '.join(heads)}; expected those of a runs.csv"
        raise ConfigError([Problem((), message)], str(path))
    return heads[3], [
        TrialResult(
            arm, group, int(seed), float(value), *map(int, counts[:3]), *map(float, counts[3:6]),
            run_file=counts[6],
        )
        for arm, group, seed, value, *counts in lines
    ]  # fmt: skip
