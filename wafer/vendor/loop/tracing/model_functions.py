"""What a loop asks of a model: initial variables, and its output with the new running state."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PyTree

from wafer.data.batching.batches import to_batch
from wafer.models.base import Batch, Model


class ModelFunctions(NamedTuple):
    """A model as two pure functions."""

    #: (key, *args, **kwargs) -> (params, running state), nested dicts of arrays [...]
    init: Callable[..., tuple[PyTree, PyTree]]
    #: (params, running state, key, *args, training, **kwargs) -> (output, running state)
    apply: Callable[..., tuple[PyTree, PyTree]]
    needs_input: bool  #: whether ``init`` needs the arguments of a call


def functions_of(model: object) -> ModelFunctions:
    """Return the functions of a model.

    Raises:
        TypeError: something else.
    """
    if isinstance(model, Model):
        init = lambda key, *_, **__: (model.init(key), {})
        return ModelFunctions(init, functools.partial(_apply_bundle, model), needs_input=False)
    if isinstance(model, nn.Module):
        init = functools.partial(_init_linen, model)
        return ModelFunctions(init, functools.partial(_apply_linen, model), needs_input=True)
    if isinstance(model, nnx.Module):
        return _nnx_functions(model)
    raise TypeError(
        "compile takes a Linen module, an nnx module or a model of models.build(...), not "
        f"{type(model).__name__}"
    )


def _apply_bundle(
    model: Model,
    params: PyTree,
    running: PyTree,
    key: Array | None,
    batch: Batch | Mapping[str, Array],
    *,
    training: bool,
) -> tuple[Array, PyTree]:
    del training  # a key is dropout
    batch = batch if isinstance(batch, Batch) else _stream(batch)
    return model.loss(params, batch, key)[0], running


def _stream(features: Mapping[str, Array]) -> Batch:
    """Lay rows [B, S] out as a stream; rows without ``lengths`` end at their last 1."""
    columns = dict(features)
    for mask, lengths in (
        ("attention_mask", "lengths"),
        ("decoder_attention_mask", "decoder_lengths"),
    ):
        rows = columns.get(mask)
        if rows is not None and rows.ndim == 2 and not {lengths, "attention_span"} & columns.keys():
            reach = jnp.where(rows != 0, jnp.arange(1, rows.shape[1] + 1), 0)
            columns[lengths] = reach.max(axis=1).astype(jnp.int32)
    return to_batch(columns)


def _init_linen(
    model: nn.Module, key: Array, *args: PyTree, **kwargs: PyTree
) -> tuple[PyTree, PyTree]:
    init = jax.jit(lambda rngs: model.init(rngs, *args, **_mode(model, kwargs, training=False)))
    variables = dict(init({"params": key, "dropout": key}))
    return variables.pop("params", {}), variables


def _apply_linen(
    model: nn.Module,
    params: PyTree,
    running: PyTree,
    key: Array | None,
    *args: PyTree,
    training: bool,
    **kwargs: PyTree,
) -> tuple[PyTree, PyTree]:
    rngs = {} if key is None else {"dropout": key}
    kwargs = _mode(model, kwargs, training=training)
    variables = {"params": params, **running}
    if not (running and training):
        return model.apply(variables, *args, rngs=rngs, **kwargs), running
    return model.apply(variables, *args, rngs=rngs, mutable=list(running), **kwargs)


def _mode(model: nn.Module, kwargs: Mapping[str, PyTree], *, training: bool) -> dict[str, PyTree]:
    """Tell a module that asks whether it trains, as ``model.train()`` does in PyTorch."""
    asked = inspect.signature(type(model).__call__).parameters
    modes = {"train": training, "training": training, "deterministic": not training}
    return {name: value for name, value in modes.items() if name in asked} | dict(kwargs)


def _nnx_functions(model: nnx.Module) -> ModelFunctions:
    graph, params, streams, running = nnx.split(model, nnx.Param, nnx.RngState, ...)

    def init(key: Array, *_: object, **__: object) -> tuple[PyTree, PyTree]:
        del key  # the module was made with keys of its own
        return _by_name(params), _by_name(running)

    def apply(
        weights: PyTree,
        state: PyTree,
        key: Array | None,
        *args: PyTree,
        training: bool,
        **kwargs: PyTree,
    ) -> tuple[PyTree, PyTree]:
        parts = (_refilled(params, weights), streams, _refilled(running, state))
        module = nnx.merge(graph, *parts, copy=True)
        (nnx.Module.train if training else nnx.Module.eval)(module)
        if key is not None:
            nnx.reseed(module, default=key, dropout=key)
        out = module(*args, **kwargs)
        _, _, _, new = nnx.split(module, nnx.Param, nnx.RngState, ...)
        return out, _by_name(new) if training else state

    return ModelFunctions(init, apply, needs_input=False)


def _by_name(state: PyTree) -> dict[str, PyTree]:
    """Turn an nnx state into nested dicts with text keys: indices of lists become text."""
    text = lambda node: (
        {str(k): text(v) for k, v in node.items()} if isinstance(node, Mapping) else node
    )
    return text(nnx.to_pure_dict(state))


def _refilled(template: PyTree, tree: PyTree) -> PyTree:
    """Put arrays by name into a copy of an nnx state, whose order is another."""
    structure = jax.tree.structure(template)
    numbered = _by_name(jax.tree.unflatten(structure, range(structure.num_leaves)))
    leaves = dict(zip(jax.tree.leaves(numbered), jax.tree.leaves(tree), strict=True))
    return jax.tree.unflatten(structure, [leaves[i] for i in range(structure.num_leaves)])
