"""Schedules as functions of the optimizer step t = 0, 1, ...: one scheduler, or a list of them.

The first optimizer step uses value(0), so a warm-up from 0 makes the first update a no-op.
Values are float32. The formulas are ``schedule_sections``'s.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from wafer.optim.schedule_sections import Schedule, parse_schedules

ScheduleFn = Callable[[ArrayLike], Float[Array, ""]]


def make_schedule(spec: object) -> ScheduleFn:
    """Build the function of a number, a scheduler, or a list of schedulers.

    Args:
        spec: anything ``wafer.config.parse_schedules`` takes; see ``compose``.

    Returns:
        t -> [] float32, t an integer step or an array of one.

    Raises:
        ConfigError: see ``parse_schedules``.
        ValueError: a chained entry after the first starts at 0, so that it has no ratio.

    >>> float(make_schedule({"scheduler": "Linear", "initial_learning_rate": 0,
    ...                      "end_learning_rate": 1, "total_iters": 4})(1))
    0.25
    """
    return compose(parse_schedules(spec))


def compose(entries: Sequence[Schedule]) -> ScheduleFn:
    """Build the function of parsed schedules.

    They follow each other, each starting at its own 0 when the one before has run its length; with
    ``main_scheduler: chained`` on the first they are multiplied, each later one as its ratio to its
    own value(0).
    """
    parts = [functools.partial(entry.value, xp=jnp) for entry in entries]
    if len(parts) == 1:
        combined = parts[0]
    elif entries[0].main_scheduler == "chained":
        combined = _chained(entries, parts)
    else:
        combined = _sequential(entries, parts)
    return lambda t: jnp.asarray(combined(jnp.asarray(t, jnp.float32)), jnp.float32)


def _sequential(entries: Sequence[Schedule], parts: Sequence[ScheduleFn]) -> ScheduleFn:
    starts = [0]
    for entry in entries[:-1]:
        starts.append(starts[-1] + (entry.length or 0))

    def value(t: Any) -> Array:
        result = parts[0](t)
        for start, part in zip(starts[1:], parts[1:], strict=True):
            result = jnp.where(t >= start, part(jnp.maximum(t - start, 0)), result)
        return result

    return value


def _chained(entries: Sequence[Schedule], parts: Sequence[ScheduleFn]) -> ScheduleFn:
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
