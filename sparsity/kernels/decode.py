"""Weights for decoding: a few rows of activations, the weight read once and in order.

A step of generation multiplies one row (one per sample) by every weight of the model, so its time
is that of reading them. ``DecodeWeight`` holds kept values by output column, with a bit per input,
or, where few are kept, in slices of 16 outputs with a byte per value. ``DecodeTable`` is its dense
companion, for a head or a table. Both only go forward.

Slices are those of Kreutzer et al. 2014 (SELL-C-sigma, doi:10.1137/130930352): outputs with about
as many values side by side. Inputs of a group lie within 128 neighbors, so that a processor finds
their activations in its registers.

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

_GROUP = 16  # inputs of one word of the mask, outputs of a slice
_WORD = 64  # inputs that masks are padded to
_WINDOW = 128  # inputs that places tell apart
_EACH = 4  # values of an output in a group
_FARTHEST = _GROUP << 16  # behind every input that slices can name
#: by type: how it is stored, and values that may be read past the end of masked ones
_DTYPES = {
    jnp.dtype(jnp.float32): (np.dtype(np.float32), 32),
    jnp.dtype(jnp.bfloat16): (np.dtype(ml_dtypes.bfloat16), 32),
    jnp.dtype(jnp.int8): (np.dtype(np.int8), 64),
}
#: by instruction set: slices are faster where at most this share is kept (at GPT-2's sizes), unless
#: they are more than so many times the bytes of masks: columns that differ much leave lanes empty
_FEW = {"avx512": 0.225, "avx2": 0.14, "baseline": 1.0, None: 0.225}
_MOST_BYTES = 1.25


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
            single = x.dtype == jnp.float32  # others are rounded before the bias
            added = [_or_none(b if single else None) for b in biases]
            each = [(*own, bias) for own, bias in zip(operands, added, strict=True)]
            ys = native.call("wafer_decode", tuple(kinds), rows, *itertools.chain(*each))
            biases = [None if single else b for b in biases]
        else:
            ys = [(rows if w.scales is None else _rounded(rows)) @ w.dense() for w in weights]
        ys = [y.reshape(*x.shape[:-1], y.shape[1]).astype(x.dtype) for y in ys]
        return [y if b is None else y + b.astype(y.dtype) for y, b in zip(ys, biases, strict=True)]


@jax.tree_util.register_dataclass
@typing.no_type_check  # unflattening runs __init__ on tracers and placeholders
@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodeWeight(_Multiplier):
    """A [K, N] kernel as kept values and the inputs they belong to; make it with ``from_dense``."""

    #: [nnz + 32] float32 or bfloat16, or [nnz + 64] int8, column by column, then zeros; or of
    #: slices [G, 4, 16] or, in bfloat16, [G, 2, 16, 2]: four of each output, or 0
    values: Array
    #: [N, 4 ceil(K / 64)] uint16; bit i of word g keeps input 16 g + i. None with ``places``
    masks: Array | None
    #: [G, 16, 4] uint8, None with ``masks``: which of 128 inputs from 16 g on a value belongs to;
    #: top bits of the last four are the bits of g
    places: Array | None
    #: [N + 1] int32, where each column's values begin, or [ceil(N / 16) + 1], each slice's groups
    pointers: Array
    order: Array | None  #: [N] int32, the output of each lane of the slices; None with ``masks``
    scales: Array | None  #: [N] float32 of int8 values, else None
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
        past = _DTYPES[jnp.dtype(dtype)][1]
        keep = dense != 0
        count = np.count_nonzero(keep)
        if count >= 2**31 - _WORD:
            raise ValueError(f"DecodeWeight: {count:,} kept values; at most 2^31 - 65")
        few = count <= _FEW[native.target()] * dense.size and dense.shape[1] < _FARTHEST
        if few and dense.size and scales is None:
            slices = _slices(dense)
            size, masked = dense.dtype.itemsize, len(dense) * math.ceil(dense.shape[1] / _WORD) * 8
            if slices["values"].size * (size + 1) <= _MOST_BYTES * (count * size + masked):
                arrays = {name: jnp.asarray(array) for name, array in slices.items()}
                return cls(**arrays, masks=None, scales=None, inputs=dense.shape[1])
        bits = np.pad(keep, ((0, 0), (0, -keep.shape[1] % _WORD)))
        masks = np.packbits(bits, axis=1, bitorder="little").view("<u2")
        pointers = np.concatenate([[0], np.cumsum(keep.sum(1, dtype=np.int64))])
        return cls(
            values=jnp.asarray(np.concatenate([dense[keep], np.zeros(past, dense.dtype)])),
            masks=jnp.asarray(masks),
            places=None,
            pointers=jnp.asarray(pointers, jnp.int32),
            order=None,
            scales=scales,
            inputs=dense.shape[1],
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Static dense shape (K, N)."""
        return self.inputs, self.outputs

    @property
    def nbytes(self) -> int:
        """Bytes that a product reads."""
        read = self.values, self.masks, self.places, self.pointers, self.order, self.scales
        return sum(array.nbytes for array in read if array is not None)

    @property
    def kept(self) -> int:
        """How many values there are; zeros of empty lanes do not count."""
        return int(jnp.count_nonzero(self.values))

    @property
    def outputs(self) -> int:
        """N, static."""
        return self.pointers.shape[0] - 1 if self.order is None else self.order.shape[0]

    @property
    def operands(self) -> tuple[Array, ...]:
        """What the native product reads."""
        if self.order is not None and self.places is not None:
            return self.values, self.order, self.places, self.pointers
        return self.values, _or_none(self.scales), typing.cast("Array", self.masks), self.pointers

    def dense(self) -> Array:
        """Return the dense [K, N] weight, float32, 0 where pruned."""
        if self.masks is None:
            return self._from_slices()
        bits = (self.masks[:, :, None] >> jnp.arange(_GROUP, dtype=jnp.uint16)[None, None]) & 1
        bits = bits.reshape(self.masks.shape[0], self.masks.shape[1] * _GROUP)
        place = self.pointers[:-1, None] + jnp.cumsum(bits, 1, dtype=jnp.int32) - bits
        spread = jnp.where(bits == 1, self.values[place].astype(jnp.float32), 0)
        scales = 1 if self.scales is None else self.scales[:, None]
        return (spread[:, : self.inputs] * scales).T

    def _from_slices(self) -> Array:
        places, order = (typing.cast("Array", array) for array in (self.places, self.order))
        number = jnp.sum((places[..., -1] // _WINDOW).astype(jnp.int32) << jnp.arange(_GROUP), 1)
        inputs = _GROUP * number[:, None, None] + places % _WINDOW
        groups = jnp.arange(len(places), dtype=jnp.int32)
        slices = jnp.searchsorted(self.pointers, groups, side="right") - 1
        lanes = _GROUP * slices[:, None] + jnp.arange(_GROUP)
        outputs = jnp.take(order, lanes, mode="fill", fill_value=self.outputs)
        values = self.values.swapaxes(1, 2).reshape(places.shape).astype(jnp.float32)
        spread = jnp.zeros((self.outputs, self.inputs), jnp.float32)
        return spread.at[outputs[..., None], inputs].add(values, mode="drop").T


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


def _slices(columns: np.ndarray) -> dict[str, AnyArray]:
    """Values, places, pointers and order of a sparse weight [N, K]; see ``DecodeWeight``.

    Groups of a slice are filled in turn: each begins at the first input that one of its outputs has
    left, and takes the next four of every output, as far as they lie within the window.
    """
    counts = np.count_nonzero(columns, axis=1)
    order = np.argsort(-counts, kind="stable")
    lane, kept = np.nonzero(columns[order])
    values = np.append(columns[order][lane, kept], columns.dtype.type(0))
    inputs = np.append(kept, _FARTHEST)
    end = np.full(-(-len(order) // _GROUP) * _GROUP, none := len(kept))
    end[: len(order)] = np.cumsum(counts[order])
    at, end = (array.reshape(-1, _GROUP) for array in (np.append(0, end)[:-1], end))
    taken, numbers = [], []
    while (at < end).any():
        left = np.where(at < end, inputs[at], _FARTHEST)
        number = left.min(1) // _GROUP
        behind = np.minimum(_GROUP * number + _WINDOW, _FARTHEST)[:, None]
        four = np.where(at < end, at, none)[..., None] + np.arange(_EACH)
        four = np.where(four < end[..., None], four, none)
        four = np.where(inputs[four] < behind[..., None], four, none)
        taken.append(four)
        numbers.append(number)
        at = at + (four < none).sum(2)
    index = np.array(taken, np.int64).reshape(-1, *end.shape, _EACH).swapaxes(0, 1)
    there = (index < none).any((2, 3))  # [S, most groups]
    index, number = index[there], np.array(numbers, np.int64).T.reshape(there.shape)[there]
    places = np.where(index < none, inputs[index] - _GROUP * number[:, None, None], 0)
    places[:, :, -1] |= (number[:, None] >> np.arange(_GROUP) & 1) * _WINDOW
    pointers = np.concatenate([[0], np.cumsum(there.sum(1))])
    return {
        "values": _turned(values[index]),
        "places": places.astype(np.uint8),
        "pointers": pointers.astype(np.int32),
        "order": order.astype(np.int32),
    }


def _turned(values: AnyArray) -> AnyArray:
    """Values of groups [G, 16, 4] as kernels read them: [G, 4, 16], of bfloat16 [G, 2, 16, 2]."""
    if values.dtype == jnp.bfloat16:
        return values.reshape(-1, _GROUP, 2, 2).swapaxes(1, 2)
    return values.swapaxes(1, 2)


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


def _or_none(numbers: Array | None) -> Array:
    return jnp.zeros(0, jnp.float32) if numbers is None else jnp.asarray(numbers, jnp.float32)


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
