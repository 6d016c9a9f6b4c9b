"""The host's runtime."""

from typing import NoReturn

from wafer.csl.host.sdk import MemcpyDataType, MemcpyOrder, SdkRuntime
from wafer.csl.syntax.releases import feature_of


def __getattr__(name: str) -> NoReturn:
    """Names of the vendor's module that are not here: those of SdkLayout."""
    feature = feature_of("SdkLayout")
    if name.startswith("__") or feature is None:
        raise AttributeError(name)
    raise ImportError(f"{name} is not here; {feature.text}, and that is not here")


__all__ = ["MemcpyDataType", "MemcpyOrder", "SdkRuntime"]
