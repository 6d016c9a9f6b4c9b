"""Values that change with the step: sparsity levels, drop fractions, and when to update.

The forms and their arithmetic (float32, integer step) are those of the vendor's 2.x package. A
hyper-parameter schedule is called with the step and its list index; only ``Cycling`` reads the
index, which advances by one at every due update and wraps to the start.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

__all__ = [
    "NEVER",
    "Constant",
    "Cosine",
    "Custom",
    "CustomUpdate",
    "Cycling",
    "Every",
    "Exponential",
    "Linear",
    "Power",
    "Schedule",
    "UpdateSchedule",
    "UpdateSteps",
    "is_constant",
]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Base of all hyper-parameter schedules: a hashable function of step and list index."""

    length = 1  # how many list positions the index walks through

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the float32 value at ``step``; ``index`` is the list position."""
        raise TypeError(f"{type(self).__name__} must define __call__(step, index)")

    def min_max_end(self, start: int = 0, stop: int = 100_000) -> tuple[float, float, float]:
        """Return the least, the greatest and the last value over ``start <= step <= stop``."""
        values = [float(self(t)) for t in self._turning_points(start, stop)]
        return min(values), max(values), values[-1]

    def _turning_points(self, start: int, stop: int) -> list[int]:
        return [start, stop]  # monotone between


@dataclasses.dataclass(frozen=True)
class Constant(Schedule):
    """The same value at every step."""

    value: float

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return ``value``."""
        del step, index
        return jnp.float32(self.value)


@dataclasses.dataclass(frozen=True)
class Linear(Schedule):
    """``init + step * slope``."""

    init: float
    slope: float

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the value at ``step``."""
        del index
        return jnp.float32(self.init) + jnp.float32(step) * jnp.float32(self.slope)


@dataclasses.dataclass(frozen=True)
class Exponential(Schedule):
    """``final - (final - init) * exp(step * gamma)``; converges to ``final`` for gamma < 0."""

    init: float
    gamma: float
    final: float = 1.0

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the value at ``step``."""
        del index
        decay = jnp.exp(jnp.float32(step) * jnp.float32(self.gamma))
        return jnp.float32(self.final) - jnp.float32(self.final - self.init) * decay


@dataclasses.dataclass(frozen=True)
class Power(Schedule):
    """``init * beta ** step``."""

    init: float
    beta: float

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the value at ``step``."""
        del index
        return jnp.float32(self.init) * jnp.power(jnp.float32(self.beta), jnp.float32(step))


@dataclasses.dataclass(frozen=True)
class Cosine(Schedule):
    """From ``init`` to ``minimum`` in ``half_period`` steps, and back up after that."""

    init: float
    half_period: float
    minimum: float = 0.0

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the value at ``step``."""
        del index
        middle = jnp.float32((self.init + self.minimum) / 2)
        angle = jnp.float32(step) * jnp.float32(math.pi / self.half_period)
        return middle + (jnp.float32(self.init) - middle) * jnp.cos(angle)

    def _turning_points(self, start: int, stop: int) -> list[int]:
        # Extremes lie at multiples of the half period; a whole period shows both.
        first = math.ceil(start / self.half_period)
        turns = [round(self.half_period * (first + i)) for i in range(2)]
        return [start, *(t for t in turns if start <= t <= stop), stop]


@dataclasses.dataclass(frozen=True)
class Cycling(Schedule):
    """Discrete values, the next one at each due update, wrapping to the first."""

    values: tuple[float, ...]

    @property
    def length(self) -> int:
        """Number of values the index walks through."""
        return len(self.values)

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return ``values[index]``; the step plays no part."""
        del step
        return jnp.asarray(self.values, jnp.float32)[index]

    def min_max_end(self, start: int = 0, stop: int = 100_000) -> tuple[float, float, float]:
        """Return the least, the greatest and the last listed value."""
        del start, stop
        return min(self.values), max(self.values), self.values[-1]


@dataclasses.dataclass(frozen=True)
class Custom(Schedule):
    """A user's function of the step (an int32 scalar, traced under jit)."""

    fn: Callable[[Any], Any]

    def __call__(self, step: Any, index: Any = 0) -> Array:
        """Return the function's value as float32."""
        del index
        return jnp.asarray(self.fn(step), jnp.float32)

    def _turning_points(self, start: int, stop: int) -> list[int]:
        return [*range(start, stop, max(1, (stop - start) // 64)), stop]  # sampled


def is_constant(schedule: Schedule) -> bool:
    """True when the value can never change."""
    return isinstance(schedule, Constant)


@dataclasses.dataclass(frozen=True)
class UpdateSchedule:
    """Base of the rules that say at which steps a topology is updated."""

    def __call__(self, step: Any) -> Any:
        """Return whether ``step`` is due: bool for an int, a boolean scalar for a traced step."""
        raise TypeError(f"{type(self).__name__} must define __call__(step)")


@dataclasses.dataclass(frozen=True)
class Every(UpdateSchedule):
    """Due when ``(step - start) % freq == 0`` and ``start <= step < stop``."""

    freq: int = 1
    start: int = 0
    stop: int | None = None

    def __call__(self, step: Any) -> Any:
        """Return whether ``step`` is due."""
        due = ((step - self.start) % self.freq == 0) & (step >= self.start)
        return due if self.stop is None else due & (step < self.stop)


@dataclasses.dataclass(frozen=True)
class UpdateSteps(UpdateSchedule):
    """Due at the listed steps only."""

    steps: tuple[int, ...]

    def __call__(self, step: Any) -> Any:
        """Return whether ``step`` is listed."""
        if isinstance(step, int):
            return step in self.steps
        return jnp.any(step == jnp.asarray(self.steps, jnp.int32))


@dataclasses.dataclass(frozen=True)
class CustomUpdate(UpdateSchedule):
    """A user's predicate of the step; must accept a traced int32 scalar and a Python int."""

    fn: Callable[[Any], Any]

    def __call__(self, step: Any) -> Any:
        """Return whether ``step`` is due."""
        return self.fn(step)


NEVER = UpdateSteps(())
