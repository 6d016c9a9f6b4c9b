"""Models in a loop: ``compile`` and the gradients of what they compute."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from models.base import Batch, Model
from models.checkpoint.tree import fill_template, to_tree
from models.paths import named_leaves
from wafer.data.batching.batches import to_batch
from wafer.loop.machine import Backend, current_backend
from wafer.loop.tape import differentiate

__all__ = ["CompiledModel", "Gradients", "Initialised", "Parameters", "backward", "compile"]

_TRAINED = jnp.inexact


class Initialised(Exception):
    """A model saw its first input, and has parameters now: run the step's body again."""


class Parameters:
    """The parameters of a model, for optimizers; iterates over arrays, or over (name, array)."""

    def __init__(self, model: "CompiledModel", *, named: bool) -> None:
        self.model, self._named = model, named

    def __iter__(self) -> Iterator[Any]:
        """List them as they are now."""
        for name, leaf in named_leaves(self.model.params):
            yield (name, leaf) if self._named else leaf


class CompiledModel:
    """A model whose parameters belong to a backend; calling it computes.

    Made by ``compile``. Inside a traced step calls are part of the step, outside they run at once
    (compiled too). A bundle of ``wafer``'s ``models`` returns its mean loss when called with a
    batch (``models.Batch``, or a mapping with input_ids, attention_mask, labels); a Linen module
    returns what it returns.
    """

    def __init__(self, model: Any, where: Backend) -> None:
        self.backend, self.inner = where, model
        self.training = True
        self.sparsity: Any = None  # a sparse.SparsityAlgorithm once attached
        self.slot = where.register(self, "model")
        self._init, self._apply = _functions(model)
        self._eager = functools.lru_cache(
            lambda settings: jax.jit(functools.partial(self._apply, **dict(settings)))
        )
        if isinstance(model, Model):
            self.set_params(model.init(where.key()))

    # --- parameters -----------------------------------------------------------------------

    @property
    def params(self) -> Any:
        """The parameter tree.

        Raises:
            RuntimeError: a Linen module that has not seen an input yet.
        """
        if self.slot not in self.backend.state:
            raise RuntimeError(
                "the module has no parameters yet: a Linen module gets them from the first batch "
                "of a traced step"
            )
        return self.backend.state[self.slot]

    def set_params(self, params: PyTree) -> None:
        """Replace the parameter tree, tracers inside a traced step."""
        self.backend.state[self.slot] = params

    @property
    def ready(self) -> bool:
        """Whether there are parameters."""
        return self.slot in self.backend.state

    def prepare(self) -> None:
        """Nothing to fill: parameters come with the model or with its first input."""

    def parameters(self) -> Parameters:
        """Parameters, for an optimizer."""
        return Parameters(self, named=False)

    def named_parameters(self) -> Parameters:
        """Names and parameters."""
        return Parameters(self, named=True)

    def state_dict(self) -> dict[str, Any]:
        """Copy the parameters to the host, as a nested dict."""
        return to_tree(self.params)

    def load_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Replace the parameters.

        Raises:
            CheckpointError: names or shapes differ from the model's.
        """
        if self.ready:
            tree = fill_template(self.params, tree, "the state dict")
        self.set_params(jax.tree.map(jnp.asarray, tree))

    # --- mode and sparsity ----------------------------------------------------------------

    def train(self, mode: bool = True) -> "CompiledModel":
        """Switch dropout on (or off)."""
        self.training = mode
        return self

    def eval(self) -> "CompiledModel":
        """Switch dropout off."""
        return self.train(mode=False)

    def apply(self, algorithm: Any) -> "CompiledModel":
        """Attach a sparsity algorithm, as in releases 2.2+; the optimizer needs it as well."""
        algorithm.apply_to_model(self)
        return self

    @property
    def alias(self) -> Callable[[str], str]:
        """Parameter path -> the vendor's name."""
        return self.inner.alias if isinstance(self.inner, Model) else lambda name: name

    # --- computing ------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; arguments that are not arrays (``train=True``) are settings, not data."""
        if not self.ready:
            self.set_params(self._init(self.backend.key(), *args, **kwargs))
            raise Initialised
        if self.sparsity is not None:
            self.sparsity.mask_weights()
        key = self.backend.key() if self.training else None
        if self.backend.tracing:
            return self._apply(self.params, key, *args, training=self.training, **kwargs)
        arrays = {k: v for k, v in kwargs.items() if isinstance(v, jax.Array | np.ndarray)}
        settings = {k: v for k, v in kwargs.items() if k not in arrays}
        run = self._eager((("training", self.training), *sorted(settings.items())))
        return run(self.params, key, *args, **arrays)


def _functions(model: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(init(key, *args) -> params, apply(params, key, *args, training) -> output) of a model.

    Raises:
        TypeError: neither a Linen module nor a bundle of ``models``.
    """
    if isinstance(model, Model):
        return lambda key, *_, **__: model.init(key), functools.partial(_apply_bundle, model)
    if isinstance(model, nn.Module):
        return functools.partial(_init_linen, model), functools.partial(_apply_linen, model)
    raise TypeError(
        f"compile takes a Linen module or a model of models.build(...), not {type(model).__name__}"
    )


def _apply_bundle(
    model: Model, params: PyTree, key: Array | None, batch: Any, *, training: bool
) -> Any:
    del training  # a key is dropout
    return model.loss(params, batch if isinstance(batch, Batch) else _stream(batch), key)[0]


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


def _init_linen(model: nn.Module, key: Array, *args: Any, **kwargs: Any) -> Any:
    init = jax.jit(lambda rngs: model.init(rngs, *args, **_mode(model, kwargs, training=False)))
    variables = dict(init({"params": key, "dropout": key}))
    params = variables.pop("params", {})
    if variables:
        raise ValueError(
            f"{type(model).__name__} has collections besides 'params' ({', '.join(variables)}); "
            "the loop carries parameters only, so use layers without running statistics"
        )
    return params


def _apply_linen(
    model: nn.Module, params: PyTree, key: Array | None, *args: Any, training: bool, **kwargs: Any
) -> Any:
    rngs = {} if key is None else {"dropout": key}
    kwargs = _mode(model, kwargs, training=training)
    return model.apply({"params": params}, *args, rngs=rngs, **kwargs)


def _mode(model: nn.Module, kwargs: Mapping[str, Any], *, training: bool) -> dict[str, Any]:
    """Tell a module that asks whether it trains, as ``model.train()`` does in PyTorch."""
    asked = inspect.signature(type(model).__call__).parameters
    modes = {"train": training, "training": training, "deterministic": not training}
    return {name: value for name, value in modes.items() if name in asked} | dict(kwargs)


def compile(model: Any, backend: Backend | None = None) -> CompiledModel:  # the vendor's name
    """Put a model on a backend.

    Args:
        model: a bundle of ``models.build`` (initialised now) or a Linen module (initialised by
            the first batch of a traced step).
        backend: where to; the current one by default.

    Raises:
        TypeError: something else.
    """
    return CompiledModel(model, backend or current_backend())


def backward(loss: Array) -> None:
    """Add the gradients of ``loss`` [] to every model it was computed from, inside a traced step.

    The line ``loss.backward()`` of a PyTorch loop.

    Raises:
        RuntimeError: outside a traced step.
        ValueError: the loss is not a scalar.
    """
    where = current_backend()
    if not where.tracing:
        raise RuntimeError("backward works inside a step decorated with @trace")
    owners = [part for part in where.parts if isinstance(part, CompiledModel) and part.ready]
    flat, structure = jax.tree.flatten([model.params for model in owners])
    trained = [i for i, leaf in enumerate(flat) if jnp.issubdtype(leaf.dtype, _TRAINED)]
    gradients = [jnp.zeros_like(leaf) for leaf in flat]
    of_trained = differentiate(loss, [flat[i] for i in trained])
    for i, gradient in zip(trained, of_trained, strict=True):
        gradients[i] = gradient
    for model, tree in zip(owners, jax.tree.unflatten(structure, gradients), strict=True):
        Gradients(model).add(tree)


class Gradients:
    """The gradients of a model between ``backward`` and ``zero_grad``, in the backend's slots."""

    def __init__(self, model: CompiledModel) -> None:
        self._state = model.backend.state
        self._touched = model.backend.touched
        self._slot, self._model = f"{model.slot}/grads", model

    @property
    def dense_slot(self) -> str:
        """Slot of the gradients before masking, which RigL reads."""
        return f"{self._slot}/dense"

    def add(self, tree: PyTree) -> None:
        """Accumulate."""
        sparsity = self._model.sparsity
        if sparsity is not None:
            if sparsity.needs_gradient:
                self._accumulate(self.dense_slot, tree)
            tree = sparsity.mask_gradients(tree)
        self._accumulate(self._slot, tree)

    def _accumulate(self, slot: str, tree: PyTree) -> None:
        self._touched.setdefault(self._slot, True)
        old = self._state.get(slot)
        self._state[slot] = tree if old is None else jax.tree.map(jnp.add, old, tree)

    @property
    def kept(self) -> Any:
        """Gradients of the weights that are there.

        Raises:
            RuntimeError: there are none.
        """
        tree = self._state.get(self._slot)
        if tree is None:
            raise RuntimeError("there are no gradients: call backward(loss) before the optimizer")
        return tree

    @kept.setter
    def kept(self, tree: PyTree) -> None:
        self._state[self._slot] = tree

    @property
    def dense(self) -> Any:
        """Gradients before masking, or None."""
        return self._state.get(self.dense_slot)

    def drop_if_unread(self) -> None:
        """At the end of a traced body: leave nothing behind that the next step would clear."""
        if self._touched.get(self._slot) is False:
            self.clear()

    def clear(self) -> None:
        """Forget them.

        A step that clears before it adds does not need those of the step before: they are not
        carried from one to the next.
        """
        self._touched.setdefault(self._slot, False)
        self._state.pop(self._slot, None)
        self._state.pop(self.dense_slot, None)
