"""Variable sequence length: no work on padding, anywhere.

Public names are loaded when they are first used: the native libraries need no jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "wafer.vsl":
    raise ImportError("vsl is a folder of wafer: write `from wafer import vsl`")

if TYPE_CHECKING:
    from wafer.vsl.attend import attention
    from wafer.vsl.batch import Packed, pack, pad
    from wafer.vsl.bias import RelativeBias, alibi_slopes
    from wafer.vsl.entropy import Scored, cross_entropy
    from wafer.vsl.layout import (
        AnyArray,
        Layout,
        layout_from_lengths,
        layout_from_spans,
        padded_layout,
    )
    from wafer.vsl.lengths import check_capacity, lengths_from_mask
    from wafer.vsl.noise import dropout
    from wafer.vsl.norm import normalize
    from wafer.vsl.packing import Ladder, budget_batches, first_fit, fit_ladder
    from wafer.vsl.product import Weight, stream_kernels, stream_product, stream_table
    from wafer.vsl.ragged import Ragged, restore_padding, strip_padding
    from wafer.vsl.report import PaddingReport, padding_report
    from wafer.vsl.segments import expand, ragged_slots, segment_max, segment_sum

__all__ = [
    "AnyArray",
    "Ladder",
    "Layout",
    "Packed",
    "PaddingReport",
    "Ragged",
    "RelativeBias",
    "Scored",
    "Weight",
    "alibi_slopes",
    "attention",
    "budget_batches",
    "check_capacity",
    "cross_entropy",
    "dropout",
    "expand",
    "first_fit",
    "fit_ladder",
    "layout_from_lengths",
    "layout_from_spans",
    "lengths_from_mask",
    "normalize",
    "pack",
    "pad",
    "padded_layout",
    "padding_report",
    "ragged_slots",
    "restore_padding",
    "segment_max",
    "segment_sum",
    "stream_kernels",
    "stream_product",
    "stream_table",
    "strip_padding",
]

_MODULES = {
    "attend": ("attention",),
    "batch": ("Packed", "pack", "pad"),
    "bias": ("RelativeBias", "alibi_slopes"),
    "entropy": ("Scored", "cross_entropy"),
    "layout": ("AnyArray", "Layout", "layout_from_lengths", "layout_from_spans", "padded_layout"),
    "lengths": ("check_capacity", "lengths_from_mask"),
    "noise": ("dropout",),
    "norm": ("normalize", "normalize_branch"),
    "packing": ("Ladder", "budget_batches", "first_fit", "fit_ladder"),
    "product": ("Weight", "stream_kernels", "stream_product", "stream_table"),
    "ragged": ("Ragged", "restore_padding", "strip_padding"),
    "report": ("PaddingReport", "padding_report"),
    "segments": ("expand", "ragged_slots", "segment_max", "segment_sum"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _MODULES.items() if name in names), None)
    if module is None:
        known = ", ".join(__all__)
        raise AttributeError(f"module 'wafer.vsl' has no attribute {name!r}; there are {known}")
    return getattr(importlib.import_module(f"wafer.vsl.{module}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
