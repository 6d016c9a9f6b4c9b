"""What every section of a configuration shares: strict frozen pydantic models, errors that teach.

Neither this module nor what it imports imports jax: a wrong file is reported at once.
"""

import functools
import inspect
import os
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from annotated_types import Le, Lt
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails

from wafer.models.errors import Problem, SectionError, did_you_mean

Layers = Annotated[int, Field(gt=0, le=100_000)]  # each is traced: more would take hours
_PATHS = ("dir", "dirs", "file", "files", "path", "paths", "folder")  # ends of keys
TRACED = (
    "a traced array; expected a value known when the program is made. Of a run file only levels "
    "and drop fractions may be traced; for a rate, replace `Experiment.tx` (docs/guides/one-jit.md)"
)
LARGEST_INT = 2**31 - 1  # of the fields that say no bound themselves: arrays count in int32
LARGEST_FLOAT = 1e30  # its square is no float32, but no rate, weight or scale comes near


Choice = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
# for Literal fields whose spelling ignores case
Bool = StrictBool


class Section(BaseModel):
    """A part of the configuration: immutable, hashable, closed to unknown keys.

    Numbers may be quoted (PyYAML reads ``1e-5`` as text) and must be finite.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=(), defer_build=True
    )
    #: key of other libraries -> what says the same here; for the message alone
    elsewhere: ClassVar[Mapping[str, str]] = {}
    #: keys that are read before the section is parsed; for the message alone
    read_before: ClassVar[tuple[str, ...]] = ()

    @field_validator("*", mode="before")
    @classmethod
    def _known_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse traced arrays, and booleans where a number is due, unless the field reads them."""
        field = cls.model_fields[str(info.field_name)]
        items = value if isinstance(value, list | tuple) else (value,)
        is_traced = any(c.__name__ == "Tracer" for item in items for c in type(item).__mro__)
        if is_traced and field.annotation is not Any:  # by its name: jax is not imported here
            raise ValueError(TRACED)
        read = any(isinstance(item, BeforeValidator) for item in field.metadata)
        if not read and any(isinstance(item, bool) for item in items):
            allowed = _leaf_types(field.annotation)
            if bool not in allowed and allowed & {int, float}:
                raise ValueError("expected a number")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _in_home(cls, value: object, info: ValidationInfo) -> object:
        """Expand a leading ``~`` in the values of keys that name files and folders."""
        if not str(info.field_name).endswith(_PATHS):
            return value
        if isinstance(value, list | tuple):
            return [os.path.expanduser(v) if isinstance(v, str) else v for v in value]
        return os.path.expanduser(value) if isinstance(value, str) else value

    @field_validator("*", mode="after")
    @classmethod
    def _not_beyond_all_use(cls, value: object, info: ValidationInfo) -> object:
        """Bound the numbers of fields that say no upper bound; no path or name holds a NUL."""
        metadata = cls.model_fields[str(info.field_name)].metadata
        if not any(isinstance(item, Le | Lt) for item in metadata):
            for item in value if isinstance(value, tuple | list) else (value,):
                if isinstance(item, str) and "\0" in item:
                    raise ValueError("text with a NUL character")
                if isinstance(item, int) and abs(item) > LARGEST_INT:
                    raise ValueError(f"expected a whole number up to {LARGEST_INT:,}")
                if isinstance(item, float) and abs(item) > LARGEST_FLOAT:
                    raise ValueError(f"expected a number up to {LARGEST_FLOAT:g}")
        return value

    def __repr_args__(self) -> Iterator[tuple[str | None, object]]:
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


def _plain(value: object) -> object:
    if isinstance(value, Section):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _leaf_types(annotation: object) -> set[object]:
    """Flatten unions, Annotated and sequences to the plain types they allow."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is Annotated:
        arguments = arguments[:1]
    if origin in (typing.Union, types.UnionType, Annotated, list, tuple):
        return set().union(*map(_leaf_types, arguments))
    return {annotation}


_LISTED = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
_TAG = re.compile(r"\[|^(str|int|float|bool)\Z")  # a union's member, in pydantic's paths
_NOTED = re.compile(r"^((?: {4}#: .*\n)*) {4}(\w+): (?:.*  #: (.*))?", re.MULTILINE)


@functools.cache
def meanings(cls: type[Section]) -> dict[str, str]:
    """Return what each key of a section means; the nearest class wins.

    It is the ``#:`` comment at the field, or the key's line under "Attributes:" in the docstring.
    """
    if cls is Section:
        return {}
    inherited = [meanings(base) for base in cls.__bases__ if issubclass(base, Section)]
    listed = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    notes = {m[1]: m[2] for m in _LISTED.finditer(listed)}
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # a class of a user that stands in no file
        source = ""
    notes |= {m[2]: m[1] or m[3] for m in _NOTED.finditer(source) if m[1] or m[3]}
    plain = {
        name: " ".join(text.replace("#: ", "").split()).rstrip(".").replace("``", "`")
        for name, text in notes.items()
    }
    return {name: text for said in (*inherited, plain) for name, text in said.items()}


SectionT = TypeVar("SectionT", bound=BaseModel)


def parse(cls: type[SectionT], data: object) -> SectionT:
    """Validate one section.

    Raises:
        SectionError: with every problem of the section, paths relative to it.
    """
    if isinstance(data, cls):
        return data
    try:
        return cls.model_validate(data)
    except ValidationError as err:
        raise SectionError(problems_of(err, cls)) from None


def problems_of(err: ValidationError, cls: type[BaseModel]) -> list[Problem]:
    """Put pydantic's errors about a section of class ``cls`` into our words."""
    problems, members = list[Problem](), _members(cls)
    for error in err.errors(include_url=False):
        named = (part for part in error["loc"] if not _TAG.search(str(part)))
        path = tuple(part for part in named if part not in members)
        cause = error.get("ctx", {}).get("error")
        if isinstance(cause, SectionError):
            problems += cause.under(*path).problems
        else:
            unknown = "key" if error["type"] == "extra_forbidden" else ""
            problems.append(Problem(path, _message(error, path, cls), unknown))
    return problems


def _members(cls: type[BaseModel]) -> set[str]:
    """Names of the classes of sections below a section, which tell a union's member in a path."""
    leaves = {leaf for field in cls.model_fields.values() for leaf in _leaf_types(field.annotation)}
    nested = {
        k for k in leaves if isinstance(k, type) and issubclass(k, BaseModel) and k is not cls
    }
    return {k.__name__ for k in nested}.union(*map(_members, nested))


def _class_at(cls: type[BaseModel], path: tuple[str | int, ...]) -> type[BaseModel] | None:
    """The class of the section that lies at a path, or None where several are allowed."""
    named = False  # the next part is a key of the user's
    for key in path:
        if isinstance(key, int) or named:  # an item has the class of its list or mapping
            named = False
            continue
        field = cls.model_fields.get(key)
        leaves = _leaf_types(field.annotation) if field else set()
        items = [typing.get_args(leaf)[1] for leaf in leaves if typing.get_origin(leaf) is dict]
        named = bool(items)
        nested = [k for k in (*leaves, *items) if isinstance(k, type) and issubclass(k, BaseModel)]
        if len(nested) != 1:
            return None
        cls = nested[0]
    return cls


def _message(error: ErrorDetails, path: tuple[str | int, ...], root: type[BaseModel]) -> str:
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        section = _class_at(root, path[:-1])
        known = (*section.model_fields, *getattr(section, "read_before", ())) if section else ()
        listed = f"; known: {', '.join(known)}" if 0 < len(known) < 10 else ""
        others = getattr(section, "elsewhere", {}).get(path[-1])
        if others is not None and others.split(".")[0].split(":")[0] in known:
            return f"unknown key; here it is `{others}`"
        return f"unknown key{did_you_mean(path[-1], known) or listed}"
    if kind == "missing":
        return f"missing, and there is no default{_choices(root, path)}"
    if kind == "value_error":
        message = str(error.get("ctx", {}).get("error"))
        # Without a path it is about several keys, which the message names.
        return f"{_shown(value)}: {message}" if path else message
    text = _EXPECTED.get(kind) or error["msg"].removeprefix("Input should be ")
    return f"{_shown(value)}: expected {text}{_suggest(error)}"


def _choices(root: type[BaseModel], path: tuple[str | int, ...]) -> str:
    """The words that a key takes, where only some are taken."""
    field = getattr(_class_at(root, path[:-1]), "model_fields", {}).get(path[-1])
    if field is None or typing.get_origin(field.annotation) is not typing.Literal:
        return ""
    return f"; it is one of {', '.join(map(repr, typing.get_args(field.annotation)))}"


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


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
