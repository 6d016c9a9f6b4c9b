"""Reads a stopped program's memory."""

from wafer.vendor.sdk.debug_util import debug_util
