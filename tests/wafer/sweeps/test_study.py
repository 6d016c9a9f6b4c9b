"""The study of sparse training: its page follows its tables, by claims and figures of its own."""

import copy
import csv
import math
import shutil
import sys

import nbformat
import pytest
import yaml
from helpers.paths import ROOT
from helpers.runs import write_yaml

from wafer.sweeps.files import read_sweep
from wafer.sweeps.table import TrialResult

BENCH = ROOT / "tests" / "bench"
SCRIPTS = (
    "study_report",
    "study_rows",
    "study_claims",
    "study_figures",
    "study_seconds",
    "harness",
)


@pytest.fixture
def report(monkeypatch):
    """The script that writes the page; it is no package."""
    monkeypatch.syspath_prepend(str(BENCH))
    import study_report

    yield study_report
    for name in SCRIPTS:
        sys.modules.pop(name, None)


def row(arm, seed, bits, flops=6e3, kept=5, tokens=100, parameters=10):
    return TrialResult(arm, "x", seed, bits, parameters, kept, tokens, flops, 20.0, 1.5)


def test_the_page_is_what_the_tables_say(report):
    page = report.PAGE.read_text(encoding="utf-8")
    runs, _ = report.read_known_rows(report.RAW)
    assert report.filled(page, report.law_of(runs)) == page
    notebook = nbformat.read(report.NOTEBOOK, as_version=4)
    assert report.filled_notebook(copy.deepcopy(notebook)) == notebook


def test_rulers_by_hand(report):
    """Dense reaches 3 bits at 1e3 FLOPs and 2 at 1e5: 2.5 at 1e4, 3 below, 2 above."""
    from study_claims import values_by

    rows = [row("dense-180", 1, 3.0, 1e3), row("dense", 1, 2.0, 1e5)]
    rows += [row("a", 1, 2.4, 1e4), row("b", 1, 2.9, 1e2), row("c", 1, 2.1, 1e6), row("d", 2, 1.0)]
    values = values_by("FLOPs", rows, {})
    assert {arm: one[1] for arm, one in values.items()} == pytest.approx(
        {"dense-180": 0.0, "dense": 0.0, "a": -0.1, "b": -0.1, "c": 0.1}
    )
    assert values_by("seconds", rows, {"dense-180": 1.0, "dense": 4.0, "a": 2.0})["a"][
        1
    ] == pytest.approx(2.4 - 2.5)
    assert values_by("steps", rows, {})["a"] == {1: 2.4}


def test_verdicts_share_one_level(report, monkeypatch):
    """Two claims by the one ruler that has values: Holm doubles the smaller p."""
    import study_claims as claims

    one = claims.Claim("b beats a", ("b",), ("a",))
    gap = claims.Claim("the gap of c shrinks", ("c", "a"), ("b", "d"))
    monkeypatch.setattr(claims, "CLAIMS", (one, gap, claims.Claim("e beats a", ("e",), ("a",))))
    rows = [row("a", s, 2.0) for s in (1, 2, 3)]
    rows += [row("b", s, bits) for s, bits in ((1, 1.9), (2, 1.88), (3, 1.89))]
    rows += [row("c", s, 1.0 + 0.1 * s) for s in (1, 2, 3)] + [row("d", s, 1.0) for s in (1, 2, 3)]
    tested = claims.verdicts(rows, {})["steps"]
    # Differences -0.1, -0.12, -0.11: t = 0.11 sqrt(3) / 0.01; of the gap 0.2, 0.32, 0.41.
    p = lambda t: 1 - t / math.sqrt(t * t + 2)
    assert tested[0].p == pytest.approx(2 * p(11 * math.sqrt(3)))
    assert tested[1].difference == pytest.approx(0.31)
    assert tested[1].p == pytest.approx(p(0.31 / tested[1].error))
    assert [claims.verdict(one) for one in tested] == ["agree", "**disagree**", "not yet run"]
    assert report.signed(tested[0]) == "-0.1100 ± 0.0058"


@pytest.fixture
def finished(report, tmp_path):
    """The study's folder with invented rows of every run."""
    for name in report.RAW.glob("*.yaml"):
        shutil.copy(name, tmp_path)
    shutil.copytree(report.RAW / "arms", tmp_path / "arms")
    from study_rows import merge_rows, plans

    runs, tuning, seconds = [], [], {}
    for plan in plans(tmp_path, []):
        for at, (arm, steps) in enumerate(plan.steps.items()):
            seconds[arm] = steps * (0.02 + 0.001 * (at % 5))
            tokens, size = 1024 * steps, 10**5 * (1 + at // 3 % 3)
            kept = int(size * (1.0, 0.2, 0.1)[at // 9 % 3])
            bits = 1.5 + 40 / (size * (kept / size) ** 0.5) ** 0.4 + 60 / tokens**0.4
            for seed in plan.seeds:
                flops = 6.0 * kept * tokens
                runs.append(
                    row(arm, seed, bits + 0.01 * (seed * at % 7), flops, kept, tokens, size)
                )
        for arm, grid in plan.grids.items():
            for x in range(-1, 5):
                for y in range(-1, 5) if len(grid.keys) > 1 else (0,):
                    point = (x, y)[: len(grid.keys)]
                    tuning.append(row(f"{arm}@{grid.name(point)}", 11, 2.0 + (x - 1) ** 2 + y**2))
    merge_rows("runs", runs, tmp_path)
    merge_rows("tuning", tuning, tmp_path)
    with (tmp_path / "seconds.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("arm", "seconds", "products", "repeats", "processor", "date", "load"))
        writer.writerows(
            (arm, s, "csr", 3, "a processor", "2026-11-29", 0.5) for arm, s in seconds.items()
        )
    return tmp_path


def test_a_finished_study_has_no_gap_and_all_figures(report, finished, tmp_path):
    from study_figures import draw_all
    from study_rows import read_seconds

    runs, _ = report.read_known_rows(finished)
    law = report.law_of(runs, draws=2)
    assert law.runs == 27
    page = report.filled(report.PAGE.read_text(encoding="utf-8"), law, finished)
    tables = page.split("## Tuning")[1]
    assert "ot yet run" not in tables
    assert "Not yet measured" not in tables
    assert "| dense | 2.0000 | 2 × 1 |" in tables
    assert tables.count("| yes |") > 30
    assert "| all | | | | | | 0.0 |" in page.replace("  ", " ")
    notebook = report.filled_notebook(nbformat.read(report.NOTEBOOK, as_version=4), finished)
    assert notebook.cells[-1].source.count("\n| ") == 1 + len(report.SHORT)
    paths = draw_all(runs, read_seconds(finished)[0], law, tmp_path)
    assert [path.name.removesuffix(".png") for path in paths] == [
        "sparsity_study", "sparsity_study_levels", "sparsity_study_law"
    ]  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_rows_join_by_arm_and_seed(report, tmp_path):
    from study_rows import merge_rows, read_rows

    merge_rows("runs", [row("b", 1, 2.0), row("a", 2, 3.0)], tmp_path)
    merge_rows("runs", [row("b", 1, 1.0)], tmp_path)
    assert [(one.arm, one.metric) for one in read_rows("runs", tmp_path)] == [
        ("a", 3.0),
        ("b", 1.0),
    ]
    assert read_rows("tuning", tmp_path) == []


def test_seconds_of_other_lengths_follow_by_steps(report):
    from study_seconds import derived

    arms = {"dense": 300, "dense-600": 600, "rigl80": 300, "rigl80-1200": 1200}
    arms |= {"rigl80-then-dense": 150, "law-x-600": 600}
    seconds = derived(arms, {"dense": 6.0, "rigl80": 4.0})
    assert seconds == {
        "dense": 6.0, "dense-600": 12.0, "rigl80": 4.0, "rigl80-1200": 16.0,
        "rigl80-then-dense": 7.0,
    }  # fmt: skip


def test_committed_rows_count_for_the_arms_that_there_are(report, tmp_path):
    """Rows of the first driver under their new names: the rates of one arm need no run."""
    from wafer.sweeps.rows import read_known
    from wafer.sweeps.tuning import tune

    study = yaml.safe_load((report.RAW / "study.yaml").read_text())
    arms = yaml.safe_load((report.RAW / "arms/static.yaml").read_text())
    own = {"base": str(report.RAW / "base.yaml"), "arms": {"static90": arms["static90"]}}
    keys = {"seeds": study["seeds"], "tune": study["tune"], "known": str(report.RAW)}
    sweep, waiting = (
        read_sweep(write_yaml(tmp_path / "sweep.yaml", own | keys, sort_keys=False)),
        [],
    )
    run = lambda trials: waiting.extend(trials) or {trial.name: "" for trial in trials}
    tune(sweep, tmp_path, read_known(sweep.known), run)
    assert not {f"static90@{x}x1" for x in (1, 2, 4)} & {trial.arm.name for trial in waiting}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["study", "lengths", "start", "law", "narrow"])
def test_every_arm_is_a_sound_run_file(report, name):
    sweep = read_sweep(report.RAW / f"{name}.yaml")
    assert sweep.first in {arm.name for arm in sweep.arms}
    assert sweep.metric == "eval/bits_per_byte"
