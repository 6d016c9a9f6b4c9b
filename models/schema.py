"""Keys that every model configuration has, of the ``model`` section."""

import json
import pathlib
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax.numpy as jnp
from pydantic import Field, NonNegativeFloat, PositiveFloat

from wafer.models.sections import Section

Dropout = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]

ComputeDtype = Literal["float32", "bfloat16", "float16"]
_HALF: dict[str, ComputeDtype] = {
    "bfloat16": "bfloat16",
    "cbfloat16": "bfloat16",
    "float16": "float16",
}


_TABLES = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


class Initializer(Section):
    """How a weight is drawn, such as ``{name: truncated_normal, mean: 0, std: 0.02}``."""

    name: str  #: the distribution; see ``wafer.models.layers.initializers``
    mean: float = 0.0  #: of normal and truncated_normal
    std: NonNegativeFloat = 0.02  #: of normal and truncated_normal
    #: lower bound of uniform and truncated_normal (absolute); default -2 std when truncated
    a: float | None = None
    b: float | None = None  #: upper bound; default 2 std when truncated
    val: float = 0.0  #: of constant
    scale: PositiveFloat = 1.0  #: of variance_scaling
    gain: PositiveFloat = 1.0  #: of xavier
    mode: Literal["fan_in", "fan_out", "fan_avg"] = "fan_in"  #: of variance_scaling and kaiming
    #: of variance_scaling
    distribution: Literal["normal", "truncated_normal", "uniform"] = "truncated_normal"


class ModelConfig(Section):
    """Keys that every family takes."""

    #: key of a ``config.json`` -> ours, for those who write a run file by it
    elsewhere: ClassVar[Mapping[str, str]] = _TABLES["hugging_face"]

    name: str  #: a name of ``models.list_models()``
    mixed_precision: bool = False  #: compute in half precision; parameters stay float32
    fp16_type: Literal["bfloat16", "cbfloat16", "float16"] = "float16"  #: which half precision
    compute_dtype: ComputeDtype | None = None  #: overrides both
    enable_vts: bool = False  #: compute no padding: rows of one sequence each are stripped of it
    use_vsl: bool = False  #: rows hold several sequences
    attention_softmax_fp32: bool = True  #: softmax of attention in float32

    @property
    def dtype(self) -> Any:
        """Return the dtype that activations are computed in."""
        if self.compute_dtype is not None:
            return jnp.dtype(self.compute_dtype)
        return jnp.dtype(_HALF[self.fp16_type] if self.mixed_precision else "float32")

    is_dense_stack: ClassVar[bool] = False  # dense layers with biases, and nothing else

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks whose rows the model learns from, the usual one first; () without a loss."""
        return ()

    @property
    def uses_dropout(self) -> bool:
        """Whether training drops anything out."""
        return False

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """Shape of one image the model takes; None where it takes none."""
        return None

    @property
    def max_length(self) -> int | None:
        """Longest sequence; None where nothing limits it."""
        return None
