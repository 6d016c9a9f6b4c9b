"""Errors, levels and numbers of the sections of all releases."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import jax
import jax.core
import numpy as np

from wafer.models.errors import Problem, SectionError, did_you_mean
from wafer.models.sections import SectionT, parse

Place = tuple[str | int, ...]  # keys and list indices from the root of the run file
SCALARS = (str, np.floating, jax.Array)  #: what is written for a number besides one


class SparsityError(SectionError):
    """A sparsity section that cannot be used; says which key, what it holds and what is allowed.

    Args:
        problem: what was found and what is allowed, or problems with places of their own.
        where: place of a problem given as text.
    """

    def __init__(self, problem: str | Iterable[Problem], where: Place = ()) -> None:
        super().__init__([Problem(where, problem)] if isinstance(problem, str) else problem)


def unknown(kind: str, value: object, known: Iterable[str]) -> str:
    """Say that a name is not known, which ones are, and the nearest."""
    known = tuple(known)
    hint = did_you_mean(value, known)
    return f"unknown {kind} {value!r}; known: {', '.join(known)} or a callable{hint}"


def listed(names: Sequence[str], shown: int = 3) -> str:
    """Name the first of some parameters, and count the rest."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def check_level(value: Any) -> Any:
    """Return a constant level: a float with 0 <= level < 1, not an integer, or a traced one."""
    if isinstance(value, SCALARS):
        value = as_number(value)
    if is_traced(value):
        return value
    if isinstance(value, bool) or not isinstance(value, float) or not 0.0 <= value < 1.0:
        raise ValueError(f"sparsity must be a float with 0.0 <= sparsity < 1.0, got {value!r}")
    return value


def as_number(value: Any) -> Any:
    """Turn ``SCALARS`` and integers into floats; others, and traced ones, come back unchanged.

    PyYAML makes strings of ``1e-5``.
    """
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def is_traced(value: object) -> TypeGuard[jax.core.Tracer]:
    """Return whether a value is a scalar whose number JAX does not know while it traces."""
    return isinstance(value, jax.core.Tracer) and not value.shape


def validate(model: type[SectionT], section: Mapping[str, object], where: Place) -> SectionT:
    """Build a section, or raise a ``SparsityError`` that names every wrong key."""
    try:
        return parse(model, section)
    except SectionError as error:
        raise SparsityError(error.under(*where).problems) from None
