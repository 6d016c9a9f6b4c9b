"""A sparse weight that a model can compute with."""

import dataclasses
import typing

import jax
from jaxtyping import Array

from sparsity.kernels.pattern import Pattern, to_dense
from sparsity.kernels.product import Implementation, sparse_dot

__all__ = ["SparseWeight"]


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseWeight:
    """A [K, N] kernel stored as its kept values.

    ``models.layers.project(x, kernel)`` takes it in place of an array.

    Attributes:
        values: [nnz] kept weights in canonical order (by n, then k).
        pattern: where they lie.
        probe: [K, N] zeros, or None. With it, the cotangent of ``probe`` is the dense gradient
            dW, which RigL reads at its update steps; without it dW is computed at kept positions
            only.
        implementation: static; "auto", "masked" or "csr", see ``sparse_dot``.
    """

    values: Array
    pattern: Pattern
    probe: Array | None = None
    implementation: Implementation = dataclasses.field(default="auto", metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.pattern.shape

    def project(self, x: Array) -> Array:
        """Compute x W: [..., K] -> [..., N], in the dtype of ``x``."""
        return sparse_dot(x, self, implementation=self.implementation)

    def dense(self) -> Array:
        """Return the dense [K, N] weight, 0 where pruned."""
        return to_dense(self.values, self.pattern)
