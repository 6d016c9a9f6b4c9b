"""Checkpoints whose pruned positions are NaN: in weights and in moments of the same shape.

No mask is stored: a weight is pruned where it is NaN (any NaN; payload bits do not survive a
cast to bfloat16). Everything else is bit-exact, in its own dtype. These functions work on whole
trees in memory; ``finalize`` does it tensor by tensor on disk.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.checkpoint.moments import map_moments
from models.paths import map_named, named_leaves
from sparsity import storage
from sparsity.state import SparseState

__all__ = ["Decoded", "SentinelError", "decode", "detect", "encode", "require_dense"]


class SentinelError(ValueError):
    """A sparse checkpoint where a dense one was expected, or the other way round."""


class Decoded(NamedTuple):
    """A sentinel checkpoint taken apart.

    params: weights, 0 where pruned
    opt_state: moments, 0 where pruned
    masks: parameter name -> bool, true where kept; only parameters that hold a NaN
    """

    params: Any
    opt_state: Any
    masks: dict[str, Array]


def encode(params: Any, opt_state: Any, sparse: SparseState) -> tuple[Any, Any]:
    """Write NaN at pruned positions of weights and moments.

    Args:
        params: weights in the dtype they are stored in; csr ones become dense.
        opt_state: optimizer state; its same-shape floating moments are marked too.
        sparse: the topology.

    Returns:
        (params, opt_state) to store.
    """
    shapes = {name: leaf.shape for name, leaf in named_leaves(params)}

    def mark(name: str, leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        if name in sparse.patterns:
            return storage.expand(leaf, sparse.patterns[name], jnp.nan)
        if name in sparse.masks:
            return jnp.where(sparse.masks[name], leaf, jnp.asarray(jnp.nan, leaf.dtype))
        return leaf

    return map_named(mark, params), map_moments(mark, opt_state, shapes)


def decode(params: Any, opt_state: Any) -> Decoded:
    """Take the masks out of the NaN, and put 0 there, in weights and moments."""
    masks = {name: ~jnp.isnan(leaf) for name, leaf in named_leaves(params) if _has_nan(leaf)}
    shapes = {name: leaf.shape for name, leaf in named_leaves(params)}

    def clear(name: str, leaf: Any) -> Any:
        return jnp.where(masks[name], leaf, jnp.zeros((), leaf.dtype)) if name in masks else leaf

    return Decoded(map_named(clear, params), map_moments(clear, opt_state, shapes), masks)


def _has_nan(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and bool(jnp.any(jnp.isnan(leaf)))


def detect(params: Any) -> dict[str, float]:
    """List the parameters that hold NaN: name -> share of pruned weights."""
    return {
        name: float(np.mean(np.isnan(np.asarray(leaf, np.float32))))
        for name, leaf in named_leaves(params)
        if _has_nan(leaf)
    }


def require_dense(params: Any, where: str = "the checkpoint") -> None:
    """Refuse a sentinel checkpoint in a run that has no ``sparsity`` section.

    Raises:
        SentinelError: names the first parameters and says what to add.
    """
    found = detect(params)
    if not found:
        return
    name, level = next(iter(found.items()))
    raise SentinelError(
        f"{where} is sparse: {len(found)} parameters hold NaN at pruned positions (first:"
        f" {name}, {level:.1%} pruned), but the configuration has no `sparsity` section.\n"
        f"To go on training sparse, add the section it was trained with, for example\n"
        f"    sparsity: {{sparsity: {level:.2g}, init_method: topk}}\n"
        "To train on dense, or to use the weights elsewhere, finalize it first:\n"
        "    wafer finalize -i IN -o OUT"
    )
