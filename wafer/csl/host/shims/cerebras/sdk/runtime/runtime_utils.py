"""Helpers for arrays, under their older name."""

from wafer.csl.host.sdk_utils import input_array_to_u32, memcpy_view

__all__ = ["input_array_to_u32", "memcpy_view"]
