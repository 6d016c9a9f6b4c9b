"""Products with sparse weights that skip the zeros, on CPU; the same results on any device."""

from wafer.sparsity.kernels.choice import choose
from wafer.sparsity.kernels.decode import DecodeTable, DecodeWeight
from wafer.sparsity.kernels.pattern import (
    Pattern,
    gather,
    pattern_from_flat,
    pattern_from_mask,
    to_dense,
    to_dense_t,
    to_mask,
)
from wafer.sparsity.kernels.product import SparseWeight, sparse_dot
from wafer.sparsity.kernels.topology import Regrown, move_values, rigl_update, topk_mask

__all__ = [
    "DecodeTable",
    "DecodeWeight",
    "Pattern",
    "Regrown",
    "SparseWeight",
    "choose",
    "gather",
    "move_values",
    "pattern_from_flat",
    "pattern_from_mask",
    "rigl_update",
    "sparse_dot",
    "to_dense",
    "to_dense_t",
    "to_mask",
    "topk_mask",
]
