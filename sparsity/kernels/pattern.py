"""Where the kept weights of a [K, N] matrix lie.

``values`` [nnz] hold them in canonical order: by output column n, then by input k. That is the
flat order of W^T, PyTorch's [out, in] storage, so "lowest index first" means the same in both.
A pattern is the compressed rows of W^T, and the order in which the native products walk W^T (for
y = x W and for dW) and W (for dx), see ``walk.h``; it is made when the topology changes. With the
values it holds 8.6 bytes per kept weight at 90 % zeros.
"""

import functools
from typing import NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, Shaped

from wafer.sparsity.kernels import native
from wafer.vsl.implementations.linear import multilinear
from wafer.vsl.layout import AnyArray


class Pattern(NamedTuple):
    """Positions of up to ``nnz`` kept weights; shapes are fixed, so topology never recompiles."""

    #: [nnz] uint16 (int32 above 65,536 rows), k of each value; rising within a column
    indices: Integer[Array, " nnz"]
    #: [N + 1] int32, values of column n are ``pointers[n] : pointers[n + 1]``. The last one may be
    #: below nnz: what is left is slack, ignored and with zero gradient
    pointers: Int[Array, " N1"]
    t_pointers: Int[Array, " K1"]  #: [K + 1] int32, how many values the rows before k have
    #: [S, 4] int32, which outputs the products walk together, and how many values they have;
    #: without the native library S is 0
    slices: Int[Array, "S 4"]
    offsets: Integer[Array, " slots"]  #: [slots] uint8, the inputs that they read, block by block
    t_slices: Int[Array, "St 4"]  #: t_slices, t_offsets: the same for W, whose outputs are the rows
    t_offsets: Integer[Array, " t_slots"]

    @property
    def nnz(self) -> int:
        """Static number of stored values, slack included."""
        return self.indices.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """Static (K, N)."""
        return self.t_pointers.shape[0] - 1, self.pointers.shape[0] - 1


def check_pattern(pattern: Pattern, what: str, *values: AnyArray) -> None:
    """Refuse arrays that are no pattern, or values that are not its own; under a trace as well.

    Shapes and dtypes only: where indices lead, the native kernels check at every call.

    Raises:
        ValueError: a shape that does not fit, with the name of the array.
        TypeError: a dtype that does not.
    """
    stored = (np.shape(pattern.indices) or (0,))[0]
    for name, leaf in zip(_COMPRESSED, pattern, strict=False):
        lines = name.endswith("pointers")
        shape = np.shape(leaf)
        if len(shape) != 1 or (lines and not shape[0]) or not (lines or shape == (stored,)):
            wanted = "[lines + 1]" if lines else f"[{stored}], as indices have"
            raise ValueError(f"{what}: pattern.{name} has shape {shape}; expected {wanted}")
        allowed = (np.uint16, np.int32) if name.endswith("indices") else (np.int32,)
        if leaf.dtype not in allowed:
            listed = " or ".join(np.dtype(kind).name for kind in allowed)
            raise TypeError(f"{what}: pattern.{name} is {leaf.dtype}; expected {listed}. {_BEFORE}")
    rows, columns = pattern.shape
    for prefix, outputs, inputs in (("", columns, rows), ("t_", rows, columns)):
        wanted = _walk_shapes(stored, outputs, inputs) if np.size(pattern.offsets) else _NO_WALK
        _check_walk(pattern, prefix, wanted, what)
    for leaf in values:
        if np.shape(leaf) != (stored,):
            raise ValueError(
                f"{what}: values have shape {np.shape(leaf)}, the pattern stores {stored}; "
                "both must come from the same weight"
            )


def _check_walk(
    pattern: Pattern, prefix: str, wanted: tuple[jax.ShapeDtypeStruct, ...], what: str
) -> None:
    for name, like in zip((f"{prefix}slices", f"{prefix}offsets"), wanted, strict=True):
        leaf = getattr(pattern, name)
        if np.shape(leaf) != like.shape:
            raise ValueError(
                f"{what}: pattern.{name} has shape {np.shape(leaf)}; expected {like.shape}"
            )
        if leaf.dtype != like.dtype:
            raise TypeError(
                f"{what}: pattern.{name} is {leaf.dtype}; expected {like.dtype}. {_BEFORE}"
            )


def _check_places(pattern: Pattern, what: str) -> None:
    """Refuse places outside the weight; where the arrays are traced, the native kernels do.

    Raises:
        ValueError: names the array, the entry and what is allowed.
    """
    if any(isinstance(leaf, jax.core.Tracer) for leaf in pattern):
        return
    indices, pointers, t_pointers = map(np.asarray, pattern[:3])
    for name, at in (("pointers", pointers), ("t_pointers", t_pointers)):
        if at[0] != 0 or at[-1] > indices.size or (at[1:] < at[:-1]).any():
            raise ValueError(
                f"{what}: pattern.{name} do not rise from 0 to at most {indices.size}, the number "
                f"of values; {_MAKE_PATTERNS}"
            )
    rows, used = pattern.shape[0], indices[: pointers[-1]]
    outside = np.flatnonzero((used >= rows) | (used < 0))
    if outside.size:
        at = int(outside[0])
        raise ValueError(
            f"{what}: pattern.indices[{at}] is {used[at]}; expected 0 .. {rows - 1}. "
            f"{_MAKE_PATTERNS}"
        )


def index_dtype(size: int) -> type[np.integer]:
    """Narrowest index type of an axis that the kernels read."""
    return np.uint16 if size <= 1 << 16 else np.int32


_BEFORE = "Cast and scale weights before `attach`: then the leaves are values alone"
_MAKE_PATTERNS = "make patterns with pattern_from_mask or pattern_from_flat"
# kSlice, kGroup and kBlock of walk.h
_SLICE, _GROUP, _BLOCK = 4, 512, 176
_COMPRESSED = Pattern._fields[:3]
_NO_WALK = jax.ShapeDtypeStruct((0, 4), jnp.int32), jax.ShapeDtypeStruct((0,), jnp.uint8)


def _walk_shapes(
    nnz: int, outputs: int, inputs: int
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Slices and offsets of a walk: as many as any pattern of these sizes may need."""
    group = min(_GROUP, -(-outputs // _SLICE) * _SLICE)
    segments = -(-outputs // max(group, 1)) * max(1, -(-inputs // _BLOCK))
    slots = nnz + segments * (_SLICE - 1) * min(_BLOCK, inputs)
    return (
        jax.ShapeDtypeStruct((segments * group // _SLICE, 4), jnp.int32),
        jax.ShapeDtypeStruct((max(slots, 1),), jnp.uint8),
    )


def add_walk(indices: Array, pointers: Array, t_pointers: Array) -> Pattern:
    """Complete a pattern by the order in which the native products walk it; usable under jit."""
    if not native.usable():
        walks = tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in 2 * _NO_WALK)
        return Pattern(indices, pointers, t_pointers, *walks)
    rows, columns, nnz = t_pointers.shape[0] - 1, pointers.shape[0] - 1, indices.shape[0]
    shapes = (*_walk_shapes(nnz, columns, rows), *_walk_shapes(nnz, rows, columns))
    walks = native.call("wafer_sparse_walk", shapes, indices, pointers, t_pointers)
    return Pattern(indices, pointers, t_pointers, *walks)


def _flat(pattern: Pattern) -> Int[Array, " nnz"]:
    """Position n * K + k in W^T; N * K (out of bounds) at slack."""
    rows, _ = pattern.shape
    slots = jnp.arange(pattern.nnz, dtype=jnp.int32)
    columns = jnp.searchsorted(pattern.pointers, slots, side="right").astype(jnp.int32) - 1
    inner = jnp.where(columns < pattern.shape[1], pattern.indices.astype(jnp.int32), 0)
    return columns * rows + inner


def pattern_from_flat(
    flat: Int[AnyArray, " nnz"], shape: tuple[int, int], *, validate: bool = True
) -> Pattern:
    """Build the pattern of sorted positions ``n * K + k`` in W^T; ``K * N`` marks slack.

    Args:
        flat: [nnz] int, rising; usable under jit.
        shape: static (K, N), K * N below 2^31.
        validate: outside jit, look at the positions.

    Raises:
        ValueError: positions that are no integers, out of range, not sorted or not unique.
    """
    rows, columns = shape
    size = rows * columns
    if min(shape) < 0 or size >= 1 << 31 or np.ndim(flat) != 1 or flat.dtype.kind not in "iu":
        raise ValueError(
            f"pattern_from_flat: {flat.dtype}{list(np.shape(flat))} in a weight {rows} x "
            f"{columns}; expected integers [nnz] and fewer than 2^31 positions"
        )
    if validate and not isinstance(flat, jax.core.Tracer):
        host = np.asarray(flat)
        outside = (host < 0) | (host > size)
        unsorted = (host[1:] <= host[:-1]) & (host[1:] < size)
        if outside.any():
            at = int(np.argmax(outside))
            raise ValueError(
                f"pattern_from_flat: position {host[at]} (entry {at}) is not in 0 .. {size}; "
                f"a position is n * {rows} + k"
            )
        if unsorted.any():
            at = int(np.argmax(unsorted))
            raise ValueError(
                f"pattern_from_flat: positions do not rise: entry {at} is {host[at]}, the next "
                f"{host[at + 1]}; sort them and drop repetitions (np.unique)"
            )
    return _pattern_from_flat(jnp.asarray(flat, jnp.int32), shape)


@functools.partial(jax.jit, static_argnames="shape")
def _pattern_from_flat(flat: Array, shape: tuple[int, int]) -> Pattern:
    rows, columns = shape
    n, k = flat // max(rows, 1), flat % max(rows, 1)
    slack = flat >= rows * columns
    bounds = jnp.arange(columns + 1, dtype=jnp.int32)
    counts = jnp.zeros(rows + 1, jnp.int32).at[jnp.where(slack, rows, k) + 1].add(1, mode="drop")
    return add_walk(
        indices=jnp.where(slack, 0, k).astype(index_dtype(rows)),
        pointers=jnp.searchsorted(n, bounds).astype(jnp.int32),
        t_pointers=jnp.cumsum(counts, dtype=jnp.int32),
    )


def pattern_from_mask(mask: Bool[AnyArray, "K N"], nnz: int) -> Pattern:
    """Build the pattern of a mask; usable under jit.

    Args:
        mask: [K, N] bool, true at kept weights.
        nnz: static number of values to store. A mask with fewer leaves slack; of one with more,
            the first in canonical order are taken.

    Raises:
        ValueError: outside jit, when the mask does not keep exactly ``nnz`` weights; or when
            K * N does not fit in 31 bits.
    """
    if np.ndim(mask) != 2 or mask.dtype != np.bool_ or nnz < 0:
        raise ValueError(
            f"pattern_from_mask: mask {mask.dtype}{list(np.shape(mask))}, nnz={nnz}; expected a "
            "bool mask [K, N], true at kept weights (weight != 0), and nnz >= 0"
        )
    rows, columns = mask.shape
    if rows * columns >= 1 << 31:
        raise ValueError(
            f"pattern_from_mask: a {rows} x {columns} weight has 2^31 positions or more; split it, "
            "or leave it out of the sparse group"
        )
    if not isinstance(mask, jax.core.Tracer) and int(np.count_nonzero(mask)) != nnz:
        raise ValueError(
            f"pattern_from_mask: the mask keeps {int(np.count_nonzero(mask))} weights, nnz is "
            f"{nnz}; pass nnz=int(mask.sum())"
        )
    return _pattern_from_mask(mask, nnz)


@functools.partial(jax.jit, static_argnames="nnz")
def _pattern_from_mask(mask: Array, nnz: int) -> Pattern:
    rows, columns = mask.shape
    if native.usable():
        shapes = (
            jax.ShapeDtypeStruct((nnz,), index_dtype(rows)),
            jax.ShapeDtypeStruct((columns + 1,), jnp.int32),
            jax.ShapeDtypeStruct((rows + 1,), jnp.int32),
        )
        return add_walk(*native.call("wafer_sparse_pattern_of_mask", shapes, mask))
    (flat,) = jnp.nonzero(mask.T.reshape(-1), size=nnz, fill_value=mask.size)
    return _pattern_from_flat(flat.astype(jnp.int32), (rows, columns))


def _moves_natively(leaf: Array) -> bool:
    return leaf.dtype == jnp.float32 and native.usable()


def to_dense(
    values: Shaped[AnyArray, " nnz"], pattern: Pattern, fill: float = 0.0
) -> Shaped[Array, "K N"]:
    """Spread values to a dense array with ``fill`` at pruned positions.

    Raises:
        ValueError: arrays that do not fit, or, outside jit, places outside the weight.
        TypeError: a pattern's wrong dtype.
    """
    check_pattern(pattern, "to_dense", values)
    _check_places(pattern, "to_dense")
    return _SPREAD.bind(jnp.asarray(values), *pattern, fill=fill)[0]


def gather(dense: Shaped[AnyArray, "K N"], pattern: Pattern) -> Shaped[Array, " nnz"]:
    """Take the kept values of a dense array; 0 at slack.

    Raises:
        ValueError: arrays that do not fit, or, outside jit, places outside the weight.
        TypeError: a pattern's wrong dtype.
    """
    check_pattern(pattern, "gather")
    _check_places(pattern, "gather")
    if np.shape(dense) != pattern.shape:
        raise ValueError(
            f"gather: the dense array has shape {np.shape(dense)}, the pattern's weight "
            f"{pattern.shape}; both must come from the same weight"
        )
    return _COLLECT.bind(jnp.asarray(dense), *pattern)[0]


def _spread(values: Array, *pattern: Array, fill: float) -> list[Array]:
    where = Pattern(*pattern)
    if _moves_natively(values):
        return [_spread_natively(values, where, fill, transposed=False)]
    return [_scatter(values, where, fill).T]


def _spread_natively(values: Array, pattern: Pattern, fill: float, *, transposed: bool) -> Array:
    shape = pattern.shape[::-1] if transposed else pattern.shape
    return native.call(
        "wafer_sparse_to_dense",
        jax.ShapeDtypeStruct(shape, jnp.float32),
        values,
        pattern.indices,
        pattern.pointers,
        jnp.asarray(fill, jnp.float32),
        transposed=np.bool_(transposed),
    )


def _scatter(values: Array, pattern: Pattern, fill: float) -> Array:
    rows, columns = pattern.shape
    dense = jnp.full((columns * rows,), fill, values.dtype)
    dense = dense.at[_flat(pattern)].set(values, mode="drop", indices_are_sorted=True)
    return dense.reshape(columns, rows)


def _collect(dense: Array, *pattern: Array) -> list[Array]:
    where = Pattern(*pattern)
    if _moves_natively(dense):
        result = jax.ShapeDtypeStruct((where.nnz,), jnp.float32)
        return [native.call("wafer_sparse_gather", result, dense, *where[:2])]
    flat = dense.T.reshape(-1)
    return [flat.at[_flat(where)].get(mode="fill", fill_value=0, indices_are_sorted=True)]


# Each is the other's transpose; XLA's own would be a serial scatter. Tangents are 0 at the fill.
_SPREAD = multilinear(
    "sparse_to_dense",
    _spread,
    lambda dense, _, *pattern, fill: _COLLECT.bind(dense, *pattern),
    together=lambda tangent, _, *pattern, fill: _SPREAD.bind(tangent, *pattern, fill=0.0),
)
_COLLECT = multilinear(
    "sparse_gather",
    _collect,
    lambda values, _, *pattern: _SPREAD.bind(values, *pattern, fill=0.0),
)


def to_dense_t(values: Shaped[Array, " nnz"], pattern: Pattern) -> Shaped[Array, "N K"]:
    """Spread values to the dense W^T, their own order, 0 at pruned positions; has no derivative.

    Whoever reads W^T is spared a transposition, which costs more than the spreading.
    """
    check_pattern(pattern, "to_dense_t", values)
    if not _moves_natively(values):
        return _scatter(values, pattern, 0)
    return _spread_natively(values, pattern, 0, transposed=True)


def to_mask(pattern: Pattern) -> Bool[Array, "K N"]:
    """Return the dense [K, N] mask of a pattern.

    Raises:
        ValueError: outside jit, places outside the weight.
    """
    check_pattern(pattern, "to_mask")
    _check_places(pattern, "to_mask")
    return _SPREAD.bind(jnp.ones(pattern.nnz, jnp.float32), *pattern, fill=0.0)[0] > 0
