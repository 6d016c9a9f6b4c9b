"""Rows of finished runs: from earlier tables of the same runs, else from results on the disk.

A run that is repeated for its weights keeps its row, so that what tuning chose stays.
"""

import functools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wafer.errors import ConfigError, Problem
from wafer.models.errors import did_you_mean
from wafer.sweeps.costs import costs_of
from wafer.sweeps.table import TrialResult, read_runs
from wafer.sweeps.trials import Trial

RUNS, TUNING = "runs.csv", "tuning.csv"
_BITS = "eval/bits_per_byte"


class KnownRows(NamedTuple):
    """Rows of earlier tables, whose runs need no repetition."""

    metric: str | None = None  #: that they hold; None where there are none
    rows: Mapping[tuple[str, int], TrialResult] = {}  #: (arm, seed) -> its row

    def get(self, trial: Trial) -> TrialResult | None:
        """Return the row of a run, if its run file was the same."""
        row = self.rows.get((trial.arm.name, trial.seed))
        return row if row is not None and row.run_file == trial.digest else None


def read_known(folder: pathlib.Path | None) -> KnownRows:
    """Read the tables of a folder, as far as they are there.

    Raises:
        ConfigError: a table of another form, or tables of two metrics.
    """
    tables = [] if folder is None else [folder / name for name in (RUNS, TUNING)]
    read = [read_runs(path) for path in tables if path.exists()]
    metrics = sorted({metric for metric, _ in read})
    if len(metrics) > 1:
        message = f"{folder}: tables of {' and '.join(metrics)}; expected one metric"
        raise ConfigError([Problem(("known",), message)])
    rows = {(row.arm, row.seed): row for _, own in read for row in own}
    return KnownRows(metrics[0] if metrics else None, rows)


def metric_of(asked: str | None, trials: Iterable[Trial]) -> str | None:
    """Name the metric that all finished runs have; None where none is finished.

    Raises:
        ConfigError: they do not have the one that is asked for.
    """
    results = [result.metrics for trial in trials if (result := trial.result()) and result.metrics]
    if not results:
        return asked
    shared = sorted(functools.reduce(lambda a, b: a & b.keys(), results, set(results[0])))
    metric = asked or (_BITS if _BITS in shared else "loss")
    if metric not in shared:
        message = f"{metric!r}: no metric of all evaluations{did_you_mean(metric, shared)}"
        raise ConfigError([Problem(("metric",), f"{message}; these have {', '.join(shared)}")])
    return metric


def value_of(trial: Trial, asked: str | None, known: KnownRows) -> float | None:
    """Return what a run reached, infinity where it diverged; None: it is not finished.

    Args:
        trial: any.
        asked: name of the metric; None for the default.
        known: rows of earlier tables.
    """
    if (row := known.get(trial)) is not None:
        return row.metric
    if (result := trial.result()) is None:
        return None
    return result.metrics.get(metric_of(asked, [trial]) or "", math.inf)


def rows_of(trials: Sequence[Trial], metric: str | None, known: KnownRows) -> list[TrialResult]:
    """Return the rows of finished runs, in their order.

    Args:
        trials: any.
        metric: name of the value in each row; None where none is finished.
        known: rows of earlier tables.
    """
    return [row for trial in trials if (row := _row(trial, metric or "", known)) is not None]


def _row(trial: Trial, metric: str, known: KnownRows) -> TrialResult | None:
    row, result = known.get(trial), trial.result()
    if row is not None or result is None:
        return row
    costs = costs_of(trial.arm.experiment, trial.arm.steps, result.levels)
    group = trial.arm.group or ("dense" if costs.kept == costs.parameters else "sparse")
    value, seconds = result.metrics.get(metric, math.inf), result.seconds
    earlier = trial.before and _row(trial.before, metric, known)
    if earlier:  # what its weights have cost so far
        costs = costs._replace(
            tokens=costs.tokens + earlier.tokens, training=costs.training + earlier.training
        )
        seconds += earlier.seconds
    return TrialResult(trial.arm.name, group, trial.seed, value, *costs, seconds, trial.digest)
