"""Keep the memory of one step for the next.

XLA takes and gives back a gigabyte of temporaries at every step. As glibc comes, it returns them to
Linux, which fills each 4 KiB page with zeros when it is touched again: a sixth of the step of a
sparse GPT with d=512, and several times that on a virtual machine whose host takes free pages back.
glibc keeps them, in huge pages, when its tunables say so, which it reads only at the start of a
process.
"""

import os
import sys

_VARIABLE = "GLIBC_TUNABLES"
_TUNABLES = {
    "arena_max": 1,  # other arenas hold at most 64 MiB and map the rest
    "mmap_max": 0,  # what is mapped goes back to Linux when it is freed
    "trim_threshold": 2**40,
    "hugetlb": 1,  # ask for huge pages
}


def restart() -> None:
    """Start this process again, once, with a malloc that keeps its memory.

    On Linux with glibc; elsewhere nothing happens. Set GLIBC_TUNABLES, to anything, to do without.
    """
    try:
        glibc = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):  # Windows; macOS; musl
        return
    if _VARIABLE in os.environ or not glibc:
        return
    os.environ[_VARIABLE] = ":".join(f"glibc.malloc.{k}={v}" for k, v in _TUNABLES.items())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
