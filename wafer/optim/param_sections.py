"""What an ``optimizer`` section says of single parameters: tags, factors, which elements train."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from wafer.models.sections import Section


def factors(value: object) -> tuple[object, ...]:
    """Store a mapping as sorted-by-file pairs, so that the section stays hashable."""
    if isinstance(value, tuple):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping of parameter group to factor")
    if any(isinstance(factor, bool) for factor in value.values()):
        raise ValueError("expected a number for each parameter group")
    return tuple(value.items())


def listed(value: object) -> object:
    """Read one entry where a list of them may be."""
    return (value,) if value and isinstance(value, str | Mapping) else value or ()


class ParamTag(Section):
    """``{params: glob, tag: name}``: parameters that schedules and factors can name."""

    params: str  #: glob of parameter names
    tag: str  #: name that schedules and factors use for these parameters


class SelectiveGrad(Section):
    """Parameters of which only the outliers train; see ``freeze.outliers``."""

    #: glob or list of globs of parameter names; none takes what sparsity takes
    param_filter: Annotated[tuple[str, ...], BeforeValidator(listed)] = ()
    init_method: Literal["outlier"] = "outlier"  #: which elements train
