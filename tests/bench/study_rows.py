"""Rows and plans of the study: ``docs/results/study``."""

import csv
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import yaml

from wafer.sweeps.grid import TuneGrid, read_grid
from wafer.sweeps.table import TrialResult, read_runs, write_runs

HERE = pathlib.Path(__file__).resolve().parents[2]
RAW = HERE / "docs/results/study"
METRIC = "eval/bits_per_byte"
SWEEPS = ("study", "lengths", "start", "law", "narrow")
FIRST = "static80-first"  # gives dense-from-static80 its weights, and trains nothing
STEPS, USUAL = 300, {1: 4, 2: 8}  # keys that are tuned -> runs that tuning usually takes


class Plan(NamedTuple):
    """What a sweep file will run; arms that an earlier sweep of ``SWEEPS`` has are left out."""

    name: str  #: of the file
    seeds: tuple[int, ...]  #: of final runs
    steps: dict[str, int]  #: arm -> steps of a run
    grids: dict[str, TuneGrid]  #: tuned arm -> its multiples
    tuning: dict[str, int]  #: tuned arm -> runs of tuning, as many as usual or as there are
    tuned: dict[str, int]  #: tuned arm -> of them finished


def read_rows(table: str, folder: pathlib.Path = RAW) -> list[TrialResult]:
    """Read ``TABLE.csv``; no rows where there is no file."""
    path = folder / f"{table}.csv"
    return read_runs(path)[1] if path.exists() else []


def read_known_rows(folder: pathlib.Path) -> tuple[list[TrialResult], list[TrialResult]]:
    """Read final runs and tuning runs of a folder."""
    return read_rows("runs", folder), read_rows("tuning", folder)


def of_arms(runs: Iterable[TrialResult]) -> list[TrialResult]:
    """Leave out runs of the law and its test, and of what is no arm."""
    return [row for row in runs if not row.arm.startswith(("law-", "test-", FIRST))]


def merge_rows(table: str, rows: Iterable[TrialResult], folder: pathlib.Path = RAW) -> None:
    """Add rows to ``TABLE.csv``; of two rows of one run the later one stays."""
    by_run = {(row.arm, row.seed): row for row in [*read_rows(table, folder), *rows]}
    if by_run:
        ordered = sorted(by_run.values(), key=lambda row: (row.arm, row.seed))
        write_runs(folder / f"{table}.csv", METRIC, ordered)


def read_seconds(folder: pathlib.Path) -> tuple[dict[str, float], str]:
    """Read the seconds of whole trainings, and where and when they were measured."""
    path = folder / "seconds.csv"
    if not path.exists():
        return {}, ""
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    about = sorted({f"{line['processor']}, load {line['load']}, {line['date']}" for line in lines})
    return {line["arm"]: float(line["seconds"]) for line in lines}, "; ".join(about)


def plans(folder: pathlib.Path, tuning: Sequence[TrialResult]) -> list[Plan]:
    """Read the sweep files of a folder as plans.

    Args:
        folder: with the sweep files.
        tuning: finished tuning runs.
    """
    seen, out = set[str](), []
    for path in (folder / f"{name}.yaml" for name in SWEEPS):
        if not path.exists():
            continue
        sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
        arms: dict[str, Any] = {}
        for pattern in sweep.get("arm_files", []):
            for file in sorted(folder.glob(pattern)):
                arms |= yaml.safe_load(file.read_text(encoding="utf-8"))
        arms |= sweep.get("arms", {})
        own = {name: changes or {} for name, changes in arms.items() if name not in seen}
        seen |= own.keys()
        out.append(_plan(path.stem, sweep, own, tuning))
    return out


def _plan(name: str, sweep: Any, arms: dict[str, Any], tuning: Sequence[TrialResult]) -> Plan:
    steps = {arm: int(own.get("runconfig.max_steps", STEPS)) for arm, own in arms.items()}
    times = {arm: own.get("tune", sweep["tune"]["times"]) for arm, own in arms.items()}
    grids = {arm: read_grid(one) for arm, one in times.items() if one and not isinstance(one, str)}
    done = {arm: sum(row.arm.startswith(f"{arm}@") for row in tuning) for arm in grids}
    usual = {arm: max(done[arm], USUAL[len(grid.keys)]) for arm, grid in grids.items()}
    return Plan(name, tuple(sweep["seeds"]), steps, grids, usual, done)
