"""Sparse trees and their stored form, dense arrays with NaN at pruned positions.

``wafer.models.checkpoint.pruned`` has the rule. These functions work on whole trees in memory;
``finalize`` does it tensor by tensor on disk.
"""

from typing import NamedTuple

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.models.checkpoint.moments import in_weights_and_moments
from wafer.models.checkpoint.pruned import clear, mark, masks_of
from wafer.models.errors import CheckpointError
from wafer.models.paths import named_leaves
from wafer.models.user.flags import with_nan
from wafer.sparsity import kernels, storage
from wafer.sparsity.schema import listed
from wafer.sparsity.state import SparseState, require_shapes


class SentinelError(CheckpointError):
    """A sparse checkpoint where a dense one was expected, or the other way round."""


class DecodedTrees(NamedTuple):
    """A sentinel checkpoint taken apart."""

    params: PyTree  #: weights, 0 where pruned
    opt_state: PyTree  #: moments, 0 where pruned
    #: parameter name -> bool, true where kept; only parameters that hold a NaN
    masks: dict[str, Array]


@with_nan()
def encode(params: PyTree, opt_state: PyTree, sparse: SparseState) -> tuple[PyTree, PyTree]:
    """Write NaN at pruned positions of weights and moments.

    Args:
        params: weights in the dtype they are stored in; csr ones become dense. In a traced
            function they are not checked: see ``unstorable``.
        opt_state: optimizer state; its same-shape floating moments are marked too.
        sparse: the topology.

    Returns:
        (params, opt_state) to store.

    Raises:
        CheckpointError: a weight is NaN, which would come back as a pruned one, or is not 0 where
            the state prunes, so that the state is of other weights.
        ValueError: a weight has another shape than the state.
    """
    require_shapes(sparse, dict(named_leaves(params)), "encode")
    if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
        require_storable(unstorable(params, sparse))

    def spread(name: str, leaf: PyTree) -> PyTree:
        if name not in sparse.patterns or not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return storage.expand(leaf, sparse.patterns[name], jnp.nan)

    return mark(*in_weights_and_moments(spread, params, opt_state), sparse.masks)


def unstorable(params: PyTree, sparse: SparseState) -> dict[str, Array]:
    """Find what the stored form cannot hold: NaN that is kept, numbers where the state prunes.

    Args:
        params: weights in the dtype they are stored in.
        sparse: the topology.

    Returns:
        Name -> [2] bool, whether it has NaN and numbers; floating parameters only.
    """
    flags = {}
    for name, leaf in named_leaves(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        mask = sparse.masks.get(name)
        if mask is None and name in sparse.patterns and leaf.ndim == 2:
            mask = kernels.to_mask(sparse.patterns[name])
        keep, is_nan = True if mask is None else mask, jnp.isnan(leaf)
        numbers = (leaf != 0) & ~is_nan & jnp.logical_not(keep)
        flags[name] = jnp.stack([jnp.any(is_nan & keep), jnp.any(numbers)])
    return flags


def require_storable(flags: dict[str, Array]) -> None:
    """Refuse what ``unstorable`` found.

    Args:
        flags: name -> [2] bool.

    Raises:
        CheckpointError: as ``encode``.
    """
    nan, nonzero = ([name for name, flag in flags.items() if flag[i]] for i in (0, 1))
    if nonzero:
        raise CheckpointError(
            f"encode: weights of {listed(nonzero)} are not 0 where the state prunes; expected 0 or "
            "NaN there, so the state is of other weights: of another seed, section or step. Store "
            "the weights with the state that `update` returned with them"
        )
    if nan:
        raise CheckpointError(
            f"encode: weights of {listed(nan)} are NaN where the state keeps them; expected "
            "numbers, since NaN would come back as pruned. Store a step at which training had not "
            "diverged"
        )


def decode(params: PyTree, opt_state: PyTree) -> DecodedTrees:
    """Take the masks out of the NaN, and put 0 there, in weights and moments."""
    masks = masks_of(params)
    return DecodedTrees(*clear(params, opt_state, masks), masks)


def detect(params: PyTree) -> dict[str, float]:
    """List the parameters that hold NaN: name -> share of pruned weights."""
    return {name: float(np.mean(~np.asarray(mask))) for name, mask in masks_of(params).items()}


def require_dense(params: PyTree, source: str = "the checkpoint") -> None:
    """Refuse a sentinel checkpoint in a run that has no ``sparsity`` section.

    Raises:
        SentinelError: names the first parameters and says what to add.
    """
    levels = detect(params)
    if not levels:
        return
    name, level = next(iter(levels.items()))
    raise SentinelError(
        f"{source} is sparse: {len(levels)} parameters hold NaN at pruned positions (first:"
        f" {name}, {level:.1%} pruned), but the configuration has no `sparsity` section.\n"
        f"To go on training sparse, add the section it was trained with, for example\n"
        f"    sparsity: {{sparsity: {level:.2g}, init_method: topk}}\n"
        "To train on dense, or to use the weights elsewhere, finalize it first:\n"
        "    wafer finalize -i IN -o OUT"
    )
