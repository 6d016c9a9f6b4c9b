"""Every key of a run file as data: for ``wafer config keys`` and the JSON schema of editors.

A key's meaning is the ``#:`` comment at its field, or its line under "Attributes:" in the docstring
of the class; a subclass inherits both.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from wafer.config.distillation import Distillation
from wafer.config.runconfig import ClusterKeys, RunSection
from wafer.data.registry import DATA_PROCESSORS
from wafer.data.sections.base import InputSection
from wafer.models.errors import did_you_mean
from wafer.models.sections import Choice, Section, meanings
from wafer.optim.schedule_sections import SCHEDULERS, Schedule
from wafer.optim.sections import OPTIMIZERS


class Key(NamedTuple):
    """One key: dotted name, what it takes, its default, what it means."""

    name: str
    takes: str
    default: str
    meaning: str

    @property
    def line(self) -> str:
        """The key as the command line lists it."""
        return f"  {self.name:<36} {self.takes:<28} {self.default:<16} {self.meaning}".rstrip()


def section_classes() -> dict[str, dict[str, type[Section]]]:
    """Return the classes of each section, by the name that chooses among them ('' for one)."""
    from wafer.models.registry import config_class, list_models
    from wafer.sparsity.sections.config import GroupSection

    inputs: dict[str, type[Section]] = dict(DATA_PROCESSORS)
    return {
        "runconfig": {"": RunSection},
        "train_input": inputs,
        "eval_input": inputs,
        "model": {name: config_class(name) for name in list_models()},
        "optimizer": dict(OPTIMIZERS),
        "learning_rate": dict(SCHEDULERS),
        "sparsity": {"": GroupSection},
        "distillation": {"": Distillation},
    }


def keys(section: str) -> list[tuple[str, list[Key]]]:
    """Return the keys of a section, nested ones expanded: (class or family, keys).

    Keys that all classes of the section share come first, under ''.

    Args:
        section: a name of ``section_classes``, or one of its classes: 'AdamW', 'gpt2'.

    Raises:
        ValueError: unknown name, with the nearest known one.
    """
    sections = section_classes()
    if section not in sections:
        for classes in sections.values():
            for name, cls in classes.items():
                if name and name.lower() == section.lower():
                    return [(name, _of_class(cls, _presets(name)))]
        known = [*sections, *(name for classes in sections.values() for name in classes if name)]
        message = f"{section!r}: unknown section{did_you_mean(section, known)}; known: "
        raise ValueError(message + ", ".join(sections))
    classes = sections[section]
    if "" in classes:
        return [("", _of_class(classes[""]))]
    unique = {cls: name for name, cls in reversed(classes.items())}
    tables = [(name, _of_class(cls)) for cls, name in reversed(unique.items())]
    shared = [key for key in tables[0][1] if all(key in table for _, table in tables)]
    own = [(name, [key for key in table if key not in shared]) for name, table in tables]
    return [("", shared), *(row for row in own if row[1])]


def _presets(name: str) -> Mapping[str, object]:
    from wafer.models.registry import list_models

    entry = list_models().get(name)
    return entry.presets if entry else {}


def _of_class(cls: type[Section], presets: Mapping[str, object] | None = None) -> list[Key]:
    return list(_expand(cls, "", presets or {}))


def _expand(cls: type[Section], prefix: str, presets: Mapping[str, object]) -> Iterator[Key]:
    said = meanings(cls)
    for name, field in cls.model_fields.items():
        default = "required" if field.is_required() else _default(field.get_default())
        default = _default(presets[name]) if name in presets else default
        owner = next(c for c in cls.__mro__ if name in inspect.get_annotations(c))
        ignored = owner in (ClusterKeys, InputSection.__base__) or owner.__name__ == "ModelConfig"
        meaning = said.get(name) or ("accepted; no effect here" if ignored else "")
        nested_in = _sections_in(field.annotation)
        scheduled = Schedule in nested_in
        takes = "number | scheduler | list" if scheduled else _takes(field.annotation)
        yield Key(prefix + name, takes, default, meaning)
        for nested in nested_in:
            if nested is not Schedule:  # schedulers have tables of their own
                yield from _expand(nested, f"{prefix}{name}.", {})


def _sections_in(annotation: object) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [s for part in typing.get_args(annotation) for s in _sections_in(part)]


def _takes(annotation: object) -> str:
    """Say what a key takes, in the words of a YAML file."""
    if annotation in (None, type(None)):
        return "null"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _takes(args[0])
    if origin is Literal:
        return " | ".join(map(_default, args))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_takes(arg) for arg in args))
    if origin in (tuple, list):
        return "list"
    words = {bool: "true | false", int: "integer", float: "number", str: "text", Any: "any"}
    return words.get(annotation, "mapping")


def _default(value: object) -> str:
    if isinstance(value, Section):
        return ", ".join(f"{k}: {_default(v)}" for k, v in value.to_dict().items()) or "{}"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_default, value)) + "]"
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


# --- JSON schema -----------------------------------------------------------------------------


class _Schema(GenerateJsonSchema):
    """Where a key has a reader of its own, it takes more than its type says: anything."""

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        function = schema["function"]["function"]
        ours = isinstance(getattr(function, "__self__", None), type)  # a validator of a Section
        known = function is Choice.func or function.__name__ == "_upper"
        return super().function_before_schema(schema) if ours or known else {}


OtherNames = Callable[[str, str], Mapping[str, tuple[str, bool]]]


def json_schema(other_names: OtherNames = lambda section, name: {}) -> dict[str, object]:
    """Return a JSON schema (draft 2020-12) of the run file, for editors.

    What depends on other keys, and names ``module:object`` of one's own, only ``wafer run
    --validate_only`` checks.

    Args:
        other_names: (section, name that chooses its class) -> {another name of a key: (the key,
            whether it is true or false)}.
    """
    definitions: dict[str, Any] = {}
    properties: dict[str, Any] = {"description": {}}
    choosers = {
        "train_input": "data_processor",
        "eval_input": "data_processor",
        "model": "name",
        "optimizer": "optimizer_type",
    }
    for section, classes in section_classes().items():
        others: dict[type[Section], dict[str, tuple[str, bool]]] = {}
        for name, cls in classes.items():
            others.setdefault(cls, {}).update(other_names(section, name))
        names = {cls: _define(cls, own, definitions) for cls, own in others.items()}
        if section == "learning_rate":
            continue
        if section == "sparsity":  # older dialects and lists of groups as well
            properties[section] = {"anyOf": [{"$ref": names[classes[""]]}, {}]}
        elif "" in classes:
            properties[section] = {"$ref": names[classes[""]]}
        else:
            chooser = choosers[section]
            properties[section] = {
                "type": "object",
                "required": [chooser],
                "properties": {chooser: {"type": "string", "examples": list(classes)}},
                "allOf": [
                    {
                        "if": {"properties": {chooser: {"const": name}}, "required": [chooser]},
                        "then": {"$ref": names[cls]},
                    }
                    for name, cls in classes.items()
                ],
            }
    for name in {cls.__name__ for cls in section_classes()["model"].values()}:
        # A family's own reader knows further spellings, and gives the towers inside it their names.
        definitions[name]["additionalProperties"] = True
        definitions[name]["required"] = []
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Wafer run file",
        "type": "object",
        "properties": properties,
        "required": ["model"],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _define(
    cls: type[Section], others: Mapping[str, tuple[str, bool]], definitions: dict[str, object]
) -> str:
    """Add the schemas of a class and of what it holds; return its reference."""
    schema = cls.model_json_schema(schema_generator=_Schema)
    for name, inner in schema.pop("$defs", {}).items():
        definitions.setdefault(name, inner)
    told = {key.name: key.meaning for key in _of_class(cls)}
    properties = schema.get("properties", {})
    for name, value in properties.items():
        value.setdefault("description", told.get(name))
    for other, (key, flag) in others.items():
        takes = {"type": "boolean"} if flag else properties.get(key, {})
        properties[other] = takes | {"description": f"another spelling of {key}"}
    named = {key for key, _ in others.values()}
    schema["required"] = [name for name in schema.get("required", []) if name not in named]
    definitions[cls.__name__] = schema
    return f"#/$defs/{cls.__name__}"
