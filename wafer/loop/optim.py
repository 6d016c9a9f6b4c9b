"""Optimizers of a loop, with the vendor's arithmetic and the names of ``torch.optim``."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from models.checkpoint.tree import fill_template, to_tree
from models.errors import did_you_mean
from wafer.config import OPTIMIZERS, SCHEDULERS, parse_optimizer, parse_schedules
from wafer.loop.model import CompiledModel, Gradients, Parameters
from wafer.optim.chain import RateState, learning_rates, make_optimizer

__all__ = [
    "LRScheduler",
    "Optimizer",
    "configure_lr_scheduler",
    "configure_optimizer",
    "lr_scheduler",
]


class Optimizer:
    """An optimizer over one model's parameters.

    Args:
        params: ``model.parameters()`` or ``model.named_parameters()``.
        section: keys of an ``optimizer`` section; ``lr`` means ``learning_rate``.

    Raises:
        ConfigError: a wrong key or value.
        TypeError: params of something else.
    """

    def __init__(self, params: Parameters, section: Mapping[str, Any]) -> None:
        if not isinstance(params, Parameters):
            raise TypeError(
                "an optimizer takes model.parameters() of a compiled model, not "
                f"{type(params).__name__}"
            )
        self.model: CompiledModel = params.model
        self._keys = {"learning_rate": 1e-3, **section}
        if "lr" in section:
            self._keys["learning_rate"] = self._keys.pop("lr")
        self._section = parse_optimizer(self._keys)
        self._tx: Any = None
        self._loaded: Mapping[str, Any] | None = None
        self.sparsity: Any = None
        self.scheduler: LRScheduler | None = None
        self._backend = self.model.backend
        self.slot = self._backend.register(self, "optimizer")

    def set_schedule(self, scheduler: "LRScheduler", learning_rate: Any) -> None:
        """Follow a scheduler from now on.

        Raises:
            RuntimeError: training has begun.
        """
        if self._tx is not None:
            raise RuntimeError("attach the learning-rate scheduler before the first step")
        self._section = parse_optimizer({**self._keys, "learning_rate": learning_rate})
        self.scheduler = scheduler

    def prepare(self) -> None:
        """Make the state when the model has parameters."""
        if self._tx is None and self.model.ready:
            params = self.model.params
            self._tx = make_optimizer(self._section, params, self.model.alias)
            self._backend.state[self.slot] = jax.jit(self._tx.init)(params)
            if self.sparsity is not None:
                self.sparsity.mask_moments(self)
        if self._loaded is not None and self._tx is not None:
            tree, self._loaded = self._loaded, None
            filled = fill_template(self.state, tree, "the state dict", "optimizer/")
            self.state = jax.tree.map(jnp.asarray, filled)

    @property
    def state(self) -> Any:
        """The optax state.

        Raises:
            RuntimeError: before the first step.
        """
        if self.slot not in self._backend.state:
            raise RuntimeError("the optimizer has no state before the first step")
        return self._backend.state[self.slot]

    @state.setter
    def state(self, value: Any) -> None:
        self._backend.state[self.slot] = value

    def step(self, finite: Array | bool = True) -> None:
        """Update the parameters, inside a traced step.

        Args:
            finite: [] bool; where false, parameters and state stay as they are.

        Raises:
            RuntimeError: ``backward`` was not called.
        """
        gradients = Gradients(self.model)
        old, state = self.model.params, self.state
        if self.scheduler is not None:
            state = self.scheduler.put_into(state)
        updates, new_state = self._tx.update(gradients.kept, state, old)
        new = jax.tree.map(lambda w, u: (w + u).astype(w.dtype), old, updates)
        if finite is not True:
            new, new_state = jax.tree.map(
                lambda a, b: jnp.where(finite, a, b), (new, new_state), (old, state)
            )
        self.model.set_params(new)
        self.state = new_state
        if self.scheduler is not None:
            self.scheduler.finite = finite
        if self.sparsity is not None:
            self.sparsity.update(self, finite)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        del set_to_none
        Gradients(self.model).clear()

    def apply(self, algorithm: Any) -> "Optimizer":
        """Attach a sparsity algorithm, as in releases 2.2+; the model needs it as well.

        Raises:
            RuntimeError: the model does not have it.
        """
        algorithm.apply_to_optimizer(self)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Copy the state to the host, as a nested dict."""
        return to_tree(self.state)

    def load_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Replace the state; waits until there is one.

        Raises:
            CheckpointError: (at the next step at the latest) it is of another optimizer.
        """
        self._loaded = tree
        self.prepare()

    @property
    def learning_rate(self) -> Array:
        """[] float32 rate of the last step."""
        return learning_rates(self.state)[0]


class LRScheduler:
    """A learning-rate schedule advanced by ``step``; the first step uses its value at 0.

    Args:
        optimizer: follows it.
        learning_rate: a schedule of an ``optimizer`` section: mapping, or list in sequence.

    Raises:
        ConfigError: not a schedule.
    """

    def __init__(self, optimizer: Optimizer, learning_rate: Any) -> None:
        parse_schedules(learning_rate)
        self.spec = learning_rate
        self.finite: Array | bool = True
        self._backend = optimizer.model.backend
        self.slot = self._backend.register(self, "lr_scheduler")
        optimizer.set_schedule(self, learning_rate)

    def prepare(self) -> None:
        """Begin at 0."""
        self._backend.state.setdefault(self.slot, jnp.int32(0))

    def step(self) -> None:
        """Go on by one, unless the optimizer skipped its step for non-finite gradients."""
        finite, self.finite = self.finite, True
        self._backend.state[self.slot] += jnp.asarray(finite, jnp.int32)

    def put_into(self, state: Any) -> Any:
        """Put the schedule's position into an optimizer's state."""
        at = self._backend.state[self.slot]
        is_rate = lambda node: isinstance(node, RateState)
        place = lambda node: node._replace(step=at) if is_rate(node) else node
        return jax.tree.map(place, state, is_leaf=is_rate)

    def state_dict(self) -> dict[str, Any]:
        """Where it stands."""
        self.prepare()
        return {"step": int(self._backend.state[self.slot])}

    def load_state_dict(self, tree: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._backend.state[self.slot] = jnp.int32(tree["step"])


def configure_optimizer(optimizer_type: str, params: Parameters, **kwargs: Any) -> Optimizer:
    """Make an optimizer by its name.

    Args:
        optimizer_type: 'SGD', 'AdamW', ...: any of ``wafer.config.OPTIMIZERS``.
        params: ``model.parameters()``.
        kwargs: keys of an ``optimizer`` section, ``lr`` or ``learning_rate`` among them.

    Raises:
        ConfigError: unknown optimizer or key.
    """
    return Optimizer(params, {"optimizer_type": optimizer_type, **kwargs})


def configure_lr_scheduler(optimizer: Optimizer, learning_rate: Any) -> LRScheduler | None:
    """Attach the schedule of a ``learning_rate`` key; None for a plain number.

    Raises:
        ConfigError: not a schedule.
    """
    if isinstance(learning_rate, int | float | str):
        return None
    return LRScheduler(optimizer, learning_rate)


class _SchedulerNames:
    """``lr_scheduler.LinearLR(optimizer, ...)`` for every schedule, and ``SequentialLR``."""

    def SequentialLR(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int] = (),
    ) -> LRScheduler:
        """Put schedules one after the other.

        Args:
            optimizer: follows them.
            schedulers: each but the last with ``total_iters``.
            milestones: must be where they end, if given.

        Raises:
            ValueError: milestones elsewhere.
        """
        specs = [part.spec for part in schedulers]
        lengths = [entry.length or 0 for entry in parse_schedules(specs)]
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths) - 1)]
        if milestones and list(milestones) != ends:
            raise ValueError(
                f"SequentialLR: milestones {list(milestones)}, but the schedules' total_iters end "
                f"at {ends}"
            )
        for part in schedulers:
            part._backend.parts.remove(part)
        return LRScheduler(optimizer, specs)

    def __getattr__(self, name: str) -> Any:
        """Make one schedule by its name."""
        base = name.removesuffix("LR")
        if base not in SCHEDULERS:
            known = [f"{known}LR" for known in SCHEDULERS]
            raise AttributeError(f"no scheduler {name!r}{did_you_mean(name, known)}")
        return lambda optimizer, **keys: LRScheduler(optimizer, {"scheduler": base, **keys})


lr_scheduler = _SchedulerNames()


def __getattr__(name: str) -> Any:
    """``optim.AdamW(params, lr=...)`` for every optimizer."""
    if name not in OPTIMIZERS:
        raise AttributeError(f"no optimizer {name!r}{did_you_mean(name, OPTIMIZERS)}")
    return lambda params, **keys: configure_optimizer(name, params, **keys)
