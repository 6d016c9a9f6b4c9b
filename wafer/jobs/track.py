"""A run as a job: register, wait for the turn, say how it ended. Trouble here never stops a run."""

import contextlib
import dataclasses
import getpass
import logging
import os
import pathlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator, Sequence

from wafer.config import RunConfig
from wafer.jobs.store import FINAL, PRIORITIES, Job, JobError, JobStore

_LOG = logging.getLogger(__name__)
_POLL = 0.5  # seconds between looks at the queue
_TROUBLE = (OSError, JobError)


@dataclasses.dataclass
class Tracked:
    """What the command knows of its own job."""

    id: str = ""  #: the job's, '' where no store took it
    code: int | None = None  #: exit code to report; None while the run has not come back

    def ended(self, code: int) -> int:
        """Note the exit code; returns it."""
        self.code = code
        return code


def new_job(cfg: RunConfig, command: Sequence[str]) -> Job:
    """Describe a run as a job."""
    settings = cfg.runconfig
    dry = settings.validate_only or settings.compile_only
    return Job(
        id=f"wsjob-{secrets.token_hex(6)}",
        created=time.time(),
        systems=0 if dry else settings.num_csx,
        priority=PRIORITIES[settings.job_priority or "p2"],
        user=_user(),
        mode=settings.mode,
        model_dir=str(pathlib.Path(settings.model_dir).resolve()),
        command=("wafer", *command),
        labels={str(k): str(v) for k, v in (settings.job_labels or {}).items()},
        params=cfg.to_yaml(),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return str(os.getuid())


@contextlib.contextmanager
def tracked(
    cfg: RunConfig, command: Sequence[str], store: JobStore | None = None
) -> Iterator[Tracked]:
    """Run the body as a job, when its turn has come.

    Args:
        cfg: the run.
        command: its arguments as typed.
        store: where jobs are kept; the user's own by default.

    Raises:
        KeyboardInterrupt: the job was cancelled while it waited.
    """
    store = JobStore() if store is None else store
    job, handle = new_job(cfg, command), Tracked()
    if not _attempt(store, lambda: store.add(job)):
        yield handle
        return
    handle.id = job.id
    try:
        _wait(store, job)
        yield handle
        _report(store, job, handle.code or 0, "")
    except KeyboardInterrupt:
        _report(store, job, 130, "interrupted")
        raise
    except BaseException as error:
        _report(store, job, 1, str(error).partition("\n")[0] or type(error).__name__)
        raise


def _attempt(store: JobStore, action: Callable[[], object]) -> bool:
    """Do something with the store; trouble is one warning."""
    try:
        action()
    except _TROUBLE as error:
        _LOG.warning(
            "The run continues without a job store: %s. WAFER_JOBS_DB names another file.", error
        )
        return False
    return True


def _wait(store: JobStore, job: Job) -> None:
    """Return when it is the job's turn."""
    announced = False
    while True:
        try:
            phase, ahead = store.try_start(job.id)
        except _TROUBLE as error:
            _LOG.warning("Not waiting for a turn: %s", error)
            return
        if phase == "RUNNING":
            _LOG.info("Job %s (`wafer jobs get` lists jobs)", job.id)
            return
        if phase in FINAL:
            _LOG.warning("Job %s was cancelled while queued", job.id)
            raise KeyboardInterrupt
        if not announced:
            names = ", ".join(f"{j.id} ({j.phase.lower()})" for j in ahead)
            _LOG.info(
                "Job %s is queued for %d of %s system(s), behind %s. `wafer jobs get` shows the "
                "queue, `wafer jobs cancel` ends a job, `wafer jobs config --systems N` lets more "
                "run at once.",
                job.id,
                job.systems,
                store.systems,
                names,
            )
            announced = True
        time.sleep(_POLL)


def _report(store: JobStore, job: Job, code: int, message: str) -> None:
    """Write the end down: which phase, and why."""
    phase = "SUCCEEDED"
    if code:
        ended_by_user = code == 128 + signal.SIGINT
        phase = "CANCELLED" if ended_by_user or _is_cancelled(store, job) else "FAILED"
    if code == 128 + signal.SIGINT:
        message = message or "interrupted"
    elif code == 128 + signal.SIGTERM:
        message = "cancelled" if phase == "CANCELLED" else "SIGTERM from outside"
    _attempt(store, lambda: store.finish(job.id, phase, code, message))


def _is_cancelled(store: JobStore, job: Job) -> bool:
    try:
        return store.find(job.id).cancel
    except _TROUBLE:
        return False
