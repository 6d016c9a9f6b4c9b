"""What can go wrong between a host and its program."""

from wafer.errors import WaferError

__all__ = ["DeadlockError", "FaultError", "HostError"]


class HostError(WaferError, ValueError):
    """A command that the program or its memory cannot carry out."""


class DeadlockError(HostError):
    """Nothing can move any more, and the host still waits."""


class FaultError(HostError):
    """The program did what the machine forbids, or one of its assertions failed."""
