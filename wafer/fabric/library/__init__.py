"""Published collectives and kernels: as bulk functions with a clock, and as PE programs.

A bulk function takes and returns ``[H, W, ...]`` tiles and the clock of every PE, is pure and
differentiable in its floating inputs, and charges the cycles its docstring states. A function
``..._program`` writes the same thing operation by operation, for the engines. ``timing`` has the
closed forms.
"""

from wafer.fabric.library import timing
from wafer.fabric.library.collectives import (
    all_reduce,
    broadcast,
    gather,
    local,
    on,
    reduce,
    scatter,
    shift,
    start_clock,
)
from wafer.fabric.library.dense import cannon, gemv, summa
from wafer.fabric.library.kernel_programs import (
    gemv_program,
    seven_point_program,
    sparse_matvec_program,
    summa_program,
)
from wafer.fabric.library.lookup import cross_section_lookup
from wafer.fabric.library.lowering import (
    allreduce_program,
    broadcast_program,
    chain_program,
    gather_program,
    quadrant_allreduce_program,
    scatter_program,
    shift_program,
    star_program,
    tree_program,
    two_phase_program,
)
from wafer.fabric.library.solver import bicgstab, seven_point
from wafer.fabric.library.sparse import sparse_matvec, streamed_sparse_layer, tlr_matvec
from wafer.fabric.library.stencil import wave_step

__all__ = [
    "all_reduce",
    "allreduce_program",
    "bicgstab",
    "broadcast",
    "broadcast_program",
    "cannon",
    "chain_program",
    "cross_section_lookup",
    "gather",
    "gather_program",
    "gemv",
    "gemv_program",
    "local",
    "on",
    "quadrant_allreduce_program",
    "reduce",
    "scatter",
    "scatter_program",
    "seven_point",
    "seven_point_program",
    "shift",
    "shift_program",
    "sparse_matvec",
    "sparse_matvec_program",
    "star_program",
    "start_clock",
    "streamed_sparse_layer",
    "summa",
    "summa_program",
    "timing",
    "tlr_matvec",
    "tree_program",
    "two_phase_program",
    "wave_step",
]
