"""The host's runtime, and layouts written in Python."""

from wafer.csl.regions import (
    FP16TYPE,
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
from wafer.vendor.sdk.sdk import MemcpyDataType, MemcpyOrder, SdkRuntime
