"""Models in a loop: ``compile`` and the gradients of what they compute."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, PyTree

from wafer.loop.machine import Backend, backend as backend_named, current_backend
from wafer.loop.tracing.model_functions import functions_of
from wafer.loop.tracing.tape import differentiate
from wafer.models.base import Model
from wafer.models.checkpoint.tree import fill_template, to_tree
from wafer.models.paths import map_named, named_leaves

_TRAINED = jnp.inexact
_RUNNING = "running_state"  # in a state dict, beside the parameters


class Initialised(Exception):
    """A model saw its first input, and has parameters now: run the step's body again."""


class Parameter:
    """One parameter of a model by name: an array for JAX and NumPy, with torch's questions.

    Attributes:
        model: that has it.
        name: '/'-joined path.
    """

    def __init__(self, model: "CompiledModel", name: str) -> None:
        self.model, self.name = model, name

    @property
    def value(self) -> Array:
        """The array [...] as it is now, a tracer inside a traced step; may be assigned."""
        return _leaf(self.model.params, self.name)

    @value.setter
    def value(self, new: Array) -> None:
        """Assign ``new`` [...], of the parameter's shape."""

        def replaced(name: str, leaf: Array) -> Array:
            return jnp.asarray(new).astype(leaf.dtype) if name == self.name else leaf

        self.model.set_params(map_named(replaced, self.model.params))

    @property
    def grad(self) -> Array | None:
        """The gradient [...] between ``backward`` and ``zero_grad``, otherwise None."""
        gradients = Gradients(self.model)
        if not gradients.exist:
            return None
        return _leaf(gradients.kept, self.name)

    def dim(self) -> int:
        """Return the number of axes."""
        return self.value.ndim

    def numel(self) -> int:
        """Return the number of elements."""
        return self.value.size

    def __getattr__(self, name: str) -> Any:
        """Everything else is the array's: ``shape``, ``dtype``, ``sum`` ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)

    def __jax_array__(self) -> Array:
        """The array, for JAX's functions."""
        return self.value

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        """The array, for NumPy's functions."""
        return np.asarray(self.value).__array__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, {self.value!r})"


def _leaf(tree: PyTree, name: str) -> Array:
    """Return the leaf [...] of nested dicts at a '/'-joined path."""
    return functools.reduce(lambda node, key: node[key], name.split("/"), tree)


class Parameters:
    """The parameters of a model, for optimizers; iterates over ``Parameter`` or (name, it)."""

    def __init__(self, model: "CompiledModel", *, named: bool) -> None:
        self.model, self._named = model, named

    def __iter__(self) -> Iterator[Any]:
        for name, _ in named_leaves(self.model.params):
            parameter = Parameter(self.model, name)
            yield (name, parameter) if self._named else parameter


def model_of(params: Any) -> "tuple[CompiledModel, list[Parameter] | None]":
    """Return the model of parameters, and those of them that were listed; None for all.

    Raises:
        TypeError: something else.
        ValueError: an empty list, or parameters of several models.
    """
    if isinstance(params, Parameters):
        return params.model, None
    listed = list(params) if isinstance(params, Iterable) else [params]
    listed = [entry[1] if isinstance(entry, tuple) else entry for entry in listed]
    wrong = next((entry for entry in listed if not isinstance(entry, Parameter)), None)
    if wrong is not None:
        raise TypeError(
            "expected model.parameters() of a compiled model, or a list of its parameters, not "
            f"{type(wrong).__name__}"
        )
    models = {entry.model for entry in listed}
    if len(models) != 1:
        found = f"{len(models)} models" if models else "no parameter (an iterator that has ended?)"
        raise ValueError(f"expected parameters of one compiled model, found {found}")
    return models.pop(), listed


class CompiledModel:
    """A model whose parameters belong to a backend; calling it computes.

    Made by ``compile``. Inside a traced step calls are part of the step, outside they run at once
    (compiled too). A bundle of ``wafer``'s ``models`` returns its mean loss when called with a
    batch (``models.Batch``, or a mapping with input_ids, attention_mask, labels); Linen and nnx
    modules return what they return. Running statistics (BatchNorm) change while ``training``.
    """

    def __init__(self, model: object, backend: Backend) -> None:
        self.backend, self.inner = backend, model
        self.training = True
        self.sparsity: Any = None  # a sparse.SparsityAlgorithm once attached
        self._loaded: Mapping[str, Any] | None = None  # a state dict, until there are parameters
        self.slot = backend.register(self, "model")
        self._functions = functions_of(model)
        self._eager = functools.lru_cache(
            lambda settings: jax.jit(functools.partial(self._apply, **dict(settings)))
        )
        if not self._functions.needs_input:
            self._initialize()

    def _initialize(self, *args: PyTree, **kwargs: PyTree) -> None:
        params, running = self._functions.init(self.backend.key(), *args, **kwargs)
        loaded, self._loaded = self._loaded, None
        self.set_params(params)
        self.backend.state[self._running] = running
        if loaded is not None:
            self.load_state_dict(loaded)

    @property
    def _running(self) -> str:
        return f"{self.slot}/running"

    # --- parameters -----------------------------------------------------------------------

    @property
    def params(self) -> PyTree:
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

    def state_dict(self) -> dict[str, PyTree]:
        """Copy parameters and running statistics to the host, as a nested dict."""
        return to_tree(self.variables)

    @property
    def variables(self) -> dict[str, PyTree]:
        """Parameters, and running statistics under ``running_state`` where there are any."""
        running = self.backend.state.get(self._running)
        return {**self.params, _RUNNING: running} if running else dict(self.params)

    @variables.setter
    def variables(self, tree: Mapping[str, object]) -> None:
        self.set_params({name: branch for name, branch in tree.items() if name != _RUNNING})
        self.backend.state[self._running] = tree.get(_RUNNING, {})

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Replace parameters and running statistics; waits until the module has parameters.

        Raises:
            CheckpointError: names or shapes differ from the model's.
        """
        if not self.ready:
            self._loaded = tree
            return
        filled = fill_template(self.variables, tree, "the state dict")
        self.variables = jax.tree.map(jnp.asarray, filled)

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

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Compute; arguments that are not arrays (``train=True``) are settings, not data."""
        if not self.ready:
            self._initialize(*args, **kwargs)
            raise Initialised
        if self.sparsity is not None:
            self.sparsity.mask_weights()
        state = self.backend.state
        key = self.backend.key() if self.training else None
        if self.backend.tracing:
            given = (self.params, state[self._running], key)
            settings = {"training": self.training, "half": self.backend.half_in_force}
            out, state[self._running] = self._apply(*given, *args, **settings, **kwargs)
            return out
        arrays = {k: v for k, v in kwargs.items() if isinstance(v, jax.Array | np.ndarray)}
        settings = {k: v for k, v in kwargs.items() if k not in arrays}
        settings |= {"training": self.training, "half": self.backend.half_in_force}
        run = self._eager(tuple(sorted(settings.items())))
        out, state[self._running] = run(self.params, state[self._running], key, *args, **arrays)
        return out

    def _apply(
        self,
        params: PyTree,
        running: PyTree,
        key: Array | None,
        *args: PyTree,
        half: DTypeLike | None,
        **kwargs: PyTree,
    ) -> tuple[PyTree, PyTree]:
        """Compute in the half type under ``amp.autocast``; the output is float32 then."""
        if half is None:
            return self._functions.apply(params, running, key, *args, **kwargs)
        params, args, kwargs = _cast((params, args, kwargs), jnp.float32, half)
        out, running = self._functions.apply(params, running, key, *args, **kwargs)
        return _cast(out, half, jnp.float32), running


def _cast(tree: PyTree, source: DTypeLike, target: DTypeLike) -> PyTree:
    """Cast the arrays of one type."""
    is_source = lambda leaf: getattr(leaf, "dtype", None) == source
    cast = lambda leaf: jnp.asarray(leaf).astype(target) if is_source(leaf) else leaf
    return jax.tree.map(cast, tree)


def compile(model: object, backend: Backend | str | None = None) -> CompiledModel:  # vendor's name
    """Put a model on a backend.

    Args:
        model: a bundle of ``models.build`` or an nnx module (``nn.Module``), whose parameters are
            there at once, or a Linen module, which gets them from the first batch of a traced
            step.
        backend: where to, or 'CSX', 'CPU' or 'GPU'; the current one by default.

    Raises:
        TypeError: something else.
    """
    if isinstance(backend, str):
        backend = backend_named(backend)
    return CompiledModel(model, backend or current_backend())


def backward(loss: Array) -> None:
    """Add the gradients of ``loss`` [] to every model it was computed from, inside a traced step.

    The line ``loss.backward()`` of a PyTorch loop.

    Raises:
        RuntimeError: outside a traced step.
        ValueError: the loss is not a scalar.
    """
    backend = current_backend()
    if not backend.tracing:
        raise RuntimeError("backward works inside a step decorated with @trace")
    owners = [part for part in backend.parts if isinstance(part, CompiledModel) and part.ready]
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
    def exist(self) -> bool:
        """Whether ``backward`` added some since they were cleared."""
        return self._slot in self._state

    @property
    def kept(self) -> PyTree:
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
    def dense(self) -> PyTree | None:
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
