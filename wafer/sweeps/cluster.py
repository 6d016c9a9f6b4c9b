"""Runs of a sweep as jobs of a cluster: SLURM, or processes of this machine in the same way.

Through submitit (https://github.com/facebookincubator/submitit): runs that are ready are one array
of jobs. A job that ends before its run is taken up again while its run advances, and once without.
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import psutil

from wafer.errors import ConfigError, Problem
from wafer.models.errors import optional
from wafer.sweeps.children import PATIENCE, interruptible, require_modules
from wafer.sweeps.trials import Launch, Trial

_POLL = 1.0  # seconds between looks
_WHY = "a sweep with an executor"


class Work(NamedTuple):
    """A run in a job; submitit calls it on the job's machine, again after a time limit."""

    launch: Launch  #: of the run
    sweep: int | None = None  #: process of this machine; the job ends when it has ended

    def __call__(self) -> tuple[int, float]:
        """Run it; returns the exit code of its process and the seconds it took."""
        began, process = time.monotonic(), self.launch.process()
        try:
            while process.poll() is None:
                if self.sweep is not None and not _runs(self.sweep):
                    raise RuntimeError("the sweep has ended")
                time.sleep(_POLL)
            return process.returncode, time.monotonic() - began
        except BaseException:  # a time limit, or the end of the sweep: it writes its checkpoint
            process.terminate()
            self.launch.note(process.wait(PATIENCE), time.monotonic() - began)
            raise

    def checkpoint(self) -> Any:
        """Return what is put into the queue again where a job meets its time limit."""
        return optional("submitit.helpers", _WHY).DelayedSubmission(self)


def _runs(pid: int) -> bool:
    """Whether a process of this machine has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Cluster(NamedTuple):
    """Where the jobs of a sweep go."""

    executor: str  #: 'slurm', or 'local' for processes of this machine
    options: Mapping[str, object]  #: of submitit: ``timeout_min``, ``slurm_partition``, …
    jobs: int | None  #: at a time; None is all that are ready
    folder: pathlib.Path  #: of the sweep; what submitit writes lies in its folder ``jobs``


class _Job(NamedTuple):
    trial: Trial
    job: Any  # of submitit
    since: int  # length of the log before
    newest: int | None  # step of the newest checkpoint before


def submit_trials(
    trials: Sequence[Trial], cluster: Cluster, say: Callable[[Trial, str, float], None]
) -> dict[str, str]:
    """Run what is not finished as jobs.

    Args:
        trials: to run.
        cluster: where.
        say: called as each ends, with why it is not finished ('' when it is) and its seconds.

    Returns:
        Name -> reason of those that are not finished.

    Raises:
        ConfigError: code that this process alone has, no SLURM on this machine, or an option that
            submitit does not know.
        MissingPackageError: submitit is not installed.
        KeyboardInterrupt: the sweep was interrupted; its jobs are cancelled.
    """
    require_modules(trials, "jobs of other processes")
    pool, jobs = _pool(cluster), cluster.jobs
    waiting, running, reasons = list(trials), list[_Job](), dict[str, str]()
    stalled: set[str] = set()  # their last job ended before a new checkpoint

    def ended(trial: Trial, reason: str, seconds: float) -> None:
        say(trial, reason, seconds)
        reasons.update({trial.name: reason} if reason else {})

    with interruptible():
        try:
            while waiting or running:
                ready = [trial for trial in waiting if not trial.blocked]
                if cluster.executor == "local" and jobs is not None:  # SLURM has a bound of its own
                    ready = ready[: jobs - len(running)]
                waiting = [trial for trial in waiting if trial not in ready]
                try:
                    running += _submit(pool, ready, cluster.executor)
                except (RuntimeError, OSError) as error:  # sbatch refused them, or did not answer
                    for trial in ready:
                        ended(trial, f"not submitted: {' '.join(str(error).split())}", 0.0)
                if waiting and not running:  # what they come after is not finished
                    return reasons | {
                        t.name: f"it begins with {t.blocked}, which is not" for t in waiting
                    }
                for submitted in [s for s in running if s.job.done()]:
                    running.remove(submitted)
                    reason, seconds, killed = _ended(submitted)
                    name, advanced = (
                        submitted.trial.name,
                        submitted.trial.launch.newest() != submitted.newest,
                    )
                    if killed and (advanced or name not in stalled):
                        stalled = stalled - {name} if advanced else stalled | {name}
                        waiting.append(submitted.trial)
                        continue
                    ended(submitted.trial, reason, seconds)
                time.sleep(_POLL)
        finally:
            for submitted in running:
                with contextlib.suppress(Exception):  # of a cluster that does not answer
                    submitted.job.cancel()
    return reasons


def _pool(cluster: Cluster) -> Any:
    submitit = optional("submitit", _WHY)
    try:
        pool = submitit.AutoExecutor(folder=cluster.folder / "jobs", cluster=cluster.executor)
    except RuntimeError as error:
        message = f"{cluster.executor}: {error} Run the sweep where sbatch and srun are known"
        raise ConfigError([Problem(("executor",), message)]) from None
    always: dict[str, object] = {"name": cluster.folder.name}
    if cluster.executor == "local":
        always["timeout_min"] = 365 * 24 * 60
    elif cluster.jobs is not None:
        always["slurm_array_parallelism"] = cluster.jobs
    try:
        pool.update_parameters(**(always | dict(cluster.options)))
    except (TypeError, ValueError, NameError, AssertionError) as error:  # submitit's
        raise ConfigError([Problem(("executor_options",), str(error))]) from None
    return pool


def _submit(pool: Any, trials: Sequence[Trial], executor: str) -> list[_Job]:
    """Submit runs as one array; jobs of this machine end with this process."""
    for trial in trials:
        trial.write()
    sweep = os.getpid() if executor == "local" else None
    works = [Work(trial.launch, sweep) for trial in trials]
    sizes = [trial.log.stat().st_size if trial.log.exists() else 0 for trial in trials]
    before = [work.launch.newest() for work in works]
    submitted = pool.submit_array(works) if works else []
    return [_Job(*one) for one in zip(trials, submitted, sizes, before, strict=True)]


def _ended(job: _Job) -> tuple[str, float, bool]:
    """Why a run is not finished ('' when it is), its seconds, and whether its job was killed."""
    try:
        code, seconds = job.job.result()
    except Exception as error:  # submitit's: no result; what killed the job stands in its log
        return f"its job ended: {error}", 0.0, True
    return job.trial.finish(code, seconds, job.since), seconds, False
