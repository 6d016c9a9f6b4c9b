"""Choose new masks for a group of parameters when its update is due."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from wafer.models.checkpoint.moments import moments_of
from wafer.models.paths import map_named, named_leaves
from wafer.sparsity import kernels, storage
from wafer.sparsity.algorithms.base import Algorithm, ContextWithoutGradient, UpdateContext
from wafer.sparsity.algorithms.dynamic import Dynamic
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.schedules import ValueSchedule
from wafer.sparsity.schema import listed
from wafer.sparsity.state import SparseState, typed_key
from wafer.sparsity.views import CompetitionRows

Grads = Mapping[str, Array]
_Groups = Sequence[tuple[ParamFilter, Algorithm]]
_Leaves = tuple[Array, dict[str, Array]]


def name_code(name: str) -> int:
    """Return the number that sets a parameter's random draws apart from the others'."""
    return zlib.crc32(name.encode())


def named_key(key: Array, name: str) -> Array:
    """Derive a parameter's key from the run's; does not depend on other parameters."""
    return jax.random.fold_in(key, name_code(name))


def first_indices(groups: _Groups) -> Array:
    """[G, 2] list positions after the start: a level list due at step 0 has used its first."""
    used = [(int(a.dynamic and a.starts_sparse()) % a.sparsity.length, 0) for _, a in groups]
    return jnp.asarray(used, jnp.int32).reshape(len(groups), 2)


def first_targets(groups: _Groups) -> Array:
    """[G] levels in force after the start; 0 for a dynamic group that starts dense."""
    levels = [a.sparsity.first_level() if a.starts_sparse() else 0.0 for _, a in groups]
    return jnp.asarray(levels, jnp.float32).reshape(len(groups))


def _walk(schedule: ValueSchedule, index: Array) -> Array:
    return (index + 1) % schedule.length


class Group(NamedTuple):
    """A group of parameters that share an algorithm."""

    algorithm: Algorithm  #: the rule
    number: int  #: the group's position
    names: tuple[str, ...]  #: its parameters
    views: Mapping[str, CompetitionRows]  #: their competition rows
    #: name -> its number as ``name_code`` gives it, perhaps traced
    code_of: Callable[[str], Any] = name_code
    whole: bool = True  #: false for some of its parameters


class Topology(NamedTuple):
    """What a topology change touches."""

    masks: dict[str, Array]  #: by parameter name, as in the state
    patterns: dict[str, kernels.Pattern]  #: the same, of csr parameters
    #: leaves of csr parameters, and of masked ones whose grown moments do not start at 0: (weight,
    #: {path in the optimizer state: moment}) by name
    values: dict[str, _Leaves]
    nan_scores: dict[str, Array]  #: name -> [] bool, whether it was chosen by scores that are NaN
    #: [] bool, whether pruned positions of all weights have no gradient, but kept ones have
    kept_only: Array


class _Chosen(NamedTuple):
    """A new mask or pattern, and what its scores were."""

    kept: Any  #: mask, or pattern
    nan: Array  #: [] bool, whether a score is NaN
    #: [3] bool, whether some position is pruned, some pruned one has a gradient or a score other
    #: than 0, some kept one has a gradient
    signs: Array


def take(group: Group, sparse: SparseState, params: PyTree, opt_state: PyTree) -> Topology:
    """Gather a group's part of the trees."""
    weights = dict(named_leaves(params))
    moments = moments_of(opt_state, {name: weight.shape for name, weight in weights.items()})
    stored = [name for name in group.names if name in sparse.patterns]
    filled = group.names if _fills(group.algorithm) else stored
    return Topology(
        {name: sparse.masks[name] for name in group.names if name in sparse.masks},
        {name: sparse.patterns[name] for name in stored},
        {name: (weights[name], moments[name]) for name in filled},
        dict.fromkeys(group.names, jnp.asarray(False)),
        jnp.asarray(False),
    )


def _fills(algorithm: Algorithm) -> bool:
    """Whether moments of grown weights start elsewhere than at 0."""
    return isinstance(algorithm, Dynamic) and algorithm.grown_moments == "mean"


def _mean_moments(leaves: _Leaves, active: Array, grown: Array) -> _Leaves:
    """Start the moments of grown weights at the mean of the others that are active.

    Args:
        leaves: of a parameter, 0 where it grew.
        active: bool, of the leaves' shape.
        grown: of them those that were not active before.
    """
    stay = active & ~grown
    count = jnp.maximum(jnp.sum(stay), 1)

    def fill(moment: Array) -> Array:
        mean = jnp.sum(jnp.where(stay, moment, 0), dtype=jnp.float32) / count
        return jnp.where(grown, mean.astype(moment.dtype), moment)

    weight, moments = leaves
    return weight, {path: fill(moment) for path, moment in moments.items()}


def put(topology: Topology, params: PyTree, opt_state: PyTree) -> tuple[PyTree, PyTree]:
    """Put csr leaves back into the trees; weights of NaN scores become NaN.

    Raises:
        ValueError: NaN scores, or gradients of kept weights alone, where they are known.
    """
    if not isinstance(topology.kept_only, jax.core.Tracer) and topology.kept_only:
        raise ValueError(
            f"sparsity.update: gradients of {listed([*topology.nan_scores])} are 0 at all pruned "
            "positions and not at kept ones, so that nothing can grow; expected dense gradients: "
            "prepare(..., dense=True), and the second tree that split() returns, not the first"
        )
    for name, nan in topology.nan_scores.items():
        if not isinstance(nan, jax.core.Tracer) and nan:
            raise ValueError(
                f"sparsity of {name!r}: scores of its weights are NaN at a topology update; "
                "expected numbers, and -inf where a position is to be grown last"
            )
    weights = {name: weight for name, (weight, _) in topology.values.items()}
    moments = {path: m for _, by_path in topology.values.values() for path, m in by_path.items()}

    def put_weight(name: str, leaf: Array) -> Array:
        leaf = weights.get(name, leaf)
        nan = topology.nan_scores.get(name)
        if nan is None:
            return leaf
        return jnp.where(nan | topology.kept_only, jnp.nan, leaf).astype(leaf.dtype)

    return map_named(put_weight, params), map_named(moments.get, opt_state)


def update_group(
    group: Group, sparse: SparseState, trees: tuple[PyTree, PyTree], grads: Grads, finite: Array
) -> tuple[SparseState, Topology]:
    """Choose a group's new topology if its update schedule says so.

    Args:
        group: algorithm and parameters.
        sparse: the state, its step already advanced.
        trees: (parameters, optimizer state), pruned to the topology in force.
        grads: dense gradients by name.
        finite: [] bool, false blocks the update.

    Returns:
        (state with topology, list positions and target of this group replaced; the topology, with
        csr leaves moved to it and 0 where weights grew). Masked leaves still have to be pruned.
    """
    algorithm = group.algorithm
    old = take(group, sparse, *trees)
    shapes = {name: leaf.shape for name, leaf in (*old.masks.items(), *old.patterns.items())}
    _require_gradients(group, grads, shapes)
    index = sparse.indices[group.number]
    level = jnp.clip(algorithm.sparsity(sparse.step, index[0]), 0, 1)
    drop = jnp.clip(algorithm.drop_fraction(sparse.step, index[1]), 0, 1)
    step_key = jax.random.fold_in(typed_key(sparse.key), sparse.step)
    weights = dict(named_leaves(trees[0]))

    def context(
        name: str, weight: Array, mask: Array, active: Array | None = None
    ) -> UpdateContext:
        make = UpdateContext if algorithm.needs_gradient else ContextWithoutGradient
        return make(
            name=name,
            weight=weight,
            grad=grads.get(name) if algorithm.needs_gradient else None,
            mask=mask,
            sparsity=level,
            drop_fraction=drop,
            step=sparse.step,
            key=jax.random.fold_in(step_key, group.code_of(name)),
            view=group.views[name],
            active=active,
        )

    def change() -> Topology:
        chosen = {
            name: _choose(algorithm, context(name, weights[name], mask))
            for name, mask in old.masks.items()
        }
        masks = {name: new.kept for name, new in chosen.items()}
        patterns, values = {}, {}
        if _fills(algorithm):
            values = {
                name: _mean_moments(old.values[name], mask, mask & ~old.masks[name])
                for name, mask in masks.items()
            }
        for name, pattern in old.patterns.items():
            # What an algorithm does not read of the dense arrays is never computed.
            dense, mask = _dense(weights[name], pattern, group.views[name])
            ctx = context(name, dense, mask, pattern.pointers[-1])
            chosen[name], values[name] = _change_csr(algorithm, ctx, pattern, old.values[name])
            patterns[name] = chosen[name].kept
            if _fills(algorithm):
                active = kernels.gather(jnp.ones(pattern.shape, bool), patterns[name])
                was = kernels.gather(ctx.mask, patterns[name])
                values[name] = _mean_moments(values[name], active, active & ~was)
        nan_scores = {name: new.nan for name, new in chosen.items()}
        pruned, scored, kept = jnp.any(jnp.stack([new.signs for new in chosen.values()]), axis=0)
        # A level that moves may begin with weights of inputs that are always 0.
        stays = jnp.equal(level, sparse.targets[group.number]) & group.whole
        return Topology(masks, patterns, values, nan_scores, stays & pruned & ~scored & kept)

    due = finite & algorithm.update(sparse.step)
    new = jax.lax.cond(due, change, lambda: old)
    walked = [_walk(algorithm.sparsity, index[0]), _walk(algorithm.drop_fraction, index[1])]
    walked = jnp.where(due, jnp.stack(walked), index)
    target = jnp.where(due, level, sparse.targets[group.number])
    sparse = sparse._replace(
        masks={**sparse.masks, **new.masks},
        patterns={**sparse.patterns, **new.patterns},
        indices=sparse.indices.at[group.number].set(walked),
        targets=sparse.targets.at[group.number].set(target),
    )
    return sparse, new


def _dense(values: Array, pattern: kernels.Pattern, view: CompetitionRows) -> tuple[Array, Array]:
    """Return a csr weight and its mask, dense, laid out in memory as the view reads them."""
    by_output = view.structure.order(2) == (0, 1)

    def spread(leaf: Array) -> Array:
        return kernels.to_dense_t(leaf, pattern).T if by_output else kernels.to_dense(leaf, pattern)

    return spread(values), spread(jnp.ones(pattern.nnz, jnp.float32)) > 0


def _choose(algorithm: Algorithm, ctx: UpdateContext) -> _Chosen:
    """Return a parameter's new mask."""
    if not isinstance(algorithm, Dynamic) or type(algorithm).update_mask is not Dynamic.update_mask:
        return _Chosen(algorithm.update_mask(ctx), jnp.asarray(False), jnp.zeros(3, bool))
    drop, grow = algorithm.drop_scores(ctx), algorithm.grow_scores(ctx)
    nan = _any_nan(jnp.where(ctx.mask, drop, 0), grow)
    return _Chosen(algorithm.choose(ctx, drop, grow), nan, _signs(algorithm, ctx, grow))


def _any_nan(*scores: Array) -> Array:
    return jnp.stack([jnp.isnan(x).any() for x in scores]).any()


def _signs(algorithm: Algorithm, ctx: UpdateContext, grow: Array) -> Array:
    if not algorithm.needs_gradient:
        return jnp.zeros(3, bool)
    grad: Any = ctx.grad
    moves = jnp.not_equal(grad, 0)
    grows = moves | (jnp.isfinite(grow) & (grow != 0))
    return jnp.stack([jnp.any(x) for x in (~ctx.mask, grows & ~ctx.mask, moves & ctx.mask)])


def _change_csr(
    algorithm: Algorithm, ctx: UpdateContext, pattern: kernels.Pattern, leaves: _Leaves
) -> tuple[_Chosen, _Leaves]:
    """Return a csr parameter's new pattern, and its leaves moved to it."""
    flat, tree = jax.tree.flatten(leaves)  # the weight is first
    groups = ctx.view.output_groups(pattern.shape)
    if isinstance(algorithm, Dynamic) and algorithm.drops_smallest and groups:
        keep, grow = algorithm.counts(ctx, pattern.pointers[-1])
        scores = algorithm.grow_scores(ctx)
        new = kernels.rigl_update(
            flat[0], pattern, scores, keep, flat[1:], grow=grow, groups=groups
        )
        signs = _signs(algorithm, ctx, scores)
        moved = tree.unflatten([new.values, *new.others])
        return _Chosen(new.pattern, _any_nan(flat[0], scores), signs), moved
    chosen = _choose(algorithm, ctx)
    after = storage.pattern_of(chosen.kept, pattern.nnz)
    moved = tree.unflatten(kernels.move_values(flat, pattern, after))
    return chosen._replace(kept=after), moved


def _require_gradients(group: Group, grads: Grads, shapes: Mapping[str, tuple[int, ...]]) -> None:
    missing = [name for name in group.names if name not in grads]
    if group.algorithm.needs_gradient and missing:
        raise ValueError(
            f"{type(group.algorithm).__name__} needs the dense gradient of {missing[0]!r} at due"
            " steps: prepare(..., dense=True) and pass what split() returns, or call"
            " update(..., topology=False) when sparsifier.due(step) is false"
        )
    for name, shape in shapes.items():
        if group.algorithm.needs_gradient and jnp.shape(grads[name]) != shape:
            raise ValueError(
                f"sparsity.update: the gradient of {name!r} has shape {jnp.shape(grads[name])}; "
                f"expected {shape}, of the dense weight: the second tree that split() returns"
            )
