"""docs/howto/study-arm.md, from outside the packages: its arm joins the study by one file."""

import re
import shutil

import yaml
from helpers.paths import ROOT
from helpers.runs import write_yaml

from wafer.sweeps.costs import costs_of
from wafer.sweeps.files import read_sweep

PAGE = ROOT / "docs" / "howto" / "study-arm.md"
STUDY = ROOT / "docs" / "results" / "study"


def test_an_arm_of_the_users_own_joins_the_study(tmp_path, monkeypatch):
    blocks = re.findall(r"```(python|text)\n(.*?)    ```", PAGE.read_text(), re.DOTALL)
    code, arm = (re.sub(r"^    ", "", text, flags=re.MULTILINE) for _, text in blocks)
    (tmp_path / "idea.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(STUDY / "base.yaml", tmp_path)
    (tmp_path / "arms").mkdir()
    (tmp_path / "arms/strong-outputs.yaml").write_text(arm)
    rigl = yaml.safe_load((STUDY / "arms/rigl.yaml").read_text())["rigl90"]
    write_yaml(tmp_path / "arms/rigl.yaml", {"rigl90": rigl})
    study = yaml.safe_load((STUDY / "study.yaml").read_text()) | {"first": "rigl90"}
    other, own = read_sweep(write_yaml(tmp_path / "study.yaml", study, sort_keys=False)).arms
    assert (other.name, own.name) == ("rigl90", "strong-outputs90")
    assert own.grid == other.grid
    assert costs_of(own.experiment, own.steps) == costs_of(other.experiment, other.steps)
