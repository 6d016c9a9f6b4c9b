"""Optimizers that look at a weight's axes, which kept values do not have.

In csr storage an optimizer sees [nnz] values. Most transformations compute element by element and
by norms of whole trees, and give the same updates as under masks. Others read ranks, sizes, rows
or columns: decay of matrices alone, factored moments, clipping by unit, labels by size.
"""

import functools
import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree

from wafer.models.paths import map_named, named_leaves
from wafer.sparsity import storage
from wafer.sparsity.schema import SparsityError, listed
from wafer.sparsity.state import SparseState

_LOG = logging.getLogger(__name__)
_SCALES = (1.0, 100.0, 0.01, 1e4)  # of the gradients tried: on both sides of thresholds
_NO_GRADIENT = (0.0, 0.0)  # steps in which decay is not hidden by larger updates
_MOST_STEPS = 32  # where updates are 0, as of accumulated gradients
_SPARSE_SHAPE = (128, 136)  # optax factors moments of matrices from 128 x 128 on
_LARGEST = 8  # size of any other axis: ranks matter, sizes do not
_TOLERANCE = 1e-3  # of the mean absolute update; norms are summed in another order


def check(
    tx: optax.GradientTransformation, params: PyTree, names: Collection[str], **extra: PyTree
) -> None:
    """See ``Sparsifier.check``.

    Args:
        tx: any optax transformation.
        params: arrays or shapes, dense.
        names: see ``differences``.
        **extra: further arguments of ``tx.update``.

    Raises:
        SparsityError: names what differs.
    """
    reasons = differences(tx, params, names, **extra)
    if reasons:
        name, why = next(iter(reasons.items()))
        raise SparsityError(
            f"the optimizer reads the axes of weights, which csr stores as [nnz] values, and would "
            f"train {listed([*reasons])} otherwise than with masks ({name}: {why}); expected the "
            "same updates. Use compute: masked, or sparsity.with_dense_shapes(tx)",
            ("sparsity", "compute"),
        )


class _Trial(NamedTuple):
    """What an optimizer is tried on."""

    shapes: PyTree  #: of the parameters, dense
    kept: Mapping[str, int]  #: name -> number of values of a matrix that may be stored as csr


def differences(
    tx: optax.GradientTransformation, params: PyTree, names: Collection[str], **extra: PyTree
) -> dict[str, str]:
    """Find the parameters that an optimizer updates otherwise where some are kept values.

    It takes a few steps with masks and with kept values, on a small tree with the names and ranks
    of ``params`` if its program is the same there, else on one with their sizes.

    Args:
        tx: any optax transformation.
        params: arrays or shapes, dense.
        names: of the matrices to be stored as kept values, perhaps with the number of values of
            each; a sixteenth of the matrix where there is none.
        **extra: further arguments of ``tx.update``.

    Returns:
        Name -> what differs. Empty, with a warning, for transformations that draw random numbers,
        which are others in each storage, or that fail with masks, too.
    """
    if not names:
        return {}
    tx = optax.with_extra_args_support(tx)
    tx = optax.GradientTransformationExtraArgs(tx.init, functools.partial(tx.update, **extra))
    real, small = _trials(params, names)
    try:
        masked = _program(tx, real, stored=False)
    except Exception as error:
        return _not_compared("it fails: %s", error)
    if "random_bits" in masked:
        return _not_compared("it draws random numbers; with csr storage others than with masks")
    try:
        stored = _program(tx, real, stored=True)
    except Exception as error:
        return dict.fromkeys(sorted(names), f"{type(error).__name__}: {str(error)[:200]}")
    try:
        alike = [_program(tx, small, stored=each) for each in (False, True)] == [masked, stored]
    except Exception:  # it holds arrays of the parameters' shapes
        alike = False
    reasons: dict[str, str] = {}
    try:
        for scales, most in ((_SCALES, _MOST_STEPS), (_NO_GRADIENT, 0)):
            for wanted, got in _both(tx, small if alike else real, scales, most):
                reasons = _compare(got, wanted) | reasons
    except Exception as error:
        return _not_compared("it fails: %s", error)
    return reasons


def _not_compared(why: str, *values: PyTree) -> dict[str, str]:
    _LOG.warning(f"sparsity: the optimizer's steps are not compared, since {why}", *values)
    return {}


def _trials(params: PyTree, names: Collection[str]) -> tuple[_Trial, _Trial]:
    """Return (the parameters, a small tree with their names and ranks)."""

    def of_size(name: str, leaf: PyTree, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        number = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jax.ShapeDtypeStruct(shape, jnp.float32 if number else leaf.dtype)

    def small(name: str, leaf: PyTree) -> jax.ShapeDtypeStruct:
        shape = tuple(min(size, _LARGEST) for size in leaf.shape)
        return of_size(name, leaf, _SPARSE_SHAPE if name in names else shape)

    given = names if isinstance(names, Mapping) else {}
    sizes = {name: math.prod(leaf.shape) for name, leaf in named_leaves(params) if name in names}
    counts = {name: given.get(name, -(-size // 16)) for name, size in sizes.items()}
    real = map_named(lambda name, leaf: of_size(name, leaf, tuple(leaf.shape)), params)
    half = dict.fromkeys(counts, math.prod(_SPARSE_SHAPE) // 2)
    return _Trial(real, counts), _Trial(map_named(small, params), half)


def _state(masks: Mapping[str, Array], trial: _Trial, *, stored: bool) -> SparseState:
    """Return a topology of masks, as patterns where weights are ``stored`` as kept values."""
    patterns = {n: storage.pattern_of(mask, trial.kept[n]) for n, mask in masks.items() if stored}
    nothing = jnp.zeros((0,), jnp.int32)
    key = jax.random.key(0)
    return SparseState({} if stored else masks, patterns, jnp.int32(0), nothing, nothing, key)


def _step(
    tx: optax.GradientTransformationExtraArgs,
    sparse: SparseState,
    grads: PyTree,
    trees: tuple[PyTree, PyTree],
    scale: Array,
) -> tuple[PyTree, PyTree, PyTree]:
    """Return (parameters, state, dense updates)."""
    params, state = trees
    grads = jax.tree.map(lambda g: (g * scale).astype(g.dtype), grads)
    grads = storage.pruned(grads, (), sparse)[0]
    updates, state = tx.update(grads, state, params, sparse=sparse)
    moved = storage.pruned(optax.apply_updates(params, updates), state, sparse)
    return *moved, storage.expanded(storage.pruned(updates, (), sparse)[0], (), sparse)[0]


def _program(tx: optax.GradientTransformationExtraArgs, trial: _Trial, *, stored: bool) -> str:
    """Return what a first step computes, without the sizes of its arrays."""

    def first(params: PyTree, grads: PyTree, masks: dict[str, Array]) -> PyTree:
        sparse = _state(masks, trial, stored=stored)
        trees = storage.pruned(params, tx.init(params), sparse)
        return _step(tx, sparse, grads, trees, jnp.float32(1))

    masks = {
        name: jax.ShapeDtypeStruct(leaf.shape, bool)
        for name, leaf in named_leaves(trial.shapes)
        if name in trial.kept
    }
    return "\n".join(_operations(jax.make_jaxpr(first)(trial.shapes, trial.shapes, masks).jaxpr))


def _operations(jaxpr: Any) -> Iterator[str]:
    """Yield the operations of a program, with numbers that are written in it."""
    for equation in jaxpr.eqns:
        numbers = [str(v.val) for v in equation.invars if np.ndim(getattr(v, "val", [0])) == 0]
        options = [v for v in equation.params.values() if isinstance(v, str | int | float)]
        yield f"{equation.primitive.name} {numbers} {options}"
        for leaf in jax.tree.leaves([*equation.params.values()]):
            inner = getattr(leaf, "jaxpr", leaf)
            if hasattr(inner, "eqns"):
                yield from _operations(inner)


def _both(
    tx: optax.GradientTransformationExtraArgs, trial: _Trial, scales: Sequence[float], most: int
) -> Iterator[tuple[Any, Any]]:
    """Yield the dense updates of each step with masks, and with kept values.

    There is a step for each scale, and more, up to ``most``, where some updates are 0.
    """
    rng = np.random.default_rng(0)

    def draw(_: str, leaf: PyTree) -> Array:
        number = jnp.issubdtype(leaf.dtype, jnp.floating)
        values = rng.standard_normal(leaf.shape) if number else np.ones(leaf.shape)
        return jnp.asarray(values, leaf.dtype)

    params, grads = (map_named(draw, trial.shapes) for _ in range(2))
    masks = {
        name: jnp.asarray(rng.permutation(np.arange(math.prod(leaf.shape)) < trial.kept[name]))
        .reshape(leaf.shape)
        for name, leaf in named_leaves(trial.shapes)
        if name in trial.kept
    }  # fmt: skip
    topologies = [_state(masks, trial, stored=each) for each in (False, True)]
    states = [storage.pruned(params, tx.init(params), sparse) for sparse in topologies]
    step = jax.jit(functools.partial(_step, tx))
    moves = steps = 0
    while steps < len(scales) or (moves < len(scales) and steps < most):
        scale = jnp.float32(scales[steps % len(scales)])
        out = [step(*inputs, scale) for inputs in zip(topologies, [grads] * 2, states, strict=True)]
        states = [(params, state) for params, state, _ in out]
        expected, got = (updates for *_, updates in out)
        yield expected, got
        steps += 1
        moves += any(bool(jnp.any(u != 0)) for u in jax.tree.leaves(expected))


def _compare(got: PyTree, wanted: PyTree) -> dict[str, str]:
    reasons: dict[str, str] = {}
    for (name, leaf), (_, other) in zip(named_leaves(got), named_leaves(wanted), strict=True):
        x, y = np.asarray(leaf), np.asarray(other)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        off, size = np.where(same, 0, np.abs(x - y)), np.abs(np.nan_to_num(y))
        if not off.mean() <= _TOLERANCE * size.mean():
            reasons[name] = f"updates differ by {off.max():.2g}, where they are {size.max():.2g}"
    return reasons


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
        updates: PyTree,
        state: PyTree,
        params: PyTree = None,
        *,
        sparse: SparseState | None = None,
        **extra: PyTree,
    ) -> tuple[PyTree, PyTree]:
        if sparse is None:
            raise TypeError(
                "with_dense_shapes: update lacks `sparse`; expected the sparse state of the "
                "parameters: tx.update(grads, opt_state, params, sparse=sparse)"
            )
        gradients, _ = storage.expanded(updates, (), sparse)
        dense, state = storage.expanded(updates if params is None else params, state, sparse)
        dense = None if params is None else dense
        return storage.pruned(*inner.update(gradients, state, dense, **extra), sparse)

    return optax.GradientTransformationExtraArgs(inner.init, update)  # type: ignore[arg-type]
