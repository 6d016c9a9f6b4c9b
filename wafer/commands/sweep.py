"""``wafer sweep``: a grid of run files over seeds, run as far as it is not, and its table."""

import argparse
import contextlib
import logging
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wafer.errors import ConfigError, DataError, Problem
from wafer.models.user.trust import add_option, looking

if TYPE_CHECKING:
    from wafer.sweeps.files import Sweep
    from wafer.sweeps.table import TrialResult
    from wafer.sweeps.trials import Trial

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


def _main(args: argparse.Namespace) -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")  # the accelerator is the runs'; here is only counting
    log = logging.getLogger("wafer.sparsity")
    level = log.level
    log.setLevel(logging.ERROR)  # each run says what is sparse itself
    try:
        return _sweep(args)
    finally:
        log.setLevel(level)


def _sweep(args: argparse.Namespace) -> int:
    from wafer.models.errors import has
    from wafer.sweeps.children import run_trials
    from wafer.sweeps.files import read_sweep
    from wafer.sweeps.trials import trials_of

    with looking() if args.validate_only else contextlib.nullcontext():
        sweep = read_sweep(args.file, args.arms)
    if args.fit:
        _check_fit(sweep, args.file)
    trials = trials_of(sweep.arms, sweep.seeds, args.model_dir)
    left = [trial for trial in trials if trial.result() is None]
    sys.stdout.write(
        f"{len(sweep.arms)} arms, {len(sweep.seeds)} seeds: {len(left)} of {len(trials)} runs to "
        f"do in {args.model_dir}\n"
    )
    sys.stdout.flush()
    if args.validate_only:
        return 0
    draws = has("matplotlib", "drawing the table")
    reasons = run_trials(left, args.jobs, _say)
    ended = [trial for trial in trials if trial.result() is not None]
    if ended:
        _report(sweep, ended, args.model_dir, fit=args.fit and not reasons, draws=draws)
    if not reasons:
        return 0
    lines = "".join(f"\n  {name}: {reason}" for name, reason in reasons.items())
    more = "; --fit waits for them" if args.fit else ""
    raise DataError(f"{len(reasons)} of {len(trials)} runs are not finished{more}{lines}")


def _say(trial: "Trial", reason: str, seconds: float) -> None:
    what = f"not finished: {reason}" if reason else "finished"
    sys.stdout.write(f"{trial.name}: {what} ({seconds:.1f} s)\n")
    sys.stdout.flush()


def _check_fit(sweep: "Sweep", path: pathlib.Path) -> None:
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
        raise ConfigError(problems, str(path))


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
    sweep: "Sweep", trials: "Sequence[Trial]", folder: pathlib.Path, *, fit: bool, draws: bool
) -> None:
    """Write runs.csv, table.md and pictures; print the table."""
    from wafer.models.files import write_text
    from wafer.sweeps.pictures import draw
    from wafer.sweeps.table import markdown, summaries, write_runs

    metric = _metric(sweep, trials)
    order = {arm.name: at for at, arm in enumerate(sweep.arms)}
    rows = [_row(trial, metric) for trial in sorted(trials, key=lambda t: order[t.arm.name])]
    write_runs(folder / "runs.csv", metric, rows)
    text = markdown(summaries(rows, sweep.arms[0].name), metric, rows)
    write_text(folder / "table.md", text)
    if draws:
        draw(rows, metric, folder)
    sys.stdout.write(f"\n{text}")
    if fit:
        _fit(rows, metric, folder, draws=draws)


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


def _fit(rows: "Sequence[TrialResult]", metric: str, folder: pathlib.Path, *, draws: bool) -> None:
    from wafer.sweeps.law import FIT_HEADS, fit_groups, fit_lines
    from wafer.sweeps.pictures import draw_law
    from wafer.sweeps.table import write_csv

    laws = fit_groups(rows)
    write_csv(folder / "fit.csv", FIT_HEADS, fit_lines(laws))
    if draws:
        draw_law(rows, laws, metric, folder / "fit.png")
    for group, law in laws.items():
        said = ", ".join(
            f"{name} = {law.constants[name]:.4g} ({law.low[name]:.3g} to {law.high[name]:.3g})"
            for name in law.constants
        )
        sys.stdout.write(
            f"\n{group}, {law.runs} runs: loss = E + A / weights^a + B / tokens^b\n  {said}\n"
            f"  every run within {law.worst:.2%} of it; believe it from {law.parameters[0]:,.0f} "
            f"to {law.parameters[1]:,.0f} weights and from {law.tokens[0]:,.0f} to "
            f"{law.tokens[1]:,.0f} tokens, not beyond\n"
            f"  least loss for a number of FLOPs: weights grow as its power {law.growth:.2f}\n"
        )
