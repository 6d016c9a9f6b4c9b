"""How fast samples go by."""

import time

__all__ = ["RateTracker"]


class RateTracker:
    """Samples per second: since the last query, and since this was made."""

    def __init__(self, before: int = 0, began: float | None = None) -> None:
        """Begin to measure now.

        Args:
            before: samples of steps that count, but not as speed: they compiled.
            began: ``time.perf_counter()`` from which ``seconds`` counts; now when None.
        """
        self.total = self._before = before
        self._start = self._last = time.perf_counter()
        self._began = self._start if began is None else began
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
        return rate, (self.total - self._before) / max(now - self._start, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds since ``began``."""
        return time.perf_counter() - self._began
