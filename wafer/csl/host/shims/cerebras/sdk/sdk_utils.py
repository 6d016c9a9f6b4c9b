"""Helpers for arrays and time stamps."""

from wafer.csl.host.sdk_utils import (
    calculate_cycles,
    cast_uint32,
    float_to_hex,
    input_array_to_u32,
    make_u48,
    memcpy_view,
    sub_ts,
)

__all__ = [
    "calculate_cycles",
    "cast_uint32",
    "float_to_hex",
    "input_array_to_u32",
    "make_u48",
    "memcpy_view",
    "sub_ts",
]
