"""How fast samples go by."""

import time

__all__ = ["RateTracker"]


class RateTracker:
    """Samples per second: since the last query, and since the first executed step."""

    def __init__(self) -> None:
        self.total = 0
        self._start = self._last = time.perf_counter()
        self._since_last = 0

    def add(self, samples: int) -> None:
        """Count finished samples."""
        self.total += samples
        self._since_last += samples

    def rates(self) -> tuple[float, float]:
        """(rate since the last call, global rate)."""
        now = time.perf_counter()
        rate = self._since_last / max(now - self._last, 1e-9)
        self._last, self._since_last = now, 0
        return rate, self.total / max(now - self._start, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds since the tracker was made."""
        return time.perf_counter() - self._start
