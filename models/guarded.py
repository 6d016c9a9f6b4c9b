"""Call a function on somebody else's file in a process of its own, for a limited time.

For libraries in C that may crash or never return over a damaged file, and for programs in files.
"""

import atexit
import contextlib
import json
import pkgutil
import resource
import signal
import subprocess
import sys
import threading
from typing import Any

from wafer.models.user.trust import child_environment

_LIMIT = 10  # processor seconds of one call, which do not depend on the machine's other work
_HANG = 300  # seconds of one that waits
_MEMORY = 8 << 30  # bytes of address space


class _Guard:
    """The process; started when first asked, and again when it has died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def ask(self, function: str, *arguments: object) -> Any:
        with self._lock:
            child = self._child = self._child or subprocess.Popen(
                [sys.executable, "-P", "-c", "from wafer.models.guarded import serve; serve()"],
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,  # Ctrl-C is for the parent
            )
            assert child.stdin is not None
            assert child.stdout is not None
            answer = ""
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps([function, arguments, _LIMIT]) + "\n")
                child.stdin.flush()
                answer = child.stdout.readline()
            if not answer:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(5)
                self.close()
                how = {
                    -signal.SIGPROF: f"does not come to an end in {_LIMIT} seconds",
                    -signal.SIGALRM: f"waits for {_HANG} seconds",
                }.get(child.returncode, f"crashes (signal {-child.returncode})")
                raise ValueError(f"the process that works on it {how}; it is damaged or malicious")
        value, problem = json.loads(answer)
        if problem:
            raise ValueError(problem)
        return value

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.communicate()


_GUARD = _Guard()


def call_in_subprocess(function: str, *arguments: object) -> Any:
    """Call a function, 'module:name', in the other process; arguments are JSON values.

    Returns:
        Its result, by way of JSON.

    Raises:
        ValueError: it raised one, wanted too much memory, crashed, or did not return in time.
    """
    return _GUARD.ask(function, *arguments)


def dismiss() -> None:
    """End the other process, which keeps its memory; the next call starts another."""
    _GUARD.close()


def serve() -> None:
    """Answer calls on stdin, a line of JSON each; a signal ends the process when one hangs."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if hard < 0 else min(_MEMORY, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        function, arguments, limit = json.loads(line)
        call = pkgutil.resolve_name(function)
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(_HANG)
        try:
            answer = call(*arguments), ""
        except ValueError as error:
            answer = None, str(error) or "no value that can be used"
        except MemoryError:
            answer = None, "asks for more memory than it can need"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
