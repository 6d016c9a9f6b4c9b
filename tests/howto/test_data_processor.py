"""docs/howto/data-processor.md, carried out: a data processor with its metric, from outside."""

import json
import re
import shlex
import sys

from helpers.paths import ROOT

from wafer.cli import main


def test_a_data_processor_of_ones_own(tmp_path, monkeypatch):
    page = (ROOT / "docs/howto/data-processor.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL))
    (tmp_path / "parity.py").write_text(blocks["python"])
    (tmp_path / "params.yaml").write_text(blocks["yaml"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])  # the file's python_paths alone find the module
    program, *words = shlex.split(blocks["sh"])
    assert program == "wafer"
    assert main(words) == 0
    monkeypatch.delitem(sys.modules, "parity")
    record = json.loads((tmp_path / "run/eval/metrics.jsonl").read_text().splitlines()[-1])
    assert record["step"] == 2
    assert {"loss", "eval/accuracy", "eval/recall"} <= record.keys()
    assert 0 <= record["eval/recall"] <= 1
