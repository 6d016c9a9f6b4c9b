"""This package's own native library: attention, and products of a packed stream."""

import pathlib

from vsl.native.library import Library

__all__ = ["LIBRARY"]

LIBRARY = Library(
    what="attention and products",
    path=pathlib.Path(__file__).parent / "_native.so",
    handlers=(
        "wafer_attention_forward",
        "wafer_attention_backward",
        "wafer_product_forward",
        "wafer_product_backward",
    ),
    instead="implementation='blocks' and XLA's products",
)
