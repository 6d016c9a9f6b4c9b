"""What a layer's inputs look like: x^T x of every weight of a stage, summed over batches.

A watched weight multiplies as usual; the gradient of its ``gram``, which is 0 and unused, is
written by hand to be x^T x. So sums come out right however often a layer is used, in a scan and
under rematerialisation, and only real tokens count.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from wafer.models.base import Batch, Model, Stage
from wafer.models.paths import map_named

Input = tuple[Any, Batch]  # what the stage before left, and the batch


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Watched:
    """A weight that multiplies activations, and whose ``gram`` has x^T x for its gradient."""

    weight: Array  #: [K, N]
    gram: Array  #: [K, K] zeros
    live: Array  #: [T] float32, 1 at real tokens

    def project(self, x: Array) -> Array:
        """Multiply [..., K] by the weight."""
        rows = x.reshape(-1, x.shape[-1])
        live = self.live if rows.shape[0] == self.live.shape[0] else jnp.ones(rows.shape[0])
        y = _product(rows, self.weight.astype(x.dtype), self.gram, live)
        return y.reshape(*x.shape[:-1], -1)


@jax.custom_vjp
def _product(x: Array, weight: Array, gram: Array, live: Array) -> Array:
    del gram, live
    return x @ weight


def _product_backward(saved: PyTree, dy: Array) -> tuple[Array, None, Array, None]:
    x, weight, live = saved
    rows = x.astype(jnp.float32) * live[:, None]
    return dy @ weight.T, None, rows.T @ rows, None


_product.defvjp(lambda x, weight, gram, live: (x @ weight, (x, weight, live)), _product_backward)


def stage_names(stage: Stage, names: Sequence[str]) -> list[str]:
    """The parameters, of those given, that a stage computes with."""
    return [n for n in names if any(n == key or n.startswith(f"{key}/") for key in stage.params)]


def stage_step(model: Model, stage: Stage, params: PyTree, one: Input) -> Input:
    """Compute a stage of a batch; all stages of a kind compile once."""
    carry, batch = one
    return _step(model, stage.kind, model.stage_params(stage, params), carry, batch), batch


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(model: Model, kind: str, weights: PyTree, carry: PyTree, batch: Batch) -> PyTree:
    return model.kinds[kind][1](weights, carry, batch, None)


def stage_grams(
    model: Model,
    stage: Stage,
    params: PyTree,
    names: Sequence[str],
    *,
    inputs: Sequence[Input],
) -> dict[str, Float[np.ndarray, "K K"]]:
    """Sum x^T x over all real tokens of all batches.

    Args:
        model: the model.
        stage: the stage that computes with the weights.
        params: of the whole model.
        names: '/'-paths of the matrices to watch, all of this stage.
        inputs: per batch what the stage before left (None before the first), and the batch.

    Returns:
        name -> [K, K] float64, for a matrix [K, N]; zeros where nothing was multiplied by it.
    """
    roles = dict(zip(stage.params, model.kinds[stage.kind][0], strict=True))
    split = {name: name.split("/", 1) for name in names}
    # name in the model -> name in the stage's own tree
    local = {name: f"{roles[key]}/{rest}" for name, (key, rest) in split.items()}
    weights = model.stage_params(stage, params)
    total: dict[str, np.ndarray] = {}
    for one in inputs:
        grams = _grams(model, stage.kind, tuple(local.values()), weights, one)
        for name, own in local.items():
            gram = np.asarray(grams[own], np.float64)
            total[name] = total[name] + gram if name in total else gram
    return total


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _grams(
    model: Model, kind: str, names: tuple[str, ...], weights: PyTree, one: Input
) -> Mapping[str, Array]:
    carry, batch = one
    shapes: dict[str, int] = {}
    map_named(lambda name, leaf: shapes.setdefault(name, leaf.shape[0]), weights)
    zeros = {name: jnp.zeros((shapes[name], shapes[name])) for name in names}
    live = batch.layout.valid.astype(jnp.float32)

    def outputs(grams: Mapping[str, Array]) -> Array:
        watch = lambda name, leaf: Watched(leaf, grams[name], live) if name in grams else leaf
        after = model.kinds[kind][1](map_named(watch, weights), carry, batch, None)
        floats = [x for x in jax.tree.leaves(after) if jnp.issubdtype(x.dtype, jnp.floating)]
        return jnp.stack([x.astype(jnp.float32).sum() for x in floats]).sum()

    return jax.grad(outputs)(zeros)
