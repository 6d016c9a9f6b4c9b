"""Wrong arguments of the machine end in one line, never in a signal.

The calls run in a child process: what crashes there fails here.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT

AREAS = ["images", "machine"]

pytestmark = [pytest.mark.native, pytest.mark.slow]


@pytest.mark.parametrize("area", AREAS)
def test_wrong_arguments_end_in_one_line(area):
    seconds = float(os.environ.get("WAFER_FUZZ_SECONDS", "5"))
    seed = os.environ.get("WAFER_FUZZ_SEED", "0")
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.calls", area, str(seconds), seed],
        check=False,
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=seconds + 300,
    )
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout}{ended.stderr[-3000:]}"
    counts = json.loads(ended.stdout)
    assert counts["attempts"] == counts["clean"] >= 20
    assert counts["returned"] > 0  # not all are refused at the door
