"""Published wafer-scale kernels as bulk dataflow programs: values, and the cycle each PE is done.

Every function takes and returns ``[H, W, ...]`` tiles, is pure and differentiable in its floating
inputs, and charges the cycles its docstring states.
"""

from wafer.fabric.library.dense import cannon, gemv, summa
from wafer.fabric.library.lookup import cross_section_lookup
from wafer.fabric.library.solver import bicgstab, seven_point
from wafer.fabric.library.sparse import sparse_matvec, streamed_sparse_layer, tlr_matvec
from wafer.fabric.library.stencil import wave_step

__all__ = [
    "bicgstab",
    "cannon",
    "cross_section_lookup",
    "gemv",
    "seven_point",
    "sparse_matvec",
    "streamed_sparse_layer",
    "summa",
    "tlr_matvec",
    "wave_step",
]
