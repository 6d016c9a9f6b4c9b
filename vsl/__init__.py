"""Variable sequence length: no work on padding, anywhere."""

from vsl.attend import attention
from vsl.batch import Packed, pack, pad
from vsl.bias import RelativeBias, alibi_slopes
from vsl.layout import Layout, layout_from_lengths, padded_layout
from vsl.lengths import (
    check_capacity,
    check_same_lengths,
    label_weights,
    lengths_from_mask,
    lengths_from_pad_id,
)
from vsl.noise import dropout
from vsl.packing import (
    Ladder,
    ShapeLog,
    budget_batches,
    first_fit,
    fit_ladder,
    length_groups,
)
from vsl.product import stream_kernels, stream_product, stream_table
from vsl.ragged import Ragged, RestorePadding, StripPadding, restore_padding, strip_padding
from vsl.report import PaddingReport, padding_report
from vsl.rows import layout_from_spans, row_features, spans_from_layout
from vsl.segments import (
    expand,
    first_token,
    global_mean,
    last_token,
    loss_sums,
    ragged_slots,
    ragged_take,
    segment_max,
    segment_mean,
    segment_sum,
    shift_labels,
)

__all__ = [
    "Ladder",
    "Layout",
    "Packed",
    "PaddingReport",
    "Ragged",
    "RelativeBias",
    "RestorePadding",
    "ShapeLog",
    "StripPadding",
    "alibi_slopes",
    "attention",
    "budget_batches",
    "check_capacity",
    "check_same_lengths",
    "dropout",
    "expand",
    "first_fit",
    "first_token",
    "fit_ladder",
    "global_mean",
    "label_weights",
    "last_token",
    "layout_from_lengths",
    "layout_from_spans",
    "length_groups",
    "lengths_from_mask",
    "lengths_from_pad_id",
    "loss_sums",
    "pack",
    "pad",
    "padded_layout",
    "padding_report",
    "ragged_slots",
    "ragged_take",
    "restore_padding",
    "row_features",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "shift_labels",
    "spans_from_layout",
    "stream_kernels",
    "stream_product",
    "stream_table",
    "strip_padding",
]
