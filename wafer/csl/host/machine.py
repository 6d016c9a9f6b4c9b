"""What the host needs of a machine that executes an image."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from wafer.energy import Counts
from wafer.machine.engine import Print, Rectangle, Status
from wafer.machine.tools.recording import Trace

__all__ = ["Machine", "Print", "Rectangle", "Status"]


class Machine(Protocol):
    """A wafer with an image loaded; columns and rows count in the program's rectangle."""

    @property
    def cycle(self) -> int:
        """Cycles that have passed."""
        ...

    @property
    def scalar_share(self) -> float:
        """Cycles of scalar instructions as a share of all that PEs have worked."""
        ...

    @property
    def fault(self) -> str:
        """What ended the last run with ``Status.FAULT``."""
        ...

    @property
    def prints(self) -> Sequence[Print]:
        """Lines that PEs have written, by cycle."""
        ...

    @property
    def trace(self) -> Trace:
        """What was recorded."""
        ...

    @property
    def counts(self) -> Counts:
        """What all PEs have done so far."""
        ...

    @property
    def profile(self) -> dict[tuple[str, int], int]:
        """Cycles by file and line."""
        ...

    def run(self, most_cycles: int) -> int:
        """Run until one of ``Status``; READY only if a call was unanswered before."""
        ...

    def launch(self, rectangle: Rectangle, function: str, words: Sequence[int]) -> None:
        """Call a function on PEs, on each after what was called before."""
        ...

    def commands_waiting(self, rectangle: Rectangle) -> int:
        """PEs with a call that has not returned, or has not freed the command stream."""
        ...

    def read(self, x: int, y: int, address: int, bytes: int) -> np.ndarray:
        """[bytes] uint8 of a PE's memory."""
        ...

    def write(self, x: int, y: int, address: int, data: np.ndarray) -> None:
        """Write an array's bytes to a PE's memory."""
        ...

    def inject(self, color: int, x: int, y: int, words: np.ndarray) -> None:
        """Queue uint32 words for a PE on a stream from the host."""
        ...

    def collectable(self, color: int, x: int, y: int) -> int:
        """How many words ``collected`` could take."""
        ...

    def collected(self, color: int, x: int, y: int, most: int) -> np.ndarray:
        """Take the first words that a PE has sent to the host on a stream: uint32."""
        ...

    def enter(
        self, color: int, port: tuple[int, int, str], words: np.ndarray, controls: np.ndarray
    ) -> None:
        """Queue words that come from outside of the rectangle by a PE's side.

        Args:
            color: that they come on.
            port: column, row and side of the PE.
            words: [n] uint32.
            controls: [n] bool, whether each is a control wavelet.
        """
        ...

    def open(self, color: int, port: tuple[int, int, str]) -> None:
        """Keep what leaves by a PE's side from now on."""
        ...

    def left(self, color: int, port: tuple[int, int, str]) -> np.ndarray:
        """Words that have left there: uint32."""
        ...

    def waiting(self) -> Sequence[object]:
        """What tasks, operations, queues and routers wait for; each says it as ``str``."""
        ...
