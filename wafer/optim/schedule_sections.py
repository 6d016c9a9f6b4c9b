"""The learning-rate (and weight-decay) schedulers: a class each, its keys and its formula.

Names may end in ``LR`` or ``WD``, and are in any case: ``Linear``, ``LinearLR``, ``linear``.
Formulas take their array library as an argument, so that a run file is checked without jax.
``wafer.optim.schedules`` combines them.
"""

import abc
import math
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializeAsAny,
)

from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import Bool, Choice, Section, parse
from wafer.models.user.code import call, find
from wafer.models.user.trust import is_user_defined

Array = Any  # of NumPy, or traced by JAX


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value or None


class Schedule(Section):
    """What every scheduler takes."""

    scheduler: str  #: its name
    #: how a list is combined; on the first entry of those with the same tags
    main_scheduler: Annotated[Literal["sequential", "chained"], Choice] = "sequential"
    #: tags of ``optimizer.params`` the scheduler is for; None is all others
    param_group_tags: Annotated[tuple[str, ...] | None, BeforeValidator(_as_tuple)] = None

    @property
    def length(self) -> int | None:
        """Steps after which the next scheduler of a list takes over; None: never ends."""
        return getattr(self, "total_iters", None)

    def value(self, t: Array, xp: ModuleType) -> Array:
        """Return the value at step t, counted from 0.

        Args:
            t: [...] float32 steps.
            xp: ``jax.numpy`` or ``numpy``.
        """
        return self._formula(t, xp)

    @abc.abstractmethod
    def _formula(self, t: Array, xp: ModuleType) -> Array: ...


def _half_cosine(start: float, end: float, progress: Array, xp: ModuleType) -> Array:
    return end + (start - end) * 0.5 * (1 + xp.cos(math.pi * progress))


def _passed(t: Array, milestones: Sequence[int], xp: ModuleType) -> Array:
    """Count the milestones at or before step t."""
    return xp.sum(xp.asarray(milestones, xp.float32) <= t[..., None], axis=-1)


class _Open(Schedule):
    #: steps until the next of a list takes over; the time scale of a formula that has one
    total_iters: PositiveInt | None = None


class _FromInitial(_Open):
    initial_learning_rate: NonNegativeFloat  #: value at the first step


class _Timed(_FromInitial):
    total_iters: PositiveInt  # pyright: ignore[reportIncompatibleVariableOverride,reportGeneralTypeIssues]


class Constant(_Open):
    """One value."""

    learning_rate: NonNegativeFloat  #: the value

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        return xp.full(xp.shape(t), self.learning_rate, xp.float32)


class Polynomial(_Timed):
    """From the initial to the end value over ``total_iters``, to the given power."""

    end_learning_rate: NonNegativeFloat  #: value at the end
    power: PositiveFloat = 1.0  #: exponent of the polynomial
    cycle: Bool = False  #: begin a longer descent each time the end is reached

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        length = xp.float32(self.total_iters)
        if self.cycle:  # each time the end is reached, a longer descent begins
            length = length * xp.maximum(xp.ceil(t / length), 1)
        left = 1 - xp.minimum(t / length, 1)
        start, end = self.initial_learning_rate, self.end_learning_rate
        return end + (start - end) * left**self.power


class Linear(Polynomial):
    """A polynomial of power 1."""

    def model_post_init(self, _: object) -> None:
        """Refuse another power."""
        if self.power != 1:
            message = f"{self.power}: Linear has power 1; write scheduler: Polynomial"
            raise ConfigError([Problem(("power",), message)])


class Exponential(_Timed):
    """Times ``decay_rate`` every ``total_iters``, smoothly or by stairs."""

    decay_rate: PositiveFloat  #: factor per total_iters
    staircase: Bool = False  #: whole periods only: the value falls in steps

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        exponent = t / self.total_iters
        exponent = xp.floor(exponent) if self.staircase else exponent
        return self.initial_learning_rate * xp.float32(self.decay_rate) ** exponent


class InverseExponentialTimeDecay(_Timed):
    """Divided by 1 + decay_rate · t^step_exponent / total_iters."""

    step_exponent: PositiveInt = 1  #: power of the step in the denominator
    decay_rate: PositiveFloat  #: factor of the step in the denominator
    staircase: Bool = False  #: whole periods only: the value falls in steps

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        progress = t**self.step_exponent / self.total_iters
        progress = xp.floor(progress) if self.staircase else progress
        return self.initial_learning_rate / (1 + self.decay_rate * progress)


class InverseSquareRootDecay(_FromInitial):
    """Initial value · scale / √max(t, warmup_steps): flat, not rising, during warm-up."""

    initial_learning_rate: NonNegativeFloat = 1.0  #: a factor, which no step need have as its value
    scale: PositiveFloat = 1.0  #: factor of the initial value
    warmup_steps: PositiveInt = 1  #: steps during which the value stays flat

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        top = self.initial_learning_rate * self.scale
        return top / xp.sqrt(xp.maximum(t, self.warmup_steps))


class CosineDecay(_Timed):
    """Half a cosine from the initial to the end value, then flat."""

    end_learning_rate: NonNegativeFloat = 0.0  #: value at the end

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        progress = xp.minimum(t, self.total_iters) / self.total_iters
        return _half_cosine(self.initial_learning_rate, self.end_learning_rate, progress, xp)


class CosineAnnealing(_FromInitial):
    """A cosine of half period ``T_max``; rises again after it."""

    T_max: PositiveInt  #: steps of half a period
    eta_min: NonNegativeFloat = 0.0  #: least value

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        return _half_cosine(self.initial_learning_rate, self.eta_min, t / self.T_max, xp)


class CosineAnnealingWarmRestarts(_FromInitial):
    """A falling half cosine of ``T_0`` steps, restarted; each period ``T_mult`` times longer."""

    T_0: PositiveInt  #: steps until the first restart
    T_mult: PositiveInt = 1  #: each period is so many times longer than the last
    eta_min: NonNegativeFloat = 0.0  #: least value

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        if self.T_mult == 1:
            progress = (t % self.T_0) / self.T_0
        else:  # period n starts at T_0 (m^n - 1) / (m - 1) and lasts T_0 m^n
            m = self.T_mult
            n = xp.floor(xp.log1p(t * (m - 1) / self.T_0) / math.log(m) + 1e-6)
            progress = (t - self.T_0 * (m**n - 1) / (m - 1)) / (self.T_0 * m**n)
        return _half_cosine(self.initial_learning_rate, self.eta_min, progress, xp)


class Step(_FromInitial):
    """Times ``gamma`` every ``step_size`` steps."""

    step_size: PositiveInt  #: steps between two falls
    gamma: PositiveFloat  #: factor at each fall

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        stairs = xp.floor(t / self.step_size)
        return self.initial_learning_rate * xp.float32(self.gamma) ** stairs


class MultiStep(_FromInitial):
    """Times ``gamma`` at each milestone."""

    gamma: PositiveFloat  #: factor at each milestone
    milestones: tuple[NonNegativeInt, ...]  #: steps at which the value changes

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        passed = _passed(t, self.milestones, xp)
        return self.initial_learning_rate * xp.float32(self.gamma) ** passed


class PiecewiseConstant(_Open):
    """``learning_rates[i + 1]`` from step ``milestones[i]`` on."""

    #: values, one more than milestones
    learning_rates: Annotated[tuple[NonNegativeFloat, ...], Field(min_length=1)]
    milestones: tuple[NonNegativeInt, ...]  #: steps at which the value changes

    def model_post_init(self, _: object) -> None:
        """Check the lengths and the order."""
        if len(self.learning_rates) != len(self.milestones) + 1:
            raise ValueError(
                f"{len(self.milestones)} milestones need {len(self.milestones) + 1} "
                f"learning_rates, got {len(self.learning_rates)}"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError("milestones must rise")

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        return xp.asarray(self.learning_rates, xp.float32)[_passed(t, self.milestones, xp)]


class Multiplicative(_FromInitial):
    """Times ``coefficient`` every step."""

    coefficient: PositiveFloat  #: factor at every step

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        return self.initial_learning_rate * xp.float32(self.coefficient) ** t


class Lambda(_FromInitial):
    """A fixed demonstration: initial² · t/30 · 0.95^t."""

    initial_learning_rate: NonNegativeFloat = 1.0  #: squared, a factor; the first value is 0

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        return self.initial_learning_rate**2 * (t / 30) * xp.float32(0.95) ** t


class Cyclic(_Open):
    """Triangles between ``base_lr`` and ``max_lr``."""

    base_lr: NonNegativeFloat  #: least value of the cycle
    max_lr: NonNegativeFloat  #: greatest value of the cycle
    step_size_up: PositiveInt = 2000  #: rising steps of a cycle
    step_size_down: PositiveInt | None = None  #: falling steps of a cycle; null: as step_size_up
    #: how the cycle's height changes
    mode: Annotated[Literal["triangular", "triangular2", "exp_range"], Choice] = "triangular"
    gamma: PositiveFloat = 1.0  #: factor at every step, of mode exp_range

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        up, down = self.step_size_up, self.step_size_down or self.step_size_up
        period, ratio = up + down, up / (up + down)
        cycle = xp.floor(t / period)
        x = t / period - cycle
        height = xp.where(x <= ratio, x / ratio, (1 - x) / (1 - ratio))
        if self.mode == "triangular2":
            height = height * xp.float32(0.5) ** cycle
        elif self.mode == "exp_range":
            height = height * xp.float32(self.gamma) ** t
        return self.base_lr + (self.max_lr - self.base_lr) * height


class OneCycle(_FromInitial):
    """Up to ``max_lr`` and down to initial / ``final_div_factor`` in ``total_steps``."""

    initial_learning_rate: PositiveFloat
    max_lr: PositiveFloat  #: greatest value of the cycle
    total_steps: PositiveInt = 1000  #: steps of the cycle
    pct_start: Annotated[float, Field(ge=0, le=1)] = 0.3  #: share of the steps that rise
    final_div_factor: PositiveFloat = 1e4  #: the initial value over the last one
    three_phase: Bool = False  #: fall to the initial value first, then to the last
    anneal_strategy: Annotated[Literal["cos", "linear"], Choice] = "cos"  #: shape of the way down

    @property
    def length(self) -> int | None:
        """The cycle, unless ``total_iters`` says otherwise."""
        return self.total_iters or self.total_steps

    def _formula(self, t: Array, xp: ModuleType) -> Array:
        low, last = self.initial_learning_rate / self.final_div_factor, self.total_steps - 1
        peak = self.pct_start * self.total_steps - 1
        ends, values = (peak, last), (self.initial_learning_rate, self.max_lr, low)
        if self.three_phase:
            ends, values = (peak, 2 * peak, last), (*values[:2], values[0], low)
        result, begin = xp.full(xp.shape(t), values[0], xp.float32), 0.0
        for end, start, target in zip(ends, values, values[1:], strict=False):
            progress = xp.clip((t - begin) / max(end - begin, 1e-9), 0, 1)
            piece = (
                _half_cosine(start, target, progress, xp)
                if self.anneal_strategy == "cos"
                else start + (target - start) * progress
            )
            result = xp.where(t >= begin, piece, result)
            begin = end
        return result


SCHEDULERS: Mapping[str, type[Schedule]] = {  # every public class above but the first
    name: cls
    for name, cls in list(globals().items())
    if isinstance(cls, type) and issubclass(cls, Schedule) and name[0] != "_" and cls != Schedule
}
_BY_LOWER: Mapping[str, type[Schedule]] = {
    name.lower() + suffix: cls for name, cls in SCHEDULERS.items() for suffix in ("", "lr", "wd")
}


class UserSchedule(_Open):
    """A function of the user, step -> value, in jax.numpy."""

    def _formula(self, t: Any, xp: ModuleType) -> Any:
        function = find(self.scheduler, SCHEDULERS, "optimizer")
        return xp.asarray(call(self.scheduler, function, t), xp.float32)


def schedule_class(name: object) -> type[Schedule] | None:
    """Return the class that a name means, in any case and with or without its ending LR or WD."""
    return _BY_LOWER.get(str(name).lower())


def parse_schedules(value: object) -> tuple[Schedule, ...]:
    """Read a number, one scheduler, or a list of schedulers.

    Raises:
        ConfigError: an unknown scheduler or key, a list entry that never ends, or a chained one
            after the first that starts at 0.
    """
    if isinstance(value, Schedule):
        return (value,)
    if isinstance(value, Mapping):
        return (_one(value),)
    if is_user_defined(value, "optimizer"):
        return (_one({"scheduler": value}),)
    if not isinstance(value, list | tuple):
        constant = {"scheduler": "Constant", "learning_rate": value}
        try:
            return (parse(Constant, constant),)
        except SectionError as err:  # the user wrote a number, not a key of a scheduler
            raise SectionError([Problem((), p.message) for p in err.problems]) from None
    if not value:
        raise ConfigError([Problem((), "an empty list; give a number or schedulers")])
    entries, problems = [], []
    for i, item in enumerate(value):
        try:
            entries.append(item if isinstance(item, Schedule) else _one(item))
        except SectionError as err:
            problems += err.under(i).problems
    if problems:
        raise ConfigError(problems)
    _check_combined(entries)
    return tuple(entries)


def _one(value: object) -> Schedule:
    if not isinstance(value, Mapping) or "scheduler" not in value:
        raise ConfigError([Problem((), f"{value!r}: expected a mapping with the key 'scheduler'")])
    name = str(value["scheduler"])
    if is_user_defined(name, "optimizer"):
        try:
            find(name, SCHEDULERS, "optimizer")
        except ValueError as error:
            raise ConfigError([Problem(("scheduler",), str(error))]) from error
        return parse(UserSchedule, value)
    if (cls := schedule_class(name)) is None:
        message = f"{name!r}: unknown scheduler{did_you_mean(name, SCHEDULERS)}; "
        raise ConfigError([Problem(("scheduler",), f"{message}known: {', '.join(SCHEDULERS)}")])
    return parse(cls, value)


def by_tags(entries: Iterable[Schedule]) -> dict[tuple[str, ...], tuple[Schedule, ...]]:
    """Group schedules by their tags, in order; () is of those without."""
    groups: dict[tuple[str, ...], tuple[Schedule, ...]] = {}
    for entry in entries:
        tags = entry.param_group_tags or ()
        groups[tags] = (*groups.get(tags, ()), entry)
    return groups


def _check_combined(entries: list[Schedule]) -> None:
    """Check that the schedules of each tag list can be combined."""
    for group in by_tags(entries).values():
        how = group[0].main_scheduler
        for entry in group[1:]:
            if entry.main_scheduler != how and "main_scheduler" in entry.model_fields_set:
                message = f"{entry.main_scheduler!r}: the first of these schedulers is {how!r}"
                raise ConfigError([Problem((_place(entry, entries), "main_scheduler"), message)])
            if how == "chained" and entry.value(np.float32(0), np) == 0:
                message = (
                    f"{entry.scheduler} starts at 0, so its ratio has no meaning; put it first, or "
                    "drop main_scheduler: chained"
                )
                raise ConfigError([Problem((_place(entry, entries),), message)])
        for entry in group[:-1] if how == "sequential" else ():
            if entry.length is None:
                message = (
                    f"{entry.scheduler} is followed by another scheduler; it needs 'total_iters'"
                )
                raise ConfigError([Problem((_place(entry, entries),), message)])


def _place(entry: Schedule, entries: list[Schedule]) -> int:
    return next(i for i, other in enumerate(entries) if other is entry)


Schedules = Annotated[tuple[SerializeAsAny[Schedule], ...], BeforeValidator(parse_schedules)]
