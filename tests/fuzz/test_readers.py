"""Every area for ``WAFER_FUZZ_SECONDS``, in a process of its own: no attempt ends badly.

Without ``WAFER_FUZZ_SECONDS``, all areas share a process, and each makes its first attempts only.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT

from fuzz.areas import AREAS

SECONDS = os.environ.get("WAFER_FUZZ_SECONDS")
PROCESSES = [list(AREAS)] if SECONDS is None else [[area] for area in AREAS]


@pytest.mark.slow
@pytest.mark.parametrize("areas", PROCESSES, ids="-".join)
def test_damaged_files_end_in_one_line(areas):
    seconds = float(SECONDS or 0)
    seed = os.environ.get("WAFER_FUZZ_SEED", "0")
    flags = ["--seconds", str(seconds), "--seed", seed]
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.attack", *areas, *flags],
        check=False,
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=len(areas) * seconds + 120,
    )
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout}{ended.stderr[-3000:]}"
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [counts["area"] for counts in found] == areas
    assert all(counts["attempts"] == counts["clean"] >= 20 for counts in found)
