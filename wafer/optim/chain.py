"""From the ``optimizer`` section to one optax transformation.

The order: clip, L2 decay where the optimizer has that form, the optimizer's own
direction (``directions``), decoupled decay, then the learning rate in force for each parameter
group.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PyTree as Tree

from wafer.models.once import computed_once
from wafer.models.paths import map_named
from wafer.optim import optimizers as own
from wafer.optim.directions import UpdateParts, direction
from wafer.optim.freeze import train_outliers
from wafer.optim.groups import ParamGroups, make_groups, split_by_tags
from wafer.optim.rules import ParamRule, WithParamRules
from wafer.optim.schedule_sections import Schedule
from wafer.optim.schedules import ScheduleFn, make_schedule
from wafer.optim.sections import Optimizer, parse_optimizer

Transform = optax.GradientTransformation
Rate = Callable[[Array, Array], Array]  # (learning rate, t) -> the rate that is applied


class RateState(NamedTuple):
    """What the last update used."""

    step: Int[Array, ""]  #: [] int32 finished steps
    #: [G] float32, one for each tag list with schedules of its own; [0] is all others'
    learning_rate: Float[Array, " G"]


class DecayState(NamedTuple):
    """step: [] int32 finished steps."""

    step: Int[Array, ""]


class _Tagged(NamedTuple):
    """Schedules by group: index 0 is everybody's, i + 1 that of the i-th tag list."""

    values: tuple[ScheduleFn, ...]
    tags: tuple[tuple[str, ...], ...]

    def at(self, t: Array) -> Float[Array, " G"]:
        return jnp.stack([value(t) for value in self.values])


def _tagged(entries: tuple[Schedule, ...]) -> _Tagged:
    plain, tagged = split_by_tags(entries)
    return _Tagged(tuple(map(make_schedule, (plain, *tagged.values()))), tuple(tagged))


def _is_zero(entries: tuple[Schedule, ...]) -> bool:
    return all(getattr(entry, "learning_rate", None) == 0 for entry in entries)


def _decay(cfg: Optimizer, groups: ParamGroups) -> Transform:
    """Add weight_decay · w to the updates of the parameters that decay."""
    if _is_zero(cfg.weight_decay):
        return optax.identity()
    schedules = _tagged(cfg.weight_decay)

    def init(params: Tree) -> DecayState:
        del params
        return DecayState(jnp.int32(0))

    def update(updates: Tree, state: DecayState, params: Tree = None) -> tuple[Tree, DecayState]:
        strength = computed_once(schedules.at, state.step)

        def leaf(name: str, u: Array, w: Array) -> Array:
            if not groups.decays(name):
                return u
            return u + strength[groups.schedule_of(name, schedules.tags)].astype(w.dtype) * w

        return map_named(leaf, updates, params), DecayState(state.step + 1)

    return Transform(init, update)  # pyright: ignore[reportArgumentType]


def _rate(schedules: _Tagged, groups: ParamGroups, shape: Rate = lambda rate, t: rate) -> Transform:
    """Multiply by minus the learning rate of each parameter's group, and remember it."""

    def init(params: Tree) -> RateState:
        del params
        return RateState(jnp.int32(0), schedules.at(jnp.int32(0)))

    def update(updates: Tree, state: RateState, params: Tree = None) -> tuple[Tree, RateState]:
        del params
        rates, t = computed_once(schedules.at, state.step), state.step.astype(jnp.float32)

        def leaf(name: str, u: Array) -> Array:
            rate = rates[groups.schedule_of(name, schedules.tags)] * groups.factor(name)
            return (-shape(rate, t) * u).astype(u.dtype)

        new = RateState(state.step + 1, rates)
        return map_named(leaf, updates), new

    return Transform(init, update)  # pyright: ignore[reportArgumentType]


def _parts(cfg: Optimizer, groups: ParamGroups) -> UpdateParts:
    rates = _tagged(cfg.learning_rate)

    def first_rate() -> Callable[[str], float]:
        values = [float(value(0)) for value in rates.values]
        return lambda name: values[groups.schedule_of(name, rates.tags)] * groups.factor(name)

    return UpdateParts(_decay(cfg, groups), functools.partial(_rate, rates, groups), first_rate)


def make_optimizer(
    cfg: object,
    params: Tree = None,
    alias: Callable[[str], str] = lambda name: name,
    *,
    clip: bool = True,
    all_decay: bool = False,
) -> WithParamRules:
    """Build the optimizer of a run.

    Args:
        cfg: a parsed ``optimizer`` section, or the mapping of one.
        params: parameters or shapes (``jax.eval_shape``); group globs are checked against their
            names. None skips the check.
        alias: parameter name -> another name that globs may match.
        clip: apply ``max_gradient_norm`` or ``max_gradient_value``. A weight-streaming run,
            which sees one layer at a time, clips by norm itself (``optimizers.clip_factor``).
        all_decay: weight decay acts on biases and norms, too.

    Returns:
        An optax transformation that declares its rules; ``update`` needs ``params``. States have
        the shape of the parameter they belong to, so the kept values of sparse weights work,
        except where ``cfg.needs_dense``.

    Raises:
        ConfigError: a wrong section, or a group that matches no parameter.

    >>> tx = make_optimizer({"optimizer_type": "SGD", "learning_rate": 0.5})
    >>> w = {"w": jnp.ones(2)}
    >>> updates, _ = tx.update(w, tx.init(w), w)
    >>> updates["w"].tolist()
    [-0.5, -0.5]
    """
    section = cfg if isinstance(cfg, Optimizer) else parse_optimizer(cfg)
    groups = make_groups(section, params, alias, all_decay=all_decay)
    tx = optax.chain(*direction(section, _parts(section, groups)))
    if clip and section.max_gradient_norm is not None:
        tx = optax.chain(own.clip_by_norm(section.max_gradient_norm), tx)
    elif clip and section.max_gradient_value is not None:
        tx = optax.chain(optax.clip(section.max_gradient_value), tx)
    if groups.selective:  # before clipping
        tx = train_outliers(tx, groups.trains_outliers)
    return WithParamRules(tx, _rules(section, groups))


def _rules(section: Optimizer, groups: ParamGroups) -> Callable[[str], ParamRule]:
    """Declare what the builders look up by name: ``_rate`` and ``_decay``."""
    rates = tuple(split_by_tags(section.learning_rate)[1])
    decays = tuple(split_by_tags(section.weight_decay)[1])
    has_decay = not _is_zero(section.weight_decay)

    def rule(name: str) -> ParamRule:
        decay = groups.schedule_of(name, decays) if has_decay and groups.decays(name) else None
        only = groups.trains_outliers(name, ndim=2)
        return ParamRule(groups.schedule_of(name, rates), groups.factor(name), decay, only)

    return rule


def learning_rates(opt_state: Tree) -> Float[Array, " G"]:
    """Learning rates the last update used: [0] everybody's, then one per tag list.

    Args:
        opt_state: state of ``make_optimizer``, alone or inside any other optax state.

    Raises:
        ValueError: the state is of another optimizer.
    """
    is_rate = lambda node: isinstance(node, RateState)
    states = [s for s in jax.tree.leaves(opt_state, is_leaf=is_rate) if is_rate(s)]
    if not states:
        raise ValueError("no learning rate in this state; it is not of make_optimizer")
    return states[0].learning_rate
