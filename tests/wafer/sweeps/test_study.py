"""The study of sparse training: its driver goes on from committed numbers, its report follows."""

import json
import sys

import pytest
import yaml
from helpers.paths import ROOT

from wafer.sweeps.files import read_sweep
from wafer.sweeps.table import TrialResult

BENCH = ROOT / "tests" / "bench"


@pytest.fixture
def scripts(monkeypatch):
    """The two scripts, which are no packages."""
    monkeypatch.syspath_prepend(str(BENCH))
    import study
    import study_report

    yield study, study_report
    for name in ("study", "study_report"):
        sys.modules.pop(name, None)


def test_the_page_is_what_the_numbers_say(scripts):
    _, report = scripts
    page = report.PAGE.read_text(encoding="utf-8")
    laws = report.laws_of(report.read_raw("law"))
    assert report.filled(page, report.stages_run(), laws) == page


def row(arm, seed, bits):
    return TrialResult(arm, "dense", seed, bits, 10, 5, 100, 6e3, 20.0, 1.5)


def test_committed_numbers_are_results_but_weights_are_not(scripts, tmp_path, monkeypatch):
    study, _ = scripts
    monkeypatch.setattr(study, "RAW", tmp_path / "raw")
    (tmp_path / "raw").mkdir()
    rows = [row("l-dense", 1, 2.0), row("l-rigl80", 1, 1.5), row("l-rigl80", 9, 1.6)]
    study.write_raw("final", rows)
    assert study.read_raw("final") == rows
    table = {"l-dense": {}, "l-rigl80": {}}
    study.Study(tmp_path, 1).take_over("final", table, [1, 2])
    results = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("result.json"))
    assert results == ["final/l-rigl80/1/result.json"]
    content = json.loads((tmp_path / results[0]).read_text())
    assert content == {"metrics": {study.METRIC: 1.5}, "levels": {}, "seconds": 1.5}
    for seed in study.SEEDS:  # fine-tuning is finished: nobody reads weights any more
        study.write_raw(f"tuned-{seed}", [row(arm, seed, 1.0) for arm in study.PRETRAINED])
    study.Study(tmp_path, 1).take_over("final", table, [1, 2])
    assert (tmp_path / "final/l-dense/1/result.json").exists()


def test_verdicts_by_hand(scripts):
    _, report = scripts
    rows = [row("a", s, 2.0) for s in (1, 2, 3)]
    rows += [row("b", s, bits) for s, bits in ((1, 1.9), (2, 1.8), (3, 1.85))]
    rows += [row("c", s, bits) for s, bits in ((1, 1.9), (2, 2.2), (3, 2.0))]
    assert report.verdict(report.between(rows, "b", "a")) == "agree"
    assert report.verdict(report.between(rows, "a", "b")) == "**disagree**"
    assert report.verdict(report.between(rows, "c", "a")) == "not resolved"
    assert report.verdict(report.between(rows, "d", "a")) == "not yet run"
    # Differences -0.1, -0.2, -0.15: deviation 0.05, of the mean 0.05 / sqrt(3).
    assert report.signed(report.between(rows, "b", "a")) == "-0.1500 ± 0.0289"


def test_every_arm_of_the_study_is_a_sound_run_file(scripts, tmp_path):
    study, _ = scripts
    table = study.arms()
    assert len(table) == 33
    arms = {name: study.changes(*table[name][:3], 0.003, 0.02) for name in table}
    content = {"base": str(study.BASE), "seeds": [1], "arms": arms}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(content))
    assert len(read_sweep(tmp_path / "sweep.yaml").arms) == 33
