"""Reads what the ``<debug>`` module recorded."""

import numpy as np

from wafer.vendor.sdk.debug_util import decode_trace
from wafer.vendor.sdk.elf_runner import CSELFRunner

__all__ = ["read_trace"]


def read_trace(runner: CSELFRunner, col: int, row: int, key: str) -> list[int | float | str]:
    """What a PE of the fabric recorded with a key, in order."""
    return decode_trace(runner.get_symbol(col, row, f"<debug>.{key}", np.dtype("<u2")))
