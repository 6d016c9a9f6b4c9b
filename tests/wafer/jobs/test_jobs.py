"""Jobs: phases, the queue, cancelling, and stores that cannot be written. Real processes."""

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
from wafer.jobs.process import identity
from wafer.jobs.show import duration, table
from wafer.jobs.store import PRIORITIES, Job, JobError, JobStore
from wafer.jobs.track import tracked
from wafer.jobs.verbs import cancel, export_logs, label, parse_labels, set_priority
from wafer.models.checkpoint.reader import load_checkpoint

HANG = 300.0  # seconds; what is waited for takes a few

# A run without a model: waits for its turn as `wafer run` does, works a while.
RUN = """
import json, sys, time
from wafer.config import parse_config
from wafer.jobs.track import tracked
with tracked(parse_config(json.loads(sys.argv[1])), ["run"]) as job:
    time.sleep(0.2)
    job.ended(0)
"""
# The same, at work until its standard input is closed: no test waits for a clock.
HELD = RUN.replace("time.sleep(0.2)", "sys.stdin.read()")


@pytest.fixture
def store(tmp_path, monkeypatch):
    path = tmp_path / "state" / "jobs.db"
    monkeypatch.setenv("WAFER_JOBS_DB", str(path))
    return JobStore(path)


def light(name, priority="p2", systems=1, *, held=False):
    runconfig = {"job_labels": {"name": name}, "job_priority": priority, "num_csx": systems}
    settings = json.dumps(config(runconfig=runconfig))
    return subprocess.Popen(
        [sys.executable, "-c", HELD if held else RUN, settings],
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


def test_a_process_is_known_by_more_than_its_number():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    child_identity = identity(child.pid)
    assert child_identity is not None
    assert child_identity == identity(child.pid) != identity(os.getpid())
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # until it ends; its entry stays
    assert identity(child.pid) is None  # a zombie until it is waited for, and gone all the same
    child.communicate()


@pytest.mark.slow
def test_runs_started_together_take_turns_by_priority_then_age(store):
    store.set_systems(2)
    first = light("first", systems=2, held=True)
    wait_for(store, 1, "RUNNING")
    rest = []
    for count, (name, priority, systems) in enumerate(
        [("late", "p3", 1), ("wide", "p2", 2), ("urgent", "p1", 1), ("small", "p2", 1)], start=1
    ):
        rest.append(light(name, priority, systems))
        wait_for(store, count, "QUEUED")
    for process in (first, *rest):
        _, err = process.communicate(timeout=HANG)
        assert process.returncode == 0, err
    spans = {job.labels["name"]: (job.started, job.ended) for job in store.jobs()}
    order = sorted(spans, key=lambda name: spans[name][0])
    # 'small' would fit beside 'urgent', but nobody overtakes 'wide', which was there before.
    assert order == ["first", "urgent", "wide", "small", "late"]
    assert spans["urgent"][0] > spans["first"][1]
    assert spans["wide"][0] > spans["urgent"][1]
    assert spans["small"][0] > spans["wide"][1]
    assert [job.phase for job in store.jobs()] == ["SUCCEEDED"] * 5


@pytest.mark.slow
def test_killed_from_outside_is_failed_and_frees_its_systems(store):
    store.set_systems(1)
    killed = light("killed", held=True)
    wait_for(store, 1, "RUNNING")
    waiting = light("waiting")
    wait_for(store, 1, "QUEUED")
    killed.kill()
    assert waiting.wait(HANG) == 0
    jobs = {job.labels["name"]: job for job in store.jobs()}
    assert jobs["killed"].phase == "FAILED"
    assert "killed" in jobs["killed"].message
    assert jobs["waiting"].phase == "SUCCEEDED"
    for process in (killed, waiting):
        process.communicate()


def test_a_queued_job_is_cancelled_at_once(store):
    store.set_systems(1)
    running = light("running", held=True)
    wait_for(store, 1, "RUNNING")
    waiting = light("waiting")
    (queued,) = wait_for(store, 1, "QUEUED")
    assert set_priority(store, queued.id, "p1").priority == PRIORITIES["p1"]
    assert cancel(store, queued.id).phase == "CANCELLED"
    assert waiting.wait(HANG) != 0
    with pytest.raises(JobError, match=r"has already finished \(CANCELLED\)"):
        cancel(store, queued.id)
    with pytest.raises(JobError, match="is no longer queued"):
        set_priority(store, queued.id, "p3")
    (job,) = store.jobs(finished=False)
    assert cancel(store, job.id[:9]).phase == "CANCELLED"  # SIGTERM ended it: nothing to save
    for process in (running, waiting):
        process.communicate()


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


def test_the_store_is_its_users_alone(store):
    """Also one that an earlier version left open to all."""
    for _ in range(2):
        store.set_systems(2)
        assert store.path.stat().st_mode & 0o777 == 0o600
        store.path.chmod(0o644)


def test_no_store_stops_no_run(tmp_path, caplog):
    """A home that cannot be written, a file that is no store, one of a later version."""
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    (tmp_path / "other.db").write_text("this is no database, just text" * 100)
    newer = JobStore(tmp_path / "newer.db")
    newer.add(Job(id="wsjob-0"))
    with newer._transaction() as db:
        db.execute("PRAGMA user_version = 99")
    cfg = parse_config(config())
    for path in (blocked / "jobs.db", tmp_path / "other.db", newer.path):
        caplog.clear()
        with tracked(cfg, ["run"], JobStore(path)) as job:
            job.ended(0)
        assert "continues without a job store" in caplog.text
        assert len(caplog.records) == 1


def test_labels_and_names(store):
    store.add(Job(id="wsjob-abc1", created=time.time(), systems=0, labels={"a": "1"}))
    store.add(Job(id="wsjob-abd2", created=time.time(), systems=0))
    assert label(store, "abc", ["b=2", "a-"]).labels == {"b": "2"}
    with pytest.raises(JobError, match="matches wsjob-abc1, wsjob-abd2"):
        store.find("ab")
    with pytest.raises(JobError, match="job 'x': not found"):
        store.find("x")
    with pytest.raises(JobError, match="expected key=value"):
        parse_labels(["a b=c"])
    assert export_logs(store, "abd2", store.path.parent).name == "wsjob-abd2.tar.gz"


def test_the_vendors_spelling(store, monkeypatch, capsys):
    store.add(Job(id="wsjob-abc1", created=time.time(), systems=0))

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


def test_the_number_of_systems(store, monkeypatch, capsys):
    assert main(["jobs", "config"]) == 0
    assert "no limit" in capsys.readouterr().out
    assert main(["jobs", "config", "--systems", "3"]) == 0
    assert "3 system(s)" in capsys.readouterr().out
    monkeypatch.setenv("WAFER_SYSTEMS", "5")
    assert store.systems == 5
    monkeypatch.setenv("WAFER_SYSTEMS", "many")
    assert main(["jobs", "config"]) == 1
    assert "WAFER_SYSTEMS='many'" in capsys.readouterr().err


def test_durations():
    assert [duration(s) for s in (0.2, 61, 3600, 3725, 90061)] == [
        "0s",
        "1m1s",
        "1h",
        "1h2m",
        "1d1h",
    ]
