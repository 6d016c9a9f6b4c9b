"""Every area for ``WAFER_FUZZ_SECONDS``, in a process of its own: no attempt ends badly."""

import json
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT

from fuzz.areas import AREAS


@pytest.mark.parametrize("area", AREAS)
def test_damaged_files_end_in_one_line(area):
    seconds = float(os.environ.get("WAFER_FUZZ_SECONDS", "1"))
    seed = os.environ.get("WAFER_FUZZ_SEED", "0")
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.attack", area, str(seconds), seed],
        check=False,
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=seconds + 60,
    )
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout}{ended.stderr[-3000:]}"
    counts = json.loads(ended.stdout)
    assert counts["attempts"] == counts["clean"] >= 20
