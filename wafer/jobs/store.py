"""Records of jobs: a JSON file for each run, and a lock that the run holds until it ends."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping

from wafer.errors import WaferError
from wafer.models.files import write_text

_KEPT = 1000  # jobs remembered


class JobError(WaferError, ValueError):
    """An unknown job, or a request that cannot be met."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    id: str  #: 'wsjob-' and 12 hexadecimal digits
    phase: str = "RUNNING"  #: then SUCCEEDED, FAILED or CANCELLED
    created: float = 0.0  #: Unix time the command registered
    ended: float | None = None  #: when it ended
    systems: int = 1  #: how many it occupies; 0 for a run that only checks or compiles
    priority: str = "p2"  #: 'p1', 'p2' or 'p3', as the run names it
    user: str = ""  #: login name
    #: machine the process runs on
    host: str = dataclasses.field(default_factory=socket.gethostname)
    pid: int = dataclasses.field(default_factory=os.getpid)  #: process id there
    mode: str = "train"  #: train, eval, ...
    model_dir: str = ""  #: absolute
    command: tuple[str, ...] = ()  #: as typed
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)  #: free key-value pairs
    params: str = ""  #: the resolved configuration, YAML
    cancel: bool = False  #: a request to end it is pending
    exit_code: int | None = None  #: of the command
    message: str = ""  #: why it ended, when not by success

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.phase == "RUNNING"

    def finished(self, code: int | None, message: str = "") -> "Job":
        """Record how it ended, unless that is recorded already.

        Args:
            code: exit code of its process; None where it is unknown.
            message: why, for people.
        """
        if not self.running:
            return self
        interrupted = code == 128 + signal.SIGINT
        cancelled = interrupted or (code != 0 and self.cancel)
        phase = "SUCCEEDED" if code == 0 else "CANCELLED" if cancelled else "FAILED"
        if code is None:
            message = "process exited without reporting a status (possibly killed)"
        elif code == 128 + signal.SIGTERM:
            message = "SIGTERM from outside"
        if cancelled:
            message = (message or "interrupted") if interrupted else "cancelled"
        return dataclasses.replace(
            self, phase=phase, exit_code=code, message=message, ended=time.time()
        )


def default_path() -> pathlib.Path:
    """Where records are: ``WAFER_JOBS_DB``, else wafer/jobs below the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or pathlib.Path.home() / ".local/state"
    return pathlib.Path(os.environ.get("WAFER_JOBS_DB") or pathlib.Path(state, "wafer/jobs"))


class JobStore:
    """The jobs of one user, shared by all runs on all their terminals.

    Args:
        path: the folder; made by the first run.
    """

    def __init__(self, path: str | pathlib.Path | None = None) -> None:
        self.path = pathlib.Path(path) if path is not None else default_path()

    @contextlib.contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Register a job, which counts as running until the body ends.

        Forgets the oldest finished jobs beyond a thousand.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # may contain secrets: readable by the owner only
        for old in self.jobs()[:-_KEPT]:
            if not old.running:
                self._file(old.id).unlink(missing_ok=True)
        lock = self._file(job.id, "lock")
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._write(job)
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    def jobs(self, *, finished: bool = True) -> list[Job]:
        """List jobs, oldest first, after marking those whose process is gone.

        Args:
            finished: also those that have ended.
        """
        jobs = [self._read(path) for path in self.path.glob("*.json")]
        for index, job in enumerate(jobs):
            if job.running and not self._holds_lock(job):
                jobs[index] = self.change(job.id, lambda job: job.finished(None))
                self._file(job.id, "lock").unlink(missing_ok=True)
        jobs.sort(key=lambda job: job.created)
        return [job for job in jobs if finished or job.running]

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

    def change(self, job_id: str, edit: Callable[[Job], Job]) -> Job:
        """Replace a record by what ``edit`` makes of it, one process at a time; returns that."""
        with (self.path / ".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            job = edit(self._read(self._file(job_id)))
            self._write(job)
        return job

    def _file(self, job_id: str, ending: str = "json") -> pathlib.Path:
        return self.path / f"{job_id}.{ending}"

    def _write(self, job: Job) -> None:
        write_text(self._file(job.id), json.dumps(dataclasses.asdict(job)))

    def _read(self, path: pathlib.Path) -> Job:
        try:
            values = json.loads(path.read_text("utf-8"))
            return Job(**values | {"command": tuple(values["command"])})
        except (ValueError, TypeError, KeyError) as error:
            raise JobError(f"{path}: not the record of a job ({error}); delete it") from error

    def _holds_lock(self, job: Job) -> bool:
        """Whether its process runs; jobs on other hosts are assumed to be running."""
        if job.host != socket.gethostname():
            return True
        try:
            with self._file(job.id, "lock").open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False
