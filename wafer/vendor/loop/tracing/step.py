"""``trace`` and the closures: one compiled function per step, side effects when values exist."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from wafer.engines.programs import shapes_of
from wafer.loop.machine import PRECISION, Backend, current_backend
from wafer.loop.tracing.model import CompiledModel, Gradients, Initialised
from wafer.loop.tracing.tape import evaluate


class _Calls:
    """The closure calls of one traced body: what to call, and which arguments are arrays."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], Any, list[Any], list[int]]] = []
        self.arrays: list[Any] = []

    def record(
        self, fn: Callable[..., object], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> None:
        """Remember a call for the end of the step."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
        self.arrays += [leaves[i] for i in where]
        self.calls.append((fn, structure, leaves, where))

    def replay(self, values: list[jax.Array]) -> None:
        """Call everything with this step's values."""
        arrays = iter(values)
        for fn, structure, leaves, slots in self.calls:
            filled = list(leaves)
            for i in slots:
                filled[i] = next(arrays)
            args, kwargs = jax.tree.unflatten(structure, filled)
            fn(*args, **kwargs)

    def forget_tracers(self) -> None:
        """Drop the tracers, which must not outlive their trace."""
        self.arrays = []
        for _, _, leaves, where in self.calls:
            for i in where:
                leaves[i] = None


class _Traced:
    """A step: compiled for each shape of its arguments, run on the backend's slots."""

    def __init__(self, fn: Callable[..., object]) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._programs: dict[Any, tuple[Any, _Calls]] = {}

    def __call__(self, *args: PyTree) -> PyTree:
        backend = current_backend()
        if backend.tracing:  # a step inside a step
            return self._fn(*args)
        self._discover(backend, args)
        backend.prepare()
        backend.state = jax.device_put(backend.state, backend.everywhere)
        devices = set(backend.mesh.devices.flat)  # the loader's arrays stay, others are replicated
        placed = lambda leaf: isinstance(leaf, jax.Array) and leaf.sharding.device_set == devices
        places = lambda leaf: leaf.sharding if placed(leaf) else backend.everywhere
        args = jax.device_put(args, jax.tree.map(places, args))
        modes = tuple(getattr(part, "training", None) for part in backend.parts)
        precision = tuple(map(str, PRECISION.values()))
        key = (id(backend), backend.mesh, modes, precision, shapes_of((backend.state, args)))
        if key not in self._programs:
            self._programs[key] = self._compile(backend, args)
        program, calls = self._programs[key]
        if backend.stops_after:
            _, out, _ = program.out_info
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), out)
        backend.state, out, values = program(backend.state, args)
        if calls.calls:
            _later(backend, functools.partial(calls.replay, values))
        return out

    def _discover(self, backend: Backend, args: tuple[PyTree, ...]) -> None:
        """Run the body until every Linen module has seen an input."""
        while not all(getattr(part, "ready", True) for part in backend.parts):
            backend.recorder = lambda *_: None  # closures wait for a step that is run
            try:
                self._fn(*args)
            except Initialised:
                continue
            finally:
                backend.recorder = None
            return  # the body calls no module that lacks parameters

    def _compile(self, backend: Backend, args: tuple[PyTree, ...]) -> tuple[Any, _Calls]:
        calls = _Calls()

        def body(state: dict[str, PyTree], inputs: tuple[PyTree, ...]) -> PyTree:
            with backend.traced(state, calls.record):
                out = self._fn(*inputs)
                for model in (part for part in backend.parts if isinstance(part, CompiledModel)):
                    Gradients(model).drop_if_unread()
                return backend.state, out, calls.arrays

        def step(state: dict[str, PyTree], inputs: tuple[PyTree, ...]) -> PyTree:
            calls.calls.clear()
            result = evaluate(body, state, inputs)
            calls.forget_tracers()
            return result

        everywhere = backend.everywhere
        jitted = jax.jit(step, donate_argnums=0, out_shardings=(everywhere, None, None))
        with warnings.catch_warnings():  # gradients that are forgotten are donated and not reused
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            lowered = jitted.lower(backend.state, args)
            return lowered if backend.stops_after == "validate" else lowered.compile(), calls


def trace(fn: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """Compile a step: everything in its body becomes one function on the device.

    The body is ordinary statements over compiled models, optimizers and scalers, and JAX
    functions. It runs in Python once per shape of its arguments; what must happen at every step
    (printing, logging, saving) goes into a closure.
    """
    return _Traced(fn)


def _later(backend: Backend, call: Callable[[], object]) -> None:
    """Run a call at the end of the loop's iteration; at once when there is no loop."""
    if backend.stops_after:
        return
    if backend.executor is None:
        call()
    else:
        backend.executor.at_end_of_step(call)


def step_closure(fn: Callable[..., object]) -> Callable[..., None]:
    """Make a function wait for the end of the step: its arguments are arrays with values then.

    Inside a traced step and in the loop around it alike; without a loop it runs at once.
    """

    @functools.wraps(fn)
    def call(*args: object, **kwargs: object) -> None:
        backend = current_backend()
        if backend.recorder is not None:
            backend.recorder(fn, args, kwargs)
        else:
            _later(backend, functools.partial(fn, *args, **kwargs))

    return call


def checkpoint_closure(fn: Callable[..., object]) -> Callable[..., None]:
    """Make a function wait for the end of the steps that ``checkpoint_steps`` selects.

    Those are every ``checkpoint_steps``-th step and the last one. Outside a loop it runs at once.
    """

    def if_due(*args: object, **kwargs: object) -> None:
        executor = current_backend().executor
        if executor is None or executor.is_checkpoint_step:
            fn(*args, **kwargs)

    return step_closure(functools.wraps(fn)(if_due))
