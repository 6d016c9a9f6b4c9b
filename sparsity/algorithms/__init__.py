"""Static, GMP, SET and RigL, the release 1.8 rule, and the registry that sections name them by."""

from sparsity.algorithms.base import (
    ALGORITHMS,
    Algorithm,
    InitContext,
    UpdateContext,
    attributes,
    lookup,
    register,
)
from sparsity.algorithms.dynamic import SET, Dynamic, RigL
from sparsity.algorithms.inband import InBandStatic
from sparsity.algorithms.magnitude import GMP, Static

__all__ = [
    "ALGORITHMS",
    "GMP",
    "SET",
    "Algorithm",
    "Dynamic",
    "InBandStatic",
    "InitContext",
    "RigL",
    "Static",
    "UpdateContext",
    "attributes",
    "lookup",
    "register",
]
