"""The host of SDK 0.4 to 0.8."""

from wafer.csl.host.vendor.elf_runner import CSELFRunner

__all__ = ["CSELFRunner"]
