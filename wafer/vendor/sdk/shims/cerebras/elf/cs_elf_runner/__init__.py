"""The host of SDK 0.4 to 0.8."""

from wafer.vendor.sdk.elf_runner import CSELFRunner

__all__ = ["CSELFRunner"]
