"""Reads a stopped program's memory."""

from wafer.csl.host.vendor.debug_util import debug_util

__all__ = ["debug_util"]
