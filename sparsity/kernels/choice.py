"""Which implementation is faster for a shape?"""

import functools
import logging

import jax.numpy as jnp

from sparsity.kernels import native

__all__ = ["choose"]

_LOG = logging.getLogger(__name__)


@functools.cache
def choose(tokens: int, rows: int, columns: int, nnz: int, dtype: jnp.dtype) -> str:
    """Choose "csr" or "masked" for x [T, K] times W [K, N] with ``nnz`` kept values."""
    native_possible = jnp.dtype(dtype) in (jnp.float32, jnp.bfloat16) and native.usable()
    kept = nnz / max(rows * columns, 1)
    choice = "csr" if native_possible and kept <= 0.5 else "masked"
    _LOG.debug(
        "sparse_dot: %s for T=%d K=%d N=%d, %.1f %% sparse",
        choice,
        tokens,
        rows,
        columns,
        100 * (1 - kept),
    )
    return choice
