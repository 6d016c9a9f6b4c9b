"""Sequence lengths from masks, on the host, with the misuses that stall a wafer.

It ends a row at the first 0 of its mask and compiles whatever it is given; a hole in a
mask then hangs the run. Here it is an error that names the row before anything is compiled.
``wafer.vsl.checks`` has the same checks for use inside jit.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

_LISTED = 5


def lengths_from_mask(
    mask: np.ndarray | Sequence[Sequence[int]], *, name: str = "mask", allow_empty: bool = False
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
    if not (allow_empty or count.all()):
        raise ValueError(
            f"{name}: row {int(np.argmin(count != 0))} is empty (no real token); drop the row, or "
            "pass allow_empty=True for the unused rows at the end of a short batch"
        )
    return count.astype(np.int32)


def check_capacity(
    lengths: Sequence[int] | np.ndarray, capacity: int, max_sequences: int | None = None
) -> None:
    """Refuse sequences that do not fit; XLA would truncate them in silence.

    Args:
        lengths: [N] tokens of each sequence.
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
