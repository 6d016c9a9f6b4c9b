"""Helpers for arrays, under their older name, and those that port maps need."""

from wafer.csl.host.order import MemcpyOrder
from wafer.vendor.sdk.port_map import (
    convert_input_tensor,
    format_output_tensor,
    output_array_from_u32,
    prepare_output_tensor,
)
from wafer.vendor.sdk.sdk_utils import input_array_to_u32, memcpy_view

ROW_MAJOR = MemcpyOrder.ROW_MAJOR

__all__ = [
    "ROW_MAJOR",
    "convert_input_tensor",
    "format_output_tensor",
    "input_array_to_u32",
    "memcpy_view",
    "output_array_from_u32",
    "prepare_output_tensor",
]
