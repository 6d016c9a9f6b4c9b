"""The benchmarks run and end with their rows; the pages of results hold what the rows say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

BENCH = ROOT / "tests" / "bench"
sys.path.append(str(BENCH))
import harness
import pages

# All share it; one needs a check-out of others, one another Python with torch.
OTHERS = ("harness.py", "montecarlo_loop.py", "harness_scores.py")
SCRIPTS = sorted(p for p in BENCH.glob("*.py") if "report(" in p.read_text())
SCRIPTS = [p for p in SCRIPTS if p.name not in OTHERS]
NEEDS = {"peers.py": "torch", "gpu.py": "jax_cuda12_plugin"}
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
TEXTS = [ROOT / "README.md", ROOT / "docs/index.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
KEYS = {"name", "value", "unit", "command", "commit", "date", "processor"}
#: A ratio ("3.3 ×", not "4 × 4"), "faster", or seconds on a machine.
CLAIM = re.compile(r"\d\s?×(?!\s?[\d(])|\bfaster\b|\d s on\b")


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_benchmark_runs(script, tmp_path):
    if script.name in NEEDS:
        pytest.importorskip(NEEDS[script.name])
    command = [sys.executable, script, "--quick"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    rows = json.loads(run.stdout.splitlines()[-1])
    assert rows
    assert all(isinstance(value, float | int) for value in rows.values())


@pytest.mark.parametrize("path", sorted(harness.DATA.glob("*.json")), ids=lambda path: path.stem)
def test_rows_say_where_they_are_from(path):
    rows = json.loads(path.read_text(encoding="utf-8"))
    named = [(row["name"], row["processor"]) for row in rows]
    assert len(set(named)) == len(named)
    for row in rows:
        assert row.keys() >= KEYS, row
        assert not re.search(r"(^|[\s=])/", row["command"]), "a folder of one machine"
        assert row["processor"] == harness.ANY or "load" in row, row


def test_commits_of_rows_are_in_the_history():
    if harness.git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("the history is not whole here")
    cited = {
        row["commit"] for path in harness.DATA.glob("*.json") for row in pages.rows_of(path.stem)
    }
    known = harness.git("rev-list", "HEAD").split()
    assert not [commit for commit in cited if not any(full.startswith(commit) for full in known)]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_tables_are_those_of_the_rows(path):
    text = path.read_text(encoding="utf-8")
    assert pages.drawn(text) == text, "python tests/bench/pages.py draws them again"


def test_the_results_are_few_pages_and_words():
    lines = [line for path in RESULTS for line in path.read_text(encoding="utf-8").splitlines()]
    prose = [line for line in lines if not line.startswith(("|", "<!--", "`python"))]
    assert len(RESULTS) <= 8
    assert sum(len(line.split()) for line in prose) <= 8000


@pytest.mark.parametrize("path", [*TEXTS, *RESULTS], ids=lambda path: path.name)
def test_figures_are_those_of_their_rows(path):
    text = path.read_text(encoding="utf-8")
    found = list(pages.figures(text))
    assert len(found) == text.count("<!-- row: ")
    assert not [figure for figure in found if not pages.agrees(figure)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_a_claim_of_speed_has_its_row(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if CLAIM.search(line) and "<!-- row: " not in line]


def test_a_saved_row_takes_the_place_of_the_one_before(tmp_path, monkeypatch):
    monkeypatch.setattr(harness, "DATA", tmp_path)
    words = ["--part", "a", "--folder", str(tmp_path), "--save"]
    monkeypatch.setattr(sys, "argv", [str(BENCH / "x.py"), *words])
    harness.report({"s90": 3.0, "step_s": 2.0}, where="one")
    harness.report({"s90": 3.25}, where="two")
    harness.report({"s90": 3.5}, where="one")
    rows = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    values = {(row["name"], row["processor"]): (row["value"], row["unit"]) for row in rows}
    s90 = {("s90", "one"): (3.5, "×"), ("s90", "two"): (3.25, "×")}
    assert values == s90 | {("step_s", "one"): (2.0, "s")}
    command = "python tests/bench/x.py --part a --folder FOLDER"
    assert {row["command"] for row in rows} == {command}


def test_a_figure_that_differs_from_its_row_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "DATA", tmp_path)
    row = {"name": "s90", "value": 3.26, "unit": "×"}
    Path(tmp_path, "step.json").write_text(json.dumps([row]), encoding="utf-8")
    ok, rounded, wrong = pages.figures(
        "3.26 × <!-- row: step/s90 --> 3.3 <!-- row: step/s90 --> and "
        "3.4 × faster <!-- row: step/s90 -->"
    )
    assert pages.agrees(ok)
    assert pages.agrees(rounded)
    assert not pages.agrees(wrong)
