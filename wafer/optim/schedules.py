"""Schedules as functions of the optimizer step t = 0, 1, ...: one scheduler, or a list of them.

The first optimizer step uses the value at t = 0, so a warm-up from 0 leaves the weights as they are
in the first update. Values are float32. The formulas are ``schedule_sections``'s.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from wafer.errors import ConfigError, Problem
from wafer.optim.schedule_sections import Schedule, by_tags, parse_schedules

ScheduleFn = Callable[[ArrayLike], Float[Array, "..."]]


def make_schedule(spec: object) -> ScheduleFn:
    """Build a function of the step from a number, a scheduler, or a list of schedulers.

    Those of a list follow each other, each starting at its own 0 when the one before has run its
    length. With ``main_scheduler: chained`` on the first they are multiplied, each later one as its
    ratio to its own value at 0, and lengths have no effect.

    Args:
        spec: anything ``parse_schedules`` takes, all of one tag list (see ``by_tags``).

    Returns:
        t -> float32 of t's shape; t is an integer step or an array of steps.

    Raises:
        ConfigError: see ``parse_schedules``; or schedulers of several tag lists.

    >>> float(make_schedule({"scheduler": "Linear", "initial_learning_rate": 0,
    ...                      "end_learning_rate": 1, "total_iters": 4})(1))
    0.25
    """
    entries = parse_schedules(spec)
    if len(tags := by_tags(entries)) > 1:
        lists = " and ".join(f"[{', '.join(names)}]" for names in tags)
        message = f"schedulers of the tags {lists} make no one function; give those of one list"
        raise ConfigError([Problem(("param_group_tags",), message)])
    parts = [functools.partial(entry.value, xp=jnp) for entry in entries]
    is_chained = entries[0].main_scheduler == "chained"
    combined = _chained(parts) if is_chained else _sequential(entries, parts)
    return lambda t: jnp.asarray(combined(jnp.asarray(t, jnp.float32)), jnp.float32)


def _sequential(entries: Sequence[Schedule], schedules: Sequence[ScheduleFn]) -> ScheduleFn:
    lengths = (entry.length for entry in entries[:-1])  # ``parse_schedules`` refuses None
    starts = list(itertools.accumulate(length for length in lengths if length is not None))

    def value(t: Any) -> Array:
        result = schedules[0](t)
        for start, part in zip(starts, schedules[1:], strict=True):
            result = jnp.where(t >= start, part(jnp.maximum(t - start, 0)), result)
        return result

    return value


def _chained(schedules: Sequence[ScheduleFn]) -> ScheduleFn:
    def value(t: Any) -> Array:
        result = schedules[0](t)
        for part in schedules[1:]:
            result = result * (part(t) / part(jnp.float32(0)))
        return result

    return value
