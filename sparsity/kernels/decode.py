"""Weights for decoding: a few rows of activations, the weight read once and in order.

A step of generation multiplies one row (one per sample) by every weight of the model, so its time
is that of reading them. ``DecodeWeight`` holds kept values by output column, with a bit per input
or, where few are kept, a byte per value. ``DecodeTable`` is its dense companion, for a head or a
table. Both only go forward.

Weights of int8 are integers of -127 to 127 times a scale of their output, which is its largest
weight over 127: none is off by more than half a scale. Their products round each row of activations
to integers of 16 bits times a factor, the row's largest activation over 32,767; sums are float32.
"""

import dataclasses
import itertools
import math
import typing
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array

from wafer.sparsity.kernels import native
from wafer.vsl.layout import AnyArray

_GROUP = 16  # inputs of one word of the mask
_WORD = 64  # inputs that masks are padded to
_LONGEST = 255  # distance that a step can say
#: by type: how it is stored, values that may be read past the end, and the most kept values for
#: which steps are faster than masks (measured at GPT-2's sizes; they are fewer bytes below 1/8)
_DTYPES = {
    jnp.dtype(jnp.float32): (np.dtype(np.float32), 32, 1 / 16),
    jnp.dtype(jnp.bfloat16): (np.dtype(ml_dtypes.bfloat16), 32, 1 / 16),
    jnp.dtype(jnp.int8): (np.dtype(np.int8), 64, 0),  # always masks
}


class _Multiplier:
    """Products of a weight that is read by output."""

    def project(self, x: Array) -> Array:
        """Compute x W: [..., inputs] -> [..., outputs] in the dtype of ``x``, summed in float32."""
        return self.project_all(x, [self], [None])[0]

    def project_all(
        self, x: Array, weights: Sequence[typing.Any], biases: Sequence[Array | None]
    ) -> list[Array]:
        """Compute x W + bias for several weights, this one among them, in one native call.

        Args:
            x: [..., inputs].
            weights: ``DecodeWeight`` or ``DecodeTable``, of as many inputs each.
            biases: [outputs] of each weight, or None.
        """
        rows, *_ = (_rows(x, weight.inputs, type(self).__name__) for weight in weights)
        operands = [weight.operands for weight in weights]
        if native.usable() and None not in operands:
            kinds = [jax.ShapeDtypeStruct((len(rows), w.outputs), jnp.float32) for w in weights]
            ys = native.call("wafer_decode", tuple(kinds), rows, *itertools.chain(*operands))
        else:
            ys = [(rows if w.scales is None else _rounded(rows)) @ w.dense() for w in weights]
        ys = [y.reshape(*x.shape[:-1], y.shape[1]).astype(x.dtype) for y in ys]
        return [y if b is None else y + b.astype(y.dtype) for y, b in zip(ys, biases, strict=True)]


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeWeight(_Multiplier):
    """A [K, N] kernel as kept values and the inputs they belong to; make it with ``from_dense``."""

    #: [nnz + 32] float32 or bfloat16, or [nnz + 64] int8, column by column, then zeros
    values: Array
    #: [N, 4 ceil(K / 64)] uint16; bit i of word g keeps input 16 g + i. None with ``steps``
    masks: Array | None
    #: [nnz + 32] uint8, distance of each value's input from the one before in its column, the first
    #: one's from input 0; where that is more than 255, zeros among the values stand between. None
    #: with ``masks``
    steps: Array | None
    pointers: Array  #: [N + 1] int32, where each column's values begin
    scales: Array | None = None  #: [N] float32 of int8 values, else None
    inputs: int = dataclasses.field(metadata={"static": True})  #: K, static

    @classmethod
    def from_dense(cls, kernel: AnyArray, dtype: DTypeLike = jnp.float32) -> "DecodeWeight":
        """Keep what is neither NaN nor 0, on the host; the pattern is right by construction.

        Args:
            kernel: [K, N] floats; NaN or 0 where pruned.
            dtype: of the values, float32, bfloat16 or int8.

        Raises:
            ValueError: another shape or dtype, more than 2^31 - 65 kept values, or an infinite
                weight that int8 should hold.
        """
        dense, scales = _columns(kernel, dtype, "DecodeWeight")
        _, past, stepped = _DTYPES[jnp.dtype(dtype)]
        keep = dense != 0
        steps = None
        if stepped and np.count_nonzero(keep) <= stepped * keep.size:
            bridged, near = _steps(keep)
            if len(near) <= stepped * keep.size:
                keep, steps = bridged, np.pad(near, (0, past))
        bits = np.pad(keep, ((0, 0), (0, -keep.shape[1] % _WORD)))
        masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")
        pointers = np.concatenate([[0], np.cumsum(keep.sum(1, dtype=np.int64))])
        if pointers[-1] >= 2**31 - _WORD:
            raise ValueError(f"DecodeWeight: {pointers[-1]:,} kept values; at most 2^31 - 65")
        return cls(
            values=jnp.asarray(np.concatenate([dense[keep], np.zeros(past, dense.dtype)])),
            masks=jnp.asarray(masks) if steps is None else None,
            steps=None if steps is None else jnp.asarray(steps),
            pointers=jnp.asarray(pointers, jnp.int32),
            scales=scales,
            inputs=dense.shape[1],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.inputs, self.outputs

    @property
    def _places(self) -> Array:
        return typing.cast("Array", self.masks if self.steps is None else self.steps)

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        read = self.values, self._places, self.pointers, self.scales
        return sum(array.nbytes for array in read if array is not None)

    @property
    def kept(self) -> int:
        """How many values there are; zeros that only stand between do not count."""
        return int(jnp.count_nonzero(self.values))

    @property
    def outputs(self) -> int:
        """N, static."""
        return self.pointers.shape[0] - 1

    @property
    def operands(self) -> tuple[Array, ...]:
        """What the native product reads."""
        return self.values, _or_none(self.scales), self._places, self.pointers

    def dense(self) -> Array:
        """Return the dense [K, N] weight, float32, 0 where pruned."""
        if self.steps is not None:
            return self._from_steps(self.steps)
        bits = (self._places[:, :, None] >> jnp.arange(_GROUP, dtype=jnp.uint16)[None, None]) & 1
        bits = bits.reshape(self._places.shape[0], self._places.shape[1] * _GROUP)
        place = self.pointers[:-1, None] + jnp.cumsum(bits, 1, dtype=jnp.int32) - bits
        spread = jnp.where(bits == 1, self.values[place].astype(jnp.float32), 0)
        scales = 1 if self.scales is None else self.scales[:, None]
        return (spread[:, : self.inputs] * scales).T

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
class DecodeTable(_Multiplier):
    """A dense weight by output: an embedding table [V, D] that also scores, or a kernel turned."""

    values: Array  #: [outputs, inputs] float32, bfloat16 or int8
    scales: Array | None = None  #: [outputs] float32 of int8 values, else None

    @classmethod
    def from_dense(cls, table: AnyArray, dtype: DTypeLike = jnp.float32) -> "DecodeTable":
        """Hold a table [outputs, inputs]; NaN becomes 0.

        Raises:
            ValueError: another shape or dtype, or an infinite weight that int8 should hold.
        """
        rows, scales = _columns(np.asarray(table).T, dtype, "DecodeTable")
        return cls(jnp.asarray(rows), scales)

    @property
    def shape(self) -> tuple[int, int]:
        """Static shape (outputs, inputs)."""
        return self.outputs, self.inputs

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def lookup(self, ids: Array) -> Array:
        """Rows of the table, float32; ids outside it read zeros."""
        values = self.values
        if values.dtype == jnp.bfloat16:
            # XLA for CPUs would turn the whole table into float32, or copy it before a loop.
            values, ids = jax.lax.optimization_barrier((values, ids))
            values = values.view(jnp.uint16)
        rows = jnp.take(values, ids, axis=0, mode="fill", fill_value=0)
        rows = rows.view(self.values.dtype).astype(jnp.float32)
        if self.scales is None:
            return rows
        return rows * jnp.take(self.scales, ids, mode="fill", fill_value=0)[..., None]

    @property
    def outputs(self) -> int:
        """Outputs of the weight: rows of the table."""
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        """Inputs of the weight: columns of the table."""
        return self.values.shape[1]

    @property
    def operands(self) -> tuple[Array, ...] | None:
        """What the native product reads; None where it takes no such weight."""
        if self.inputs % _GROUP:
            return None
        none, everywhere = jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32)
        return self.values, _or_none(self.scales), none, everywhere

    def dense(self) -> Array:
        """Return the weight as a matrix [inputs, outputs], float32."""
        values = self.values.astype(jnp.float32)
        return (values if self.scales is None else values * self.scales[:, None]).T


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


def _rounded(rows: Array) -> Array:
    """Round rows [..., K] to integers of 16 bits times a factor each, as native kernels do."""
    factor = jnp.max(jnp.abs(rows), -1, keepdims=True) / 32767
    return jnp.round(rows / jnp.where(factor == 0, 1, factor)) * factor


def _or_none(scales: Array | None) -> Array:
    return jnp.zeros(0, jnp.float32) if scales is None else scales


def _columns(kernel: AnyArray, dtype: DTypeLike, what: str) -> tuple[np.ndarray, Array | None]:
    """[K, N] of any float as [N, K] in the stored type, NaN as 0, and the scales [N] of int8."""
    if np.ndim(kernel) != 2:
        raise ValueError(f"{what}: shape {np.shape(kernel)}; expected a matrix")
    if jnp.dtype(dtype) not in _DTYPES:
        raise ValueError(f"{what}: dtype {jnp.dtype(dtype)}; choose {', '.join(map(str, _DTYPES))}")
    columns = np.ascontiguousarray(np.asarray(kernel, np.float32).T)
    columns = np.where(np.isnan(columns), np.float32(0), columns)
    stored = _DTYPES[jnp.dtype(dtype)][0]
    if stored != np.int8:
        return columns.astype(stored), None
    scales = np.max(np.abs(columns), axis=1, initial=0) / np.float32(127)
    if not np.isfinite(scales).all():
        raise ValueError(f"{what}: an infinite weight has no int8; choose float32 or bfloat16")
    safe = np.where(scales == 0, np.float32(1), scales)
    whole = np.clip(np.rint(columns / safe[:, None]), -127, 127)
    return whole.astype(stored), jnp.asarray(scales)
