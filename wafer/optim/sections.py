"""Keys of each optimizer: a class each, chosen by ``optimizer_type``; no jax.

``directions`` has the transformations.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
)

from wafer.errors import ConfigError, Problem
from wafer.models.errors import SectionError, did_you_mean
from wafer.models.sections import Bool, Section, parse
from wafer.models.user.code import call, check_arguments, find
from wafer.models.user.trust import is_user_defined
from wafer.optim.param_sections import ParamTag, SelectiveGrad, factors, listed
from wafer.optim.schedule_sections import Schedules

MIN_LOSS_SCALE = 2.0**-14
_OF_DYNAMIC = ("initial_loss_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale")
_Beta = Annotated[float, Field(ge=0, lt=1)]
_Betas = tuple[_Beta, _Beta]


def _loss_scale(value: Any) -> float | Literal["dynamic"] | None:
    if value is None or value == "dynamic":
        return value
    try:
        number = float("x" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError("expected a number > 0, 'dynamic' or null")
    return number


class Optimizer(Section):
    """What every optimizer takes."""

    needs_dense: ClassVar[bool] = False

    optimizer_type: str  #: its name in ``OPTIMIZERS``, in any case
    learning_rate: Schedules  #: a number, a scheduler, or a list of schedulers
    #: a number, a scheduler, or a list of them; never applied to biases and norms
    weight_decay: Schedules = Field(default=0.0, validate_default=True)  # pyright: ignore[reportAssignmentType]
    max_gradient_norm: PositiveFloat | None = None  #: clip by the global L2 norm
    #: clip every element; not together with the norm
    max_gradient_value: PositiveFloat | None = None
    #: a number, or 'dynamic' (float16 only; see ``optim.precision``)
    loss_scaling_factor: Annotated[
        float | Literal["dynamic"] | None, BeforeValidator(_loss_scale)
    ] = 1.0
    #: dynamic scale of the first step; None is 2^15
    initial_loss_scale: PositiveFloat | None = None
    steps_per_increase: PositiveInt = 2000  #: good steps before the dynamic scale doubles
    #: lower bound of the dynamic scale; None is 2^-14, the least allowed
    min_loss_scale: Annotated[float, Field(ge=MIN_LOSS_SCALE)] | None = None
    max_loss_scale: PositiveFloat | None = None  #: upper bound; None is 2^15
    log_summaries: Bool = False  #: write parameter and gradient norms to TensorBoard
    #: (group, factor) pairs; a group is a muP group name, a tag of ``params``, or a glob over
    #: parameter names; first match wins
    adjust_learning_rate: Annotated[
        tuple[tuple[str, NonNegativeFloat], ...], BeforeValidator(factors)
    ] = ()
    params: tuple[ParamTag, ...] = ()  #: tags
    #: parameters of which only outliers of the first weights train; or a list
    selective_grad: Annotated[tuple[SelectiveGrad, ...] | None, BeforeValidator(listed)] = None
    grad_accum_steps: PositiveInt = 1  #: batches whose gradients are averaged before an update
    disable_lr_steps_reset: Bool | None = None  #: accepted; no effect here

    def model_post_init(self, _: object) -> None:
        """Check the keys against each other."""
        problems = []
        if self.max_gradient_norm is not None and self.max_gradient_value is not None:
            problems.append(
                Problem(("max_gradient_value",), "excludes 'max_gradient_norm'; keep one")
            )
        low, high = self.min_loss_scale, self.max_loss_scale
        if low is not None and high is not None and low > high:
            problems.append(Problem(("min_loss_scale",), f"{low} is above max_loss_scale {high}"))
        problems += self._unknown_tags()
        if problems:
            raise ConfigError(problems)

    def _unknown_tags(self) -> list[Problem]:
        known = {t.tag for t in self.params}
        return [
            Problem(
                (key, i, "param_group_tags"),
                f"{tag!r}: no entry of optimizer.params has this tag{did_you_mean(tag, known)}",
            )
            for key, entries in (
                ("learning_rate", self.learning_rate),
                ("weight_decay", self.weight_decay),
            )
            for i, entry in enumerate(entries)
            for tag in entry.param_group_tags or ()
            if tag not in known
        ]

    @property
    def no_effect(self) -> tuple[str, ...]:
        """Keys the file sets that mean nothing here, or beside a fixed loss scale."""
        idle = () if self.loss_scaling_factor == "dynamic" else _OF_DYNAMIC
        fields = type(self).model_fields
        idle = (*idle, "disable_lr_steps_reset")
        return tuple(key for key in idle if getattr(self, key) != fields[key].default)

    def to_dict(self) -> dict[str, object]:
        """Plain YAML types that parse back to the same section."""
        out = super().to_dict()
        out["adjust_learning_rate"] = dict(self.adjust_learning_rate)
        return out


class SGD(Optimizer):
    """Momentum buffer starts at 0, so dampening also acts on the first step."""

    #: share of the last update that the next one keeps
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    dampening: NonNegativeFloat = 0.0  #: share of the gradient that does not enter the momentum
    nesterov: Bool = False  #: look ahead along the momentum
    maximize: Bool = False  #: climb instead of descend

    def model_post_init(self, _: object) -> None:
        """Nesterov needs a momentum and no dampening."""
        super().model_post_init(_)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ConfigError([Problem(("nesterov",), "needs momentum > 0 and dampening 0")])


class _Betas2(Optimizer):
    """Optimizers with two moment rates."""

    betas: _Betas = (0.9, 0.999)  #: decay rates of the first and second moments
    eps: NonNegativeFloat = 1e-6  #: added to denominators


class Adam(_Betas2):
    """Weight decay enters the gradient (L2)."""

    amsgrad: Bool = False  #: divide by the greatest second moment so far


class AdamW(_Betas2):
    """Decoupled weight decay; eps is added before the bias correction (TensorFlow's way)."""

    correct_bias: Bool = True  #: correct the moments for their start at 0
    amsgrad: Bool = False  #: divide by the greatest second moment so far


class Adamax(_Betas2):
    """Adam by the infinity norm."""


class NAdam(_Betas2):
    """Adam with Nesterov momentum."""

    eps: NonNegativeFloat = 1e-8
    momentum_decay: NonNegativeFloat = 4e-3  #: how fast NAdam's momentum schedule grows


class RAdam(_Betas2):
    """Adam with rectified variance."""


class Lamb(_Betas2):
    """Layer-wise trust ratio over Adam without bias correction; ``adam`` sets the ratio to 1."""

    adam: Bool = False  #: set LAMB's trust ratio to 1


def _unread(eps: float) -> float:
    if eps != 1e-6:
        raise ValueError("Lion reads none: it takes the sign of its momentum")
    return eps


class Lion(_Betas2):
    """Sign of an interpolated momentum. Older checkpoints store ``eps``, which nothing reads."""

    betas: _Betas = (0.9, 0.99)
    eps: Annotated[NonNegativeFloat, AfterValidator(_unread)] = 1e-6


class Adagrad(Optimizer):
    """Sum of squares."""

    lr_decay: NonNegativeFloat = 0.0  #: the rate falls as 1 / (1 + lr_decay * step)
    initial_accumulator_value: NonNegativeFloat = 0.0  #: sum of squares before the first step
    eps: NonNegativeFloat = 1e-6  #: added to denominators


class Adadelta(Optimizer):
    """Squares of gradients and of updates."""

    learning_rate: Schedules = Field(default=1.0, validate_default=True)  # pyright: ignore[reportAssignmentType]
    rho: _Beta = 0.9  #: decay rate of the running squares
    eps: PositiveFloat = 1e-6  #: added to denominators


class RMSprop(Optimizer):
    """Running mean of squares, plain or centred, with a momentum buffer."""

    alpha: _Beta = 0.99  #: decay rate of the running squares
    eps: NonNegativeFloat = 1e-8  #: added to denominators
    #: share of the last update that the next one keeps
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    centered: Bool = False  #: subtract the running mean from the squares


class ASGD(Optimizer):
    """Averaged SGD; the average is kept in the optimizer state."""

    lambd: NonNegativeFloat = 1e-4  #: decay of weights, and of the rate
    alpha: NonNegativeFloat = 0.75  #: power of the falling rate
    t0: PositiveFloat = 1e6  #: step at which averaging begins


class Rprop(Optimizer):
    """Step sizes by the sign of the gradient; the learning rate is only the first step size."""

    #: factors by which step sizes shrink and grow
    etas: tuple[Annotated[float, Field(gt=0, lt=1)], Annotated[float, Field(gt=1)]] = (0.5, 1.2)
    step_sizes: tuple[PositiveFloat, PositiveFloat] = (1e-6, 50.0)  #: least and greatest step size


class Adafactor(Optimizer):
    """Second moments factored into rows and columns.

    The factors are means over rows and columns of the dense matrix, which the kept values of a
    sparse weight do not have: ``needs_dense``. Only one value each is accepted for
    ``clip_threshold``, ``beta1``, ``relative_step`` and ``warmup_init``.
    """

    needs_dense: ClassVar[bool] = True

    eps: tuple[PositiveFloat, PositiveFloat] = (1e-30, 1e-3)  #: added to denominators
    decay_rate: Annotated[float, Field(gt=-10, lt=0)] = -0.8  #: power of the moment's decay
    scale_parameter: Bool = True  #: multiply the rate by the parameter's RMS
    clip_threshold: Annotated[float, Field(ge=1, le=1)] = 1.0  #: RMS at which updates are clipped
    beta1: None = None  #: accepted as null only
    relative_step: Literal[False] = False  #: accepted as false only
    warmup_init: Literal[False] = False  #: accepted as false only


class UserOptimizer(Optimizer):
    """An optimizer of a user, ``optimizer_type: "module:function"``.

    The function takes the section's keys that are not every optimizer's, and returns an
    ``optax.GradientTransformation`` that gives the direction, like ``optax.scale_by_adam``.
    """

    arguments: tuple[tuple[str, Any], ...] = ()  #: of the function, (name, value) pairs

    def to_dict(self) -> dict[str, object]:
        """Plain YAML types that parse back to the same section."""
        out = super().to_dict()
        out.pop("arguments")
        return out | dict(self.arguments)


OPTIMIZERS: Mapping[str, type[Optimizer]] = {
    cls.__name__: cls
    for cls in (
        SGD,
        Adam,
        AdamW,
        Adamax,
        Adagrad,
        Adadelta,
        RMSprop,
        NAdam,
        RAdam,
        ASGD,
        Rprop,
        Lamb,
        Lion,
        Adafactor,
    )
}
_BY_LOWER = {name.lower(): cls for name, cls in OPTIMIZERS.items()}


def parse_optimizer(value: object) -> Optimizer:
    """Read an optimizer section with the class its ``optimizer_type`` names.

    Raises:
        ConfigError: unknown optimizer or key, wrong values, keys that exclude each other.
    """
    if isinstance(value, Optimizer):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError([Problem((), f"{value!r}: expected a mapping of keys")])
    known = ", ".join(OPTIMIZERS)
    if "optimizer_type" not in value:
        raise ConfigError([Problem(("optimizer_type",), f"missing; known: {known}")])
    name = value["optimizer_type"]
    if is_user_defined(name, "optimizer"):
        return _parse_user_optimizer(value)
    if (cls := optimizer_class(name)) is None:
        hint = did_you_mean(name, OPTIMIZERS)
        message = f"{name!r}: unknown optimizer{hint}; known: {known}"
        raise ConfigError([Problem(("optimizer_type",), message)])
    return parse(cls, value)


def optimizer_class(name: object) -> type[Optimizer] | None:
    """Return the class that a name means, in any case; None where there is none."""
    return _BY_LOWER.get(str(name).lower())


def _parse_user_optimizer(section: Mapping[str, Any]) -> UserOptimizer:
    """Check the section, and call the function once to see that it can be.

    Raises:
        ConfigError: wrong keys; the function cannot be found or fails.
    """
    name = section["optimizer_type"]
    ours = {k: v for k, v in section.items() if k in Optimizer.model_fields}
    arguments = {k: v for k, v in section.items() if k not in ours}
    try:
        function = find(name, OPTIMIZERS, "optimizer")
        check_arguments(name, function, arguments)
        call(name, function, **arguments)
    except SectionError as error:
        raise ConfigError(error.problems) from error
    except ValueError as error:
        raise ConfigError([Problem(("optimizer_type",), str(error))]) from error
    return parse(UserOptimizer, ours | {"arguments": tuple(arguments.items())})
