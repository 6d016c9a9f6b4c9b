"""Limits for a program of somebody else's that runs in this process, such as a chat template."""

import contextlib
import resource
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psutil

from wafer.errors import DataError

__all__ = ["bounded"]

_SECONDS = 10  # of processor time
_MEMORY = 1 << 30  # bytes of address space more than the process has


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Let a block take some processor time and memory, and no more.

    Time is limited in the main thread alone, which is where worker processes encode.

    Args:
        what: runs in the block, for errors.

    Raises:
        DataError: it takes more.
    """

    def end(*_: Any) -> None:
        raise DataError(f"{what} does not come to an end in {_SECONDS} seconds")

    timed = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = psutil.Process().memory_info().vms + _MEMORY
    tighter = soft == resource.RLIM_INFINITY or most < soft
    earlier = signal.signal(signal.SIGVTALRM, end) if timed else None
    try:
        if tighter:
            resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        yield
    except MemoryError:
        raise DataError(f"{what} asks for more than {_MEMORY:,} bytes of memory") from None
    finally:
        if timed:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, earlier)
        if tighter:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
