"""Optimizers that look at a weight's axes, which kept values do not have.

In csr storage an optimizer sees [nnz] values. Most transformations compute element by element and
by norms of whole trees, and give the same updates as under masks. Others read ranks, rows or
columns: decay of matrices alone, factored moments, clipping by unit, labels by rank.
"""

import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from models.paths import map_named, named_leaves
from sparsity import storage
from sparsity.schema import SparsityError, listed
from sparsity.state import SparseState

__all__ = ["check", "differences", "with_dense_shapes"]

_LOG = logging.getLogger(__name__)
_SCALES = (1.0, 100.0, 0.01, 1e4)  # of the gradients tried: on both sides of thresholds
_NO_GRADIENT = (0.0, 0.0)  # steps in which decay is not hidden by larger updates
_MOST_STEPS = 32  # where updates are 0, as of accumulated gradients
_SPARSE_SHAPE = (128, 136)  # optax factors moments of matrices from 128 x 128 on
_LARGEST = 8  # size of any other axis: ranks matter, sizes do not
_TOLERANCE = 1e-3  # of the mean absolute update; norms are summed in another order


def check(
    tx: optax.GradientTransformation, params: PyTree, names: Collection[str], **extra: Any
) -> None:
    """See ``Sparsifier.check``.

    Args:
        tx: any optax transformation.
        params: arrays or shapes, dense.
        names: of the matrices that may be stored as kept values.
        **extra: further arguments of ``tx.update``.

    Raises:
        SparsityError: names what differs.
    """
    found = differences(tx, params, names, **extra)
    if found:
        name, why = next(iter(found.items()))
        raise SparsityError(
            f"the optimizer reads the axes of weights, which csr stores as [nnz] values, and would "
            f"train {listed([*found])} otherwise than with masks ({name}: {why}); expected the "
            "same updates. Use compute: masked, or sparsity.with_dense_shapes(tx)",
            ("sparsity", "compute"),
        )


def differences(
    tx: optax.GradientTransformation, params: PyTree, names: Collection[str], **extra: Any
) -> dict[str, str]:
    """Find the parameters that an optimizer updates otherwise where some are kept values.

    It takes a few steps on a small tree with the names and ranks of ``params``, with masks and with
    kept values.

    Args:
        tx: any optax transformation.
        params: arrays or shapes, dense.
        names: of the matrices to be stored as kept values.
        **extra: further arguments of ``tx.update``.

    Returns:
        Name -> what differs. Empty, with a warning, for transformations that draw random numbers,
        which are others in each storage, or that fail with masks, too.
    """
    if not names:
        return {}
    rng, tx = np.random.default_rng(0), optax.with_extra_args_support(tx)
    tx = optax.GradientTransformationExtraArgs(tx.init, functools.partial(tx.update, **extra))

    def small(name: str, leaf: Any) -> Any:
        shape = tuple(min(size, _LARGEST) for size in leaf.shape)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.ones(shape, leaf.dtype)
        shape = _SPARSE_SHAPE if name in names else shape
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    trees = map_named(small, params), map_named(small, params)
    masks = {name: jnp.asarray(rng.random(_SPARSE_SHAPE) < 0.5) for name in names}
    patterns = {name: storage.pattern_of(m, int(m.sum())) for name, m in masks.items()}
    state = _state(masks, {})
    try:
        drawn, wanted = _updates(tx, trees, state, _SCALES, most=_MOST_STEPS)
        alone = _updates(tx, trees, state, _NO_GRADIENT)[1]
    except Exception as error:
        _LOG.warning("sparsity: the optimizer's steps are not compared, since it fails: %s", error)
        return {}
    if drawn:
        _LOG.warning(
            "sparsity: the optimizer draws random numbers, so its steps are not compared; with csr "
            "storage it draws others than with masks"
        )
        return {}
    state = _state({}, patterns)
    try:
        got = _updates(tx, trees, state, _SCALES, most=len(wanted))[1]
        got += _updates(tx, trees, state, _NO_GRADIENT)[1]
    except Exception as error:
        return dict.fromkeys(sorted(names), f"{type(error).__name__}: {str(error)[:200]}")
    return _compare(got, wanted + alone)


def _state(masks: Mapping[str, Array], patterns: Mapping[str, Any]) -> SparseState:
    nothing = jnp.zeros((0,), jnp.int32)
    return SparseState(masks, patterns, jnp.int32(0), nothing, nothing, jax.random.key(0))


def _updates(
    tx: optax.GradientTransformationExtraArgs,
    trees: tuple[Any, Any],
    sparse: SparseState,
    scales: Sequence[float],
    most: int = 0,
) -> tuple[bool, list[Any]]:
    """Return (whether random numbers are drawn, the dense updates of each step).

    There is a step for each scale, and more, up to ``most``, where some updates are 0.
    """

    @jax.jit
    def step(params: Any, state: Any, scale: Array) -> Any:
        grads = jax.tree.map(lambda g: (g * scale).astype(g.dtype), trees[1])
        grads = storage.pruned(grads, (), sparse)[0]
        updates, state = tx.update(grads, state, params, sparse=sparse)
        moved = storage.pruned(optax.apply_updates(params, updates), state, sparse)
        return *moved, storage.expanded(storage.pruned(updates, (), sparse)[0], (), sparse)[0]

    params, state = storage.pruned(trees[0], tx.init(trees[0]), sparse)
    drawn = "random_bits" in str(step.trace(params, state, jnp.float32(1)).jaxpr)
    out: list[Any] = []
    moves = 0
    while len(out) < len(scales) or (moves < len(scales) and len(out) < most):
        scale = jnp.float32(scales[len(out) % len(scales)])
        params, state, updates = step(params, state, scale)
        out.append(updates)
        moves += any(bool(jnp.any(u != 0)) for u in jax.tree.leaves(updates))
    return drawn, out


def _compare(got: list[Any], wanted: list[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for ours, theirs in zip(got, wanted, strict=True):
        for (name, leaf), (_, other) in zip(named_leaves(ours), named_leaves(theirs), strict=True):
            x, y = np.asarray(leaf), np.asarray(other)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            off, size = np.where(same, 0, np.abs(x - y)), np.abs(np.nan_to_num(y))
            if name not in found and not off.mean() <= _TOLERANCE * size.mean():
                found[name] = f"updates differ by {off.max():.2g}, where they are {size.max():.2g}"
    return found


def with_dense_shapes(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Let an optimizer that reads axes see csr weights dense, 0 where pruned.

    Its steps are those of masked storage, and cost as much; between steps moments are kept values.

    Args:
        tx: any optax transformation.

    Returns:
        A transformation whose ``update`` takes ``sparse=``, the sparse state of the parameters,
        besides the arguments of ``tx``. Its ``init`` takes dense parameters.
    """
    inner = optax.with_extra_args_support(tx)

    def update(
        updates: PyTree, state: PyTree, params: PyTree = None, *, sparse: SparseState, **extra: Any
    ) -> tuple[Any, Any]:
        gradients, _ = storage.expanded(updates, (), sparse)
        dense, state = storage.expanded(updates if params is None else params, state, sparse)
        dense = None if params is None else dense
        return storage.pruned(*inner.update(gradients, state, dense, **extra), sparse)

    return optax.GradientTransformationExtraArgs(inner.init, update)  # type: ignore[arg-type]
