"""The keys of a sparsity section, validated: release 2.2 and later, and release 1.8/1.9."""

import re
from collections.abc import Callable
from typing import Any, Literal

import pydantic

from models.errors import SectionError, did_you_mean
from models.sections import Section, SectionT, parse
from sparsity import schedules
from sparsity.masks import INIT_METHODS

__all__ = ["SparsityError", "StaticSection", "UpdateDict", "VendorSection", "validate"]

ALGORITHMS = ("static", "gmp", "set", "rigl")
Compute = Literal["auto", "masked", "csr"]


class SparsityError(ValueError):
    """A sparsity section that cannot be used; says which key, what was found and what is."""


class UpdateDict(Section):
    """``update: {freq, start, stop}`` or ``update: {steps}``."""

    freq: pydantic.PositiveInt | None = None
    start: pydantic.NonNegativeInt = 0
    stop: pydantic.NonNegativeInt | None = None
    steps: tuple[pydantic.NonNegativeInt, ...] | None = None

    @pydantic.model_validator(mode="after")
    def _one_form(self) -> "UpdateDict":
        if (self.freq is None) == (self.steps is None):
            raise ValueError("give either freq (with start, stop) or steps")
        if self.steps is not None and (self.start or self.stop is not None):
            raise ValueError("start and stop go with freq, not with steps")
        return self

    def build(self) -> schedules.UpdateSchedule:
        """Return the update schedule."""
        if self.steps is not None:
            return schedules.UpdateSteps(self.steps)
        return schedules.Every(self.freq or 1, self.start, self.stop)


class VendorSection(Section):
    """One group of release 2.2 and later."""

    algorithm: Any = "static"
    sparsity: Any = None
    schedule: Any = None
    init_method: Any = "random"
    update: Any = None
    drop_fraction: Any = None
    param_filter: str | tuple[str, ...] | None = None
    balance_in_groups: pydantic.PositiveInt | None = None
    balance_out_groups: pydantic.PositiveInt | None = None
    compute: Compute = "auto"

    @pydantic.field_validator("param_filter", mode="before")
    @classmethod
    def _no_dict(cls, value: Any) -> Any:
        if isinstance(value, dict):
            raise ValueError("a dict is not a filter; list one section per pattern instead")
        return tuple(value) if isinstance(value, list) else value

    @pydantic.field_validator("init_method")
    @classmethod
    def _known_method(cls, value: Any) -> Any:
        return _one_of("init_method", value, INIT_METHODS)

    @pydantic.field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, value: Any) -> Any:
        value = value.lower() if isinstance(value, str) else value
        return _one_of("algorithm", value, ALGORITHMS)

    @pydantic.model_validator(mode="after")
    def _together(self) -> "VendorSection":
        if self.sparsity is not None and self.schedule is not None:
            raise ValueError("`sparsity` and `schedule` name the same thing; give one of them")
        if self.sparsity is None and self.schedule is None:
            raise ValueError("no level: give `sparsity` (a number below 1) or `schedule`")
        if self.balance_in_groups and self.balance_out_groups:
            raise ValueError("balance_in_groups and balance_out_groups exclude each other")
        return self


class StaticSection(Section):
    """One group of the 1.8 dialect, with the keys 1.9 added."""

    sparsity: Any = None
    init_method: Literal["random", "topk", "from_zeros"]
    seed: int | None = None
    param_name_patterns: Any = None
    in_groups: pydantic.PositiveInt | None = None
    out_groups: pydantic.PositiveInt | None = None
    compute: Compute = "auto"

    @pydantic.field_validator("seed", mode="before")
    @classmethod
    def _integer(cls, value: Any) -> Any:
        if (
            isinstance(value, bool)
            or not (value is None or isinstance(value, int))
            or (value or 0) < 0
        ):
            raise ValueError(f"seed must be a non-negative integer, got {value!r}")
        return value

    @pydantic.model_validator(mode="after")
    def _together(self) -> "StaticSection":
        if self.in_groups and self.out_groups:
            raise ValueError("in_groups and out_groups exclude each other")
        if self.init_method != "from_zeros" or self.sparsity is not None:
            check_level(self.sparsity)
        return self


def _one_of(key: str, value: Any, known: tuple[str, ...]) -> Any:
    if not isinstance(value, str):
        if isinstance(value, Callable) and not isinstance(value, (int, float)):
            return value
    elif value in known:
        return value
    hint = did_you_mean(value, known)
    raise ValueError(f"unknown {key} {value!r}; known: {', '.join(known)} or a callable{hint}")


def check_level(value: Any) -> float:
    """Return a constant level, a float with 0 <= level < 1; the vendor refuses integers."""
    if isinstance(value, str):
        value = as_number(value)
    if isinstance(value, bool) or not isinstance(value, float) or not 0.0 <= value < 1.0:
        raise ValueError(f"sparsity must be a float with 0.0 <= sparsity < 1.0, got {value!r}")
    return value


def as_number(value: Any) -> Any:
    """Turn the strings PyYAML makes of ``1e-5`` into numbers; others come back as they are."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def check_regex(patterns: Any) -> tuple[str, ...]:
    """Return regular expressions as a tuple, each compiled once to see that it is one."""
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in found:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"param_name_patterns: {pattern!r} is no regex: {error}") from error
    return found


def validate(model: type[SectionT], section: dict[str, Any], where: str) -> SectionT:
    """Build a section, or raise a ``SparsityError`` that names every wrong key."""
    try:
        return parse(model, section)
    except SectionError as error:
        raise SparsityError(str(error.under(where))) from None
