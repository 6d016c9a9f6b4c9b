"""This package's own native library: attention, products of a stream, norms, cross-entropy."""

from wafer.vsl.native.library import Library

LIBRARY = Library(
    package="wafer.vsl.native",
    handlers=(
        "wafer_attention_forward",
        "wafer_attention_backward",
        "wafer_product_forward",
        "wafer_product_backward",
        "wafer_norm_forward",
        "wafer_norm_backward",
        "wafer_entropy_forward",
        "wafer_entropy_backward",
        "wafer_attention_cached",
    ),
    instead="implementation='blocks', and XLA's other programs",
)
