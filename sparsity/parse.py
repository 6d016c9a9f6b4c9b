"""Schedules from what users write: numbers, lists, ``{type: ...}`` dicts, functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from sparsity import schedules
from sparsity.schema import SparsityError, UpdateDict, as_number, validate

__all__ = ["schedule", "update_schedule"]

_SCHEDULES: dict[str, tuple[type[schedules.Schedule], tuple[str, ...], tuple[str, ...]]] = {
    "constant": (schedules.Constant, ("value",), ()),
    "linear": (schedules.Linear, ("init", "slope"), ()),
    "exp": (schedules.Exponential, ("init", "gamma"), ("final",)),
    "power": (schedules.Power, ("init", "beta"), ()),
    "cosine": (schedules.Cosine, ("init", "half_period"), ("minimum",)),
}


def schedule(value: Any, where: str = "schedule") -> schedules.Schedule:
    """Build a hyper-parameter schedule from a number, a list, a ``{type: ...}`` or a function."""
    if isinstance(value, schedules.Schedule):
        return value
    value = as_number(value) if isinstance(value, str) else value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return schedules.Constant(float(value))
    if isinstance(value, (list, tuple)):
        return _cycling(value, where)
    if isinstance(value, Mapping):
        return _typed_schedule(dict(value), where)
    if callable(value):
        return schedules.Custom(value)
    raise SparsityError(f"{where}: expected a number, a list or {{type: ...}}, got {value!r}")


def _cycling(values: Sequence[Any], where: str) -> schedules.Schedule:
    numbers = [as_number(v) for v in values]
    if not numbers or not all(isinstance(v, float) for v in numbers):
        raise SparsityError(f"{where}: a list schedule needs one or more numbers, got {values!r}")
    return schedules.Cycling(tuple(numbers))


def _typed_schedule(value: dict[str, Any], where: str) -> schedules.Schedule:
    kind = str(value.pop("type", "")).lower()
    if kind == "cycling":
        return _cycling(value.get("values", ()), f"{where}.values")
    if kind not in _SCHEDULES:
        known = ", ".join([*_SCHEDULES, "cycling"])
        raise SparsityError(f"{where}.type: unknown schedule {kind!r}; known: {known}")
    cls, needed, optional = _SCHEDULES[kind]
    unknown = sorted(set(value) - set(needed) - set(optional))
    missing = [key for key in needed if key not in value]
    if unknown or missing:
        raise SparsityError(
            f"{where}: {kind} takes {', '.join(needed + optional)};"
            f" unknown {unknown}, missing {missing}"
        )
    numbers = {key: as_number(v) for key, v in value.items()}
    bad = [key for key, v in numbers.items() if not isinstance(v, float)]
    if bad:
        raise SparsityError(f"{where}.{bad[0]}: expected a number, got {value[bad[0]]!r}")
    return cls(**numbers)


def update_schedule(value: Any, where: str = "update") -> schedules.UpdateSchedule:
    """Build an update schedule from None (every step), a number, a dict or a function."""
    if value is None:
        return schedules.Every(1)
    if isinstance(value, schedules.UpdateSchedule):
        return value
    # The vendor raises NameError for an integer or a function; the meaning is plain.
    if isinstance(value, int) and not isinstance(value, bool):
        value = {"freq": value}
    if isinstance(value, Mapping):
        return validate(UpdateDict, dict(value), where).build()
    if callable(value):
        return schedules.CustomUpdate(value)
    raise SparsityError(f"{where}: expected {{freq, start, stop}} or {{steps}}, got {value!r}")
