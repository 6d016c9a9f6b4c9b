"""Layouts written in Python (SdkLayout): regions of code, ports, connections, streams of the host.

``routing`` holds the values that scripts pass, ``region`` and ``layout`` what they call. ``paths``
finds routes between ports, ``colors`` gives symbolic colors numbers, ``build`` makes the image.
"""

from wafer.csl.regions.layout import (
    FP16TYPE,
    Platform,
    SdkLayout,
    SdkTarget,
    SimfabConfig,
    get_platform,
)
from wafer.csl.regions.region import CodeRegion
from wafer.csl.regions.routing import (
    Color,
    Edge,
    IntRectangle,
    IntVector,
    Route,
    RoutingPosition,
    get_edge_routing,
)

__all__ = [
    "FP16TYPE",
    "CodeRegion",
    "Color",
    "Edge",
    "IntRectangle",
    "IntVector",
    "Platform",
    "Route",
    "RoutingPosition",
    "SdkLayout",
    "SdkTarget",
    "SimfabConfig",
    "get_edge_routing",
    "get_platform",
]
