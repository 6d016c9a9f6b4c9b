"""A run as a job: register, and record how it ended. Errors of the store never fail the run."""

import contextlib
import dataclasses
import getpass
import logging
import os
import pathlib
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from wafer.config import RunConfig
from wafer.jobs.store import Job, JobError, JobStore

_LOG = logging.getLogger(__name__)


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
        priority=settings.job_priority or "p2",
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
    """Run the body as a job.

    Args:
        cfg: the run.
        command: its arguments as typed.
        store: where jobs are kept; the user's own by default.
    """
    store = JobStore() if store is None else store
    job, handle = new_job(cfg, command), Tracked()
    with contextlib.ExitStack() as held:
        if not _attempt(lambda: held.enter_context(store.running(job))):
            yield handle
            return
        handle.id = job.id
        _LOG.info("Job %s (`wafer jobs get` lists jobs)", job.id)
        code, message = 1, ""
        try:
            yield handle
            code = handle.code or 0
        except KeyboardInterrupt:
            code = 130
            raise
        except BaseException as error:
            message = str(error).partition("\n")[0] or type(error).__name__
            raise
        finally:
            _attempt(lambda: store.change(job.id, lambda job: job.finished(code, message)))


def _attempt(action: Callable[[], object]) -> bool:
    """Do something with the store; trouble is one warning."""
    try:
        action()
    except (OSError, JobError) as error:
        _LOG.warning(
            "The run continues without a job store: %s. WAFER_JOBS_DB names another folder.", error
        )
        return False
    return True


def follow_parent() -> None:
    """Send SIGTERM to this process when its parent has ended, if WAFER_PARENT names the parent.

    A sweep sets the variable for its runs: a run of a killed sweep writes a checkpoint and ends.
    """
    parent = os.environ.pop("WAFER_PARENT", None)

    def watch() -> None:
        while os.getppid() == int(parent or 0):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent is not None:
        threading.Thread(target=watch, daemon=True).start()
