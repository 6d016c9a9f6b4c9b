"""``wafer sweep``, ``wafer.sweep``: a grid of run files over seeds, and the table of its arms."""

import argparse
import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wafer.errors import ConfigError, DataError, Problem
from wafer.models.user.trust import add_option, looking

if TYPE_CHECKING:
    from wafer.sweeps.files import Sweep
    from wafer.sweeps.law import Law
    from wafer.sweeps.table import Summary, TrialResult
    from wafer.sweeps.trials import Trial

_LOG = logging.getLogger(__name__)
_BITS = "eval/bits_per_byte"


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("file", type=pathlib.Path, help="sweep YAML: base, arms, seeds, metric")
    parser.add_argument(
        "-o", "--model_dir", type=pathlib.Path, required=True, help="folder of all runs and tables"
    )
    parser.add_argument("--arms", nargs="+", default=(), metavar="ARM", help="these arms only")
    parser.add_argument("--jobs", type=_positive, default=1, help="runs at a time (default: 1)")
    parser.add_argument(
        "--fit", action="store_true", help="fit loss = E + A / weights^a + B / tokens^b"
    )
    parser.add_argument(
        "--validate_only", action="store_true", help="check all run files, run none"
    )
    add_option(parser)
    parser.set_defaults(run=_main)


class SweepOutcome(NamedTuple):
    """What a sweep has reached so far."""

    rows: "tuple[TrialResult, ...]"  #: finished runs, in the order of the arms
    arms: "tuple[Summary, ...]"  #: each arm over its seeds, beside the first arm
    metric: str  #: that both hold
    folder: pathlib.Path  #: of runs, ``runs.csv``, ``table.md`` and pictures
    missing: dict[str, str]  #: ARM/SEED -> why it is not finished
    laws: "dict[str, Law]"  #: group -> its fit; empty without ``fit``, or while runs are missing

    def __repr__(self) -> str:
        from wafer.sweeps.table import markdown

        return markdown(self.arms, self.metric, self.rows) if self.rows else "no run is finished"

    def _repr_html_(self) -> str:
        from wafer.models.shown.html import table
        from wafer.sweeps.table import tables

        parts = [table(*one) for one in tables(self.arms, self.metric, self.rows)]
        if self.missing:
            parts.append(table("Not finished", ("run", "reason"), [*self.missing.items()]))
        return "".join(parts)


def sweep(
    source: str | os.PathLike[str] | Mapping[str, Any],
    model_dir: str | os.PathLike[str],
    *,
    arms: Sequence[str] = (),
    jobs: int = 1,
    fit: bool = False,
    say: Callable[[str], object] = print,
) -> SweepOutcome:
    """Run a grid of arms over seeds as far as it is not, and compare the arms.

    Args:
        source: a sweep YAML, or what it holds: ``base`` (a run file or its sections), ``arms``,
            ``seeds``, ``metric``. Arms with a class or function of a cell run one after another in
            this process, the others as processes.
        model_dir: folder of all runs and tables; the same call goes on with what is there.
        arms: names of these arms alone.
        jobs: runs at a time.
        fit: fit loss = E + A / weights^a + B / tokens^b to each group.
        say: called with a line for each run that ends; ``logging.info`` prints nothing by itself.

    Returns:
        Finished runs, and arms beside the first one; printed, its table.

    Raises:
        ConfigError: everything that is wrong with the sweep or its run files, before the first run.

    Examples:
        >>> grid = {
        ...     "base": "models/configs/gpt_pystdlib.yaml",
        ...     "seeds": [1, 2, 3],
        ...     "arms": {"dense": {"sparsity": None}, "rigl": {}},
        ... }
        >>> print(wafer.sweep(grid, "runs/sweep"))  # doctest: +SKIP
    """
    with _quiet():
        checked = _checked(source, arms, fit=fit)
        return _run(checked, pathlib.Path(model_dir), jobs, fit, say)


def _main(args: argparse.Namespace) -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")  # the accelerator is the runs'; here is only counting
    with _quiet():
        with looking() if args.validate_only else contextlib.nullcontext():
            checked = _checked(args.file, args.arms, fit=args.fit)
        if args.validate_only:
            _trials(checked, args.model_dir, _print)
            return 0
        outcome = _run(checked, args.model_dir, args.jobs, args.fit, _print)
    if outcome.rows:
        _print(f"\n{outcome}", end="")
    for group, law in outcome.laws.items():
        _print(f"\n{_law_text(group, law)}")
    if not outcome.missing:
        return 0
    lines = "".join(f"\n  {name}: {reason}" for name, reason in outcome.missing.items())
    more = "; --fit waits for them" if args.fit else ""
    runs = len(outcome.rows) + len(outcome.missing)
    raise DataError(f"{len(outcome.missing)} of {runs} runs are not finished{more}{lines}")


def _print(line: str, end: str = "\n") -> None:
    sys.stdout.write(f"{line}{end}")
    sys.stdout.flush()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Each run says what is sparse itself."""
    log = logging.getLogger("wafer.sparsity")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _checked(source: Any, arms: Sequence[str], *, fit: bool) -> "Sweep":
    from wafer.sweeps.files import read_sweep

    checked = read_sweep(source, arms)
    if fit:
        _check_fit(checked, "" if isinstance(source, Mapping) else str(source))
    return checked


def _trials(
    checked: "Sweep", folder: pathlib.Path, say: Callable[[str], object]
) -> "tuple[list[Trial], list[Trial]]":
    """All runs, and those to do."""
    from wafer.sweeps.trials import trials_of

    trials = trials_of(checked.arms, checked.seeds, folder)
    left = [trial for trial in trials if trial.result() is None]
    say(
        f"{len(checked.arms)} arms, {len(checked.seeds)} seeds: {len(left)} of {len(trials)} runs "
        f"to do in {folder}"
    )
    return trials, left


def _run(
    checked: "Sweep", folder: pathlib.Path, jobs: int, fit: bool, say: Callable[[str], object]
) -> SweepOutcome:
    from wafer.models.errors import has
    from wafer.sweeps.children import run_trials

    def ended(trial: "Trial", reason: str, seconds: float) -> None:
        what = f"not finished: {reason}" if reason else "finished"
        say(f"{trial.name}: {what} ({seconds:.1f} s)")

    trials, left = _trials(checked, folder, say)
    draws = has("matplotlib", "drawing the table")
    missing = run_trials(left, jobs, ended, _train_here)
    finished = [trial for trial in trials if trial.result() is not None]
    if not finished:
        return SweepOutcome((), (), checked.metric or "", folder, missing, {})
    return _report(checked, finished, folder, missing, fit=fit and not missing, draws=draws)


def _train_here(trial: "Trial") -> int:
    from wafer.commands.run import evaluate, train

    options = trial.options()
    if "mode" in options:
        evaluate(trial.sections(), options.get("checkpoint_path"))
        return 0
    return train(trial.sections(), **options).stop


def _check_fit(sweep: "Sweep", source: str) -> None:
    """Refuse a fit that will have too few points, before the first run."""
    from wafer.sweeps.costs import costs_of
    from wafer.sweeps.law import refusal

    groups: dict[str, list[tuple[float, float]]] = {}
    for arm in sweep.arms:
        costs = costs_of(arm.experiment, arm.steps)
        group = arm.group or ("dense" if costs.kept == costs.parameters else "sparse")
        groups.setdefault(group, []).append((costs.kept, costs.tokens))
    problems = [
        Problem(("fit", g), why) for g, points in groups.items() if (why := refusal(points))
    ]
    if problems:
        raise ConfigError(problems, source)


def _metric(sweep: "Sweep", trials: "Sequence[Trial]") -> str:
    """Name the metric that all runs have."""
    known = [set(result.metrics) for trial in trials if (result := trial.result())]
    shared = sorted(set.intersection(*known))
    metric = sweep.metric or (_BITS if _BITS in shared else "loss")
    if metric not in shared:
        from wafer.models.errors import did_you_mean

        message = f"{metric!r}: no metric of all evaluations{did_you_mean(metric, shared)}"
        raise ConfigError([Problem(("metric",), f"{message}; these have {', '.join(shared)}")])
    return metric


def _report(
    sweep: "Sweep",
    trials: "Sequence[Trial]",
    folder: pathlib.Path,
    missing: dict[str, str],
    *,
    fit: bool,
    draws: bool,
) -> SweepOutcome:
    """Write runs.csv, table.md, fit.csv and pictures."""
    from wafer.models.files import write_text
    from wafer.sweeps.law import FIT_HEADS, fit_groups, fit_lines
    from wafer.sweeps.pictures import draw, draw_law
    from wafer.sweeps.table import summaries, write_csv, write_runs

    metric = _metric(sweep, trials)
    order = {arm.name: at for at, arm in enumerate(sweep.arms)}
    rows = [_row(trial, metric) for trial in sorted(trials, key=lambda t: order[t.arm.name])]
    compared, laws = summaries(rows, sweep.arms[0].name), fit_groups(rows) if fit else {}
    outcome = SweepOutcome(tuple(rows), tuple(compared), metric, folder, missing, laws)
    write_runs(folder / "runs.csv", metric, rows)
    write_text(folder / "table.md", str(outcome))
    if fit:
        write_csv(folder / "fit.csv", FIT_HEADS, fit_lines(laws))
    if draws:
        draw(rows, metric, folder)
    if draws and fit:
        draw_law(rows, laws, metric, folder / "fit.png")
    return outcome


def _row(trial: "Trial", metric: str) -> "TrialResult":
    from wafer.sweeps.costs import costs_of
    from wafer.sweeps.table import TrialResult

    result = trial.result()
    if result is None:  # listed as ended
        raise DataError(f"{trial.folder}: its result was removed meanwhile")
    costs = costs_of(trial.arm.experiment, trial.arm.steps, result.levels)
    group = trial.arm.group or ("dense" if costs.kept == costs.parameters else "sparse")
    value, seconds = result.metrics[metric], result.seconds
    if trial.before is not None:  # what its weights have cost so far
        earlier = _row(trial.before, metric)
        costs = costs._replace(
            tokens=costs.tokens + earlier.tokens, training=costs.training + earlier.training
        )
        seconds += earlier.seconds
    return TrialResult(trial.arm.name, group, trial.seed, value, *costs, seconds=seconds)


def _law_text(group: str, law: "Law") -> str:
    """A fit in words."""
    said = ", ".join(
        f"{name} = {law.constants[name]:.4g} ({law.low[name]:.3g} to {law.high[name]:.3g})"
        for name in law.constants
    )
    return (
        f"{group}, {law.runs} runs: loss = E + A / weights^a + B / tokens^b\n  {said}\n"
        f"  every run within {law.worst:.2%} of it; believe it from {law.parameters[0]:,.0f} "
        f"to {law.parameters[1]:,.0f} weights and from {law.tokens[0]:,.0f} to "
        f"{law.tokens[1]:,.0f} tokens, not beyond\n"
        f"  least loss for a number of FLOPs: weights grow as its power {law.growth:.2f}"
    )
