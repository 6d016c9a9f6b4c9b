"""The native CPU library of sparse products and topology updates; ``wafer.vsl.native.library``."""

from wafer.vsl.native.library import Library

HANDLERS = (
    "wafer_sparse_multiply",
    "wafer_sparse_input_gradient",
    "wafer_sparse_weight_gradient",
    "wafer_sparse_gradients",
    "wafer_sparse_walk",
    "wafer_sparse_topk_mask",
    "wafer_sparse_pattern_of_mask",
    "wafer_sparse_update_pattern",
    "wafer_sparse_take",
    "wafer_sparse_places",
    "wafer_sparse_to_dense",
    "wafer_sparse_gather",
    "wafer_decode",
)
_LIBRARY = Library(
    package="wafer.sparsity.kernels",
    handlers=HANDLERS,
    instead="masked dense products (implementation='masked' or 'auto')",
)
available = _LIBRARY.available
usable = _LIBRARY.usable
target = _LIBRARY.target
call = _LIBRARY.call
loaded = _LIBRARY.loaded
