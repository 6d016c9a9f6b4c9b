"""Sequence lengths from masks and pad ids, on the host, with the misuses that used to stall.

The vendor's machine ends a row at the first 0 of its mask, or at the first pad id, and compiles
whatever it is given; a pad id inside a sequence or inputs that disagree in length then hang the
run (``facts``: legacy VSL, Model Zoo 1.3 to 1.8). Here each of these is an error that names the
row before anything is compiled. ``vsl.checks`` has the same checks for use inside jit.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int

__all__ = [
    "check_capacity",
    "check_same_lengths",
    "label_weights",
    "lengths_from_mask",
    "lengths_from_pad_id",
]

_LISTED = 5


def _refuse_empty(lengths: np.ndarray, name: str, *, allow_empty: bool) -> None:
    if allow_empty or lengths.all():
        return
    row = int(np.argmin(lengths != 0))
    raise ValueError(
        f"{name}: row {row} is empty (no real token); drop the row, or pass allow_empty=True for "
        "the unused rows at the end of a short batch"
    )


def lengths_from_mask(
    mask: np.ndarray, *, name: str = "mask", allow_empty: bool = False
) -> Int[np.ndarray, " B"]:
    """Lengths of rows whose mask is 1 on real tokens, then 0.

    Args:
        mask: [B, S] bool or number; 0 is padding.
        name: what error messages call it.
        allow_empty: accept rows without a token.

    Returns:
        [B] int32.

    Raises:
        ValueError: not two-dimensional, a row with a hole, or an empty row.
    """
    real = np.asarray(mask) != 0
    if real.ndim != 2:
        raise ValueError(f"{name}: shape {real.shape}, expected [B, S]")
    count = real.sum(axis=1)
    first_gap = np.where(real.all(axis=1), real.shape[1], np.argmin(real, axis=1))
    holed = np.flatnonzero(first_gap != count)
    if holed.size:
        row = int(holed[0])
        gap = int(first_gap[row])
        after = gap + int(np.argmax(real[row, gap:]))
        raise ValueError(
            f"{name}: row {row} is not a prefix: position {gap} is masked but position {after} is "
            f"real; ending the row at the first 0 would drop {int(count[row]) - gap} real tokens. "
            "Move the padding to the end, or strip with holes='keep'"
        )
    _refuse_empty(count, name, allow_empty=allow_empty)
    return count.astype(np.int32)


def lengths_from_pad_id(
    ids: Int[np.ndarray, "B S"],
    pad_id: int,
    *,
    name: str = "input_ids",
    allow_empty: bool = False,
) -> Int[np.ndarray, " B"]:
    """Lengths of rows padded at the end with an id used nowhere else.

    Args:
        ids: token ids.
        pad_id: the padding id; -1 disables stripping, every row is full (the vendor's legacy
            switch).
        name: what error messages call it.
        allow_empty: accept rows without a token.

    Returns:
        [B] int32.

    Raises:
        ValueError: the pad id occurs before a row's last other token, or a row is empty.
    """
    ids = np.asarray(ids)
    if ids.ndim != 2:
        raise ValueError(f"{name}: shape {ids.shape}, expected [B, S]")
    if pad_id == -1:
        return np.full(ids.shape[0], ids.shape[1], np.int32)
    real = ids != pad_id
    length = np.where(real.any(axis=1), ids.shape[1] - np.argmax(real[:, ::-1], axis=1), 0)
    inside = ~real & (np.arange(ids.shape[1]) < length[:, None])
    if inside.any():
        row, position = (int(x) for x in np.argwhere(inside)[0])
        raise ValueError(
            f"{name}: pad_id={pad_id} occurs inside row {row} at position {position}, before its "
            f"last other token at {int(length[row]) - 1}: the id is used as a real token. Pad "
            "with an id used nowhere else, or give the lengths or a mask instead of pad_id"
        )
    _refuse_empty(length, name, allow_empty=allow_empty)
    return length.astype(np.int32)


def check_same_lengths(lengths: Mapping[str, np.ndarray]) -> Int[np.ndarray, " B"]:
    """Return the common lengths of several inputs.

    Args:
        lengths: name -> [B] lengths, for example of ids and of labels.

    Raises:
        ValueError: the batch sizes or the lengths of a row differ.
    """
    names = list(lengths)
    first = np.asarray(lengths[names[0]])
    for name in names[1:]:
        other = np.asarray(lengths[name])
        if other.shape != first.shape:
            raise ValueError(
                f"{names[0]} has {first.shape[0]} rows but {name} has {other.shape[0]}"
            )
        if (other != first).any():
            row = int(np.argmax(other != first))
            found = ", ".join(f"{n}={int(np.asarray(lengths[n])[row])}" for n in names)
            raise ValueError(
                f"row {row}: lengths differ: {found}; every input of one stream must be padded "
                "from the same position on"
            )
    return first.astype(np.int32)


def check_capacity(
    lengths: Sequence[int] | np.ndarray, capacity: int, max_sequences: int | None = None
) -> None:
    """Refuse sequences that do not fit; XLA would truncate them in silence.

    Args:
        lengths: tokens of each sequence.
        capacity: token slots.
        max_sequences: sequence slots; None for no limit.

    Raises:
        ValueError: too many tokens or sequences, naming the longest.
    """
    lengths = np.asarray(lengths)
    total = int(lengths.sum())
    if total > capacity:
        longest = np.argsort(-lengths, kind="stable")[:_LISTED]
        listed = ", ".join(f"#{i}={lengths[i]}" for i in longest)
        raise ValueError(
            f"{total} tokens > capacity {capacity} (longest sequences: {listed}); raise the "
            "capacity or put fewer sequences in the batch"
        )
    if max_sequences is not None and len(lengths) > max_sequences:
        raise ValueError(
            f"{len(lengths)} sequences > max_sequences={max_sequences}; raise max_sequences or "
            "put fewer sequences in the batch"
        )


def label_weights(
    labels: Int[np.ndarray, "..."], ignore: int = -1
) -> tuple[Int[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Turn labels padded with -1 into labels safe to index with, and loss weights.

    Args:
        labels: targets; ``ignore`` where there is none.
        ignore: the vendor pads labels with -1.

    Returns:
        (labels with 0 instead of ``ignore``, float32 weights 0 or 1).
    """
    real = np.asarray(labels) != ignore
    return np.where(real, labels, 0).astype(np.int32), real.astype(np.float32)
