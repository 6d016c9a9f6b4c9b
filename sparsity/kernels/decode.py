"""Weights for decoding: a few rows of activations, the weight read once and in order.

A step of generation multiplies one row (one per sample) by every weight of the model, so its time
is that of reading them. ``DecodeWeight`` holds kept values by output column, with a bit per input
or a byte per value, whichever is fewer bytes (from 87.5 % zeros on, the latter).
``DecodeTable`` is its dense companion, for a head or a table. Both only go forward.
"""

import dataclasses
import math
import typing

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from wafer.sparsity.kernels import native
from wafer.vsl.layout import AnyArray

_GROUP = 16  # inputs of one word of the mask
_PAST = 32  # values that may be read past the end
_LONGEST = 255  # distance that a step can say
_DTYPES = (jnp.float32, jnp.bfloat16)


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeWeight:
    """A [K, N] kernel as kept values and the inputs they belong to; make it with ``from_dense``."""

    values: Array  #: [nnz + 32] float32 or bfloat16, column by column, then 32 zeros
    #: [N, ceil(K / 16)] uint16; bit i of word g keeps input 16 g + i. None with ``steps``
    masks: Array | None
    #: [nnz + 32] uint8, distance of each value's input from the one before in its column, the first
    #: one's from input 0; where that is more than 255, zeros among the values stand between. None
    #: with ``masks``
    steps: Array | None
    pointers: Array  #: [N + 1] int32, where each column's values begin
    inputs: int = dataclasses.field(metadata={"static": True})  #: K, static

    @classmethod
    def from_dense(cls, kernel: AnyArray, dtype: DTypeLike = jnp.float32) -> "DecodeWeight":
        """Keep what is neither NaN nor 0, on the host; the pattern is right by construction.

        Args:
            kernel: [K, N] floats; NaN or 0 where pruned.
            dtype: of the values, float32 or bfloat16.

        Raises:
            ValueError: another shape or dtype, or more than 2^31 - 33 kept values.
        """
        dense = _columns(kernel, dtype, "DecodeWeight")
        keep = ~np.isnan(dense) & (dense != 0)
        bits = np.pad(keep, ((0, 0), (0, -keep.shape[1] % _GROUP)))
        masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")  # [N, ceil(K / 16)]
        steps, size = None, _numpy(dtype).itemsize
        if np.count_nonzero(keep) <= masks.nbytes:
            bridged, near = _steps(keep)
            if len(near) * (size + 1) <= np.count_nonzero(keep) * size + masks.nbytes:
                keep, masks, steps = bridged, None, np.pad(near, (0, _PAST))
        pointers = np.concatenate([[0], np.cumsum(keep.sum(1, dtype=np.int64))])
        if pointers[-1] >= 2**31 - _PAST:
            raise ValueError(f"DecodeWeight: {pointers[-1]:,} kept values; at most 2^31 - 33")
        values = np.pad(np.nan_to_num(dense[keep], nan=0.0), (0, _PAST)).astype(_numpy(dtype))
        return cls(
            values=jnp.asarray(values),
            masks=None if masks is None else jnp.asarray(masks),
            steps=None if steps is None else jnp.asarray(steps),
            pointers=jnp.asarray(pointers, jnp.int32),
            inputs=dense.shape[1],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.inputs, self.pointers.shape[0] - 1

    @property
    def _places(self) -> Array:
        return typing.cast("Array", self.masks if self.steps is None else self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self.values.nbytes + self._places.nbytes + self.pointers.nbytes

    @property
    def kept(self) -> int:
        """How many values there are; zeros that only stand between do not count."""
        return int(jnp.count_nonzero(self.values))

    def project(self, x: Array) -> Array:
        """Compute x W: [..., K] -> [..., N] in the dtype of ``x``, summed in float32."""
        rows = _rows(x, self.inputs, "DecodeWeight")
        if not native.usable():
            return (rows @ self.dense()).reshape(*x.shape[:-1], -1).astype(x.dtype)
        result = jax.ShapeDtypeStruct((rows.shape[0], self.shape[1]), jnp.float32)
        handler = "wafer_sparse_decode" if self.steps is None else "wafer_stepped_decode"
        y = native.call(handler, result, rows, self.values, self._places, self.pointers)
        return y.reshape(*x.shape[:-1], -1).astype(x.dtype)

    def dense(self) -> Array:
        """Return the dense [K, N] weight, float32, 0 where pruned."""
        if self.steps is not None:
            return self._from_steps(self.steps)
        bits = (self._places[:, :, None] >> jnp.arange(_GROUP, dtype=jnp.uint16)[None, None]) & 1
        bits = bits.reshape(self._places.shape[0], self._places.shape[1] * _GROUP)
        place = self.pointers[:-1, None] + jnp.cumsum(bits, 1, dtype=jnp.int32) - bits
        spread = jnp.where(bits == 1, self.values[place].astype(jnp.float32), 0)
        return spread[:, : self.inputs].T

    def _from_steps(self, steps: Array) -> Array:
        total = jnp.cumsum(steps, dtype=jnp.int32)
        before = jnp.concatenate([jnp.zeros(1, jnp.int32), total])[self.pointers]
        order = jnp.arange(total.shape[0], dtype=jnp.int32)
        column = jnp.searchsorted(self.pointers, order, side="right") - 1  # N past the end: dropped
        spread = jnp.zeros(self.shape[::-1], jnp.float32)
        values = self.values.astype(jnp.float32)
        return spread.at[column, total - before[column]].set(values, mode="drop").T


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True)
class DecodeTable:
    """A dense weight by output: an embedding table [V, D] that also scores, or a kernel turned."""

    values: Array  #: [outputs, inputs] float32 or bfloat16

    @classmethod
    def from_dense(cls, table: AnyArray, dtype: DTypeLike = jnp.float32) -> "DecodeTable":
        """Hold a table [outputs, inputs]; NaN becomes 0.

        Raises:
            ValueError: another shape or dtype.
        """
        rows = _columns(np.asarray(table).T, dtype, "DecodeTable")
        return cls(jnp.asarray(np.nan_to_num(rows, nan=0.0).astype(_numpy(dtype))))

    @property
    def shape(self) -> tuple[int, int]:
        """Static shape (outputs, inputs)."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self.values.nbytes

    def lookup(self, ids: Array) -> Array:
        """Rows of the table, float32; ids outside it read zeros."""
        rows = jnp.take(self.values, ids, axis=0, mode="fill", fill_value=0)
        return rows.astype(jnp.float32)

    def project(self, x: Array) -> Array:
        """Score [..., inputs] against every row: [..., outputs] in the dtype of ``x``."""
        outputs, inputs = self.values.shape
        rows = _rows(x, inputs, "DecodeTable")
        if inputs % _GROUP == 0 and native.usable():
            result = jax.ShapeDtypeStruct((rows.shape[0], outputs), jnp.float32)
            y = native.call("wafer_dense_decode", result, rows, self.values)
        else:
            y = rows @ self.values.astype(jnp.float32).T
        return y.reshape(*x.shape[:-1], -1).astype(x.dtype)


def _gaps(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Column, input, and distance to the input before in the column, of all kept values."""
    column, at = np.nonzero(keep)
    before = np.where(np.diff(column, prepend=-1) == 0, np.concatenate([[0], at[:-1]]), 0)
    return column, at, at - before


def _steps(keep: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[N, K] bool with what bridges distances above 255, and the steps [nnz] uint8."""
    column, at, gap = _gaps(keep)
    bridges = np.maximum(gap - 1, 0) // _LONGEST
    if bridges.any():
        nth = np.arange(bridges.sum()) - np.repeat(np.cumsum(bridges) - bridges, bridges) + 1
        keep = keep.copy()
        keep[np.repeat(column, bridges), np.repeat(at - gap, bridges) + nth * _LONGEST] = True
        gap = _gaps(keep)[2]
    return keep, gap.astype(np.uint8)


def _rows(x: Array, inputs: int, what: str) -> Array:
    if x.ndim < 1 or x.shape[-1] != inputs:
        raise ValueError(f"{what}: x has shape {x.shape}; its last axis must be {inputs}")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(f"{what}: x is {x.dtype}; expected floats")
    return x.reshape(math.prod(x.shape[:-1]), inputs).astype(jnp.float32)


def _columns(kernel: AnyArray, dtype: DTypeLike, what: str) -> np.ndarray:
    """[K, N] of any float as [N, K] float32, refused before work."""
    if np.ndim(kernel) != 2:
        raise ValueError(f"{what}: shape {np.shape(kernel)}; expected a matrix")
    if jnp.dtype(dtype) not in _DTYPES:
        raise ValueError(f"{what}: dtype {jnp.dtype(dtype)}; choose float32 or bfloat16")
    return np.ascontiguousarray(np.asarray(kernel, np.float32).T)


def _numpy(dtype: DTypeLike) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if jnp.dtype(dtype) == jnp.bfloat16 else np.float32)
