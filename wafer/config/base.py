"""What every section shares: frozen pydantic models that refuse unknown keys, teaching errors.

Nothing in ``wafer.config`` imports jax: a wrong file is reported before a second has passed.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from wafer.errors import ConfigError, Problem

__all__ = [
    "Bool",
    "Choice",
    "Float",
    "Int",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Section",
    "did_you_mean",
    "parse",
    "problems_of",
]


def _number(value: Any) -> Any:
    """Refuse booleans, which Python counts as integers."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


Choice = BeforeValidator(_lower)  # for Literal fields whose spelling ignores case
Bool = StrictBool
Int = Annotated[int, BeforeValidator(_number)]
Float = Annotated[float, BeforeValidator(_number)]
PositiveInt = Annotated[Int, Field(gt=0)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]


class Section(BaseModel):
    """A part of the configuration: immutable, hashable, closed to unknown keys.

    Attributes:
        legacy: older spelling -> today's; both accepted, never together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    legacy: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, legacy: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """Take ``class X(Section, legacy={...})``; subclasses inherit the spellings."""
        super().__init_subclass__(**kwargs)
        cls.legacy = {**cls.legacy, **(legacy or {})}

    @model_validator(mode="before")
    @classmethod
    def _today(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        renamed: dict[Any, Any] = {}
        for key, value in data.items():
            name = cls.legacy.get(key, key)
            if name != key and name in data:
                raise ConfigError([Problem((key,), f"is the older spelling of {name!r}; keep one")])
            if name in renamed:
                raise ConfigError([Problem((key,), f"{name!r} is given twice, in two spellings")])
            renamed[name] = value
        return renamed

    @classmethod
    def keys(cls) -> tuple[str, ...]:
        """Every key the section takes, today's spellings first."""
        return (*cls.model_fields, *cls.legacy)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Show only what is set: ``runconfig`` has a hundred keys."""
        return ((k, v) for k, v in super().__repr_args__() if v is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain YAML types: set keys and non-empty defaults, so that it parses back to itself."""
        out: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value is not None or name in self.model_fields_set:
                out[name] = _plain(value)
        return out


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' for the nearest known name, or ''."""
    lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(str(name).lower(), list(lower), n=1, cutoff=0.6)
    return f"; did you mean {lower[near[0]]!r}?" if near else ""


SectionT = TypeVar("SectionT", bound=BaseModel)


def parse(cls: type[SectionT], data: Any) -> SectionT:
    """Validate one section.

    Raises:
        ConfigError: with every problem of the section, paths relative to it.
    """
    if isinstance(data, cls):
        return data
    try:
        return cls.model_validate(data)
    except ValidationError as err:
        raise ConfigError(problems_of(err, cls)) from None


def problems_of(err: ValidationError, cls: type[BaseModel] | None = None) -> list[Problem]:
    """Put pydantic's errors into our words.

    Args:
        err: what pydantic raised.
        cls: the class that was being parsed, for did-you-mean at its top level.
    """
    problems: list[Problem] = []
    for error in err.errors(include_url=False):
        loc = tuple(part for part in error["loc"] if part != "[key]")
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            problems += cause.under(*loc).problems
        else:
            problems.append(Problem(loc, _message(error, cls if len(loc) == 1 else None)))
    return problems


def _message(error: ErrorDetails, cls: type[BaseModel] | None) -> str:
    kind, name, value = error["type"], error["loc"][-1] if error["loc"] else "", error["input"]
    if kind == "extra_forbidden":
        known: tuple[str, ...] = ()
        if cls is not None:
            known = cls.keys() if issubclass(cls, Section) else tuple(cls.model_fields)
        return f"unknown key{did_you_mean(name, known)}"
    if kind == "missing":
        return "missing, and there is no default"
    if kind == "value_error":
        return f"{_shown(value)}: {error.get('ctx', {}).get('error')}"
    text = _EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ")
    return f"{_shown(value)}: expected {text}{_suggest(error)}"


def _suggest(error: ErrorDetails) -> str:
    if error["type"] != "literal_error":
        return ""
    known = str(error.get("ctx", {}).get("expected", "")).replace("'", "").replace(" or ", ", ")
    return did_you_mean(error["input"], known.split(", "))


_EXPECTED = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text (quote it)",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "dict_type": "a mapping of keys",
    "tuple_type": "a list",
    "list_type": "a list",
    "invalid_key": "text as key (quote it)",
}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
