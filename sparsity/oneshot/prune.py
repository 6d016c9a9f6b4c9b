"""Choose the masks of a model from data: stage by stage, or by one score for all weights.

- ``magnitude``: the largest weights of each matrix; ``global-magnitude``: of all together
- ``wanda``: |weight| times the norm of its input, per output (Sun et al. 2023, arXiv:2306.11695)
- ``sparsegpt``: with the weights that stay mended (Frantar & Alistarh 2023)
- ``snip``: |weight * gradient|, of all together (Lee et al. 2019, arXiv:1810.02340)
- ``grasp``: weight * Hessian * gradient, of all together (Wang et al. 2020, arXiv:2002.07376)
- ``synflow``: |weight * slope| of the flow of ones, in rounds (Tanaka et al. 2020), without data
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from wafer.models.alias import all_names
from wafer.models.base import Batch, Model
from wafer.models.errors import did_you_mean
from wafer.models.paths import map_named, named_leaves
from wafer.sparsity.algorithms.masks import highest_mask
from wafer.sparsity.filters import ParamFilter
from wafer.sparsity.kernels import topk_mask
from wafer.sparsity.oneshot.grams import Input, stage_grams, stage_names, stage_step
from wafer.sparsity.oneshot.sparsegpt import sparsegpt
from wafer.sparsity.oneshot.synflow import synflow_scores
from wafer.sparsity.schema import SparsityError
from wafer.sparsity.selected import Selected, counted
from wafer.sparsity.selection import kept_number
from wafer.sparsity.sparsifier import Sparsifier
from wafer.sparsity.views import UNSTRUCTURED, CompetitionRows, FanIn, axes_of


@dataclasses.dataclass(frozen=True)
class Pruned:
    """A model with its masks; unpacks as ``params, masks``."""

    params: Any  #: 0 where pruned
    masks: dict[str, Array]  #: name -> bool, true where kept
    selected: Mapping[str, Selected]  #: what was to be pruned
    stayed: int  #: weights that the level would keep, but that were pruned already

    def __iter__(self) -> Iterator[PyTree]:
        """Return the parameters, then the masks."""
        return iter((self.params, self.masks))


class _Layer(NamedTuple):
    weight: Array
    gram: np.ndarray
    chosen: Selected
    view: CompetitionRows

    @property
    def level(self) -> float:
        return float(self.chosen.algorithm.sparsity(0))


def _magnitude(layer: _Layer) -> tuple[Array, Array]:
    mask = highest_mask(jnp.abs(layer.weight), layer.level, layer.view)
    return jnp.where(mask, layer.weight, 0), mask


def _wanda(layer: _Layer) -> tuple[Array, Array]:
    norms = jnp.asarray(np.sqrt(np.diag(layer.gram)), jnp.float32)
    scores = jnp.abs(layer.weight).astype(jnp.float32) * norms[:, None]
    if layer.view.structure != UNSTRUCTURED:
        mask = highest_mask(scores, layer.level, layer.view)
        return jnp.where(mask, layer.weight, 0), mask
    view = dataclasses.replace(layer.view, structure=FanIn())
    rows = view.rows(scores)
    # Outputs keep numbers that differ by one, so that the level is that of the whole weight.
    kept = kept_number(layer.level, rows.size) * np.arange(len(rows) + 1) // len(rows)
    mask = view.unrows(topk_mask(rows, jnp.asarray(np.diff(kept))), scores.shape)
    return jnp.where(mask, layer.weight, 0), mask


Scores = Callable[[Model, Any, Sequence[Batch]], Any]


def _snip(model: Model, params: PyTree, batches: Sequence[Batch]) -> PyTree:
    gradient = _sum(jax.jit(jax.grad(_loss(model))), params, batches)
    return jax.tree.map(lambda w, g: jnp.abs(w * g), params, gradient)


def _grasp(model: Model, params: PyTree, batches: Sequence[Batch]) -> PyTree:
    slope = jax.grad(_loss(model))
    gradient = _sum(jax.jit(slope), params, batches)
    along = lambda params, batch: jax.jvp(lambda p: slope(p, batch), (params,), (gradient,))[1]
    curved = _sum(jax.jit(along), params, batches)
    return jax.tree.map(lambda w, h: w * h, params, curved)


def _loss(model: Model) -> Callable[[PyTree, Batch], Array]:
    return lambda params, batch: model.loss(params, batch)[0]


def _sum(
    function: Callable[[PyTree, Batch], PyTree], params: PyTree, batches: Sequence[Batch]
) -> PyTree:
    total = function(params, batches[0])
    for batch in batches[1:]:
        total = jax.tree.map(jnp.add, total, function(params, batch))
    return total


_LAYERWISE: Mapping[str, tuple[bool, Callable[[_Layer], tuple[Any, Any]]]] = {
    "magnitude": (False, _magnitude),  # whether it needs the inputs
    "wanda": (True, _wanda),
    "sparsegpt": (
        True,
        lambda layer: sparsegpt(
            np.asarray(layer.weight), layer.gram, layer.level, layer.view.structure
        ),
    ),
}


class _Score(NamedTuple):
    """A score for all weights together."""

    needs: bool  #: whether it reads batches
    scores: Scores  #: (model, params, batches) -> a tree like params, highest kept
    rounds: int = 1  #: in how many it prunes where nobody says
    flows: bool = False  #: whether a matrix without any score is one that the method cannot see


_GLOBAL: Mapping[str, _Score] = {
    "global-magnitude": _Score(False, lambda model, params, batches: jax.tree.map(jnp.abs, params)),
    "snip": _Score(True, _snip),
    "grasp": _Score(True, _grasp),
    "synflow": _Score(
        False, lambda model, params, batches: synflow_scores(model, params), rounds=100, flows=True
    ),
}
METHODS: Mapping[str, bool] = {
    name: row[0] for table in (_LAYERWISE, _GLOBAL) for name, row in table.items()
}
"""Method -> whether it reads calibration batches."""


def prune(
    model: Model,
    params: PyTree,
    sparsifier: Sparsifier,
    method: str,
    *,
    batches: Sequence[Batch] = (),
    rounds: int | None = None,
    masks: Mapping[str, Array] | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> Pruned:
    """Prune a model once.

    Args:
        model: the model.
        params: trained, or as ``model.init`` made them.
        sparsifier: which weights, at which levels, in which structure.
        method: one of ``METHODS``.
        batches: calibration inputs; none for the methods that read weights alone.
        rounds: how often to score and prune, for methods with one score for all weights; the
            density falls exponentially. None is the method's own: 100 for synflow, else 1.
        masks: of a model that is pruned already, name -> [...] bool of the weight's shape, true
            where kept: the others stay pruned.
        report: called with a line for each stage.

    A pattern of a filter that takes matrices leaves vectors (biases, norms) dense.

    Raises:
        SparsityError: an unknown method, no batches, rounds or a structure that it does not know,
            or a level that keeps nothing of a matrix.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise SparsityError(
            f"unknown method {method!r}; known: {known}{did_you_mean(method, METHODS)}"
        )
    if rounds is not None and (type(rounds) is not int or rounds < 1):
        raise SparsityError(f"rounds: expected an integer of at least 1, found {rounds!r}")
    if rounds is not None and method not in _GLOBAL:
        known = ", ".join(_GLOBAL)
        raise SparsityError(f"rounds: {method} prunes once; methods that prune in rounds: {known}")
    if METHODS[method] and not batches:
        raise SparsityError(f"{method} needs calibration rows: it reads the inputs of the layers")
    taken = sparsifier.select(params)
    selected = _without_vectors(sparsifier, taken)
    if vectors := [name for name in taken if name not in selected]:
        report(
            f"left dense, vectors beside matrices: {counted(vectors)}; a pattern of vectors alone "
            "prunes them"
        )
    if not any(math.prod(chosen.shape) for chosen in selected.values()):
        rules = ", ".join(str(rule) for rule, _ in sparsifier.groups)
        names = [name for name, leaf in named_leaves(params) if leaf.ndim > 1 and leaf.size]
        raise SparsityError(
            f"param_filter: {rules} takes no weight to prune{did_you_mean(rules, names)}; matrices "
            f"of the model: {', '.join(names[:3]) or 'none'}"
        )
    if method in _GLOBAL:
        row = _GLOBAL[method]
        scores = lambda weights: row.scores(model, weights, batches)
        check = functools.partial(_check_scores, method, row)
        rounds, before = rounds or row.rounds, masks or {}
        pruned = _by_scores(params, before, selected, scores, check=check, rounds=rounds)
        if gone := _gone(selected, pruned.masks, before):
            if len(gone) == len(selected):
                raise _nothing_left(method, gone, selected)
            report(f"nothing is left of {counted(gone)}; a lower level keeps some")
        return pruned
    before = _Before(selected, masks or {})
    return _by_stages(model, params, before, method, batches=batches, report=report)


def _without_vectors(
    sparsifier: Sparsifier, selected: Mapping[str, Selected]
) -> dict[str, Selected]:
    """Leave out vectors that a pattern takes beside matrices, such as biases of '*up*'."""

    def patterns(chosen: Selected) -> set[ParamFilter]:
        rule, names = sparsifier.groups[chosen.group][0], all_names(chosen.name, sparsifier.aliases)
        single = {rule} if rule.kind == "default" else {
            ParamFilter(rule.kind, (pattern,)) for pattern in rule.patterns
        }  # fmt: skip
        return {one for one in single if one.matches(names, len(chosen.shape))}

    axes = lambda chosen: set(axes_of(chosen.view.layout, len(chosen.shape)))
    flat = lambda chosen: len(chosen.shape) < 2 or not axes(chosen) & {"i", "k"}
    matrices = {name for name, chosen in selected.items() if not flat(chosen)}
    of_matrices = set().union(*(patterns(selected[name]) for name in matrices))
    return {
        name: chosen
        for name, chosen in selected.items()
        if name in matrices or patterns(chosen) - of_matrices
    }


def _gone(
    selected: Mapping[str, Selected], masks: Mapping[str, Array], before: Mapping[str, Array]
) -> list[str]:
    """List weights, or stacks with a matrix, of which nothing is left that was there before."""

    def left(name: str, mask: Array) -> Array:
        whole = dataclasses.replace(selected[name].view, structure=UNSTRUCTURED)
        return whole.rows(mask.astype(jnp.float32)).any(1)

    ones = lambda name: jnp.ones(selected[name].shape, bool)
    known = (name for name in masks if name in selected and masks[name].size)
    return [
        name
        for name in known
        if bool((left(name, before.get(name, ones(name))) & ~left(name, masks[name])).any())
    ]


def _nothing_left(
    method: str, gone: Sequence[str], selected: Mapping[str, Selected]
) -> SparsityError:
    chosen = selected[gone[0]]
    return SparsityError(
        f"{method}: nothing is left of {counted(gone)} (level "
        f"{float(chosen.algorithm.sparsity(0)):g} of {math.prod(chosen.shape):,} weights); "
        "expected one weight at least. Lower the level, or leave it out with param_filter"
    )


def _by_scores(
    params: PyTree,
    before: Mapping[str, Array],
    selected: Mapping[str, Selected],
    scores: Callable[[PyTree], PyTree],
    *,
    check: Callable[[Mapping[str, Array]], None],
    rounds: int,
) -> Pruned:
    """Keep the highest scores of all selected weights together, in rounds."""
    levels = {float(chosen.algorithm.sparsity(0)) for chosen in selected.values()}
    structures = {chosen.view.structure for chosen in selected.values()}
    if len(levels) > 1 or structures != {UNSTRUCTURED}:
        raise SparsityError(
            "a score for all weights takes one level and no pattern, budget or groups; take "
            "magnitude, wanda or sparsegpt for them"
        )
    level = levels.pop()
    # The last is the level itself, so that rounding does not cost a weight.
    steps = [1 - (1 - level) ** (i / rounds) for i in range(1, rounds)] + [level]
    shapes = {name: chosen.shape for name, chosen in selected.items()}
    masks = {name: before.get(name, jnp.ones(shape, bool)) for name, shape in shapes.items()}
    stayed = 0
    for i, step in enumerate(steps):
        by_name = dict(named_leaves(scores(_cut(params, masks))))
        if i == 0:
            check({name: by_name[name] for name in shapes})
        # What an earlier round pruned stays pruned.
        left = [jnp.where(masks[name], by_name[name], -jnp.inf).reshape(-1) for name in shapes]
        flat = jnp.concatenate([one.astype(jnp.float32) for one in left])
        kept = highest_mask(flat, step, CompetitionRows())
        ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes.values()])
        parts = jnp.split(kept, ends[:-1])
        keeps = {n: p.reshape(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        stayed = sum(int((keep & ~masks[name]).sum()) for name, keep in keeps.items())
        masks = {name: masks[name] & keep for name, keep in keeps.items()}
    masks = {**before, **masks}
    return Pruned(_cut(params, masks), masks, selected, stayed)


def _cut(params: PyTree, masks: Mapping[str, Array]) -> PyTree:
    cut = lambda name, leaf: jnp.where(masks[name], leaf, 0) if name in masks else leaf
    return map_named(cut, params)


def _check_scores(method: str, row: _Score, scores: Mapping[str, Array]) -> None:
    for name, score in scores.items():
        if not bool(jnp.isfinite(score).all()):
            raise SparsityError(
                f"{method}: the score of {name!r} is not finite; the weights or the flow through "
                "them are too large for float32"
            )
        if row.flows and not bool(score.any()):
            raise SparsityError(
                f"{method}: nothing flows through {name!r}, so all of it would be pruned; leave it "
                "out with param_filter"
            )


class _Before(NamedTuple):
    """What is to be pruned, and what is so already."""

    selected: Mapping[str, Selected]
    masks: Mapping[str, Array]


def _by_stages(
    model: Model,
    params: PyTree,
    before: _Before,
    method: str,
    *,
    batches: Sequence[Batch],
    report: Callable[[str], object],
) -> Pruned:
    """Prune a stage at a time; later stages see the inputs that the pruned ones give."""
    reads_inputs, rule = _LAYERWISE[method]
    selected, masks, stayed = before.selected, {}, 0
    inputs: list[Input] = [(None, batch) for batch in batches]
    for stage in model.stages:
        names = [name for name in stage_names(stage, list(selected)) if name not in masks]
        grams: Mapping[str, np.ndarray] = {}
        if reads_inputs and names:
            for name in names:
                if len(shape := selected[name].shape) != 2 or not model.sparse(name):
                    raise SparsityError(
                        f"{method}: the model does not multiply by {name!r} {shape} as a matrix; "
                        "leave it out with param_filter"
                    )
            grams = stage_grams(model, stage, params, names, inputs=inputs)
        leaves, changed = dict(named_leaves(params)), {}
        for name in names:
            gram = grams.get(name, np.zeros((0, 0)))
            chosen = selected[name]
            layer = _Layer(leaves[name], gram, chosen, chosen.view)
            weight, mask = map(jnp.asarray, rule(layer))
            masks[name] = mask & before.masks.get(name, True)
            stayed += int((mask & ~masks[name]).sum())
            changed[name] = jnp.where(masks[name], weight, 0)
        if gone := _gone(selected, {name: masks[name] for name in names}, before.masks):
            raise _nothing_left(method, gone, selected)
        params = map_named(lambda name, leaf, new=changed: new.get(name, leaf), params)
        if names:
            report(f"{stage.name}: {len(names)} matrices pruned")
        if reads_inputs:
            inputs = [stage_step(model, stage, params, one) for one in inputs]
    return Pruned(params, {**before.masks, **masks}, selected, stayed)
