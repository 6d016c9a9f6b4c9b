"""What can go wrong between a host and its program."""

from collections.abc import Sequence

from wafer.errors import WaferError


class HostError(WaferError, ValueError):
    """A command that the program or its memory cannot carry out."""


class DeadlockError(HostError):
    """Nothing can move any more, and the host still waits.

    Attributes:
        waiting: all that waits, likely causes first; the message shows the first of them.
    """

    def __init__(self, message: str, waiting: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.waiting = tuple(waiting)


class FaultError(HostError):
    """The program did what the machine forbids, or one of its assertions failed."""
