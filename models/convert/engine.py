"""Apply a family's key table: foreign tensors to our tree and back, complaining once about all.

A table is data: rows saying which foreign tensor holds which of our parameters, and how. Rows
whose parameters a configuration does not have (a bias, a second norm) fall away by themselves.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from models.base import Model
from models.convert.codecs import SAME, TRANSPOSED, Codec, Fused
from models.counts import abstract_params
from models.paths import named_leaves, unflatten

__all__ = [
    "Row",
    "Table",
    "Tensors",
    "embedding",
    "expand",
    "export_tensors",
    "fused",
    "import_tensors",
    "linear",
    "norm",
    "repeated",
    "under",
]


class Tensors(Protocol):
    """Where foreign tensors come from: names, shapes without reading, values."""

    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> np.ndarray: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without reading it."""
        ...


class Row(NamedTuple):
    """One foreign tensor.

    foreign: its name; '{i}' stands for a layer, '{e}' for an expert until ``repeated``
    ours: the parameter paths it holds, in order
    codec: how
    """

    foreign: str
    ours: tuple[str, ...]
    codec: Codec


def _no_spellings(name: str) -> Iterable[str]:
    del name
    return ()


class Table(NamedTuple):
    """All rows of a family for one configuration.

    rows: see ``Row``; see ``repeated`` for layers
    ignored: regexes of foreign names that carry nothing (buffers, tied duplicates)
    spellings: other names a tensor is found under in the wild
    """

    rows: Sequence[Row]
    ignored: Sequence[str] = ()
    spellings: Callable[[str], Iterable[str]] = _no_spellings


def linear(foreign: str, ours: str, *, transposed: bool = True) -> list[Row]:
    """Rows of a dense layer; ``transposed`` for torch's [out, in]."""
    codec = TRANSPOSED if transposed else SAME
    return [
        Row(f"{foreign}.weight", (f"{ours}/kernel",), codec),
        Row(f"{foreign}.bias", (f"{ours}/bias",), SAME),
    ]


def norm(foreign: str, ours: str) -> list[Row]:
    """Rows of a norm."""
    return [
        Row(f"{foreign}.weight", (f"{ours}/scale",), SAME),
        Row(f"{foreign}.bias", (f"{ours}/bias",), SAME),
    ]


def embedding(foreign: str, ours: str) -> list[Row]:
    """Row of an embedding table."""
    return [Row(f"{foreign}.weight", (f"{ours}/embedding",), SAME)]


def fused(foreign: str, ours: str, kind: str, cfg: Any, *, transposed: bool = True) -> list[Row]:
    """Rows of a projection that holds query, key and value; see ``codecs.fused_order``."""
    parts = [f"{ours}/{part}" for part in ("query", "key", "value")]
    weight = Fused(kind, cfg.num_heads, cfg.num_kv_heads, transposed)
    bias = Fused(kind, cfg.num_heads, cfg.num_kv_heads, False)
    return [
        Row(f"{foreign}.weight", tuple(f"{p}/kernel" for p in parts), weight),
        Row(f"{foreign}.bias", tuple(f"{p}/bias" for p in parts), bias),
    ]


def repeated(rows: Sequence[Row], layers: int, experts: int = 0) -> list[Row]:
    """Write rows out for every layer and expert; rows without '{i}' or '{e}' once."""
    out = []
    for row in rows:
        for i in range(layers if "{i}" in row.foreign else 1):
            for e in range(experts if "{e}" in row.foreign else 1):
                ours = tuple(name.format(i=i, e=e) for name in row.ours)
                out.append(Row(row.foreign.format(i=i, e=e), ours, row.codec))
    return out


def under(rows: Sequence[Row], foreign: str, ours: str = "") -> list[Row]:
    """Put rows under a prefix on either side."""
    return [
        Row(foreign + row.foreign, tuple(ours + name for name in row.ours), row.codec)
        for row in rows
    ]


def expand(table: Table, shapes: Mapping[str, Any]) -> list[Row]:
    """List the concrete rows whose parameters exist.

    Raises:
        ValueError: a parameter no row or two rows hold (a fault of the table).
    """
    rows = [row for row in table.rows if all(name in shapes for name in row.ours)]
    held = [name for row in rows for name in row.ours]
    wrong = set(shapes) ^ set(held) or {n for n in held if held.count(n) > 1}
    if wrong:
        raise ValueError(f"the key table does not hold these once each: {sorted(wrong)}")
    return rows


def import_tensors(
    model: Model,
    table: Table,
    tensors: Tensors,
    *,
    dtype: Any = None,
    optional: Callable[[str], np.ndarray | None] = lambda name: None,
    drop_unmatched: bool = False,
) -> dict[str, Any]:
    """Build our parameter tree from foreign tensors, one at a time.

    Args:
        model: gives the expected names and shapes.
        table: of its family.
        tensors: the foreign file.
        dtype: of the result; None keeps each tensor's own.
        optional: value for one of our parameters that the file lacks, or None to complain.
        drop_unmatched: ignore foreign tensors that nothing asks for.

    Raises:
        ValueError: every missing, unmatched and misshapen tensor, in one message.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    found: dict[str, np.ndarray] = {}
    problems: list[str] = []
    used: set[str] = set()
    for row in expand(table, shapes):
        spellings = (row.foreign, *table.spellings(row.foreign))
        source = next((name for name in spellings if name in tensors), None)
        wanted = [shapes[name] for name in row.ours]
        expected = row.codec.foreign_shape(wanted)
        if source is None:
            substitutes = {name: optional(name) for name in row.ours}
            if any(value is None for value in substitutes.values()):
                problems.append(f"missing {row.foreign} {expected} (holds {', '.join(row.ours)})")
            found |= {k: v for k, v in substitutes.items() if v is not None}
            continue
        used.add(source)
        if tensors.shape(source) != expected:
            problems.append(f"{source}: shape {tensors.shape(source)}, expected {expected}")
        elif not problems:  # after the first problem only names and shapes matter
            parts = row.codec.to_ours(tensors[source], wanted)
            found |= {
                name: np.array(part, dtype=dtype or part.dtype, order="C")
                for name, part in zip(row.ours, parts, strict=True)
            }
    unmatched = [n for n in tensors if n not in used and not _matches(table.ignored, n)]
    if not drop_unmatched:
        problems += [f"unmatched {name} {tensors.shape(name)}" for name in unmatched]
    if problems:
        raise ValueError(
            f"{len(problems)} tensors do not fit model {model.config.name!r}:\n  "
            + "\n  ".join(problems)
        )
    return unflatten(found)


def export_tensors(
    model: Model, table: Table, params: Any, *, dtype: Any = None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (foreign name, tensor) lazily; NaN, the mark of a pruned weight, becomes 0.

    Args:
        model: gives the expected names and shapes.
        table: of its family.
        params: our tree, dense.
        dtype: of the result; None keeps each leaf's own.

    Raises:
        ValueError: a tree that lacks or adds parameters.
    """
    leaves = dict(named_leaves(params))
    shapes = {name: leaf.shape for name, leaf in named_leaves(abstract_params(model))}
    wrong = sorted(set(shapes) ^ set(leaves))
    if wrong:
        raise ValueError(f"parameters differ from model {model.config.name!r}: {wrong[:10]}")
    for row in expand(table, shapes):
        parts = [_dense(name, leaves[name], dtype) for name in row.ours]
        yield row.foreign, row.codec.to_foreign(parts)


def _dense(name: str, leaf: Any, dtype: Any) -> np.ndarray:
    if not hasattr(leaf, "dtype"):
        raise ValueError(
            f"{name}: {type(leaf).__name__} is not a dense array; finalize the checkpoint first"
        )
    array = np.asarray(jax.device_get(leaf))
    pruned = np.isnan(array)
    if pruned.any():
        array = np.where(pruned, np.zeros((), array.dtype), array)
    return array if dtype is None else array.astype(dtype)


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)
