"""Unstructured sparse training around any optax chain.

A section becomes a sparsifier:

    sparsifier = sparsity.configure(
        {"algorithm": "rigl", "sparsity": 0.9, "update": {"freq": 100}}
    )
"""

from wafer.sparsity.adapters.export import export_checks
from wafer.sparsity.adapters.layers import dot_general, linen_layers, promote_dtype
from wafer.sparsity.adapters.optimizers import with_dense_shapes
from wafer.sparsity.adapters.wrap import SparseOptState, wrap
from wafer.sparsity.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    InitContext,
    UpdateContext,
    register,
)
from wafer.sparsity.algorithms.dynamic import MEST, SET, Dynamic, RigL
from wafer.sparsity.algorithms.forward import SRSTE, TopKAST
from wafer.sparsity.algorithms.magnitude import ACDC, GMP, Static
from wafer.sparsity.kernels import SparseWeight, pattern_from_mask, sparse_dot
from wafer.sparsity.schema import SparsityError
from wafer.sparsity.sections.config import Groups, configure, parse
from wafer.sparsity.selected import Selected
from wafer.sparsity.sparsifier import Sparsifier
from wafer.sparsity.state import SparseState, WeightCopy, from_meta, to_meta
from wafer.sparsity.stored.resume import resume
from wafer.sparsity.stored.sentinel import SentinelError, decode, encode, require_dense

if __name__ != "wafer.sparsity":
    raise ImportError("sparsity is a folder of wafer: write `from wafer import sparsity`")

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


def __dir__() -> list[str]:
    return sorted(__all__)
