"""Nothing is lost: kill -9 at random moments, a full disk, interrupts. Real processes."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from helpers.runs import config

from wafer.models.checkpoint.reader import load_checkpoint
from wafer.models.paths import named_leaves

pytestmark = pytest.mark.alone

STEPS = 40


def write_params(folder: pathlib.Path, **changes) -> pathlib.Path:
    runconfig = {"max_steps": STEPS, "checkpoint_steps": 2, "max_checkpoints": 2}
    cfg = config(
        sparsity={"algorithm": "rigl", "sparsity": 0.5, "update": {"freq": 5}, "compute": "masked"},
        train_input={"use_vsl": True},
        runconfig=runconfig | changes,
    )
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(cfg))
    return path


def start(params: pathlib.Path, model_dir: pathlib.Path, programs: pathlib.Path, under=()):
    command = [
        *under,
        sys.executable,
        "-m",
        "wafer",
        "run",
        "--params",
        str(params),
        "--mode",
        "train",
    ]
    # Restarts share compiled programs, so that a test of ten of them is about killing.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        [*command, "--model_dir", str(model_dir)],
        env=os.environ | cache,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def arrays(model_dir: pathlib.Path, step: int = STEPS) -> dict[str, np.ndarray]:
    return dict(named_leaves(load_checkpoint(model_dir / "checkpoints" / str(step))[0]))


@pytest.mark.slow
def test_ten_kills_at_random_moments_do_not_change_the_result(tmp_path):
    params = write_params(tmp_path)
    programs = tmp_path / "programs"
    whole = start(params, tmp_path / "whole", programs)
    out, _ = whole.communicate(timeout=600)
    assert whole.returncode == 0, out
    chance = random.Random(0)
    metrics = tmp_path / "killed" / "train" / "metrics.jsonl"
    steps = lambda: metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    continued = 0
    for _ in range(10):
        run = start(params, tmp_path / "killed", programs)
        enough = steps() + chance.randrange(8)  # 40 in all: most kills come before the end
        while run.poll() is None and steps() < enough:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.2))  # into a later step, or the writing of a checkpoint
        run.send_signal(signal.SIGKILL)
        out, _ = run.communicate()
        continued += "Continuing from" in out
    run = start(params, tmp_path / "killed", programs)
    out, _ = run.communicate(timeout=600)
    # The last start finds the finished run, or finishes it.
    assert run.returncode == 0, out
    assert continued >= 1, "no restart found a checkpoint"
    want, got = arrays(tmp_path / "whole"), arrays(tmp_path / "killed")
    assert want.keys() == got.keys()
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)
    leftovers = [p.name for p in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert all(name.isdigit() for name in leftovers), leftovers


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_the_same_command_continues(tmp_path):
    params = write_params(tmp_path, max_steps=100000, checkpoint_steps=50000)
    run = start(params, tmp_path / "run", tmp_path / "programs")
    metrics = tmp_path / "run" / "train" / "metrics.jsonl"
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 130, out
    (folder,) = (tmp_path / "run" / "checkpoints").iterdir()
    last_step = int(folder.name)
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert last_step == steps[-1]
    params = write_params(tmp_path, max_steps=last_step + 1)
    run = start(params, tmp_path / "run", tmp_path / "programs")
    out, _ = run.communicate(timeout=300)
    assert run.returncode == 0, out
    assert f"Continuing from {folder}" in out.replace("\n", "")


@pytest.mark.slow
def test_a_full_disk_is_one_clear_error_and_earlier_checkpoints_stay_good(tmp_path):
    params = write_params(tmp_path, max_steps=4)
    first = start(params, tmp_path / "run", tmp_path / "programs")
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 0, out
    params = write_params(tmp_path, max_steps=6)
    # Files of at most 4 KiB: logs, events and the checkpoint's arrays all need more.
    full = start(params, tmp_path / "run", tmp_path / "programs", ["prlimit", "--fsize=4096"])
    out, _ = full.communicate(timeout=300)
    assert full.returncode == 1, out
    assert "checkpoints are intact" in out
    assert "Traceback" not in out
    assert arrays(tmp_path / "run", 4)
    again = start(params, tmp_path / "run", tmp_path / "programs")
    out, _ = again.communicate(timeout=300)
    assert again.returncode == 0, out
    assert arrays(tmp_path / "run", 6)
