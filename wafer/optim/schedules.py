"""Learning-rate and weight-decay schedules: pure functions of the optimizer step t = 0, 1, ...

The first optimizer step uses value(0), so a warm-up from 0 makes the first update a no-op, as on
the vendor's machine. Formulas are the vendor's (release 2.x), computed in float32, except where
its code is wrong: a polynomial's ``cycle`` and restarts after the first period work here.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from wafer.optim import schedule_sections as cfg

__all__ = ["ScheduleFn", "make_schedule"]

ScheduleFn = Callable[[ArrayLike], Float[Array, ""]]


def _constant(c: cfg.Constant) -> ScheduleFn:
    return lambda t: jnp.full(jnp.shape(t), c.learning_rate, jnp.float32)


def _polynomial(c: cfg.Polynomial) -> ScheduleFn:
    start, end = c.initial_learning_rate, c.end_learning_rate

    def value(t: Any) -> Array:
        length = jnp.float32(c.total_iters)
        if c.cycle:  # each time the end is reached, a longer descent from `start` begins
            length = length * jnp.maximum(jnp.ceil(t / length), 1)
        left = 1 - jnp.minimum(t / length, 1)
        return end + (start - end) * left**c.power

    return value


def _exponential(c: cfg.Exponential) -> ScheduleFn:
    def value(t: Any) -> Array:
        exponent = t / c.total_iters
        exponent = jnp.floor(exponent) if c.staircase else exponent
        return c.initial_learning_rate * jnp.float32(c.decay_rate) ** exponent

    return value


def _inverse_exponential(c: cfg.InverseExponentialTimeDecay) -> ScheduleFn:
    def value(t: Any) -> Array:
        progress = t**c.step_exponent / c.total_iters
        progress = jnp.floor(progress) if c.staircase else progress
        return c.initial_learning_rate / (1 + c.decay_rate * progress)

    return value


def _inverse_square_root(c: cfg.InverseSquareRootDecay) -> ScheduleFn:
    top = c.initial_learning_rate * c.scale
    return lambda t: top / jnp.sqrt(jnp.maximum(t, c.warmup_steps))


def _half_cosine(start: float, end: float, progress: Any) -> Array:
    return end + (start - end) * 0.5 * (1 + jnp.cos(math.pi * progress))


def _cosine_decay(c: cfg.CosineDecay) -> ScheduleFn:
    start, end, length = c.initial_learning_rate, c.end_learning_rate, c.total_iters
    return lambda t: _half_cosine(start, end, jnp.minimum(t, length) / length)


def _cosine_annealing(c: cfg.CosineAnnealing) -> ScheduleFn:
    return lambda t: _half_cosine(c.initial_learning_rate, c.eta_min, t / c.T_max)


def _warm_restarts(c: cfg.CosineAnnealingWarmRestarts) -> ScheduleFn:
    def value(t: Any) -> Array:
        if c.T_mult == 1:
            progress = (t % c.T_0) / c.T_0
        else:  # period n starts at T_0 (m^n - 1) / (m - 1) and lasts T_0 m^n
            m = c.T_mult
            n = jnp.floor(jnp.log1p(t * (m - 1) / c.T_0) / math.log(m) + 1e-6)
            progress = (t - c.T_0 * (m**n - 1) / (m - 1)) / (c.T_0 * m**n)
        return _half_cosine(c.initial_learning_rate, c.eta_min, progress)

    return value


def _step(c: cfg.Step) -> ScheduleFn:
    return lambda t: c.initial_learning_rate * jnp.float32(c.gamma) ** jnp.floor(t / c.step_size)


def _passed(t: Any, milestones: Sequence[int]) -> Array:
    """Count the milestones at or before step t."""
    return jnp.sum(jnp.asarray(milestones, jnp.float32) <= t[..., None], axis=-1)


def _multi_step(c: cfg.MultiStep) -> ScheduleFn:
    return lambda t: c.initial_learning_rate * jnp.float32(c.gamma) ** _passed(t, c.milestones)


def _piecewise_constant(c: cfg.PiecewiseConstant) -> ScheduleFn:
    values = tuple(c.learning_rates)
    return lambda t: jnp.asarray(values, jnp.float32)[_passed(t, c.milestones)]


def _multiplicative(c: cfg.Multiplicative) -> ScheduleFn:
    return lambda t: c.initial_learning_rate * jnp.float32(c.coefficient) ** t


def _lambda(c: cfg.Lambda) -> ScheduleFn:
    return lambda t: c.initial_learning_rate**2 * (t / 30) * jnp.float32(0.95) ** t


def _cyclic(c: cfg.Cyclic) -> ScheduleFn:
    up, down = c.step_size_up, c.step_size_down or c.step_size_up
    period, ratio = up + down, up / (up + down)

    def value(t: Any) -> Array:
        cycle = jnp.floor(t / period)
        x = t / period - cycle
        height = jnp.where(x <= ratio, x / ratio, (1 - x) / (1 - ratio))
        if c.mode == "triangular2":
            height = height * jnp.float32(0.5) ** cycle
        elif c.mode == "exp_range":
            height = height * jnp.float32(c.gamma) ** t
        return c.base_lr + (c.max_lr - c.base_lr) * height

    return value


def _one_cycle(c: cfg.OneCycle) -> ScheduleFn:
    low, last = c.initial_learning_rate / c.final_div_factor, c.total_steps - 1
    peak = c.pct_start * c.total_steps - 1
    if c.three_phase:
        ends = (peak, 2 * peak, last)
        values = (c.initial_learning_rate, c.max_lr, c.initial_learning_rate, low)
    else:
        ends = (peak, last)
        values = (c.initial_learning_rate, c.max_lr, low)

    def between(start: float, end: float, progress: Any) -> Array:
        if c.anneal_strategy == "cos":
            return _half_cosine(start, end, progress)
        return start + (end - start) * progress

    def value(t: Any) -> Array:
        result, begin = jnp.full(jnp.shape(t), values[0], jnp.float32), 0.0
        for end, first, then in zip(ends, values, values[1:], strict=False):
            progress = jnp.clip((t - begin) / max(end - begin, 1e-9), 0, 1)
            result = jnp.where(t >= begin, between(first, then, progress), result)
            begin = end
        return result

    return value


_MAKERS: dict[type[cfg.Schedule], Callable[[Any], ScheduleFn]] = {
    cfg.Constant: _constant,
    cfg.Linear: _polynomial,
    cfg.Polynomial: _polynomial,
    cfg.Exponential: _exponential,
    cfg.InverseExponentialTimeDecay: _inverse_exponential,
    cfg.InverseSquareRootDecay: _inverse_square_root,
    cfg.CosineDecay: _cosine_decay,
    cfg.CosineAnnealing: _cosine_annealing,
    cfg.CosineAnnealingWarmRestarts: _warm_restarts,
    cfg.Step: _step,
    cfg.MultiStep: _multi_step,
    cfg.PiecewiseConstant: _piecewise_constant,
    cfg.Multiplicative: _multiplicative,
    cfg.Lambda: _lambda,
    cfg.Cyclic: _cyclic,
    cfg.OneCycle: _one_cycle,
}


def make_schedule(spec: Any) -> ScheduleFn:
    """Build the function of a number, a scheduler, or a list of schedulers.

    Args:
        spec: parsed schedules, or anything ``wafer.config.parse_schedules`` takes. The entries
            of a list follow each other, each starting at its own 0 when the one before has run
            its length; with ``main_scheduler: chained`` on the first entry they are multiplied,
            each later one as its ratio to its own value(0).

    Returns:
        t -> [] float32, t an integer step or an array of one.

    Raises:
        ConfigError: see ``parse_schedules``.
        ValueError: a chained entry after the first starts at 0, so that it has no ratio.

    >>> float(make_schedule({"scheduler": "Linear", "initial_learning_rate": 0,
    ...                      "end_learning_rate": 1, "total_iters": 4})(1))
    0.25
    """
    entries = cfg.parse_schedules(spec)
    parts = [_MAKERS[type(entry)](entry) for entry in entries]
    if len(parts) == 1:
        combined = parts[0]
    elif entries[0].main_scheduler == "chained":
        combined = _chained(entries, parts)
    else:
        combined = _sequential(entries, parts)
    return lambda t: jnp.asarray(combined(jnp.asarray(t, jnp.float32)), jnp.float32)


def _sequential(entries: Sequence[cfg.Schedule], parts: Sequence[ScheduleFn]) -> ScheduleFn:
    starts = [0]
    for entry in entries[:-1]:
        starts.append(starts[-1] + (entry.length or 0))

    def value(t: Any) -> Array:
        result = parts[0](t)
        for start, part in zip(starts[1:], parts[1:], strict=True):
            result = jnp.where(t >= start, part(jnp.maximum(t - start, 0)), result)
        return result

    return value


def _chained(entries: Sequence[cfg.Schedule], parts: Sequence[ScheduleFn]) -> ScheduleFn:
    bases = [float(part(jnp.float32(0))) for part in parts]
    for entry, base in zip(entries[1:], bases[1:], strict=True):
        if base == 0:
            raise ValueError(
                f"chained scheduler {entry.scheduler} starts at 0, so its ratio has no meaning; "
                "put it first, or drop main_scheduler: chained"
            )

    def value(t: Any) -> Array:
        result = parts[0](t)
        for part, base in zip(parts[1:], bases[1:], strict=True):
            result = result * (part(t) / base)
        return result

    return value
