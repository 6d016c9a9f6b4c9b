"""Jobs: phases, cancelling, and stores that cannot be written. Real processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

import pytest
import yaml
from helpers.runs import config

from wafer import __main__ as entry
from wafer.cli import main
from wafer.config import parse_config
from wafer.jobs.show import duration, table
from wafer.jobs.store import Job, JobError, JobStore
from wafer.jobs.track import tracked
from wafer.jobs.verbs import cancel, export_logs, label, parse_labels
from wafer.models.checkpoint.reader import load_checkpoint

HANG = 300.0  # seconds; what is waited for takes a few

# A run without a model, at work until its standard input is closed: no test waits for a clock.
RUN = """
import json, sys
from wafer.config import parse_config
from wafer.jobs.track import tracked
with tracked(parse_config(json.loads(sys.argv[1])), ["run"]) as job:
    sys.stdin.read()
    job.ended(0)
"""


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "state" / "jobs"
    monkeypatch.setenv("WAFER_JOBS_DB", str(path))
    return JobStore(path)


def light():
    return subprocess.Popen(
        [sys.executable, "-c", RUN, json.dumps(config())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(store, count, phase, seconds=HANG):
    """The jobs of a phase, once there are so many."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        jobs = [job for job in store.jobs() if job.phase == phase]
        if len(jobs) >= count:
            return jobs
        time.sleep(0.05)
    raise AssertionError(f"{phase}: {table(store.jobs())}")


def test_a_run_is_running_until_its_process_ends_however_it_ends(store):
    killed, ended = light(), light()
    assert len(wait_for(store, 2, "RUNNING")) == 2
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)  # until it ends; its entry stays
    _, err = ended.communicate(timeout=HANG)
    assert ended.returncode == 0, err
    jobs = {job.pid: job for job in store.jobs()}
    assert jobs[killed.pid].phase == "FAILED"
    assert "killed" in jobs[killed.pid].message
    assert jobs[ended.pid].phase == "SUCCEEDED"
    assert not list(store.path.glob("wsjob-*.lock"))
    killed.communicate()


def test_a_job_is_cancelled_once(store):
    running = light()
    (job,) = wait_for(store, 1, "RUNNING")
    assert cancel(store, job.id[:9]).phase == "CANCELLED"  # SIGTERM ended it: nothing to save
    with pytest.raises(JobError, match=r"has already finished \(CANCELLED\)"):
        cancel(store, job.id)
    running.communicate()


def params_file(folder, **runconfig):
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(config(runconfig=runconfig)))
    return path


def start(params, model_dir, *flags):
    command = [sys.executable, "-m", "wafer", "run", "--params", str(params), "--mode", "train"]
    return subprocess.Popen(
        [*command, "--model_dir", str(model_dir), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_cancel_ends_a_real_run_with_its_last_checkpoint_loadable(store, tmp_path, capsys):
    params = params_file(tmp_path, max_steps=10**6, checkpoint_steps=10**5)
    run = start(params, tmp_path / "run", "--job_labels", "team=nlp", "--job_priority", "p1")
    metrics = tmp_path / "run" / "train" / "metrics.jsonl"
    deadline = time.monotonic() + HANG
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.1)
    assert main(["jobs", "get"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "AGE", "DURATION", "PHASE", "SYSTEMS", "USER", "LABELS"]
    assert line.split()[3:5] == ["RUNNING", "1"]
    assert line.endswith("team=nlp")
    name = line.split()[0]
    assert main(["jobs", "cancel", name]) == 0
    assert capsys.readouterr().out == "Job canceled successfully\n"
    out, _ = run.communicate(timeout=HANG)
    assert run.returncode == 128 + signal.SIGTERM, out
    assert f"Job {name}" in out
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert int(load_checkpoint(checkpoint)[0]["step"]) == int(checkpoint.name) > 0

    assert main(["jobs", "get", name, "-o", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["phase"] == "CANCELLED"
    assert record["priority"] == "p1"
    assert record["params"]["runconfig"]["max_steps"] == 10**6
    assert main(["jobs", "label", name, "paper=yes", "team-"]) == 0
    assert capsys.readouterr().out == f"job/{name} was patched\n"
    assert store.find(name).labels == {"paper": "yes"}
    assert main(["jobs", "log-export", name, "-o", str(tmp_path)]) == 0
    with tarfile.open(capsys.readouterr().out.strip()) as archive:
        names = [pathlib.PurePath(n) for n in archive.getnames()]
    assert {"job.yaml", "run.log", "params.yaml", "metrics.jsonl"} <= {n.name for n in names}
    assert main(["jobs", "get"]) == 0
    assert "-a lists finished jobs too" in capsys.readouterr().out


def test_how_a_run_ends_decides_its_phase(store):
    cfg = parse_config(config())

    def end(error=None, code=0):
        ending = contextlib.suppress(ValueError, KeyboardInterrupt)
        with ending, tracked(cfg, ["run"], store) as job:
            if error is not None:
                raise error
            job.ended(code)
        job = store.jobs()[-1]
        return job.phase, job.exit_code, job.message

    assert end() == ("SUCCEEDED", 0, "")
    assert end(ValueError("the loss is nan\nmore")) == ("FAILED", 1, "the loss is nan")
    assert end(KeyboardInterrupt()) == ("CANCELLED", 130, "interrupted")
    assert end(code=143) == ("FAILED", 143, "SIGTERM from outside")
    assert end(code=130) == ("CANCELLED", 130, "interrupted")


def test_the_store_is_its_users_alone_and_remembers_a_thousand(store, monkeypatch):
    monkeypatch.setattr("wafer.jobs.store._KEPT", 2)
    for number in range(4):
        with store.running(Job(id=f"wsjob-{number}", created=float(number))):
            assert store.path.stat().st_mode & 0o777 == 0o700
        store.change(f"wsjob-{number}", lambda job: job.finished(0))
        store.path.chmod(0o755)
    assert [job.id for job in store.jobs()] == ["wsjob-1", "wsjob-2", "wsjob-3"]


def test_no_store_stops_no_run(tmp_path, caplog):
    """A home that cannot be written, a folder with a file that is no record."""
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "wsjob-0.json").write_text("{}")
    cfg = parse_config(config())
    for path in (tmp_path / "file" / "jobs", tmp_path / "other"):
        caplog.clear()
        with tracked(cfg, ["run"], JobStore(path)) as job:
            job.ended(0)
        assert "continues without a job store" in caplog.text
        assert len(caplog.records) == 1


def added(store, name, **fields):
    with store.running(Job(id=name, created=time.time(), systems=0, **fields)):
        pass
    store.change(name, lambda job: job.finished(0))


def test_labels_and_names(store):
    added(store, "wsjob-abc1", labels={"a": "1"})
    added(store, "wsjob-abd2")
    assert label(store, "abc", ["b=2", "a-"]).labels == {"b": "2"}
    with pytest.raises(JobError, match="matches wsjob-abc1, wsjob-abd2"):
        store.find("ab")
    with pytest.raises(JobError, match="job 'x': not found"):
        store.find("x")
    with pytest.raises(JobError, match="expected key=value"):
        parse_labels(["a b=c"])
    assert export_logs(store, "abd2", store.path.parent).name == "wsjob-abd2.tar.gz"


def test_the_vendors_spelling(store, monkeypatch, capsys):
    added(store, "wsjob-abc1")

    def csctl(*words):
        monkeypatch.setattr("sys.argv", ["csctl", *words])
        code = entry.csctl()
        return code, capsys.readouterr().out

    for words in (["get", "jobs", "-a"], ["job", "list", "-a"], ["get", "job", "abc", "-ojson"]):
        code, out = csctl(*words)
        assert (code, "wsjob-abc1" in out) == (0, True), words
    assert csctl("label", "job", "abc", "team=a") == (0, "job/wsjob-abc1 was patched\n")
    assert store.find("abc").labels == {"team": "a"}
    assert main(["jobs", "get", "jobs", "-a"]) == 0


def test_where_jobs_are_kept(store, capsys):
    assert main(["jobs", "config"]) == 0
    assert capsys.readouterr().out == f"store: {store.path}\n"


def test_durations():
    assert [duration(s) for s in (0.2, 61, 3600, 3725, 90061)] == [
        "0s",
        "1m1s",
        "1h",
        "1h2m",
        "1d1h",
    ]
