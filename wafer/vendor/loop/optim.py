"""Optimizers of a loop, with the vendor's arithmetic and the names of ``torch.optim``."""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from wafer.config import OPTIMIZERS, SCHEDULERS, parse_optimizer, parse_schedules
from wafer.errors import ConfigError
from wafer.loop.elsewhere import ELSEWHERE, explain
from wafer.loop.machine import Backend
from wafer.loop.tracing.model import CompiledModel, Gradients, Parameter, Parameters, model_of
from wafer.models.checkpoint.tree import fill_template, to_tree
from wafer.models.errors import did_you_mean
from wafer.models.user.yamlfile import YamlMapping
from wafer.optim.chain import RateState, learning_rates, make_optimizer
from wafer.optim.precision import keep_if_finite
from wafer.optim.schedules import make_schedule
from wafer.vendor import runfile

_LOG = logging.getLogger(__name__)


class Optimizer:
    """What every optimizer of a loop is; a user's own derives from it, as in PyTorch.

    A subclass calls ``super().__init__(params, defaults)`` and writes ``step``, in which
    ``p.grad`` is a parameter's gradient, ``p.value = ...`` assigns it, ``self.state[p]`` holds its
    arrays by name, and ``group["lr"]`` is the rate in force. ``preinitialize`` fills the state.

    Args:
        params: ``model.parameters()``, a list of them, or a list of groups, mappings with
            ``params`` and the keys that differ.
        defaults: keys of every group.

    Raises:
        TypeError: params of something else.
        ValueError: no parameters, or those of several models.
    """

    def __init__(self, params: object, defaults: Mapping[str, object] | None = None) -> None:
        self.model, self._groups = _grouped(params)
        self.defaults = dict(defaults or {})
        self._backend: Backend = self.model.backend
        self._loaded: Mapping[str, Any] | None = None
        self._rates: list[Array] = []
        self.sparsity: Any = None
        self.scheduler: LRScheduler | None = None
        self.slot = self._backend.register(self, "optimizer")

    def __init_subclass__(cls, **keys: Any) -> None:
        """Put what belongs to every step around the subclass's ``step``."""
        super().__init_subclass__(**keys)
        if "step" in vars(cls):
            cls.step = _whole_step(cls.step)

    def preinitialize(self) -> None:
        """Fill ``self.state``; the base class keeps none."""

    def step(self, *args: Any, **keys: Any) -> None:
        """Update the parameters, inside a traced step.

        Every ``step`` takes ``finite`` as well, [] bool: where it is false, parameters and state
        stay as they are.
        """
        raise NotImplementedError(f"{type(self).__name__} needs step(), the update")

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups: their parameters, the defaults, and the keys that differ.

        Raises:
            RuntimeError: a Linen module that has not seen an input yet.
        """
        everything = {"params": list(self.model.parameters())} if self._groups is None else {}
        groups = [{**self.defaults, **everything, **group} for group in self._groups or [{}]]
        for group, rate in zip(groups, self._rates, strict=False):
            group["lr"] = rate
        return groups

    def follow(self, scheduler: "LRScheduler") -> None:
        """Take the learning rate from a scheduler from now on."""
        self.scheduler = scheduler

    def prepare(self) -> None:
        """Make the state when the model has parameters."""
        if self.model.ready and self.slot not in self._backend.state:
            self._backend.state[self.slot] = {}
            self.preinitialize()
            if self.sparsity is not None:
                self.sparsity.mask_moments(self)
        if self._loaded is not None and self.slot in self._backend.state:
            tree, self._loaded = self._loaded, None
            filled = fill_template(self.arrays, tree, "the state dict", "optimizer/")
            self.arrays = jax.tree.map(jnp.asarray, filled)

    @property
    def arrays(self) -> PyTree:
        """The state as a tree.

        Raises:
            RuntimeError: before the first step.
        """
        if self.slot not in self._backend.state:
            raise RuntimeError("the optimizer has no state before the first step")
        return self._backend.state[self.slot]

    @arrays.setter
    def arrays(self, value: PyTree) -> None:
        self._backend.state[self.slot] = value

    @property
    def state(self) -> Any:
        """The state: parameter -> its arrays by name."""
        return ParameterState(self.arrays)

    @state.setter
    def state(self, value: object) -> None:
        self.arrays = value.arrays if isinstance(value, ParameterState) else value

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

    def state_dict(self) -> dict[str, PyTree]:
        """Copy the state to the host, as a nested dict."""
        return to_tree(self.arrays)

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Replace the state; waits until there is one.

        Raises:
            CheckpointError: (at the next step at the latest) it is of another optimizer.
        """
        self._loaded = tree
        self.prepare()


class ParameterState:
    """The arrays of a user's optimizer: ``state[p]["momentum"]``, read and assigned.

    Args:
        arrays: parameter name -> array name -> array [...].
    """

    def __init__(self, arrays: dict[str, dict[str, Array]]) -> None:
        self.arrays = arrays

    def __getitem__(self, parameter: Parameter) -> dict[str, Array]:
        """Return the arrays of a parameter, which may be none yet."""
        return self.arrays.setdefault(parameter.name, {})

    def __setitem__(self, parameter: Parameter, arrays: dict[str, Array]) -> None:
        self.arrays[parameter.name] = arrays


def _grouped(params: Any) -> tuple[CompiledModel, list[dict[str, Any]] | None]:
    """Return the model and the groups of an optimizer's parameters; None is one group of all."""
    if isinstance(params, Parameters):
        return params.model, None
    entries = list(params) if isinstance(params, Iterable) else [params]
    if not entries or not isinstance(entries[0], Mapping):
        entries = [{"params": entries}]
    groups, models = [], []
    for entry in entries:
        listed = list(entry["params"])  # read once: it may be an iterator
        models.append(model_of(listed)[0])
        groups.append({**entry, "params": listed})
    if any(model is not models[0] for model in models):
        raise ValueError("an optimizer takes the parameters of one model; make one for each")
    return models[0], groups


def _whole_step(step: Callable[..., None]) -> Callable[..., None]:
    """Let an optimizer's ``step`` follow schedulers, skip non-finite gradients, and stay sparse."""

    @functools.wraps(step)
    def whole(self: Optimizer, *args: object, finite: Array | bool = True) -> None:
        params, state = self.model.params, copied(self.arrays)
        self._rates = [] if self.scheduler is None else self.scheduler.rates()
        step(self, *args)
        self._rates = []
        if finite is not True:
            new, self.arrays = keep_if_finite(
                jnp.asarray(finite), (self.model.params, self.arrays), (params, state)
            )
            self.model.set_params(new)
        if self.scheduler is not None:
            self.scheduler.finite = finite
        if self.sparsity is not None:
            self.sparsity.update(self, finite)

    copied = functools.partial(jax.tree.map, lambda leaf: leaf)
    return whole


def _core(section: Mapping[str, object]) -> YamlMapping:
    """Return an ``optimizer`` section in the words of ``wafer config keys``."""
    file = runfile.read({"optimizer": section})
    if file.problems:
        raise ConfigError([problem._replace(path=problem.path[1:]) for problem in file.problems])
    for line in file.lines:
        _LOG.warning("%s", line)
    return file.sections["optimizer"]


class SectionOptimizer(Optimizer):
    """An optimizer of an ``optimizer`` section, with the vendor's arithmetic.

    Args:
        params: as ``Optimizer``'s; groups may differ in ``lr`` and ``weight_decay``, and then
            say themselves what decays.
        section: keys of an ``optimizer`` section; ``lr`` means ``learning_rate``.

    Raises:
        ConfigError: a wrong key or value.
        TypeError: params of something else.
        ValueError: groups that differ in other keys.
    """

    def __init__(self, params: object, section: Mapping[str, object]) -> None:
        given = {"learning_rate": 1e-3, **section}
        keys = _core({"learning_rate": given.pop("lr", given.pop("learning_rate")), **given})
        super().__init__(params, {**keys, "lr": keys["learning_rate"]})
        self._keys = keys | self._by_group(keys)
        self.section = parse_optimizer(self._keys)
        self.tx: optax.GradientTransformation = optax.identity()

    def _by_group(self, keys: Mapping[str, object]) -> YamlMapping:
        """Write groups as tags of parameters with schedules of their own."""
        if self._groups is None:
            return {}
        wrong = sorted({key for group in self._groups for key in group} - _GROUP_KEYS)
        if wrong:
            raise ValueError(
                f"a parameter group has {', '.join(wrong)}; groups may differ in lr and "
                "weight_decay; make an optimizer of your own for other keys"
            )
        names = {p.name for group in self._groups for p in group["params"]}
        missing = [p.name for p in self.model.parameters() if p.name not in names]
        if missing:
            raise ValueError(
                f"no group has {missing[0]} ({len(missing)} parameters); add one with lr 0.0 for "
                "parameters that stay as they are"
            )
        tags = [
            {"params": p.name, "tag": f"group_{i}"}
            for i, group in enumerate(self._groups)
            for p in group["params"]
        ]
        names = {"learning_rate": "lr", "weight_decay": "weight_decay"}
        # One constant per group: the first is everybody's, the others are for their tag.
        tag = lambda i: {"param_group_tags": [f"group_{i}"]} if i else {}
        schedules = {
            key: [
                {"scheduler": "Constant", "learning_rate": group.get(name, keys.get(key, 0.0))}
                | tag(i)
                for i, group in enumerate(self._groups)
            ]
            for key, name in names.items()
        }
        return {"params": tags, **schedules}

    def follow(self, scheduler: "LRScheduler") -> None:
        """Take the learning rate from a scheduler from now on.

        Raises:
            RuntimeError: training has begun.
        """
        if self.slot in self._backend.state:
            raise RuntimeError("attach the learning-rate scheduler before the first step")
        super().follow(scheduler)
        self.section = parse_optimizer({**self._keys, "learning_rate": scheduler.spec})

    def preinitialize(self) -> None:
        """Make the transformation and its state."""
        params, all_decay = self.model.params, self._groups is not None
        self.tx = make_optimizer(self.section, params, self.model.alias, all_decay=all_decay)
        self.arrays = jax.jit(self.tx.init)(params)

    @property
    def state(self) -> Any:
        """The optax state."""
        return self.arrays

    @state.setter
    def state(self, value: object) -> None:
        self.arrays = value

    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update the parameters, inside a traced step.

        Raises:
            RuntimeError: ``backward`` was not called.
        """
        old, state = self.model.params, self.arrays
        if self.scheduler is not None:
            state = self.scheduler.put_into(state)
        updates, self.arrays = self.tx.update(Gradients(self.model).kept, state, old)
        self.model.set_params(jax.tree.map(lambda w, u: (w + u).astype(w.dtype), old, updates))

    @property
    def learning_rate(self) -> Array:
        """[] float32 rate of the last step."""
        return learning_rates(self.arrays)[0]


_GROUP_KEYS = {"params", "lr", "weight_decay", "tags", "name"}


class LRScheduler:
    """A learning-rate schedule advanced by ``step``; the first step uses its value at 0.

    Args:
        optimizer: follows it.
        learning_rate: a schedule of an ``optimizer`` section: mapping, or list in sequence.

    Raises:
        ConfigError: not a schedule.
    """

    def __init__(self, optimizer: Optimizer, learning_rate: object) -> None:
        self.spec = _core({"learning_rate": learning_rate})["learning_rate"]
        self._value = make_schedule(parse_schedules(self.spec))
        self.optimizer = optimizer
        self.finite: Array | bool = True
        self._backend = optimizer.model.backend
        self.slot = self._backend.register(self, "lr_scheduler")
        optimizer.follow(self)

    def prepare(self) -> None:
        """Begin at 0."""
        self._backend.state.setdefault(self.slot, jnp.int32(0))

    def step(self) -> None:
        """Go on by one, unless the optimizer skipped its step for non-finite gradients."""
        finite, self.finite = self.finite, True
        self._backend.state[self.slot] += jnp.asarray(finite, jnp.int32)

    def rates(self) -> list[Array]:
        """Return the rate of each of the optimizer's groups, [] float32, at this position."""
        self.prepare()
        return [self._value(self._backend.state[self.slot])] * len(self.optimizer._groups or [{}])

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group as numbers, outside a traced step."""
        return [float(rate) for rate in self.rates()]

    def put_into(self, state: PyTree) -> PyTree:
        """Put the schedule's position into an optimizer's state."""
        at = self._backend.state[self.slot]
        is_rate = lambda node: isinstance(node, RateState)
        place = lambda node: node._replace(step=at) if is_rate(node) else node
        return jax.tree.map(place, state, is_leaf=is_rate)

    def state_dict(self) -> dict[str, PyTree]:
        """Where it stands."""
        self.prepare()
        return {"step": int(self._backend.state[self.slot])}

    def load_state_dict(self, tree: Mapping[str, object]) -> None:
        """Go on from there."""
        self._backend.state[self.slot] = jnp.int32(tree["step"])


def configure_optimizer(optimizer_type: str, params: object, **kwargs: object) -> SectionOptimizer:
    """Make an optimizer by its name.

    Args:
        optimizer_type: 'SGD', 'AdamW', ...: any of ``wafer.config.OPTIMIZERS``.
        params: ``model.parameters()``, a list of them, or a list of groups.
        kwargs: keys of an ``optimizer`` section, ``lr`` or ``learning_rate`` among them.

    Raises:
        ConfigError: unknown optimizer or key.
    """
    return SectionOptimizer(params, {"optimizer_type": optimizer_type, **kwargs})


def configure_lr_scheduler(optimizer: Optimizer, learning_rate: object) -> LRScheduler | None:
    """Attach the schedule of a ``learning_rate`` key; None for a plain number.

    Raises:
        ConfigError: not a schedule.
    """
    if isinstance(learning_rate, int | float | str):
        return None
    return LRScheduler(optimizer, learning_rate)


class _SchedulerNames:
    """``lr_scheduler.LinearLR(optimizer, ...)`` for every schedule, and ``SequentialLR``."""

    LRScheduler = LRScheduler

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
        specs = [scheduler.spec for scheduler in schedulers]
        lengths = [entry.length or 0 for entry in parse_schedules(specs)]
        ends = [sum(lengths[: i + 1]) for i in range(len(lengths) - 1)]
        if milestones and list(milestones) != ends:
            raise ValueError(
                f"SequentialLR: milestones {list(milestones)}, but the schedules' total_iters end "
                f"at {ends}"
            )
        for scheduler in schedulers:
            scheduler._backend.parts.remove(scheduler)
        return LRScheduler(optimizer, specs)

    def __getattr__(self, name: str) -> Any:
        """Make one schedule by its name."""
        if f"optim.lr_scheduler.{name}" in ELSEWHERE:
            explain(f"{__name__}.lr_scheduler", name)
        base = name.removesuffix("LR")
        if base not in SCHEDULERS:
            known = [f"{known}LR" for known in SCHEDULERS]
            raise AttributeError(f"no scheduler {name!r}{did_you_mean(name, known)}")
        return lambda optimizer, **keys: LRScheduler(optimizer, {"scheduler": base, **keys})


lr_scheduler = _SchedulerNames()


def __getattr__(name: str) -> Any:
    """``optim.AdamW(params, lr=...)`` for every optimizer."""
    if f"optim.{name}" in ELSEWHERE:
        explain(__name__, name)
    if name not in OPTIMIZERS:
        raise AttributeError(f"no optimizer {name!r}{did_you_mean(name, OPTIMIZERS)}")
    return lambda params, **keys: configure_optimizer(name, params, **keys)
