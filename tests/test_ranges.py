"""Every number of every section has a range; nonsense is refused where it stands.

The sections are found by walking the packages, and their illegal values are drawn from their own
fields, so that a new key cannot be forgotten.
"""

import importlib
import math
import pkgutil
import types
import typing

import annotated_types
import pydantic
import pytest

import wafer
from wafer.models.sections import LARGEST_FLOAT, LARGEST_INT, Section

SIGNED = {  # fields without a lower bound, and why
    ("LlavaConfig", "image_feature_select_layer_idx"): "counts from the end",
    ("Initializer", "mean"): "a mean",
    ("Transform", "mean"): "a mean",
    ("Settings", "ignore_index"): "the label of tokens without loss, -100",
    ("Initializer", "a"): "the end of an interval",
    ("Initializer", "b"): "the end of an interval",
    ("Initializer", "val"): "any constant",
}
ELSEWHERE = {  # fields whose own validators read them: what these refuse
    ("_Release18", "seed"): [-1, 1.5, True, math.nan],
    ("InputSection", "micro_batch_size"): [0, -1, 1.5, True, math.nan, math.inf],
    ("Optimizer", "loss_scaling_factor"): [0, -1.0, True, math.nan, math.inf],
}


def sections():
    for module in pkgutil.walk_packages(wafer.__path__, "wafer."):
        if not module.name.endswith(("__main__", "_native")):
            importlib.import_module(module.name)

    def below(cls):
        for child in cls.__subclasses__():
            yield child
            yield from below(child)

    # Tests and doctests of a user's own algorithms make sections, too.
    own = {c for c in below(Section) if c.__module__.split(".")[0] == "wafer"}
    return sorted(own, key=lambda c: (c.__module__, c.__qualname__))


def numbers(annotation, metadata=()):
    """(type, bounds, whether it is an item of a tuple) of each number that a field may hold."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from numbers(arguments[0], (*metadata, *arguments[1:]))
    elif origin in (typing.Union, types.UnionType):
        for one in arguments:
            yield from numbers(one, metadata)
    elif origin is tuple:
        for kind, bounds, _ in (n for one in arguments for n in numbers(one)):
            yield kind, bounds, True
    elif annotation in (int, float):
        yield annotation, tuple(_flat(metadata)), False


def _flat(metadata):
    for item in metadata:
        if isinstance(item, pydantic.fields.FieldInfo):
            yield from _flat(item.metadata)
        elif isinstance(item, annotated_types.GroupedMetadata):
            yield from item
        else:
            yield item


def bound(bounds, *kinds):
    values = [getattr(b, type(b).__name__.lower()) for b in bounds if isinstance(b, kinds)]
    return values[0] if values else None


FIELDS = [
    (cls, name, kind, bounds, many)
    for cls in sections()
    for name, field in cls.model_fields.items()
    if name in vars(cls).get("__annotations__", {})
    for kind, bounds, many in numbers(field.annotation, tuple(field.metadata))
]


def test_the_walk_finds_the_sections():
    names = {cls.__name__ for cls, *_ in FIELDS}
    assert {"RunSection", "BlockConfig", "GroupSection", "Optimizer", "InputSection"} <= names
    assert len(FIELDS) > 280


def illegal_values(cls, name, kind, bounds):
    if (cls.__name__, name) in ELSEWHERE:
        return ELSEWHERE[cls.__name__, name]
    lowest = bound(bounds, annotated_types.Ge, annotated_types.Gt)
    highest = bound(bounds, annotated_types.Le, annotated_types.Lt)
    assert lowest is not None or (cls.__name__, name) in SIGNED, "say its range"
    illegal = [math.nan, math.inf, -math.inf, "nan", True, 10**31, -(10**31)]
    illegal += [LARGEST_INT + 1 if kind is int and highest is None else LARGEST_FLOAT * 2]
    if lowest is not None:
        illegal += [lowest - 1, -LARGEST_INT]
        illegal += [lowest] * any(isinstance(b, annotated_types.Gt) for b in bounds)
    if highest is not None:
        illegal += [highest + 1]
        illegal += [highest] * any(isinstance(b, annotated_types.Lt) for b in bounds)
    takes_true = bool in typing.get_args(cls.model_fields[name].annotation)
    return [value for value in illegal if not (value is True and takes_true)]


@pytest.mark.parametrize(
    ("cls", "name", "kind", "bounds", "many"), FIELDS, ids=lambda v: getattr(v, "__name__", None)
)
def test_illegal_values_are_refused(cls, name, kind, bounds, many):
    for value in illegal_values(cls, name, kind, bounds):
        with pytest.raises(pydantic.ValidationError) as caught:
            cls.model_validate({name: [value] if many else value})
        assert any(e["loc"][:1] == (name,) for e in caught.value.errors()), (name, value)
