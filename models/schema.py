"""The base of every model configuration: frozen, hashable, strict, and friendly when it refuses.

Keys are the vendor's own (the ``model`` section of a params YAML). Unknown keys are errors with a
suggestion; PyYAML reads ``1e-5`` as a string, which float fields accept.
"""

import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Self

import jax.numpy as jnp
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from models.paths import close_names

__all__ = ["ComputeDtype", "Initializer", "ModelConfig", "Section"]

ComputeDtype = Literal["float32", "bfloat16", "float16"]
_HALF: dict[str, ComputeDtype] = {
    "bfloat16": "bfloat16",
    "cbfloat16": "bfloat16",
    "float16": "float16",
}


def _leaf_types(annotation: Any) -> set[Any]:
    """Flatten unions and Annotated to the plain types they allow."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return set().union(*(_leaf_types(arg) for arg in typing.get_args(annotation)))
    if origin is typing.Annotated:
        return _leaf_types(typing.get_args(annotation)[0])
    return {annotation}


class Section(BaseModel):
    """A frozen part of a configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _no_booleans_as_numbers(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        for key, value in data.items():
            field = cls.model_fields.get(key)
            if field is None or not isinstance(value, bool):
                continue
            allowed = _leaf_types(field.annotation)
            if bool not in allowed and allowed & {int, float}:
                raise ValueError(f"{key}: expected a number, got {value}")
        return data

    @classmethod
    def parse(cls, settings: Mapping[str, Any], where: str = "model") -> Self:
        """Validate a mapping; all complaints come in one ``ValueError``.

        Args:
            settings: the keys of the YAML section.
            where: the section's name, put before every key in messages.

        Raises:
            ValueError: one line per wrong key: where, what was found, what is allowed.
        """
        try:
            return cls.model_validate(dict(settings))
        except ValidationError as error:
            lines = [cls._explain(where, item) for item in error.errors()]
            raise ValueError("\n".join(lines)) from None

    @classmethod
    def _explain(cls, where: str, item: Any) -> str:
        path = ".".join([where, *(str(part) for part in item["loc"] if not _is_tag(part))])
        if item["type"] == "extra_forbidden":
            known = cls._fields_at(item["loc"][:-1])
            return f"{path}: unknown key{close_names(str(item['loc'][-1]), known)}"
        if item["type"] == "missing":
            return f"{path}: required key is missing"
        message = item["msg"].removeprefix("Value error, ")
        found = "" if item["type"] == "value_error" else f", got {item['input']!r}"
        return f"{path}: {message}{found}"

    @classmethod
    def _fields_at(cls, loc: tuple[Any, ...]) -> list[str]:
        section: Any = cls
        for part in loc:
            field = section.model_fields.get(part)
            kinds = _leaf_types(field.annotation) if field else set()
            nested = [k for k in kinds if isinstance(k, type) and issubclass(k, Section)]
            if not nested:
                return []
            section = nested[0]
        return list(section.model_fields)


def _is_tag(part: Any) -> bool:
    """Pydantic puts the union member's name into the path; users do not want it."""
    return isinstance(part, str) and ("[" in part or part in {"str", "int", "float", "bool"})


class Initializer(Section):
    """How a weight is drawn: the vendor's ``{name: truncated_normal, mean: 0, std: 0.02}``.

    Attributes:
        name: the distribution; see ``models.initializers``.
        mean: of normal and truncated_normal.
        std: of normal and truncated_normal.
        a: lower bound of uniform and truncated_normal (absolute); default -2 std when truncated.
        b: upper bound likewise.
        val: of constant.
        scale: of variance_scaling.
        mode: of variance_scaling and kaiming.
        distribution: of variance_scaling.
        gain: of xavier.
    """

    name: str
    mean: float = 0.0
    std: float = 0.02
    a: float | None = None
    b: float | None = None
    val: float = 0.0
    scale: float = 1.0
    gain: float = 1.0
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"
    distribution: Literal["normal", "truncated_normal", "uniform"] = "truncated_normal"


class ModelConfig(Section):
    """Keys that every family takes.

    Attributes:
        name: a name of ``models.list_models()``.
        mixed_precision: compute in half precision; parameters stay float32.
        fp16_type: which half precision.
        compute_dtype: overrides both.
    """

    name: str
    mixed_precision: bool = False
    fp16_type: Literal["bfloat16", "cbfloat16", "float16"] = "float16"
    compute_dtype: ComputeDtype | None = None
    # Accepted because the vendor's run files carry them; they steer its hardware only.
    use_bfloat16: bool | None = None
    to_float16: bool | None = None
    boundary_casting: bool | None = None
    tf_summary: bool | None = None
    compute_eval_metrics: bool | tuple[str, ...] | None = None  # always computed here
    precision_opt_level: int | None = None
    attention_kernel: str | None = None
    gradient_checkpointing: bool | None = None
    compression: str | None = None
    enable_vts: bool = False
    use_vsl: bool = False
    attention_softmax_fp32: bool = True

    @property
    def dtype(self) -> Any:
        """Return the dtype that activations are computed in."""
        if self.compute_dtype is not None:
            return jnp.dtype(self.compute_dtype)
        return jnp.dtype(_HALF[self.fp16_type] if self.mixed_precision else "float32")
