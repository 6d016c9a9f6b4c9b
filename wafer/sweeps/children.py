"""Runs of a sweep as child processes, so many at a time; an interruption ends them in order."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from wafer.models.user.trust import child_environment
from wafer.sweeps.trials import Trial

_POLL = 0.1  # seconds between looks
_PATIENCE = 600  # seconds that a step and a checkpoint may take


class _Child(NamedTuple):
    """A run in its process."""

    trial: Trial  #: which
    process: subprocess.Popen[bytes]  #: of it
    began: float  #: ``time.monotonic()`` then
    since: int  #: length of the log before


def run_trials(
    trials: Sequence[Trial], jobs: int, say: Callable[[Trial, str, float], None]
) -> dict[str, str]:
    """Run what is not finished, in order.

    Args:
        trials: to run, in this order but for those that come after another.
        jobs: processes at a time.
        say: called as each ends, with why it is not finished ('' when it is) and its seconds.

    Returns:
        Name -> reason of those that are not finished.

    Raises:
        KeyboardInterrupt: the sweep was interrupted; its runs have written their checkpoints.
    """
    waiting, running, reasons = list(trials), list[_Child](), dict[str, str]()
    able = lambda: next((trial for trial in waiting if not trial.blocked), None)
    with _interruptible():
        try:
            while waiting or running:
                while len(running) < jobs and (ready := able()):
                    waiting.remove(ready)
                    running.append(_start(ready))
                if waiting and not running:  # what they come after is not finished
                    reasons |= {
                        t.name: f"it begins with {t.blocked}, which is not" for t in waiting
                    }
                    waiting.clear()
                for child in [c for c in running if c.process.poll() is not None]:
                    running.remove(child)
                    reason, seconds = _finish(child)
                    say(child.trial, reason, seconds)
                    if reason:
                        reasons[child.trial.name] = reason
                time.sleep(_POLL)
        finally:
            for child in running:  # nobody waits for them any more
                child.process.send_signal(signal.SIGTERM)
            for child in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(_PATIENCE)
                    _finish(child)
    return reasons


def _start(trial: Trial) -> _Child:
    trial.write()
    command = trial.command()
    with trial.log.open("ab") as log:
        since = log.tell()
        # A session of its own: Ctrl-C reaches a run once, as the signal that the sweep sends.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=child_environment() | {"PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
    return _Child(trial, process, time.monotonic(), since)


def _finish(child: _Child) -> tuple[str, float]:
    seconds = time.monotonic() - child.began
    return child.trial.finish(child.process.returncode, seconds, child.since), seconds


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C is taken, so that no run is left behind."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, which alone gets signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
