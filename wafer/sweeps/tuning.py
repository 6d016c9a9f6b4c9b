"""Tuning of each arm: multiples of its own values, tried on one seed until none is better."""

import functools
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from wafer.sweeps.files import Sweep, SweepArm, tuned_arm
from wafer.sweeps.grid import Point, TuneGrid, search
from wafer.sweeps.rows import KnownRows, value_of
from wafer.sweeps.trials import Trial, with_earlier

DIVERGED = re.compile(r"the loss is -?(nan|inf)")  #: in the reason of a run whose loss diverged


class Tuned(NamedTuple):
    """What tuning chose for an arm."""

    arm: SweepArm  #: with the chosen values, under its own name
    trial: Trial  #: its run on tuning's seed
    grid: TuneGrid | None = None  #: None: its own values, not tuned
    point: Point = ()  #: chosen
    runs: tuple[Trial, ...] = ()  #: that it took

    @property
    def multiples(self) -> str:
        """Chosen multiples, for tables; '' where it is not tuned."""
        return "" if self.grid is None else self.grid.name(self.point).replace("x", " × ")


class Tuning(NamedTuple):
    """How far the tuning of a sweep is."""

    tuned: dict[str, Tuned]  #: arms whose tuning has ended
    runs: list[Trial]  #: of all arms, in their order, finished or not
    missing: dict[str, str]  #: name of a run -> why it is not finished


def tune(
    sweep: Sweep,
    folder: pathlib.Path,
    known: KnownRows,
    run: Callable[[Sequence[Trial]], dict[str, str]],
) -> Tuning:
    """Tune the arms of a sweep as far as they are not; all arms advance together.

    Args:
        sweep: checked.
        folder: of the sweep's runs.
        known: rows of earlier tables.
        run: runs what it is given; returns name -> reason of those that are not finished.
    """
    tuned, missing = dict[str, Tuned](), dict[str, str]()
    runs: dict[str, dict[Point, Trial]] = {arm.name: {} for arm in sweep.arms}

    def trial(before: Trial | None, arm: SweepArm) -> Trial:
        seed = sweep.tune.seed if sweep.tune else 0
        return Trial(arm, seed, folder / arm.name / str(seed), before)

    while True:
        ended, todo = len(tuned), list[Trial]()
        for arm in sweep.arms:
            if arm.name in tuned or not {arm.after, arm.like} - {""} <= tuned.keys():
                continue
            start = functools.partial(trial, tuned[arm.after].trial if arm.after else None)
            if arm.grid is not None:
                choice, left = _advance(arm, sweep, start, known, runs[arm.name])
                todo += left
            else:
                choice = _untuned(arm, tuned.get(arm.like), start)
            if choice is not None:
                tuned[arm.name] = choice
        todo = [one for one in todo if one.name not in missing]
        if todo:
            missing |= _run_round(todo, run)
        elif ended == len(tuned):
            every = [t for tried in runs.values() for t in tried.values()]
            return Tuning(tuned, every, missing)


def _run_round(
    trials: Sequence[Trial], run: Callable[[Sequence[Trial]], dict[str, str]]
) -> dict[str, str]:
    """Run trials; one whose loss diverged is finished: its value is infinite."""
    reasons = run(with_earlier(trials))
    for trial in trials:
        if DIVERGED.search(reasons.get(trial.name, "")):
            trial.finish_diverged()
            del reasons[trial.name]
    return reasons


def _untuned(arm: SweepArm, like: Tuned | None, trial: Callable[[SweepArm], Trial]) -> Tuned:
    """Take an arm's own values, or another arm's multiples of them."""
    if like is None or like.grid is None:
        return Tuned(arm, trial(arm))
    chosen = tuned_arm(arm, like.grid, like.point, arm.name)
    return Tuned(chosen, trial(chosen), like.grid, like.point)


def _advance(
    arm: SweepArm,
    sweep: Sweep,
    trial: Callable[[SweepArm], Trial],
    known: KnownRows,
    runs: dict[Point, Trial],
) -> tuple[Tuned | None, list[Trial]]:
    """Return what tuning chose for an arm, or the runs that it needs next."""
    grid, sign = arm.grid, -1.0 if sweep.tune and sweep.tune.mode == "max" else 1.0
    assert grid is not None

    def value(point: Point) -> float | None:
        if point not in runs:
            runs[point] = trial(tuned_arm(arm, grid, point, f"{arm.name}@{grid.name(point)}"))
        reached = value_of(runs[point], sweep.metric or known.metric, known)
        return reached if reached is None or math.isinf(reached) else sign * reached

    tried, left = search(grid.counts, value)
    if left:
        return None, [runs[point] for point in left]
    best = min(tried, key=tried.__getitem__)
    chosen = arm._replace(sections=runs[best].arm.sections, experiment=runs[best].arm.experiment)
    return Tuned(chosen, runs[best], grid, best, tuple(runs[point] for point in tried)), []
