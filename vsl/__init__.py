"""Variable sequence length: no work on padding, anywhere."""

from vsl.attend import attention
from vsl.bias import RelativeBias, alibi_slopes
from vsl.layout import Layout, layout_from_lengths, padded_layout
from vsl.noise import dropout

__all__ = [
    "Layout",
    "RelativeBias",
    "alibi_slopes",
    "attention",
    "dropout",
    "layout_from_lengths",
    "padded_layout",
]
