"""From examples of different lengths to the flat arrays of one batch, on the host."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from wafer.vsl.lengths import check_capacity
from wafer.vsl.packing import Ladder

Example = Mapping[str, np.ndarray]
"""name -> [n, ...] array; the names of one domain share n."""

Capacity = Ladder | int | float
"""A ladder, a fixed number of slots, or a share of the first domain's slots."""


class Packed(NamedTuple):
    """One batch.

    Attributes:
        arrays: name -> [T, ...], examples one after another, then fill
        lengths: domain -> [B_max] int32, tokens of each example, 0 at unused places
        capacity: domain -> T
    """

    arrays: dict[str, np.ndarray]
    lengths: dict[str, Int[np.ndarray, " B"]]
    capacity: dict[str, int]


def _domain_lengths(
    examples: Sequence[Example], domain: str, names: Sequence[str], *, allow_empty: bool
) -> Int[np.ndarray, " B"]:
    out = np.zeros(len(examples), np.int32)
    for i, example in enumerate(examples):
        missing = [name for name in names if name not in example]
        if missing:
            raise ValueError(f"example {i}, domain {domain!r}: no field {missing[0]!r}")
        lengths = {name: len(example[name]) for name in names}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}={n}" for name, n in lengths.items())
            raise ValueError(f"example {i}, domain {domain!r}: lengths differ: {listed}")
        out[i] = lengths[names[0]]
        if out[i] == 0 and not allow_empty:
            raise ValueError(f"example {i}, domain {domain!r}: empty sequence; drop the example")
    return out


def _slots(capacity: Capacity, tokens: int, first: int | None) -> int:
    if isinstance(capacity, Ladder):
        return capacity.capacity(tokens)
    if isinstance(capacity, float):
        if first is None:
            raise ValueError(
                f"capacity {capacity}: a share of the first domain's slots cannot describe the "
                "first domain itself; give it a Ladder or a number of slots"
            )
        return -(-int(first * capacity) // 8) * 8
    return capacity


def pack(
    examples: Sequence[Example],
    capacity: Capacity | Mapping[str, Capacity],
    max_sequences: int,
    *,
    domains: Mapping[str, Sequence[str]] | None = None,
    fill: Mapping[str, float] | None = None,
) -> Packed:
    """Put examples one after another into flat arrays of a static shape.

    Args:
        examples: at most ``max_sequences`` of them.
        capacity: token slots; per domain if a mapping. A share, as in ``{"tokens": Ladder(),
            "mlm": 0.16}``, ties a second domain's slots to the first's: no further shapes.
        max_sequences: static B_max.
        domains: domain -> names of the fields that share its lengths; default one domain
            "tokens" of all fields. Domains after the first may be empty in an example.
        fill: name -> value at slack, default 0. Token ids at slack are never read as padding.

    Returns:
        The batch; ``layout_from_lengths(lengths, capacity)`` describes it on the device.

    Raises:
        ValueError: fields of one domain that differ in length, an empty example, too many tokens
            or examples; each names the example.
    """
    if not examples:
        raise ValueError("pack: no examples")
    domains = domains or {"tokens": tuple(examples[0])}
    arrays: dict[str, np.ndarray] = {}
    lengths: dict[str, np.ndarray] = {}
    slots: dict[str, int] = {}
    for domain, names in domains.items():
        counts = _domain_lengths(examples, domain, names, allow_empty=bool(lengths))
        wanted = capacity[domain] if isinstance(capacity, Mapping) else capacity
        size = _slots(wanted, int(counts.sum()), next(iter(slots.values()), None))
        check_capacity(counts, size, max_sequences)
        slots[domain] = size
        lengths[domain] = np.pad(counts, (0, max_sequences - len(examples)))
        for name in names:
            values = np.concatenate([np.asarray(e[name]) for e in examples])
            out = np.full((size, *values.shape[1:]), (fill or {}).get(name, 0), values.dtype)
            out[: len(values)] = values
            arrays[name] = out
    return Packed(arrays, lengths, slots)


def pad(
    examples: Sequence[Example],
    max_length: int,
    batch_size: int,
    *,
    fill: Mapping[str, float] | None = None,
) -> Packed:
    """Pad examples to rows of ``max_length``, flattened; the batch ``padded_layout`` describes.

    Args:
        examples: at most ``batch_size``; all fields of an example share one length.
        max_length: static S.
        batch_size: static B; missing rows are empty.
        fill: name -> value at padding, default 0.

    Raises:
        ValueError: as :func:`pack`; also an example longer than ``max_length``.
    """
    if not examples:
        raise ValueError("pad: no examples")
    names = tuple(examples[0])
    counts = _domain_lengths(examples, "tokens", names, allow_empty=False)
    check_capacity(np.minimum(counts, 0), 0, batch_size)
    if counts.max() > max_length:
        i = int(counts.argmax())
        raise ValueError(f"example {i} has {counts[i]} tokens > max_length {max_length}")
    arrays: dict[str, np.ndarray] = {}
    for name in names:
        first = np.asarray(examples[0][name])
        shape = (batch_size, max_length, *first.shape[1:])
        rows = np.full(shape, (fill or {}).get(name, 0), first.dtype)
        for i, example in enumerate(examples):
            rows[i, : counts[i]] = example[name]
        arrays[name] = rows.reshape(batch_size * max_length, *first.shape[1:])
    lengths = np.pad(counts, (0, batch_size - len(examples)))
    return Packed(arrays, {"tokens": lengths}, {"tokens": batch_size * max_length})
