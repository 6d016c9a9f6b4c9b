"""Every area for ``WAFER_FUZZ_SECONDS``, in a process of its own: no attempt ends badly.

Without ``WAFER_FUZZ_SECONDS``, all files share a process, and each area makes its first attempts.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers.paths import ROOT

from fuzz.areas import CALLS, FILES

SECONDS = os.environ.get("WAFER_FUZZ_SECONDS")
FILE_AREAS = [list(FILES)] if SECONDS is None else [[area] for area in FILES]
PROCESSES = [*FILE_AREAS, *(pytest.param([area], marks=pytest.mark.native) for area in CALLS)]


@pytest.mark.slow
@pytest.mark.parametrize("areas", PROCESSES, ids="-".join)
def test_wrong_files_and_calls_end_in_one_line(areas):
    is_call = areas[0] in CALLS
    seconds = float(SECONDS or (5 if is_call else 0))
    flags = ["--seconds", str(seconds), "--seed", os.environ.get("WAFER_FUZZ_SEED", "0")]
    ended = subprocess.run(
        [sys.executable, "-m", "fuzz.attack", *areas, *flags],
        check=False,
        cwd=ROOT / "tests",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=len(areas) * seconds + 300,
    )
    assert ended.returncode == 0, f"exit {ended.returncode}\n{ended.stdout}{ended.stderr[-3000:]}"
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [counts["area"] for counts in found] == areas
    assert all(counts["attempts"] == counts["clean"] >= 20 for counts in found)
    assert not is_call or found[0]["returned"] > 0  # not all are refused at the door
