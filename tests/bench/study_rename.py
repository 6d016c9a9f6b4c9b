"""Rows of the study's first driver, under the names of `wafer sweep`'s tuning. Used once.

    python tests/bench/study_rename.py FOLDER

FOLDER: its STAGE.csv, or its stages' folders, finished or not. A row ``l-static80_0.012_0.04024``
becomes ``static80@4x2`` of docs/results/study/tuning.csv: multiples of the arm's own rate and
scale. A final row joins runs.csv with the multiples that FOLDER's final.yaml (or final/sweep.yaml)
gives its arm.
"""

import csv
import json
import math
import pathlib
import re
import sys

import yaml
from study_rows import METRIC, RAW, merge_rows, read_rows

from wafer.sweeps.costs import costs_of
from wafer.sweeps.files import SweepArm, read_sweep, tuned_arm
from wafer.sweeps.table import TrialResult
from wafer.sweeps.trials import Trial

RENAMED = {"l-dense-f80": "dense-180", "l-dense-f90": "dense-165"}
RATE, TUNING = 0.003, 11


def new_name(old: str) -> str:
    """``l-rigl80`` -> ``rigl80``, ``s-rigl80`` -> ``rigl80-w64``."""
    size, name = old.split("-", 1)
    return RENAMED.get(old, name if size == "l" else f"{name}-w64")


def scale_of(arm: SweepArm) -> float:
    return arm.sections["model"]["initializer_range"]


def renamed(
    row: TrialResult, arm: SweepArm, rate: float, scale: float, tuning: bool
) -> TrialResult:
    """Return a row under its new name; an arm's scale was rounded to 5 digits."""
    grid = arm.grid
    point = tuple(round(math.log2(ratio)) for ratio in (rate / RATE, scale / scale_of(arm)))
    apart = scale / scale_of(arm) / 2.0 ** point[1] - 1
    if grid is None or abs(apart) > 0.002:
        raise SystemExit(f"{row.arm}: the scale {scale} is no power of 2 times {scale_of(arm)}")
    name = f"{arm.name}@{grid.name(point)}" if tuning else arm.name
    chosen = tuned_arm(arm, grid, point, name)
    if not row.parameters:  # of a stage that is not finished
        costs = costs_of(chosen.experiment, chosen.steps)
        group = "dense" if costs.kept == costs.parameters else "sparse"
        row = row._replace(group=group, **costs._asdict())
    digest = Trial(chosen, row.seed, pathlib.Path()).digest
    return row._replace(arm=name, run_file=digest)


def old_rows(folder: pathlib.Path) -> list[TrialResult]:
    rows = []
    for path in [*sorted(folder.glob("*.csv")), *sorted(folder.glob("*/runs.csv"))]:
        with path.open(encoding="utf-8", newline="") as file:
            heads, *lines = csv.reader(file)
        if heads[-1] == "seconds":  # before run_file
            rows += [
                TrialResult(a, g, int(s), float(v), *map(int, c[:3]), *map(float, c[3:]))
                for a, g, s, v, *c in lines
            ]
    for path in sorted(folder.glob("*/*/*/result.json")):
        result, seed = json.loads(path.read_text(encoding="utf-8")), int(path.parent.name)
        known = (path.parent.parent.name, seed)
        if known not in {(row.arm, row.seed) for row in rows}:
            bits = result["metrics"][METRIC]
            rows.append(TrialResult(known[0], "", seed, bits, 0, 0, 0, 0, 0, result["seconds"]))
    return rows


def final_pairs(folder: pathlib.Path) -> dict[str, tuple[float, float]]:
    """Old name of an arm -> rate and scale of its final runs."""
    paths = [p for p in (folder / "final.yaml", folder / "final/sweep.yaml") if p.exists()]
    arms = yaml.safe_load(paths[0].read_text())["arms"] if paths else {}
    return {
        name: (
            arm["optimizer.learning_rate"][0]["end_learning_rate"],
            arm["model.initializer_range"],
        )
        for name, arm in arms.items()
    }


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    sweeps = [read_sweep(RAW / f"{name}.yaml") for name in ("study", "narrow")]
    arms = {arm.name: arm for sweep in sweeps for arm in sweep.arms}
    final, tuning, runs = final_pairs(folder), [], []
    for row in old_rows(folder):
        match = re.fullmatch(r"([ls]-.*)_([\d.]+)_([\d.]+)", row.arm)
        if match and row.seed == TUNING:
            pair = float(match[2]), float(match[3])
            tuning.append(renamed(row, arms[new_name(match[1])], *pair, tuning=True))
        elif row.arm in final and row.seed != TUNING:
            runs.append(renamed(row, arms[new_name(row.arm)], *final[row.arm], tuning=False))
    for table, rows in (("tuning", tuning), ("runs", runs)):
        there = {(row.arm, row.seed) for row in read_rows(table)}  # first results stay
        new = [row for row in rows if (row.arm, row.seed) not in there]
        merge_rows(table, new)
        print(f"{table}: {len(new)} of {len(rows)} rows are new")


if __name__ == "__main__":
    main()
