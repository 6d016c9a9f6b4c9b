"""What can go wrong on the fabric, each naming the PE and the color."""

from wafer.errors import WaferError

__all__ = ["DeadlockError", "FabricError", "FaultError", "RouteError", "SramError"]


class FabricError(WaferError, ValueError):
    """A PE program that cannot be built or run."""


class RouteError(FabricError):
    """A color configuration that the routers cannot hold or that loses wavelets."""


class SramError(FabricError):
    """More memory than one PE has."""


class FaultError(FabricError):
    """A violation of the architecture, at which the simulator stops."""


class DeadlockError(FabricError):
    """Nothing can move any more, and some PE still waits."""
