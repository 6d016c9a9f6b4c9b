"""The host's runtime, and layouts written in Python."""

from wafer.csl.host.vendor.sdk import MemcpyDataType, MemcpyOrder, SdkRuntime
from wafer.csl.regions import (
    Color,
    Edge,
    Route,
    RoutingPosition,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_edge_routing,
    get_platform,
)

__all__ = [
    "Color",
    "Edge",
    "MemcpyDataType",
    "MemcpyOrder",
    "Route",
    "RoutingPosition",
    "SdkLayout",
    "SdkRuntime",
    "SdkTarget",
    "SimfabConfig",
    "get_edge_routing",
    "get_platform",
]
