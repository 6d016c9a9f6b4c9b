"""Reads a stopped program's memory."""

from wafer.vendor.sdk.debug_util import debug_util

__all__ = ["debug_util"]
