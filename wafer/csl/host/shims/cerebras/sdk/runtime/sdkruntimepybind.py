"""The host's runtime."""

from wafer.csl.host.sdk import MemcpyDataType, MemcpyOrder, SdkRuntime

__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime"]
