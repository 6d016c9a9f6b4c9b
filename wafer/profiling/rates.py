"""How fast samples go by."""

import time


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
        """(rate since the last call, average rate)."""
        now = time.perf_counter()
        rate = self._since_last / max(now - self._last, 1e-9)
        self._last, self._since_last = now, 0
        return rate, (self.total - self._before) / max(now - self._start, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds since ``began``."""
        return time.perf_counter() - self._began


def log_line(device: str, step: int, loss: float, recent: float, average: float) -> str:
    """Format the line of a training step; the rates are 0 while nothing is known.

    >>> log_line("CPU", 3, 3.5, 10.0, 9.5)
    '| Train Device=CPU, Step=3, Loss=3.50000, Rate=10.00 samples/sec, GlobalRate=9.50 samples/sec'
    """
    line = f"| Train Device={device}, Step={step}, Loss={loss:.5f}"
    if not average:  # of the first step, which compiles
        return line
    return f"{line}, Rate={recent:.2f} samples/sec, GlobalRate={average:.2f} samples/sec"
