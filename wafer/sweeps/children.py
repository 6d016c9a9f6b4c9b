"""Runs of a sweep as child processes, so many at a time; an interruption ends them in order.

A run of code that no module has is run in this process, which has it.
"""

import contextlib
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NamedTuple

from wafer.errors import ConfigError, Problem
from wafer.sweeps.trials import ERROR, Trial

_POLL = 0.1  # seconds between looks
PATIENCE = 600  # seconds that a step and a checkpoint may take


class _Child(NamedTuple):
    """A run in its process."""

    trial: Trial  #: which
    process: subprocess.Popen[bytes]  #: of it
    began: float  #: ``time.monotonic()`` then
    since: int  #: length of the log before


def run_trials(
    trials: Sequence[Trial],
    jobs: int,
    say: Callable[[Trial, str, float], None],
    run_here: Callable[[Trial], None],
) -> dict[str, str]:
    """Run what is not finished, in order.

    Args:
        trials: to run, in this order but for those that come after another.
        jobs: processes at a time.
        say: called as each ends, with why it is not finished ('' when it is) and its seconds.
        run_here: runs one whose code this process alone has.

    Returns:
        Name -> reason of those that are not finished.

    Raises:
        ConfigError: several at a time of code that this process alone has.
        KeyboardInterrupt: the sweep was interrupted; its runs have written their checkpoints.
    """
    require_modules(trials, f"{jobs} at a time" if jobs > 1 else "")
    waiting, running, reasons = list(trials), list[_Child](), dict[str, str]()
    able = lambda: next((trial for trial in waiting if not trial.blocked), None)

    def ended(trial: Trial, reason: str, seconds: float) -> None:
        say(trial, reason, seconds)
        if reason:
            reasons[trial.name] = reason

    with interruptible():
        try:
            while waiting or running:
                while len(running) < jobs and (ready := able()):
                    waiting.remove(ready)
                    if ready.arm.held:
                        ended(ready, *_run_here(ready, run_here))
                    else:
                        running.append(_start(ready))
                if waiting and not running:  # what they come after is not finished
                    reasons |= {
                        t.name: f"it begins with {t.blocked}, which is not" for t in waiting
                    }
                    waiting.clear()
                for child in [c for c in running if c.process.poll() is not None]:
                    running.remove(child)
                    ended(child.trial, *_finish(child))
                time.sleep(_POLL)
        finally:
            for child in running:  # nobody waits for them any more
                child.process.send_signal(signal.SIGTERM)
            for child in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(PATIENCE)
                    _finish(child)
    return reasons


def require_modules(trials: Sequence[Trial], how: str) -> None:
    """Refuse code that this process alone has, where runs go to others.

    Args:
        trials: to run.
        how: they are to run; '' is in this process.

    Raises:
        ConfigError: an arm has such code.
    """
    for arm in (trial.arm for trial in trials if how and trial.arm.held):
        message = f"{arm.held[0]!r} is in this process alone, which runs one at a time, not {how}. "
        message += "Move it into a module, or leave `jobs` and `executor` out"
        raise ConfigError([Problem(("arms", arm.name), message)])


def _start(trial: Trial) -> _Child:
    trial.write()
    since = trial.log.stat().st_size if trial.log.exists() else 0
    return _Child(trial, trial.launch.process(), time.monotonic(), since)


def _finish(child: _Child) -> tuple[str, float]:
    seconds = time.monotonic() - child.began
    return child.trial.finish(child.process.returncode, seconds, child.since), seconds


def _run_here(trial: Trial, run: Callable[[Trial], None]) -> tuple[str, float]:
    """Run one in this process; an interruption ends the sweep, too."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    began, code = time.monotonic(), 0
    with trial.log.open("a", encoding="utf-8") as log:
        since = log.tell()
        try:
            trial.write()
            run(trial)
        except KeyboardInterrupt:
            trial.finish(128 + signal.SIGINT, time.monotonic() - began, since)
            raise
        except (Exception, SystemExit) as error:  # of the user's code: any; the other runs go on
            code = 1
            log.write(f"{traceback.format_exc()}{ERROR}{' '.join(str(error).split())}\n")
    seconds = time.monotonic() - began
    return trial.finish(code, seconds, since), seconds


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
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
