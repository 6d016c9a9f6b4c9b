"""From rows of features to the flat token stream that models compute on.

The host decides the capacity (a static shape); everything else happens inside the jitted step.
Every array leads with two axes: N systems (``num_csx``), which the cluster shards, and A
micro-batches of each system.
"""

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import vsl
from models.base import Batch

__all__ = ["host_batch", "row_lengths", "to_batch"]


def row_lengths(mask: np.ndarray) -> np.ndarray:
    """[B] tokens up to the last position that carries loss: later ones cannot matter.

    The mask is a loss mask, so a prompt at the head of a row is 0 too; only the tail is padding.
    """
    reach = np.where(mask != 0, np.arange(1, mask.shape[-1] + 1), 0)
    return reach.max(axis=-1).astype(np.int32)


def host_batch(
    rows: Mapping[str, np.ndarray],
    num_csx: int = 1,
    micro_batches: int = 1,
    ladder: vsl.Ladder | None = None,
) -> dict[str, np.ndarray]:
    """Share the rows out, and strip padding when a ladder of capacities is given.

    Args:
        rows: features [B, S]; VSL rows have ``attention_span`` and ``position_ids``.
        num_csx: N systems.
        micro_batches: A parts of each system's share, computed one after another; N * A
            divides B.
        ladder: capacities for stripped streams (``model.enable_vts``); None keeps rows padded.
            VSL rows are packed already and stay as they are.

    Returns:
        Arrays [N, A, B/NA, S], plus ``lengths`` [N, A, B/NA] unless packed; stripped ones
        [N, A, T].
    """
    shares = num_csx * micro_batches
    split = {k: v.reshape(shares, -1, v.shape[-1]) for k, v in rows.items()}
    if "attention_span" not in rows:
        lengths = row_lengths(split["attention_mask"])
        if ladder is not None:
            capacity = ladder.capacity(int(lengths.sum(axis=-1).max()))
            keep = np.arange(rows["input_ids"].shape[-1]) < lengths[..., None]
            split = {k: _strip(v, keep, capacity) for k, v in split.items()}
        split["lengths"] = lengths
    return {k: v.reshape(num_csx, micro_batches, *v.shape[1:]) for k, v in split.items()}


def _strip(x: np.ndarray, keep: np.ndarray, capacity: int) -> np.ndarray:
    out = np.zeros((x.shape[0], capacity), x.dtype)
    for shard, (values, mask) in enumerate(zip(x, keep, strict=True)):
        tokens = values[mask]
        out[shard, : len(tokens)] = tokens
    return out


def to_batch(features: Mapping[str, Array]) -> Batch:
    """Build one micro-batch (no leading axes) inside jit."""
    mask = features["attention_mask"]
    if "attention_span" in features:
        layout = vsl.layout_from_spans(
            features["attention_span"], features["position_ids"], mask != 0
        )
    elif mask.ndim == 1:
        layout = vsl.layout_from_lengths(features["lengths"], mask.shape[0])
    else:
        layout = vsl.padded_layout(features["lengths"], mask.shape[1])
    return Batch(
        tokens=features["input_ids"].reshape(-1),
        labels=features["labels"].reshape(-1),
        weights=mask.reshape(-1).astype(jnp.float32),
        layout=layout,
    )
