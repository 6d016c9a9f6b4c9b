"""Cancel and label jobs, export logs: ``wafer jobs``."""

import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import socket
import tarfile
import time
from collections.abc import Sequence

from wafer.jobs.show import render
from wafer.jobs.store import Job, JobError, JobStore

_WORD = re.compile(r"[A-Za-z0-9._-]+")


def cancel(store: JobStore, name: str, timeout: float = 60.0) -> Job:
    """End a job after its step, with a checkpoint.

    Args:
        store: the jobs.
        name: id, or the beginning of one.
        timeout: seconds to wait for it to end.

    Returns:
        The job as it is then; still RUNNING when the step takes longer than the timeout.

    Raises:
        JobError: no such job, already over, or on another machine.
    """
    job = store.find(name)
    if not job.running:
        raise JobError(f"{job.id}: has already finished ({job.phase})")
    if job.host != socket.gethostname():
        raise JobError(f"{job.id}: runs on {job.host}; cancel it there")
    store.change(job.id, lambda job: dataclasses.replace(job, cancel=True))
    with contextlib.suppress(ProcessLookupError):  # ended meanwhile
        os.kill(job.pid, signal.SIGTERM)
    deadline = time.monotonic() + timeout
    while (job := store.find(job.id)).running and time.monotonic() < deadline:
        time.sleep(0.2)
    return job


def parse_labels(pairs: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Read ``key=value`` (set) and ``key-`` (remove).

    Raises:
        JobError: neither, or other characters than letters, digits, '.', '_' and '-'.

    >>> parse_labels(["team=nlp", "old-"])
    ({'team': 'nlp'}, ['old'])
    """
    new: dict[str, str] = {}
    gone: list[str] = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals and pair.endswith("-"):
            gone.append(pair[:-1])
        elif equals and _WORD.fullmatch(key) and _WORD.fullmatch(value):
            new[key] = value
        else:
            raise JobError(
                f"label {pair!r}: expected key=value of letters, digits, '.', '_', '-', "
                "or key- to remove one"
            )
    return new, gone


def label(store: JobStore, name: str, pairs: Sequence[str]) -> Job:
    """Add and remove labels of a job.

    Args:
        store: of the jobs.
        name: of the job, or its id.
        pairs: 'key=value' adds a label, 'key-' removes it.

    Raises:
        JobError: no such job, or a pair that is not a label.
    """
    new, gone = parse_labels(pairs)

    def edit(job: Job) -> Job:
        kept = {k: v for k, v in job.labels.items() if k not in gone}
        return dataclasses.replace(job, labels=kept | new)

    return store.change(store.find(name).id, edit)


def export_logs(
    store: JobStore, name: str, target: str | pathlib.Path | None = None
) -> pathlib.Path:
    """Pack a job's record, logs and metrics into one .tar.gz.

    Args:
        store: the jobs.
        name: id, or the beginning of one.
        target: the file to write, or a folder for ``<id>.tar.gz``; None is the current folder.

    Raises:
        JobError: no such job.
    """
    job = store.find(name)
    target = pathlib.Path(target or ".")
    if target.is_dir():
        target = target / f"{job.id}.tar.gz"
    record = target.with_name(f".{job.id}.yaml")
    record.write_text(render([job], "yaml", single=True) + "\n")
    try:
        with tarfile.open(target, "w:gz") as archive:
            archive.add(record, f"{job.id}/job.yaml")
            model_dir = pathlib.Path(job.model_dir)
            for path in _logs(job, model_dir):
                archive.add(path, f"{job.id}/{path.relative_to(model_dir)}")
    finally:
        record.unlink()
    return target


def _logs(job: Job, model_dir: pathlib.Path) -> list[pathlib.Path]:
    """Log folders that were opened while the job ran, and the metrics."""
    begin, end = job.created, job.ended or time.time()
    logs = []
    for folder in sorted((model_dir / "cerebras_logs" / job.mode).glob("*_*")):
        with contextlib.suppress(ValueError):
            opened = time.mktime(time.strptime(folder.name, "%Y%m%d_%H%M%S"))
            if begin - 1 <= opened <= end:
                logs.append(folder)
    metrics = (model_dir / part / "metrics.jsonl" for part in ("train", "eval"))
    return logs + [path for path in metrics if path.exists()]
