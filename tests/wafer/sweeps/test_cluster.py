"""Sweeps whose runs are jobs: arrays of SLURM, and the same path on this machine."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.processes import until
from helpers.runs import config, write_yaml
from helpers.slurm import write_slurm

import wafer
from wafer.errors import ConfigError
from wafer.session.metrics import read_metrics
from wafer.sweeps.cluster import Work
from wafer.sweeps.files import read_sweep
from wafer.sweeps.trials import Launch, trials_of

pytest.importorskip("submitit")
GRID = {"base": config(), "seeds": [1, 2], "arms": {"dense": {}, "wide": {"model.filter_size": 64}}}


def losses(outcome):
    return [(row.arm, row.seed, row.metric) for row in outcome.rows]


@pytest.mark.slow
def test_runs_are_one_array_and_their_table_is_that_of_processes(tmp_path, monkeypatch):
    slurm = write_slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{slurm}{os.pathsep}{os.environ['PATH']}")
    options = {"timeout_min": 10, "slurm_partition": "cpu", "cpus_per_task": 2}
    outcome = wafer.sweep(
        GRID, tmp_path / "out", executor="slurm", executor_options=options, jobs=3
    )
    (script,) = slurm.glob("*.sbatch")
    for line in ("--array=0-3%3", "--partition=cpu", "--time=10", "--cpus-per-task=2"):
        assert f"#SBATCH {line}\n" in script.read_text()
    assert losses(outcome) == losses(wafer.sweep(GRID, tmp_path / "processes", jobs=2))
    again = wafer.sweep(GRID, tmp_path / "out", executor="slurm", executor_options=options)
    assert losses(again) == losses(outcome)
    assert len(list(slurm.glob("*.sbatch"))) == 1


def processes_of(folder):
    """Ids of the processes whose command line has a folder."""
    for process in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder) in process.read_text():
                yield int(process.parent.name)


def kill_once(place, folder):
    """Kill what runs for a folder with signal 9, as soon as a place is there."""
    while not place.exists():
        time.sleep(0.05)
    for process in processes_of(folder):
        with contextlib.suppress(OSError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("seen", "after"), [("checkpoints/40", 20), ("output.log", 0)])
def test_a_job_that_is_killed_is_taken_up_again(tmp_path, seen, after):
    run = config(runconfig={"max_steps": 300, "checkpoint_steps": 20, "eval_frequency": 300})
    folder = tmp_path / "out"
    place = folder / "dense" / "1" / seen
    killer = threading.Thread(target=kill_once, args=(place, folder))
    killer.start()
    grid = {"base": run, "seeds": [1], "arms": {"dense": {}}}
    (row,) = wafer.sweep(grid, folder, executor="local").rows
    killer.join()
    steps = [record["step"] for record in read_metrics(folder / "dense" / "1" / "train")]
    assert steps[-1] == 300
    begun = [k for k in range(1, len(steps)) if steps[k] <= steps[k - 1]]
    assert len(begun) == (after > 0)  # it went on once, from a checkpoint
    assert all(steps[k] % 20 == 1 and steps[k] > after for k in begun)
    assert len(list((folder / "jobs").glob("*_submitted.pkl"))) == 2
    assert row.seed == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("executor", [(), ("--executor", "local")])
def test_a_killed_sweep_leaves_no_run_behind(tmp_path, executor):
    """Its run writes a checkpoint and ends, and so does the job that the run is in."""
    steps = {"max_steps": 100_000, "checkpoint_steps": 20, "eval_frequency": 100_000}
    run = config(runconfig=steps)
    file = write_yaml(tmp_path / "sweep.yaml", {"base": run, "seeds": [1], "arms": {"dense": {}}})
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "wafer", "sweep", str(file), "-o", str(folder), *executor]
    sweep = subprocess.Popen(command)
    until((folder / "dense" / "1" / "checkpoints" / "20").exists, sweep)
    sweep.kill()
    sweep.wait()
    until(lambda: not list(processes_of(folder)))
    log = (folder / "dense" / "1" / "output.log").read_text()
    assert "Stopped early; the same command continues" in log
    # The job counts the seconds of the start; a process without one has lost its observer.
    assert (folder / "dense" / "1" / "starts.jsonl").exists() == bool(executor)


def test_a_job_that_ends_before_its_run_counts_the_time_of_the_run(tmp_path, monkeypatch):
    launch = Launch(tmp_path, 1, begins=False, anew=False)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(Launch, "process", lambda self: subprocess.Popen(sleeps))
    with subprocess.Popen([sys.executable, "-c", ""]) as sweep:
        pass
    with pytest.raises(RuntimeError, match="the sweep has ended"):
        Work(launch, sweep.pid)()
    start = json.loads((tmp_path / "starts.jsonl").read_text())
    assert start["code"] == -signal.SIGTERM
    assert 0 < start["seconds"] < 60


def test_what_a_job_gets_is_data_that_finds_its_place(tmp_path):
    import cloudpickle

    arms = {"dense": {}, "tuned": {"after": "dense"}}
    sweep = write_yaml(tmp_path / "sweep.yaml", GRID | {"arms": arms})
    first, after = trials_of(read_sweep(sweep).arms, (1,), tmp_path / "out")[:2]
    assert (first.launch.begins, after.launch.begins, after.launch.anew) == (False, True, True)
    work = cloudpickle.loads(cloudpickle.dumps(Work(after.launch)))
    assert work.launch == after.launch
    assert len(cloudpickle.dumps(Work(after.launch))) < 1_000
    assert work.checkpoint().function == work  # a time limit puts the same run into the queue


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"executor": "local", "executor_options": {"memory": 3}}, r"executor_options: .*memory"),
        (
            {"executor": "local", "executor_options": {"timeout_min": "soon"}},
            r'executor_options: .*"timeout_min" expected type',
        ),
        ({"executor_options": {"mem_gb": 3}}, r"executor_options: .* name their executor"),
    ],
)
def test_options_are_looked_at_before_the_first_run(tmp_path, options, says):
    with pytest.raises(ConfigError, match=says):
        wafer.sweep(GRID, tmp_path / "out", **options)
    assert not (tmp_path / "out" / "dense").exists()


def test_without_slurm_it_is_told_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r'executor: slurm: Could not detect "srun".*sbatch'):
        wafer.sweep(GRID, tmp_path / "out", executor="slurm")
    assert not (tmp_path / "out").exists()


def test_jobs_that_slurm_refuses_are_reasons_and_stop_no_others(tmp_path, monkeypatch):
    slurm = write_slurm(tmp_path / "slurm")
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    monkeypatch.setenv("PATH", f"{slurm}{os.pathsep}{os.environ['PATH']}")
    told = []
    outcome = wafer.sweep(GRID, tmp_path / "out", executor="slurm", say=told.append)
    assert len(outcome.missing) == 4
    assert set(outcome.missing.values()) == {"not submitted: invalid partition"}
    assert sum("not submitted: invalid partition" in line for line in told) == 4
