"""Flax models behind one bundle of pure functions.

Public names are loaded when they are used: a configuration is checked without jax.
"""

import importlib
from typing import TYPE_CHECKING, Any

if __name__ != "wafer.models":
    raise ImportError("models is a folder of wafer: write `from wafer import models`")

if TYPE_CHECKING:
    from wafer.models.base import Aux, Batch, Model, Stage
    from wafer.models.convert import from_hf, to_hf
    from wafer.models.counts import flops_per_token, parameter_count
    from wafer.models.families.fc_mnist import image_batch
    from wafer.models.generation.beam import beam_search
    from wafer.models.generation.decode import generate, generate_stream
    from wafer.models.generation.speculation import speculate
    from wafer.models.losses import metric_values
    from wafer.models.paths import named_leaves
    from wafer.models.registry import build, list_models

__all__ = [
    "Aux",
    "Batch",
    "Model",
    "Stage",
    "beam_search",
    "build",
    "flops_per_token",
    "from_hf",
    "generate",
    "generate_stream",
    "image_batch",
    "list_models",
    "metric_values",
    "named_leaves",
    "parameter_count",
    "speculate",
    "to_hf",
]

_OWNERS = {
    "base": ("Aux", "Batch", "Model", "Stage"),
    "generation.beam": ("beam_search",),
    "convert": ("from_hf", "to_hf"),
    "counts": ("flops_per_token", "parameter_count"),
    "families.fc_mnist": ("image_batch",),
    "generation.decode": ("generate", "generate_stream"),
    "losses": ("metric_values",),
    "paths": ("named_leaves",),
    "registry": ("build", "list_models"),
    "generation.speculation": ("speculate",),
}
_OWNER = {name: module for module, names in _OWNERS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _OWNER:
        raise AttributeError(f"module 'wafer.models' has no attribute {name!r}")
    return getattr(importlib.import_module(f"wafer.models.{_OWNER[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
