"""Apply a family's key table: foreign tensors to our tree and back, complaining once about all.

A table is data: rows saying which foreign tensor holds which of our parameters, and how. Rows
whose parameters a configuration does not have (a bias, a second norm) fall away by themselves.
"""

import collections
import dataclasses
import functools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from wafer.models.base import Model
from wafer.models.checkpoint.lazy import LazyArray
from wafer.models.checkpoint.pruned import check_weight
from wafer.models.checkpoint.tensors import Tensors
from wafer.models.convert.codecs import SAME, TRANSPOSED, Codec, Fused
from wafer.models.counts import abstract_params
from wafer.models.paths import Params, named_leaves

_LOG = logging.getLogger(__name__)


class TensorRow(NamedTuple):
    """One foreign tensor."""

    foreign: str  #: its name; '{i}' stands for a layer, '{e}' for an expert until ``repeated``
    ours: tuple[str, ...]  #: the parameter paths it holds, in order
    codec: Codec  #: how


class Table(NamedTuple):
    """All rows of a family for one configuration."""

    rows: Sequence[TensorRow]  #: see ``TensorRow``; see ``repeated`` for layers
    #: regexes of foreign names that carry nothing (buffers, tied duplicates)
    ignored: Sequence[str] = ()
    #: other names a tensor is found under in the wild
    spellings: Callable[[str], Iterable[str]] = lambda name: ()
    #: regexes of tensors of the family's other classes; they are listed and left
    unused: Sequence[str] = ()
    #: name of a second copy that is written, too -> ``foreign`` of a row
    copies: Mapping[str, str] = {}
    tied: tuple[str, str] | None = None  #: (embedding, head) where the head scores by the embedding


def linear(foreign: str, ours: str, *, transposed: bool = True) -> list[TensorRow]:
    """Rows of a dense layer; ``transposed`` for torch's [out, in]."""
    codec = TRANSPOSED if transposed else SAME
    return [
        TensorRow(f"{foreign}.weight", (f"{ours}/kernel",), codec),
        TensorRow(f"{foreign}.bias", (f"{ours}/bias",), SAME),
    ]


def linears(foreign: str, ours: str, names: Mapping[str, str]) -> list[TensorRow]:
    """Rows of several dense layers of one module.

    Args:
        foreign: the module.
        ours: the same of ours.
        names: of its layers, theirs -> ours.
    """
    pairs = [linear(f"{foreign}.{theirs}", f"{ours}/{own}") for theirs, own in names.items()]
    return [row for pair in pairs for row in pair]


def norm(foreign: str, ours: str) -> list[TensorRow]:
    """Rows of a norm."""
    return [
        TensorRow(f"{foreign}.weight", (f"{ours}/scale",), SAME),
        TensorRow(f"{foreign}.bias", (f"{ours}/bias",), SAME),
    ]


def embedding(foreign: str, ours: str) -> list[TensorRow]:
    """Row of an embedding table."""
    return [TensorRow(f"{foreign}.weight", (f"{ours}/embedding",), SAME)]


def fused(
    foreign: str, ours: str, kind: str, cfg: Any, *, transposed: bool = True
) -> list[TensorRow]:
    """Rows of a projection that holds query, key and value; see ``codecs.fused_order``."""
    parts = [f"{ours}/{part}" for part in ("query", "key", "value")]
    weight = Fused(kind, cfg.num_heads, cfg.num_kv_heads, transposed)
    bias = Fused(kind, cfg.num_heads, cfg.num_kv_heads, False)
    return [
        TensorRow(f"{foreign}.weight", tuple(f"{p}/kernel" for p in parts), weight),
        TensorRow(f"{foreign}.bias", tuple(f"{p}/bias" for p in parts), bias),
    ]


def repeated(rows: Sequence[TensorRow], layers: int, experts: int = 0) -> list[TensorRow]:
    """Write rows out for every layer and expert; rows without '{i}' or '{e}' once."""
    out = []
    for row in rows:
        for i in range(layers if "{i}" in row.foreign else 1):
            for e in range(experts if "{e}" in row.foreign else 1):
                ours = tuple(name.format(i=i, e=e) for name in row.ours)
                out.append(TensorRow(row.foreign.format(i=i, e=e), ours, row.codec))
    return out


def under(rows: Sequence[TensorRow], foreign: str, ours: str = "") -> list[TensorRow]:
    """Put rows under a prefix on either side."""
    return [
        TensorRow(foreign + row.foreign, tuple(ours + name for name in row.ours), row.codec)
        for row in rows
    ]


def expand(table: Table, shapes: Mapping[str, tuple[int, ...]]) -> list[TensorRow]:
    """List the concrete rows whose parameters exist.

    Raises:
        ValueError: a parameter no row or two rows hold (a fault of the table).
    """
    rows = [row for row in table.rows if all(name in shapes for name in row.ours)]
    held = collections.Counter(name for row in rows for name in row.ours)
    wrong = set(shapes) ^ set(held) or {name for name, count in held.items() if count > 1}
    if wrong:
        raise ValueError(f"the key table does not hold these once each: {sorted(wrong)}")
    return rows


def import_tensors(
    model: Model,
    table: Table,
    tensors: Tensors,
    *,
    dtype: DTypeLike | None = None,
    optional: Callable[[str], np.ndarray | None] = lambda name: None,
    drop_unmatched: bool = False,
    may_lack: tuple[str, ...] = (),
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (parameter path, array) from foreign tensors, one foreign tensor at a time.

    Names and shapes are all checked before the first value is read.

    Args:
        model: gives the expected names and shapes.
        table: of its family.
        tensors: the foreign file.
        dtype: of the result; None keeps each tensor's own.
        optional: value for one of our parameters that the file lacks, or None to complain.
        drop_unmatched: ignore foreign tensors that nothing asks for.
        may_lack: beginnings of parameters that are left out where the file lacks them.

    Raises:
        ValueError: every missing, unmatched and misshapen tensor, in one message.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    rows = expand(table, shapes)
    sources = {row: source(row, table, tensors) for row in rows}
    drawn = {
        name: optional(name) for row, where in sources.items() if not where for name in row.ours
    }
    lacking = {n for n, value in drawn.items() if value is None and n.startswith(may_lack)}
    sources = {row: where for row, where in sources.items() if lacking.isdisjoint(row.ours)}
    problems = _faults(sources, shapes, tensors, drawn)
    used = set(sources.values()) | table.copies.keys()
    others = [n for n in tensors if n not in used and not _matches(table.ignored, n)]
    left = [n for n in others if drop_unmatched or _matches(table.unused, n)]
    problems += [f"unmatched {n} {tensors.shape(n)}" for n in others if n not in left]
    if problems:
        raise ValueError(
            f"{len(problems)} tensors do not fit model {model.config.name!r}:\n  "
            + "\n  ".join(problems)
        )
    if left:
        name = model.config.name
        _LOG.warning(
            "%d tensors that %s does not use are left: %s", len(left), name, ", ".join(left)
        )
    return _convert(sources, shapes, tensors, drawn, dtype)


def source(row: TensorRow, table: Table, tensors: Tensors) -> str | None:
    """Name under which the file has a row's tensor; a shared one may lie under its head's alone."""
    names = _spellings_of(table, row.foreign)
    if table.tied and row.foreign == table.tied[0]:
        names += _spellings_of(table, table.tied[1])
    return next((name for name in names if name in tensors), None)


def _spellings_of(table: Table, name: str) -> list[str]:
    return [name, *table.spellings(name)]


def has_own_head(table: Table, tensors: Tensors) -> bool:
    """Whether a file has a head beside the embedding of a tied model, with other values."""
    if table.tied is None:
        return False
    both = [[n for n in _spellings_of(table, name) if n in tensors][:1] for name in table.tied]
    if not all(both):
        return False
    (embedding,), (head,) = both
    same = tensors.shape(embedding) == tensors.shape(head)
    return not (same and np.array_equal(tensors[embedding], tensors[head]))


def _faults(
    sources: Mapping[TensorRow, str | None],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Tensors,
    drawn: Mapping[str, np.ndarray | None],
) -> list[str]:
    """List missing and misshapen tensors."""
    problems = []
    for row, source in sources.items():
        expected = row.codec.foreign_shape([shapes[name] for name in row.ours])
        if source is None:
            if any(drawn[name] is None for name in row.ours):
                problems.append(f"missing {row.foreign} {expected} (holds {', '.join(row.ours)})")
        elif tensors.shape(source) != expected:
            problems.append(f"{source}: shape {tensors.shape(source)}, expected {expected}")
    return problems


def _convert(
    sources: Mapping[TensorRow, str | None],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Tensors,
    drawn: Mapping[str, np.ndarray | None],
    dtype: DTypeLike | None,
) -> Iterator[tuple[str, np.ndarray]]:
    for row, source in sources.items():
        if source is None:
            yield from ((name, np.asarray(drawn[name])) for name in row.ours)
            continue
        parts = list(row.codec.to_ours(tensors[source], [shapes[name] for name in row.ours]))
        for name in row.ours:  # each part is let go before the next is made contiguous
            part = parts.pop(0)
            yield name, np.asarray(part, dtype, order="C")


def export_tensors(
    model: Model,
    table: Table,
    leaves: Params,
    *,
    dtype: DTypeLike | None = None,
    pruned: Collection[str] | None = (),
) -> list[LazyArray]:
    """List the foreign tensors; each is converted, and its numbers are checked, when read.

    Args:
        model: gives the expected names and shapes.
        table: of its family.
        leaves: our parameters by path, dense: arrays, or objects with ``shape``, ``dtype`` and
            ``__array__`` that read themselves.
        dtype: of the result; None keeps each leaf's own.
        pruned: the parameters whose NaN mark pruned weights and become 0; None: every NaN becomes
            0 and nothing is checked, for moments.

    Raises:
        ValueError: parameters that are missing, too many, of another shape, or not dense.
        ContentError: when a tensor is read, an infinity, or a NaN that marks no pruned weight.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    problems = [f"missing {name} {shapes[name]}" for name in shapes if name not in leaves]
    problems += [f"unknown {name}" for name in leaves if name not in shapes]
    for name, leaf in leaves.items():
        if not hasattr(leaf, "dtype"):
            kind = type(leaf).__name__
            problems.append(f"{name}: {kind} is not a dense array; finalize the checkpoint first")
        elif tuple(leaf.shape) != shapes.get(name, leaf.shape):
            problems.append(f"{name}: shape {tuple(leaf.shape)}, expected {shapes[name]}")
    if problems:
        raise ValueError(
            f"{len(problems)} parameters do not fit model {model.config.name!r}:\n  "
            + "\n  ".join(problems)
        )
    dense = functools.partial(_dense, f"model {model.config.name!r}", leaves, pruned)
    out = [
        _lazy(row, [leaves[name] for name in row.ours], dtype, dense)
        for row in expand(table, shapes)
    ]
    named = {tensor.name: tensor for tensor in out}
    return out + [
        dataclasses.replace(named[first], name=copy) for copy, first in table.copies.items()
    ]


def _lazy(
    row: TensorRow,
    leaves: Sequence[Any],
    dtype: DTypeLike | None,
    dense: Callable[[str, np.dtype], np.ndarray],
) -> LazyArray:
    out = np.dtype(dtype or np.result_type(*(leaf.dtype for leaf in leaves)))

    def read() -> np.ndarray:
        return row.codec.to_foreign([dense(name, out) for name in row.ours])

    shape = row.codec.foreign_shape([x.shape for x in leaves])
    return LazyArray(shape, out, read, row.foreign)


def _dense(
    where: str,
    leaves: Params,
    pruned: Collection[str] | None,
    name: str,
    dtype: np.dtype,
) -> np.ndarray:
    array = np.asarray(leaves[name])
    if pruned is not None:
        check_weight(where, name, array, pruned)
    marks = np.isnan(array)
    if marks.any():
        array = np.where(marks, np.zeros((), array.dtype), array)
    return array.astype(dtype, copy=False)


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
