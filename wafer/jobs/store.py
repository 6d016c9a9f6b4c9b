"""The job store: one SQLite file, opened for each operation, changed in short transactions."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping
from typing import Any

from wafer.errors import WaferError
from wafer.jobs.process import identity

PHASES = ("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
FINAL = PHASES[2:]
PRIORITIES = {"p1": 199, "p2": 299, "p3": 399}  # the smaller goes first
_VERSION = 1
_KEPT = 1000  # finished jobs remembered
_PRIVATE = 0o600  # SQLite's journals take it over
_BUSY = 5.0  # seconds to wait for another process's transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE NOT NULL, phase TEXT NOT NULL,
  created REAL NOT NULL, started REAL, ended REAL,
  systems INTEGER NOT NULL, priority INTEGER NOT NULL, user TEXT NOT NULL, host TEXT NOT NULL,
  pid INTEGER NOT NULL, process TEXT NOT NULL, mode TEXT NOT NULL, model_dir TEXT NOT NULL,
  command TEXT NOT NULL, labels TEXT NOT NULL, params TEXT NOT NULL,
  cancel INTEGER NOT NULL DEFAULT 0, exit_code INTEGER, message TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS settings (key TEXT PRIMARY KEY, value INTEGER);
"""


class JobError(WaferError, ValueError):
    """An unknown job, or a request that cannot be met."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    id: str  #: 'wsjob-' and 12 hexadecimal digits
    phase: str = "QUEUED"  #: one of ``PHASES``
    created: float = 0.0  #: Unix time the command registered
    started: float | None = None  #: when its turn came; None while queued
    ended: float | None = None  #: when it ended
    systems: int = 1  #: how many it occupies; 0 for a run that only checks or compiles
    priority: int = PRIORITIES["p2"]  #: the smaller goes first; see ``PRIORITIES``
    user: str = ""  #: login name
    #: machine the process runs on
    host: str = dataclasses.field(default_factory=socket.gethostname)
    pid: int = dataclasses.field(default_factory=os.getpid)  #: process id there
    #: what ``process.identity`` said of it
    process: str = dataclasses.field(default_factory=lambda: identity(os.getpid()) or "")
    mode: str = "train"  #: train, eval, ...
    model_dir: str = ""  #: absolute
    command: tuple[str, ...] = ()  #: as typed
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: free key-value pairs
    params: str = ""  #: the resolved configuration, YAML
    cancel: bool = False  #: a request to end it is pending
    exit_code: int | None = None  #: of the command
    message: str = ""  #: why it ended, when not by success

    @property
    def alive(self) -> bool:
        """Whether its process still runs; a job of another machine is believed."""
        return self.host != socket.gethostname() or identity(self.pid) == self.process


_FIELDS = tuple(field.name for field in dataclasses.fields(Job))
_JSON = ("command", "labels")


def default_path() -> pathlib.Path:
    """Where the store is: ``WAFER_JOBS_DB``, else wafer/jobs.db below the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local/state"
    return pathlib.Path(os.environ.get("WAFER_JOBS_DB") or pathlib.Path(state, "wafer/jobs.db"))


class JobStore:
    """The jobs of one user, shared by all runs on all their terminals.

    Args:
        path: the SQLite file; made, with its folder, by the first ``add``.
    """

    def __init__(self, path: str | pathlib.Path | None = None) -> None:
        self.path = pathlib.Path(path) if path is not None else default_path()

    @contextlib.contextmanager
    def _transaction(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Everything or nothing; closing the file takes back what was not committed."""
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch(_PRIVATE)
            self.path.chmod(_PRIVATE)  # may contain secrets: readable by the owner only
        try:
            db = sqlite3.connect(self.path, timeout=_BUSY, isolation_level=None)
            with contextlib.closing(db):
                db.row_factory = sqlite3.Row
                db.execute("BEGIN IMMEDIATE")
                self._prepare(db)
                yield db
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise JobError(f"job store {self.path}: {error}") from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version > _VERSION:
            raise JobError(
                f"{self.path} was written by a newer Wafer (format {version}, this one knows "
                f"{_VERSION}); update Wafer, or name another file with WAFER_JOBS_DB"
            )
        if version < _VERSION:
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {_VERSION}")

    def add(self, job: Job) -> None:
        """Register a job; forgets the oldest finished ones beyond a thousand."""
        columns = ", ".join(_FIELDS)
        holes = ", ".join(f":{name}" for name in _FIELDS)
        values = {name: getattr(job, name) for name in _FIELDS}
        values |= {name: json.dumps(values[name]) for name in _JSON}
        with self._transaction(create=True) as db:
            db.execute(f"INSERT INTO jobs ({columns}) VALUES ({holes})", values)
            final = ", ".join(f"'{phase}'" for phase in FINAL)
            db.execute(
                f"DELETE FROM jobs WHERE phase IN ({final}) AND number <= "
                "(SELECT MAX(number) FROM jobs) - ?",
                (_KEPT,),
            )

    def jobs(self, *, finished: bool = True) -> list[Job]:
        """List jobs, oldest first, after marking those whose process is gone.

        Args:
            finished: also those that have ended.
        """
        if not self.path.exists():
            return []
        with self._transaction() as db:
            jobs = _reap(db)
        return [job for job in jobs if finished or job.phase not in FINAL]

    def find(self, name: str) -> Job:
        """Return the job with this id, or the only one whose id begins so.

        Raises:
            JobError: none, or several.
        """
        jobs = self.jobs()
        exact = [job for job in jobs if job.id in (name, f"wsjob-{name}")]
        named = exact or [j for j in jobs if j.id.startswith((name, f"wsjob-{name}"))]
        if len(named) == 1:
            return named[0]
        if not named:
            raise JobError(f"job {name!r}: not found; `wafer jobs get -a` lists all jobs")
        listed = ", ".join(job.id for job in named)
        raise JobError(f"job {name!r}: ambiguous, it matches {listed}; give more of the id")

    def change(self, job_id: str, **values: Any) -> None:
        """Set fields of a job."""
        values = {k: json.dumps(v) if k in _JSON else v for k, v in values.items()}
        assigned = ", ".join(f"{name} = :{name}" for name in values)
        with self._transaction() as db:
            db.execute(f"UPDATE jobs SET {assigned} WHERE id = :id", values | {"id": job_id})

    def finish(self, job_id: str, phase: str, exit_code: int | None, message: str) -> None:
        """Record how a job ended, unless that is recorded already.

        Args:
            job_id: which job.
            phase: its last phase, such as 'SUCCEEDED'.
            exit_code: of its process; None where it is unknown.
            message: why, for people.
        """
        with self._transaction() as db:
            _end(db, job_id, phase, message, exit_code)

    def request_cancel(self, job_id: str) -> Job:
        """Ask a job to end: a queued one is over at once; returns it as it stood before."""
        with self._transaction() as db:
            job = _only(_reap(db), job_id)
            if job.phase == "QUEUED":
                _end(db, job_id, "CANCELLED", "cancelled while queued", 130)
            elif job.phase == "RUNNING":
                db.execute("UPDATE jobs SET cancel = 1 WHERE id = ?", (job_id,))
        return job

    def try_start(self, job_id: str) -> tuple[str, list[Job]]:
        """Let a queued job run if it is its turn.

        The turn goes by priority, then by age. A job that wants more systems than there are
        runs when nothing else does. Nobody overtakes the first in the queue.

        Returns:
            (the job's phase now, the jobs that are in its way).
        """
        with self._transaction() as db:
            jobs = _reap(db)
            own = _only(jobs, job_id)
            if own.phase != "QUEUED":
                return own.phase, []
            running = [job for job in jobs if job.phase == "RUNNING" and job.systems]
            queue = [job for job in jobs if job.phase == "QUEUED" and job.systems]
            queue.sort(key=lambda job: job.priority)  # stable: the older first
            ahead = queue[: queue.index(own)] if own.systems else []
            total = self._systems(db)
            busy = sum(job.systems for job in running)
            fits = total is None or not own.systems or not running or busy + own.systems <= total
            if fits and (total is None or not ahead):
                db.execute(
                    "UPDATE jobs SET phase = 'RUNNING', started = ? WHERE id = ?",
                    (time.time(), job_id),
                )
                return "RUNNING", []
            return "QUEUED", running + ahead

    @property
    def systems(self) -> int | None:
        """How many systems there are to share; None lets every run start at once."""
        if not self.path.exists():
            return _named_systems()
        with self._transaction() as db:
            return self._systems(db)

    def _systems(self, db: sqlite3.Connection) -> int | None:
        named = _named_systems()
        if named is not None:
            return named
        row = db.execute("SELECT value FROM settings WHERE key = 'systems'").fetchone()
        return None if row is None else row["value"]

    def set_systems(self, count: int | None) -> None:
        """Remember how many systems there are; None forgets it."""
        with self._transaction(create=True) as db:
            db.execute("DELETE FROM settings WHERE key = 'systems'")
            if count is not None:
                db.execute("INSERT INTO settings VALUES ('systems', ?)", (count,))


def _named_systems() -> int | None:
    named = os.environ.get("WAFER_SYSTEMS", "")
    if named and (not named.isdigit() or int(named) < 1):
        raise JobError(f"WAFER_SYSTEMS={named!r}: expected a whole number > 0")
    return int(named) if named else None


def _reap(db: sqlite3.Connection) -> list[Job]:
    """Mark the jobs whose process is gone without a word; returns all jobs as they then are."""
    for job in _all(db):
        if job.phase not in FINAL and not job.alive:
            if job.cancel:
                _end(db, job.id, "CANCELLED", "cancelled", None)
            else:
                _end(db, job.id, "FAILED", "its process ended without a word (killed?)", None)
    return _all(db)


def _all(db: sqlite3.Connection) -> list[Job]:
    jobs = []
    for row in db.execute("SELECT * FROM jobs ORDER BY number").fetchall():
        values = {name: row[name] for name in _FIELDS} | {n: json.loads(row[n]) for n in _JSON}
        values |= {"command": tuple(values["command"]), "cancel": bool(values["cancel"])}
        jobs.append(Job(**values))
    return jobs


def _end(db: sqlite3.Connection, job_id: str, phase: str, message: str, code: int | None) -> None:
    db.execute(
        "UPDATE jobs SET phase = ?, message = ?, exit_code = ?, ended = ? WHERE id = ? "
        "AND phase IN ('QUEUED', 'RUNNING')",
        (phase, message, code, time.time(), job_id),
    )


def _only(jobs: list[Job], job_id: str) -> Job:
    for job in jobs:
        if job.id == job_id:
            return job
    raise JobError(f"job {job_id!r}: not found; the job store was replaced")
