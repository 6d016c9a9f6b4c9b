"""Variable sequence length: no work on padding, anywhere."""

from vsl.layout import Layout, layout_from_lengths, padded_layout

__all__ = ["Layout", "layout_from_lengths", "padded_layout"]
