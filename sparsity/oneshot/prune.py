"""Choose the masks of a model from data: stage by stage, or by one score for all weights.

- ``magnitude``: the largest weights of each matrix; ``global-magnitude``: of all together
- ``wanda``: |weight| times the norm of its input, per output (Sun et al. 2023, arXiv:2306.11695)
- ``sparsegpt``: with the weights that stay mended (Frantar & Alistarh 2023)
- ``snip``: |weight * gradient|, of all together (Lee et al. 2019, arXiv:1810.02340)
- ``grasp``: weight * Hessian * gradient, of all together (Wang et al. 2020, arXiv:2002.07376)
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from models.base import Batch, Model
from models.errors import did_you_mean
from models.paths import map_named, named_leaves
from sparsity.algorithms.masks import highest_mask
from sparsity.oneshot.grams import Input, stage_grams, stage_names, stage_step
from sparsity.oneshot.sparsegpt import sparsegpt
from sparsity.schema import SparsityError
from sparsity.sparsifier import Selected, Sparsifier
from sparsity.views import WHOLE, FanIn, View

__all__ = ["METHODS", "Pruned", "prune"]


class Pruned(NamedTuple):
    """A model with its masks.

    params: 0 where pruned
    masks: name -> bool, true where kept
    """

    params: Any
    masks: dict[str, Array]


class _Layer(NamedTuple):
    weight: Array
    gram: np.ndarray
    chosen: Selected
    view: View

    @property
    def level(self) -> float:
        return float(self.chosen.algorithm.sparsity(0))


def _magnitude(layer: _Layer) -> tuple[Array, Array]:
    mask = highest_mask(jnp.abs(layer.weight), layer.level, layer.view)
    return jnp.where(mask, layer.weight, 0), mask


def _wanda(layer: _Layer) -> tuple[Array, Array]:
    norms = jnp.asarray(np.sqrt(np.diag(layer.gram)), jnp.float32)
    view = dataclasses.replace(layer.view, structure=FanIn()) if layer.view.whole else layer.view
    mask = highest_mask(jnp.abs(layer.weight) * norms[:, None], layer.level, view)
    return jnp.where(mask, layer.weight, 0), mask


def _sparsegpt(layer: _Layer) -> tuple[Array, Array]:
    structure = layer.view.structure
    weight, mask = sparsegpt(np.asarray(layer.weight), layer.gram, layer.level, structure)
    return jnp.asarray(weight), jnp.asarray(mask)


Scores = Callable[[Model, Any, Sequence[Batch]], Any]


def _size(model: Model, params: Any, batches: Sequence[Batch]) -> Any:
    del model, batches
    return jax.tree.map(jnp.abs, params)


def _snip(model: Model, params: Any, batches: Sequence[Batch]) -> Any:
    gradient = _sum(jax.jit(jax.grad(_loss(model))), params, batches)
    return jax.tree.map(lambda w, g: jnp.abs(w * g), params, gradient)


def _grasp(model: Model, params: Any, batches: Sequence[Batch]) -> Any:
    slope = jax.grad(_loss(model))
    gradient = _sum(jax.jit(slope), params, batches)
    along = lambda params, batch: jax.jvp(lambda p: slope(p, batch), (params,), (gradient,))[1]
    curved = _sum(jax.jit(along), params, batches)
    return jax.tree.map(lambda w, h: w * h, params, curved)


def _loss(model: Model) -> Callable[[Any, Batch], Array]:
    return lambda params, batch: model.loss(params, batch)[0]


def _sum(function: Callable[[Any, Batch], Any], params: Any, batches: Sequence[Batch]) -> Any:
    total = function(params, batches[0])
    for batch in batches[1:]:
        total = jax.tree.map(jnp.add, total, function(params, batch))
    return total


_LAYERWISE: Mapping[str, tuple[bool, Callable[[_Layer], tuple[Array, Array]]]] = {
    "magnitude": (False, _magnitude),  # whether it needs the inputs
    "wanda": (True, _wanda),
    "sparsegpt": (True, _sparsegpt),
}
_GLOBAL: Mapping[str, tuple[bool, Scores]] = {
    "global-magnitude": (False, _size),
    "snip": (True, _snip),
    "grasp": (True, _grasp),
}
METHODS: Mapping[str, bool] = {
    name: needs for table in (_LAYERWISE, _GLOBAL) for name, (needs, _) in table.items()
}
"""Method -> whether it reads calibration batches."""


def prune(
    model: Model,
    params: Any,
    sparsifier: Sparsifier,
    method: str,
    *,
    batches: Sequence[Batch] = (),
    report: Callable[[str], object] = lambda line: None,
) -> Pruned:
    """Prune a model once.

    Args:
        model: the model.
        params: trained, or as ``model.init`` made them.
        sparsifier: which weights, at which levels, in which structure.
        method: one of ``METHODS``.
        batches: calibration inputs; none for the methods that read weights alone.
        report: called with a line for each stage.

    Raises:
        SparsityError: an unknown method, no batches, or a structure that it does not know.
    """
    if method not in METHODS:
        known = ", ".join(METHODS)
        raise SparsityError(
            f"unknown method {method!r}; known: {known}{did_you_mean(method, METHODS)}"
        )
    if METHODS[method] and not batches:
        raise SparsityError(f"{method} needs calibration rows: it reads the inputs of the layers")
    selected = sparsifier.select(params)
    if not selected:
        raise SparsityError("no parameter matches the filter; there is nothing to prune")
    if method in _GLOBAL:
        return _by_scores(params, sparsifier, selected, _GLOBAL[method][1](model, params, batches))
    return _by_stages(model, params, sparsifier, method, batches=batches, report=report)


def _by_scores(
    params: Any, sparsifier: Sparsifier, selected: Mapping[str, Selected], scores: Any
) -> Pruned:
    """Keep the highest scores of all selected weights together."""
    levels = {float(chosen.algorithm.sparsity(0)) for chosen in selected.values()}
    structures = {sparsifier.view(chosen.group).structure for chosen in selected.values()}
    if len(levels) > 1 or structures != {WHOLE}:
        raise SparsityError(
            "a score for all weights takes one level and no pattern, budget or groups; take "
            "magnitude, wanda or sparsegpt for them"
        )
    by_name = dict(named_leaves(scores))
    flat = jnp.concatenate([by_name[name].astype(jnp.float32).reshape(-1) for name in selected])
    kept = highest_mask(flat, levels.pop(), View())
    masks, start = {}, 0
    for name in selected:
        size = by_name[name].size
        masks[name] = kept[start : start + size].reshape(by_name[name].shape)
        start += size
    cut = lambda name, leaf: jnp.where(masks[name], leaf, 0) if name in masks else leaf
    return Pruned(map_named(cut, params), masks)


def _by_stages(
    model: Model,
    params: Any,
    sparsifier: Sparsifier,
    method: str,
    *,
    batches: Sequence[Batch],
    report: Callable[[str], object],
) -> Pruned:
    """Prune a stage at a time; later stages see the inputs that the pruned ones give."""
    reads_inputs, rule = _LAYERWISE[method]
    selected = sparsifier.select(params)
    masks: dict[str, Array] = {}
    inputs: list[Input] = [(None, batch) for batch in batches]
    for stage in model.stages:
        names = [name for name in stage_names(stage, list(selected)) if name not in masks]
        grams: Mapping[str, np.ndarray] = {}
        if reads_inputs and names:
            _require_matrices(model, method, {name: selected[name].shape for name in names})
            grams = stage_grams(model, stage, params, names, inputs=inputs)
        leaves, changed = dict(named_leaves(params)), {}
        for name in names:
            gram = grams.get(name, np.zeros((0, 0)))
            chosen = selected[name]
            layer = _Layer(leaves[name], gram, chosen, sparsifier.view(chosen.group))
            changed[name], masks[name] = rule(layer)
        params = map_named(lambda name, leaf, new=changed: new.get(name, leaf), params)
        if names:
            report(f"{stage.name}: {len(names)} weights pruned")
        if reads_inputs:
            inputs = [stage_step(model, stage, params, one) for one in inputs]
    return Pruned(params, masks)


def _require_matrices(model: Model, method: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if len(shape) != 2 or not model.sparse(name):
            raise SparsityError(
                f"{method}: the model does not multiply by {name!r} {shape} as a matrix; leave it "
                "out with param_filter"
            )
