"""Two runs in one model_dir: the second is told who is first; a killed one is in nobody's way."""

import os
import signal
import socket
import subprocess
import sys

import pytest
import yaml
from helpers.runs import config

from wafer.cli import main
from wafer.errors import TrainingError
from wafer.session.lock import owned

HOLD = """
import pathlib, sys, time
from wafer.session.lock import owned
with owned(pathlib.Path(sys.argv[1]), "wsjob-0123"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_second_run_is_refused_with_the_firsts_name(tmp_path, capsys):
    params = tmp_path / "params.yaml"
    params.write_text(yaml.safe_dump(config()))
    model_dir = tmp_path / "run"
    command = ["run", "-p", str(params), "-m", "train", "-o", str(model_dir)]
    with owned(model_dir, "wsjob-0123"):
        assert main(command) == 1
        assert main([*command, "--compile_only"]) == 0  # writes nothing there
    assert (
        f"{model_dir}: in use by job wsjob-0123, process {os.getpid()} on {socket.gethostname()}. "
        "Two runs would overwrite each other's checkpoints; wait, end it (`wafer "
        "jobs cancel wsjob-0123`), or choose another --model_dir"
    ) in capsys.readouterr().err
    assert [path.name for path in model_dir.iterdir()] == [".lock"]  # it did nothing before


def test_a_call_in_python_has_no_job(tmp_path):
    with owned(tmp_path):
        message = f"in use by process {os.getpid()} on .* wait, end it, or choose"
        with pytest.raises(TrainingError, match=message), owned(tmp_path, "wsjob-2"):
            pass
    with owned(tmp_path, "wsjob-2"):
        assert (tmp_path / ".lock").read_text().startswith("wsjob-2\n")


def test_a_killed_run_leaves_no_lock(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(TrainingError, match="job wsjob-0123"), owned(tmp_path):
            pass
        first.send_signal(signal.SIGKILL)
    with owned(tmp_path):
        pass
