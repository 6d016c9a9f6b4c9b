"""The transformations of each optimizer, in order: what stands between clipping and the update."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax

from wafer.errors import ConfigError, Problem
from wafer.models.user.code import call, find
from wafer.optim import optimizers as own, sections
from wafer.optim.sections import Optimizer

Transform = optax.GradientTransformation


class UpdateParts(NamedTuple):
    """Transformations that every optimizer places among its own."""

    decay: Transform  #: adds weight_decay · w to the updates of the parameters that decay
    #: (shape) -> what multiplies by minus the learning rate in force for each parameter;
    #: ``shape(rate, t)`` is the rate that is applied, the rate itself when not given
    rate: Callable[..., Transform]
    #: () -> (parameter name -> its learning rate at step 0)
    first_rate: Callable[[], Callable[[str], float]]


def direction(cfg: Optimizer, parts: UpdateParts) -> list[Transform]:
    """Return the optimizer's transformations in order."""
    return _DIRECTIONS[type(cfg)](cfg, parts)


def _sgd(cfg: sections.SGD, parts: UpdateParts) -> list[Transform]:
    steps = [optax.scale(-1.0 if cfg.maximize else 1.0), parts.decay]
    if cfg.momentum:
        trace = optax.trace(cfg.momentum, nesterov=cfg.nesterov)
        steps += [optax.scale(1 - cfg.dampening), trace]
    return [*steps, parts.rate()]


def _adamw(cfg: sections.AdamW, parts: UpdateParts) -> list[Transform]:
    keys = {"correct_bias": cfg.correct_bias, "amsgrad": cfg.amsgrad}
    return [own.scale_by_adam(*cfg.betas, cfg.eps, **keys), parts.decay, parts.rate()]


def _lamb(cfg: sections.Lamb, parts: UpdateParts) -> list[Transform]:
    """The decay counts in the trust ratio."""
    ratio = optax.identity() if cfg.adam else own.scale_by_trust_ratio()
    adam = own.scale_by_adam(*cfg.betas, cfg.eps, correct_bias=False)
    return [adam, parts.decay, ratio, parts.rate()]


def _rmsprop(cfg: sections.RMSprop, parts: UpdateParts) -> list[Transform]:
    scale = optax.scale_by_stddev if cfg.centered else optax.scale_by_rms
    momentum = [optax.trace(cfg.momentum)] if cfg.momentum else []
    return [parts.decay, scale(cfg.alpha, cfg.eps, eps_in_sqrt=False), *momentum, parts.rate()]


def _asgd(cfg: sections.ASGD, parts: UpdateParts) -> list[Transform]:
    """W decays by lambd and moves by a rate that falls as (1 + lambd · lr · t)^-alpha."""
    shrink = optax.add_decayed_weights(cfg.lambd)
    rate = parts.rate(lambda rate, t: rate / (1 + cfg.lambd * rate * t) ** cfg.alpha)
    return [parts.decay, shrink, rate, own.track_average(cfg.t0)]


def _adagrad(cfg: sections.Adagrad, parts: UpdateParts) -> list[Transform]:
    scale = own.scale_by_adagrad(cfg.initial_accumulator_value, cfg.eps)
    return [parts.decay, scale, parts.rate(lambda rate, t: rate / (1 + t * cfg.lr_decay))]


def _rprop(cfg: sections.Rprop, parts: UpdateParts) -> list[Transform]:
    """The first step size is the learning rate of step 0; later rates are only reported."""
    steps = own.scale_by_rprop(parts.first_rate(), cfg.etas, cfg.step_sizes)
    return [parts.decay, steps, parts.rate(lambda rate, t: 1.0)]


def _adafactor(cfg: sections.Adafactor, parts: UpdateParts) -> list[Transform]:
    """Shazeer and Stern 2018, with clipping at RMS 1."""
    factored = optax.scale_by_factored_rms(
        decay_rate=-cfg.decay_rate, min_dim_size_to_factor=1, epsilon=cfg.eps[0]
    )
    clip = optax.clip_by_block_rms(cfg.clip_threshold)
    scale = [optax.scale_by_param_block_rms(cfg.eps[1])] if cfg.scale_parameter else []
    return [factored, clip, parts.decay, *scale, parts.rate()]


def _user(cfg: sections.UserOptimizer, parts: UpdateParts) -> list[Transform]:
    make = find(cfg.optimizer_type, sections.OPTIMIZERS, "optimizer")
    transform = call(cfg.optimizer_type, make, **dict(cfg.arguments))
    if not isinstance(transform, Transform):
        message = (
            f"{cfg.optimizer_type!r} gave {type(transform).__name__}; expected an "
            "optax.GradientTransformation"
        )
        raise ConfigError([Problem(("optimizer", "optimizer_type"), message)])
    return [transform, parts.decay, parts.rate()]


# The decay before the direction enters the gradient (L2); behind it, it is decoupled.
_DIRECTIONS: Mapping[type[Optimizer], Callable[[Any, UpdateParts], list[Transform]]] = {
    sections.SGD: _sgd,
    sections.Adam: lambda cfg, p: [
        p.decay,
        own.scale_by_adam(*cfg.betas, eps=cfg.eps, amsgrad=cfg.amsgrad),
        p.rate(),
    ],
    sections.AdamW: _adamw,
    sections.Adamax: lambda c, p: [p.decay, optax.scale_by_adamax(*c.betas, eps=c.eps), p.rate()],
    sections.NAdam: lambda cfg, p: [
        p.decay,
        own.scale_by_nadam(*cfg.betas, eps=cfg.eps, momentum_decay=cfg.momentum_decay),
        p.rate(),
    ],
    sections.RAdam: lambda c, p: [p.decay, own.scale_by_radam(*c.betas, eps=c.eps), p.rate()],
    sections.Lamb: _lamb,
    sections.Lion: lambda cfg, p: [optax.scale_by_lion(*cfg.betas), p.decay, p.rate()],
    sections.Adagrad: _adagrad,
    sections.Adadelta: lambda c, p: [p.decay, optax.scale_by_adadelta(c.rho, c.eps), p.rate()],
    sections.RMSprop: _rmsprop,
    sections.ASGD: _asgd,
    sections.Rprop: _rprop,
    sections.Adafactor: _adafactor,
    sections.UserOptimizer: _user,
}
