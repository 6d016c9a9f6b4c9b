"""docs/howto/data-processor.md, carried out: a data processor with its metric, from outside."""

import json
import os
import re
import subprocess
import sys

from helpers.paths import ROOT


def test_a_data_processor_of_ones_own(tmp_path):
    page = (ROOT / "docs/howto/data-processor.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", page, re.DOTALL))
    (tmp_path / "parity.py").write_text(blocks["python"])
    (tmp_path / "params.yaml").write_text(blocks["yaml"])
    command = blocks["sh"].replace("python", sys.executable, 1).split()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    record = json.loads((tmp_path / "run/eval/metrics.jsonl").read_text().splitlines()[-1])
    assert record["step"] == 2
    assert {"loss", "eval/accuracy", "eval/recall"} <= record.keys()
    assert 0 <= record["eval/recall"] <= 1
