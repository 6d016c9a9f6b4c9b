"""What a kernel costs for one token while a decoder writes: GEMVs, and attention to a cache.

The figures are those of a decoder on one mesh (:mod:`wafer.compiler.decode.mesh`): a row of a
product takes its elements and a few cycles more, a sum over PEs the words that the middle one adds
and sends, and the way there. Keys and values stay where
they are, dealt out to the PEs token by token.

Letters as in :mod:`wafer.compiler.costs`: K inputs on w columns of PEs, N outputs on h rows; of
attention heads on h rows, tokens on w columns.
"""

import numpy as np

from wafer.compiler.decode.mesh import (
    CACHED_ROW_CYCLES,
    HEAD_CYCLES,
    ROW_CYCLES,
    SHARE_CYCLES,
    line_cycles,
)
from wafer.compiler.graph import Kernel
from wafer.spec import WaferSpec

Array = np.ndarray
_ROOT = 110  # cycles of a square root and a division, scalar code


def gemv_cycles(k: Array, n: Array, grid: tuple[Array, Array], simd: int) -> Array:
    """Cycles of ``y[n] += x[k] W[k, n]`` per PE, with the way in and the sums along the rows.

    Args:
        k: [choices] inputs of a PE.
        n: [choices] outputs of a PE.
        grid: h and w, [choices] each.
        simd: numbers per cycle; a word of 32 bits carries two where it is more than one.
    """
    h, w = grid
    pack = 2 if simd > 1 else 1
    products = k * (_ceil(n, simd) + ROW_CYCLES)
    return _ceil(k, pack) + h + products + line_cycles(w, _ceil(n, pack))


def attention_cycles(
    kernel: Kernel, own: Array, held: Array, columns: Array, spec: WaferSpec
) -> Array:
    """Cycles of a token's attention to those that a PE holds.

    Args:
        kernel: products [queries, head] x [head, tokens] in groups that share keys.
        own: [choices] groups of a PE.
        held: [choices] tokens of a PE.
        columns: [choices] PEs that share the tokens of a head.
        spec: the machine.
    """
    product = kernel.products[0]
    queries, size = product.T, product.K
    simd = spec.simd_16bit if kernel.bits == 16 else 1
    scores = size * (_ceil(held, simd) + CACHED_ROW_CYCLES)
    mixed = held * (_ceil(size, simd) + CACHED_ROW_CYCLES)
    each = scores + mixed + held * SHARE_CYCLES + HEAD_CYCLES
    greatest = line_cycles(columns, own * queries)
    return own * queries * each + greatest + line_cycles(columns, own * queries * (size + 1))


def norm_cycles(lanes: Array, columns: Array) -> Array:
    """Return the cycles of a vector's norm on a line of PEs.

    Args:
        lanes: [choices] lane operations of each PE.
        columns: [choices] PEs of the line.
    """
    return lanes + line_cycles(columns, 2) + _ROOT


def _ceil(a: Array | int, b: int) -> Array:
    return -(-np.asarray(a) // b)
