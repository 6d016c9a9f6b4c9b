"""Unstructured sparse training with the vendor's semantics, around any optax chain.

A section becomes a sparsifier:

    sparsifier = sparsity.configure(
        {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100}}
    )
"""

from sparsity.adapters.export import export_checks
from sparsity.adapters.layers import dot_general, linen_layers, promote_dtype
from sparsity.adapters.optimizers import with_dense_shapes
from sparsity.adapters.wrap import SparseOptState, wrap
from sparsity.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    InitContext,
    UpdateContext,
    register,
)
from sparsity.algorithms.dynamic import MEST, SET, Dynamic, RigL
from sparsity.algorithms.forward import SRSTE, TopKAST
from sparsity.algorithms.magnitude import ACDC, GMP, Static
from sparsity.kernels import SparseWeight, pattern_from_mask, sparse_dot
from sparsity.schema import SparsityError
from sparsity.sections.config import Groups, configure, parse
from sparsity.selected import Selected
from sparsity.sparsifier import Sparsifier
from sparsity.state import SparseState, WeightCopy, from_meta, to_meta
from sparsity.stored.resume import resume
from sparsity.stored.sentinel import SentinelError, decode, encode, require_dense

__all__ = [
    "ACDC",
    "ALGORITHMS",
    "GMP",
    "MEST",
    "SET",
    "SRSTE",
    "Algorithm",
    "Dynamic",
    "Groups",
    "InitContext",
    "RigL",
    "Selected",
    "SentinelError",
    "SparseOptState",
    "SparseState",
    "SparseWeight",
    "Sparsifier",
    "SparsityError",
    "Static",
    "TopKAST",
    "UpdateContext",
    "WeightCopy",
    "configure",
    "decode",
    "dot_general",
    "encode",
    "export_checks",
    "from_meta",
    "linen_layers",
    "parse",
    "pattern_from_mask",
    "promote_dtype",
    "register",
    "require_dense",
    "resume",
    "sparse_dot",
    "to_meta",
    "with_dense_shapes",
    "wrap",
]
