"""Values that change with the step: sparsity levels, drop fractions, and when to update.

Arithmetic is float32, steps are integers: levels decide exact counts of weights. Values may be
scalars that JAX traces where all arithmetic on them is float32, so that they give the counts that
numbers give. A
hyper-parameter schedule is called with the step and its list index; only ``Cycling`` reads the
index, which advances by one at every due update and wraps to the start. ``schedule`` and
``update_schedule`` build them from what users write.
"""

import contextlib
import dataclasses
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pydantic
from jaxtyping import Array, ArrayLike

from wafer.models.sections import LARGEST_FLOAT, Section
from wafer.sparsity.schema import (
    SCALARS,
    Place,
    SparsityError,
    as_number,
    check_level,
    is_traced,
    validate,
)


@dataclasses.dataclass(frozen=True)
class ValueSchedule:
    """Base of all hyper-parameter schedules: a hashable function of step and list index."""

    length = 1  # how many list positions the index walks through

    def __call__(self, step: ArrayLike, index: ArrayLike = 0) -> Array:
        """Return the float32 value at ``step``; ``index`` is the list position."""
        del index
        return self._value(step)

    def _value(self, step: ArrayLike) -> Array:
        raise TypeError(f"{type(self).__name__} must define __call__(step, index)")

    @property
    def traced(self) -> bool:
        """True when a value is an argument of the function that JAX traces."""
        return any(map(is_traced, jax.tree.leaves([*vars(self).values()])))

    def first_level(self) -> Array:
        """Return the float32 level at step 0, in [0, 1]; known under a trace unless ``traced``."""
        with contextlib.nullcontext() if self.traced else jax.ensure_compile_time_eval():
            return jnp.clip(self(0), 0, 1)

    def at(self, step: int, index: int = 0) -> float:
        """Return the value at ``step`` as a number, under a trace as well.

        Raises:
            SparsityError: it is ``traced``.
        """
        if self.traced:
            raise SparsityError(needs_number("its value is needed outside the program"))
        with jax.ensure_compile_time_eval():
            return float(self(step, index))

    def min_max_end(self, start: int = 0, stop: int = 100_000) -> tuple[float, float, float]:
        """Return the least, the greatest and the last value over ``start <= step <= stop``."""
        values = [self.at(t) for t in self._turning_points(start, stop)]
        return min(values), max(values), values[-1]

    def _turning_points(self, start: int, stop: int) -> list[int]:
        return [start, stop]  # monotone between


@dataclasses.dataclass(frozen=True)
class ConstantValue(ValueSchedule):
    """The same value at every step."""

    value: ArrayLike

    def _value(self, step: ArrayLike) -> Array:
        del step
        return jnp.float32(self.value)

    def at(self, step: int, index: int = 0) -> float:
        """Return the value, without JAX: a file is read before its devices are chosen."""
        return super().at(step, index) if self.traced else np.asarray(self.value, np.float32).item()


@dataclasses.dataclass(frozen=True)
class LinearValue(ValueSchedule):
    """``init + step * slope``."""

    init: ArrayLike
    slope: ArrayLike

    def _value(self, step: ArrayLike) -> Array:
        return jnp.float32(self.init) + jnp.float32(step) * jnp.float32(self.slope)


@dataclasses.dataclass(frozen=True)
class ExponentialValue(ValueSchedule):
    """``final - (final - init) * exp(step * gamma)``; converges to ``final`` for gamma < 0."""

    init: float
    gamma: float
    final: float = 1.0

    def _value(self, step: ArrayLike) -> Array:
        decay = jnp.exp(jnp.float32(step) * jnp.float32(self.gamma))
        return jnp.float32(self.final) - jnp.float32(self.final - self.init) * decay


@dataclasses.dataclass(frozen=True)
class Power(ValueSchedule):
    """``init * beta ** step``."""

    init: ArrayLike
    beta: ArrayLike

    def _value(self, step: ArrayLike) -> Array:
        return jnp.float32(self.init) * jnp.power(jnp.float32(self.beta), jnp.float32(step))


@dataclasses.dataclass(frozen=True)
class Cosine(ValueSchedule):
    """From ``init`` to ``minimum`` in ``half_period`` steps, and back up after that."""

    init: float
    half_period: float
    minimum: float = 0.0

    def _value(self, step: ArrayLike) -> Array:
        middle = jnp.float32((self.init + self.minimum) / 2)
        angle = jnp.float32(step) * jnp.float32(math.pi / self.half_period)
        return middle + (jnp.float32(self.init) - middle) * jnp.cos(angle)

    def _turning_points(self, start: int, stop: int) -> list[int]:
        # Extremes lie at multiples of the half period; a whole period shows both.
        first = math.ceil(start / self.half_period)
        turns = [round(self.half_period * (first + i)) for i in range(2)]
        return [start, *(t for t in turns if start <= t <= stop), stop]


@dataclasses.dataclass(frozen=True)
class Cubic(ValueSchedule):
    """From ``init`` to ``final`` between two steps, ever more slowly (Zhu & Gupta 2017)."""

    stop: float
    final: ArrayLike
    init: ArrayLike = 0.0
    start: float = 0.0

    def _value(self, step: ArrayLike) -> Array:
        passed = (jnp.float32(step) - self.start) / (self.stop - self.start)
        left = 1 - jnp.clip(passed, 0, 1)
        final = jnp.float32(self.final)
        return final + (jnp.float32(self.init) - final) * left**3


@dataclasses.dataclass(frozen=True)
class Cycling(ValueSchedule):
    """Discrete values, the next one at each due update, wrapping to the first."""

    values: tuple[ArrayLike, ...]

    @property
    def length(self) -> int:
        """Number of values the index walks through."""
        return len(self.values)

    def __call__(self, step: ArrayLike, index: ArrayLike = 0) -> Array:
        """Return ``values[index]``; the step plays no part."""
        del step
        return jnp.asarray(self.values, jnp.float32)[index]

    def min_max_end(self, start: int = 0, stop: int = 100_000) -> tuple[float, float, float]:
        """Return the least, the greatest and the last listed value."""
        del start, stop
        levels = [self.at(0, index) for index in range(self.length)]
        return min(levels), max(levels), levels[-1]


@dataclasses.dataclass(frozen=True)
class Custom(ValueSchedule):
    """A user's function of the step (an int32 scalar, traced under jit)."""

    fn: Callable[[Any], Any]

    @property
    def traced(self) -> bool:
        """True when the function closes over an argument of the function that JAX traces."""
        cells = getattr(self.fn, "__closure__", None) or ()
        return any(is_traced(cell.cell_contents) for cell in cells if cell != types.CellType())

    def _value(self, step: ArrayLike) -> Array:
        return jnp.asarray(self.fn(step), jnp.float32)

    def _turning_points(self, start: int, stop: int) -> list[int]:
        return [*range(start, stop, max(1, (stop - start) // 64)), stop]  # sampled


def needs_number(why: str) -> str:
    """Say that a traced level or drop fraction cannot be used, and where one can."""
    return (
        f"a traced array ({why}); expected a number. Traced levels go with static, set, rigl, mest "
        "and gmp in masked storage without a pattern"
    )


def is_constant(schedule: ValueSchedule) -> bool:
    """True when the value can never change."""
    return isinstance(schedule, ConstantValue)


@dataclasses.dataclass(frozen=True)
class UpdateSchedule:
    """Base of the rules that say at which steps a topology is updated."""

    def __call__(self, step: int | Array) -> bool | Array:
        """Return whether ``step`` is due: bool for an int, a boolean scalar for a traced step."""
        raise TypeError(f"{type(self).__name__} must define __call__(step)")

    def due_steps(self, begin: int, end: int) -> Iterable[int]:
        """Return the steps with begin <= step < end that are due, in order.

        Of a user's rule at most 100,000 steps are looked at.
        """
        return (step for step in range(begin, min(end, begin + 100_000)) if bool(self(step)))

    def due_between(self, begin: int, end: int) -> bool:
        """Return whether a step with begin <= step < end is due."""
        return any(True for _ in self.due_steps(begin, end))


@dataclasses.dataclass(frozen=True)
class Every(UpdateSchedule):
    """Due when ``(step - start) % freq == 0`` and ``start <= step < stop``."""

    freq: int = 1
    start: int = 0
    stop: int | None = None

    def __call__(self, step: int | Array) -> bool | Array:
        """Return whether ``step`` is due."""
        due = ((step - self.start) % self.freq == 0) & (step >= self.start)
        return due if self.stop is None else due & (step < self.stop)

    def due_steps(self, begin: int, end: int) -> Iterable[int]:
        """Return the steps with begin <= step < end that are due, in order."""
        first = max(begin, self.start)
        first += (self.start - first) % self.freq
        return range(first, end if self.stop is None else min(end, self.stop), self.freq)


@dataclasses.dataclass(frozen=True)
class UpdateSteps(UpdateSchedule):
    """Due at the listed steps only."""

    steps: tuple[int, ...]

    def __call__(self, step: int | Array) -> bool | Array:
        """Return whether ``step`` is listed."""
        if isinstance(step, int):
            return step in self.steps
        return jnp.any(step == jnp.asarray(self.steps, jnp.int32))

    def due_steps(self, begin: int, end: int) -> Iterable[int]:
        """Return the listed steps with begin <= step < end, in order."""
        return sorted({step for step in self.steps if begin <= step < end})


@dataclasses.dataclass(frozen=True)
class CustomUpdate(UpdateSchedule):
    """A user's predicate of the step; must accept a traced int32 scalar and a Python int."""

    fn: Callable[[Any], Any]

    def __call__(self, step: int | Array) -> bool | Array:
        """Return whether ``step`` is due."""
        return self.fn(step)


EVERY_STEP, NEVER = Every(1), UpdateSteps(())


# --- from what users write ------------------------------------------------------------------

_FORMS: Mapping[str, type[ValueSchedule]] = {
    "constant": ConstantValue,
    "linear": LinearValue,
    "exp": ExponentialValue,
    "power": Power,
    "cosine": Cosine,
    "cubic": Cubic,
}

#: fields that may be traced
_IN_FLOAT32 = {
    "constant": {"value"},
    "linear": {"init", "slope"},
    "power": {"init", "beta"},
    "cubic": {"init", "final"},
}


def constant_level(value: object, where: Place) -> ValueSchedule:
    """Build the schedule of one level, a float with 0 <= level < 1."""
    try:
        return ConstantValue(check_level(value))
    except ValueError as error:
        raise SparsityError(str(error), where) from None


def schedule(value: object, where: Place = ("schedule",)) -> ValueSchedule:
    """Build a hyper-parameter schedule from a number, a list, a ``{type: ...}`` or a function."""
    if isinstance(value, ValueSchedule):
        return value
    value = as_number(value) if isinstance(value, SCALARS) else value
    if is_traced(value):
        return ConstantValue(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return ConstantValue(_share(float(value), where))
    if isinstance(value, (list, tuple)):
        return _cycling(value, where)
    if isinstance(value, Mapping):
        return _typed_schedule(dict(value), where)
    if callable(value):
        return Custom(value)
    raise SparsityError(f"expected a number, a list or {{type: ...}}, got {value!r}", where)


def _cycling(values: Sequence[object], where: Place) -> ValueSchedule:
    numbers = [as_number(v) for v in values]
    if not numbers or not all(isinstance(v, float) or is_traced(v) for v in numbers):
        raise SparsityError(f"a list schedule needs one or more numbers, got {values!r}", where)
    return Cycling(tuple(_share(number, (*where, i)) for i, number in enumerate(numbers)))


def _share(value: Any, where: Place) -> Any:
    if not is_traced(value) and not 0 <= value <= 1:
        raise SparsityError(f"expected a number from 0 to 1, got {value}", where)
    return value


def _typed_schedule(value: dict[str, Any], where: Place) -> ValueSchedule:
    kind = str(value.pop("type", "")).lower()
    if kind == "cycling":
        return _cycling(value.get("values", ()), (*where, "values"))
    if kind not in _FORMS:
        known = ", ".join([*_FORMS, "cycling"])
        raise SparsityError(f"unknown schedule {kind!r}; known: {known}", (*where, "type"))
    fields = {field.name: field.default for field in dataclasses.fields(_FORMS[kind])}
    unknown = sorted(set(value) - set(fields))
    needed = [key for key, default in fields.items() if default is dataclasses.MISSING]
    missing = [key for key in needed if key not in value]
    if unknown or missing:
        raise SparsityError(
            f"{kind} takes {', '.join(fields)}; unknown {unknown}, missing {missing}", where
        )
    numbers = {key: as_number(v) for key, v in value.items()}
    for key, number in numbers.items():
        if is_traced(number) and key in _IN_FLOAT32.get(kind, ()):
            continue
        if not isinstance(number, float) or not abs(number) <= LARGEST_FLOAT:
            raise SparsityError(f"expected a number, got {value[key]!r}", (*where, key))
    for key in ("init", "final", "minimum", "value"):
        _share(numbers.get(key, 0.0), (*where, key))
    if numbers.get("half_period", 1.0) <= 0:
        raise SparsityError(
            f"expected steps above 0, got {numbers['half_period']}", (*where, "half_period")
        )
    if kind == "cubic" and not 0 <= numbers.get("start", 0.0) < numbers["stop"]:
        raise SparsityError(
            f"expected steps with 0 <= start < stop, got {numbers.get('start', 0.0):g} and "
            f"{numbers['stop']:g}",
            (*where, "stop"),
        )
    return _FORMS[kind](**numbers)


class _Update(Section):
    """``update: {freq, start, stop}`` or ``update: {steps}``."""

    freq: pydantic.PositiveInt | None = None
    start: pydantic.NonNegativeInt = 0
    stop: pydantic.NonNegativeInt | None = None
    steps: tuple[pydantic.NonNegativeInt, ...] | None = None

    @pydantic.model_validator(mode="after")
    def _one_form(self) -> "_Update":
        if (self.freq is None) == (self.steps is None):
            raise ValueError("give either freq (with start, stop) or steps")
        if self.steps is not None and (self.start or self.stop is not None):
            raise ValueError("start and stop go with freq, not with steps")
        return self


def update_schedule(value: object, where: Place = ("update",)) -> UpdateSchedule:
    """Build an update schedule from None (every step), a number, a dict or a function."""
    if value is None:
        return EVERY_STEP
    if isinstance(value, UpdateSchedule):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"freq": value}
    if isinstance(value, Mapping):
        keys = validate(_Update, dict(value), where)
        if keys.steps is not None:
            return UpdateSteps(keys.steps)
        return Every(keys.freq or 1, keys.start, keys.stop)
    if callable(value):
        return CustomUpdate(value)
    raise SparsityError(f"expected {{freq, start, stop}} or {{steps}}, got {value!r}", where)
