"""This package's own native library: attention, and products of a packed stream."""

from vsl.native.library import Library

__all__ = ["LIBRARY"]

LIBRARY = Library(
    what="attention and products",
    package="vsl.native",
    handlers=(
        "wafer_attention_forward",
        "wafer_attention_backward",
        "wafer_product_forward",
        "wafer_product_backward",
    ),
    instead="implementation='blocks' and XLA's products",
)
