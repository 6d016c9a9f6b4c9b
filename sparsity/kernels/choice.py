"""Which implementation is faster for a shape?

The crossover was measured with ``tests/bench/sparse_dot.py`` on two cores of an EPYC (Zen 4,
AVX-512), forward + dx + dW against XLA's dense products, with room for other machines: with half
of the weights kept it is about 1.4 times faster. The compressed kernel pays for reading its tile
at random, dense XLA for every zero; so what decides is the share of kept weights. The rule reads
only the shape, the share and whether the library is there: the same run chooses the same way every
time.
"""

import functools
import logging

import jax.numpy as jnp

from wafer.sparsity.kernels import native

_LOG = logging.getLogger(__name__)

# (most weights K * N, share of kept weights below which the compressed kernel wins)
_CROSSOVER = ((1 << 16, 0.6), (1 << 62, 0.5))
_FEW_TOKENS, _FEW_SHARE = 32, 0.35  # a tile of 16 or 32 tokens reuses each weight less


@functools.cache
def obstacle(tokens: int, rows: int, columns: int, nnz: int, dtype: jnp.dtype) -> str:
    """Say why masked products serve better than compressed ones; "" where they do not.

    Args: those of ``choose``.
    """
    size = rows * columns
    share = next(share for limit, share in _CROSSOVER if size <= limit)
    if tokens <= _FEW_TOKENS:
        share = min(share, _FEW_SHARE)
    pays = f"csr pays up to {100 * share:.0f} % kept at this shape"
    if jnp.dtype(dtype) not in (jnp.float32, jnp.bfloat16):
        why = f"{jnp.dtype(dtype)} has no native kernel"
    elif not native.usable():
        why = "there is no native kernel for this machine"
    else:
        why = "" if nnz <= share * size else pays
    _LOG.debug(
        "sparse_dot: %s for T=%d K=%d N=%d with %.1f %% kept: %s",
        "masked" if why else "csr",
        tokens,
        rows,
        columns,
        100 * nnz / max(size, 1),
        why or pays,
    )
    return why


def choose(tokens: int, rows: int, columns: int, nnz: int, dtype: jnp.dtype) -> str:
    """Choose "csr" or "masked" for x [T, K] times W [K, N] with ``nnz`` kept values.

    Args:
        tokens: T, all leading axes of x together.
        rows: K.
        columns: N.
        nnz: kept values.
        dtype: of x; the native kernels take float32 and bfloat16.

    Returns:
        "csr", or "masked" where that is faster, there is no native library or JAX does not run
        on the CPU. Says which and why at DEBUG, once per shape.
    """
    return "masked" if obstacle(tokens, rows, columns, nnz, dtype) else "csr"
