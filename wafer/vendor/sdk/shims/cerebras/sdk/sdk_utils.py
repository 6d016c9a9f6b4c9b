"""Helpers for arrays and time stamps."""

from typing import NoReturn

from wafer.vendor.sdk.sdk_utils import (
    calculate_cycles,
    cast_uint32,
    float_to_hex,
    input_array_to_u32,
    make_u48,
    memcpy_view,
    sub_ts,
)


def __getattr__(name: str) -> NoReturn:
    """Names of the vendor's module that are not here."""
    if name.startswith("__"):
        raise AttributeError(name)
    exported = ", ".join(n for n in globals() if n.islower() and not n.startswith("_"))
    raise ImportError(
        f"cerebras.sdk.sdk_utils.{name} is not here; what a program exports is in out_rpc.json,"
        f" and there are {exported}"
    )
