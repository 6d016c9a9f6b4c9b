"""``wafer sweep``, ``wafer.sweep``: a grid of run files over seeds, and the table of its arms."""

import argparse
import contextlib
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from wafer.errors import ConfigError, DataError, Problem
from wafer.models.user.trust import add_option, looking

if TYPE_CHECKING:
    from wafer.sweeps.files import Sweep
    from wafer.sweeps.law import Law
    from wafer.sweeps.rows import KnownRows
    from wafer.sweeps.table import Summary, TrialResult, TuneChoice
    from wafer.sweeps.trials import Trial
    from wafer.sweeps.tuning import Tuned

_LOG = logging.getLogger(__name__)


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number above 0")
    return int(text)


def _option(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE")
    return key, yaml.safe_load(value)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument("file", type=pathlib.Path, help="sweep YAML: base, arms, seeds, tune, …")
    parser.add_argument(
        "-o", "--model_dir", type=pathlib.Path, required=True, help="folder of all runs and tables"
    )
    parser.add_argument("--arms", nargs="+", default=(), metavar="ARM", help="these arms only")
    parser.add_argument(
        "--jobs", type=_positive, help="runs at a time (default: 1; of a cluster, all)"
    )
    parser.add_argument(
        "--executor",
        choices=("slurm", "local"),
        help="run them as jobs of SLURM, or of this machine",
    )
    parser.add_argument(
        "--executor_options",
        nargs="+",
        type=_option,
        default=(),
        metavar="KEY=VALUE",
        help="of submitit, such as slurm_partition=gpu timeout_min=240 cpus_per_task=8",
    )
    parser.add_argument(
        "--fit", action="store_true", help="fit loss = E + A / weights^a + B / tokens^b"
    )
    parser.add_argument(
        "--validate_only", action="store_true", help="check all run files, run none"
    )
    parser.add_argument(
        "--tables", action="store_true", help="write the tables of finished runs, run none"
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
    tuning: "tuple[TrialResult, ...]" = ()  #: finished tuning runs, as in ``tuning.csv``
    choices: "Mapping[str, TuneChoice] | None" = None  #: arm -> multiples that tuning chose

    def __repr__(self) -> str:
        from wafer.sweeps.table import markdown

        if not self.rows:
            return "no run is finished"
        return markdown(self.arms, self.metric, self.rows, self.choices)

    def _repr_html_(self) -> str:
        from wafer.models.shown.html import table
        from wafer.sweeps.table import tables

        parts = [table(*one) for one in tables(self.arms, self.metric, self.rows, self.choices)]
        if self.missing:
            parts.append(table("Not finished", ("run", "reason"), [*self.missing.items()]))
        return "".join(parts)


def sweep(
    source: str | os.PathLike[str] | Mapping[str, Any],
    model_dir: str | os.PathLike[str],
    *,
    arms: Sequence[str] = (),
    jobs: int | None = None,
    executor: str | None = None,
    executor_options: Mapping[str, object] | None = None,
    fit: bool = False,
    say: Callable[[str], object] = print,
) -> SweepOutcome:
    """Run a grid of arms over seeds as far as it is not, and compare the arms.

    Args:
        source: a sweep YAML, or what it holds: ``base`` (a run file or its sections), ``arms``,
            ``seeds``, ``tune``, ``first``, ``known``, ``metric``. Arms with a class or function of
            a cell run one after another in this process, the others as processes.
        model_dir: folder of all runs and tables; the same call goes on with what is there.
        arms: names of these arms alone.
        jobs: runs at a time; None is 1 here, and all that are ready on a cluster.
        executor: 'slurm' runs them as jobs there, 'local' on this machine in the same way; None as
            processes of this one.
        executor_options: of submitit, such as ``timeout_min`` and ``slurm_partition``.
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
        folder = pathlib.Path(model_dir)
        run = _runner(executor, executor_options or {}, jobs, folder, say=say)
        return _run(checked, folder, run, fit=fit, say=say)


def _main(args: argparse.Namespace) -> int:
    import jax

    jax.config.update("jax_platforms", "cpu")  # the accelerator is the runs'; here is only counting
    with _quiet():
        with looking() if args.validate_only else contextlib.nullcontext():
            checked = _checked(args.file, args.arms, fit=args.fit)
        dry = args.validate_only or args.tables
        given = args.executor, dict(args.executor_options), args.jobs, args.model_dir
        run = _none if dry else _runner(*given, say=_print)
        report = not args.validate_only
        outcome = _run(checked, args.model_dir, run, fit=args.fit, say=_print, report=report)
    if outcome.rows:
        _print(f"\n{outcome}", end="")
    for group, law in outcome.laws.items():
        _print(f"\n{_law_text(group, law)}")
    if dry or not outcome.missing:
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


def _none(trials: "Sequence[Trial]") -> dict[str, str]:
    """Run nothing."""
    return {trial.name: "not yet run" for trial in trials}


def _runner(
    executor: str | None,
    options: Mapping[str, object],
    jobs: int | None,
    folder: pathlib.Path,
    *,
    say: Callable[[str], object],
) -> "Callable[[Sequence[Trial]], dict[str, str]]":
    """Return what runs trials, so many at a time."""
    from wafer.sweeps.children import run_trials
    from wafer.sweeps.cluster import Cluster, submit_trials

    def ended(trial: "Trial", reason: str, seconds: float) -> None:
        what = f"not finished: {reason}" if reason else "finished"
        say(f"{trial.name}: {what} ({seconds:.1f} s)")

    if executor is None:
        if options:
            message = "these are of jobs; name their executor, 'slurm' or 'local'"
            raise ConfigError([Problem(("executor_options",), message)])
        return lambda trials: run_trials(trials, jobs or 1, ended, _train_here)
    cluster = Cluster(executor, options, jobs, folder)
    return lambda trials: submit_trials(trials, cluster, ended)


def _final_runs(
    checked: "Sweep",
    tuned: "Mapping[str, Tuned]",
    folder: pathlib.Path,
    known: "KnownRows",
    say: Callable[[str], object],
) -> "tuple[list[Trial], list[Trial]]":
    """All runs of tuned arms with the final seeds, and those to do."""
    from wafer.sweeps.rows import value_of
    from wafer.sweeps.trials import trials_of, with_earlier

    arms = tuple(tuned[arm.name].arm for arm in checked.arms if arm.name in tuned)
    trials = trials_of(arms, checked.seeds, folder)
    metric = checked.metric or known.metric
    left = [trial for trial in trials if value_of(trial, metric, known) is None]
    say(
        f"{len(arms)} arms, {len(checked.seeds)} seeds: {len(left)} of {len(trials)} runs "
        f"to do in {folder}"
    )
    return trials, with_earlier(left)


def _run(
    checked: "Sweep",
    folder: pathlib.Path,
    run: "Callable[[Sequence[Trial]], dict[str, str]]",
    *,
    fit: bool,
    say: Callable[[str], object],
    report: bool = True,
) -> SweepOutcome:
    """Tune, run the final seeds, and write the tables."""
    from wafer.models.errors import has
    from wafer.sweeps.rows import read_known
    from wafer.sweeps.trials import require_same_files
    from wafer.sweeps.tuning import tune

    def tuning(trials: "Sequence[Trial]") -> dict[str, str]:
        require_same_files(trials)
        say(f"tuning: {len(trials)} runs to do in {folder}")
        return run(trials)

    draws, known = has("matplotlib", "drawing the table"), read_known(checked.known)
    tuned, tried, missing = tune(checked, folder, known, tuning)
    trials, left = _final_runs(checked, tuned, folder, known, say)
    missing |= run(left)
    waiting = [arm.name for arm in checked.arms if arm.name not in tuned]
    if waiting:
        missing["final runs"] = f"tuning has not ended for {', '.join(waiting)}"
    if not report:
        return SweepOutcome((), (), "", folder, missing, {})
    return _report(
        checked, tuned, (trials, tried), known, folder, missing=missing, fit=fit, draws=draws
    )


def _train_here(trial: "Trial") -> None:
    from wafer.commands.run import evaluate, train

    options = trial.launch.options()
    if "mode" in options:
        evaluate(trial.sections(), options.get("checkpoint_path"))
    else:
        train(trial.sections(), **options)


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


def _report(
    checked: "Sweep",
    tuned: "Mapping[str, Tuned]",
    runs: "tuple[Sequence[Trial], Sequence[Trial]]",
    known: "KnownRows",
    folder: pathlib.Path,
    *,
    missing: dict[str, str],
    fit: bool,
    draws: bool,
) -> SweepOutcome:
    """Write runs.csv, tuning.csv, table.md, fit.csv and pictures."""
    from wafer.models.files import write_text
    from wafer.sweeps.law import FIT_HEADS, fit_groups, fit_lines
    from wafer.sweeps.pictures import draw, draw_law
    from wafer.sweeps.rows import RUNS, TUNING, metric_of, rows_of
    from wafer.sweeps.table import TuneChoice, summaries, write_csv, write_runs

    trials, tried = runs
    metric = metric_of(checked.metric or known.metric, [*trials, *tried]) or ""
    order = {arm.name: at for at, arm in enumerate(checked.arms)}
    rows = rows_of(sorted(trials, key=lambda t: order[t.arm.name]), metric, known)
    tuning = rows_of(tried, metric, known)
    if tuning:
        write_runs(folder / TUNING, metric, tuning)
    choices = {n: TuneChoice(t.multiples, len(t.runs)) for n, t in tuned.items() if t.multiples}
    fit = fit and not missing
    compared, laws = summaries(rows, checked.first), fit_groups(rows) if fit else {}
    outcome = SweepOutcome(
        tuple(rows), tuple(compared), metric, folder, missing, laws, tuple(tuning), choices
    )
    if not rows:
        return outcome
    write_runs(folder / RUNS, metric, rows)
    write_text(folder / "table.md", str(outcome))
    if fit:
        write_csv(folder / "fit.csv", FIT_HEADS, fit_lines(laws))
    if draws:
        draw(rows, metric, folder)
    if draws and fit:
        draw_law(rows, laws, metric, folder / "fit.png")
    return outcome


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
