"""Is a process still the one that registered? A pid alone is reused; its start time is not."""

import psutil


def identity(pid: int) -> str | None:
    """Name a living process beyond doubt, or return None when it has ended.

    Returns:
        Its start in seconds since the machine's: the clock may be set, and both move with it. A
        zombie, which has ended and only waits to be collected, counts as ended.
    """
    try:
        process = psutil.Process(pid)
        if process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
            return None
        return f"{process.create_time() - psutil.boot_time():.2f}"
    except psutil.NoSuchProcess:
        return None
