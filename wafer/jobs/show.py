"""Jobs as text: the table of ``wafer jobs get``, and one job in full."""

import json
import time
from collections.abc import Sequence

import yaml

from wafer.jobs.store import Job
from wafer.models.user.yamlfile import parse_yaml

_COLUMNS = ("NAME", "AGE", "DURATION", "PHASE", "SYSTEMS", "USER", "LABELS")
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def duration(seconds: float) -> str:
    """Write a time span with its two largest units.

    >>> duration(75), duration(3), duration(90000)
    ('1m15s', '3s', '1d1h')
    """
    rest, parts = int(max(seconds, 0)), []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return "".join(p for p in parts[:2] if not p.startswith("0")) or "0s"


def table(jobs: Sequence[Job], now: float | None = None) -> str:
    """Lay jobs out in csctl's columns, oldest first."""
    now = time.time() if now is None else now
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for job in jobs:
        labels = ",".join(f"{k}={v}" for k, v in sorted(job.labels.items()))
        age = duration(now - job.created)
        ran = duration((job.ended or now) - job.created)
        rows.append((job.id, age, ran, job.phase, str(job.systems), job.user, labels))
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))


def as_record(job: Job) -> dict[str, object]:
    """Everything about a job, in plain types."""
    return {
        "name": job.id,
        "phase": job.phase,
        "message": job.message,
        "exit_code": job.exit_code,
        "created": _moment(job.created),
        "started": _moment(job.created),
        "ended": _moment(job.ended),
        "duration_seconds": round((job.ended or time.time()) - job.created, 1),
        "systems": job.systems,
        "priority": job.priority,
        "user": job.user,
        "host": job.host,
        "pid": job.pid,
        "mode": job.mode,
        "model_dir": job.model_dir,
        "labels": dict(job.labels),
        "command": list(job.command),
        "params": parse_yaml(job.params)[0] if job.params else None,
    }


def render(jobs: Sequence[Job], style: str, *, single: bool) -> str:
    """Write jobs as text.

    Args:
        jobs: in the order to show.
        style: 'table', 'yaml' or 'json'.
        single: write a record instead of a list of one.
    """
    if style == "table":
        return table(jobs)
    records = [as_record(job) for job in jobs]
    data = records[0] if single else records
    if style == "json":
        return json.dumps(data, indent=2)
    return yaml.safe_dump(data, sort_keys=False).rstrip()
