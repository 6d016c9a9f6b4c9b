"""How fast samples go by, under the vendor's name."""

from wafer.profiling import rates


class LoopRates(rates.RateTracker):
    """Samples per second, asked for by methods.

    The recent rate counts from the last ``rate()``, the global one from ``reset()``.
    """

    def rate(self) -> float:
        """Return samples per second since the last call."""
        return self.rates()[0]

    def global_rate(self) -> float:
        """Return samples per second since the beginning."""
        return self.total / max(self.seconds, 1e-9)

    def elapsed_seconds(self) -> float:
        """Return seconds since the beginning."""
        return self.seconds

    @property
    def total_count(self) -> int:
        """Samples so far."""
        return self.total

    def reset(self) -> None:
        """Begin anew."""
        self.__init__()  # pyright: ignore[reportGeneralTypeIssues]


RateTracker = LoopRates
"""The vendor's name."""
